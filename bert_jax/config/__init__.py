"""Configs: all settings of the project, each with its default, limits and reason.

Recipes in `configs/` convert these dataclasses to an `ml_collections.ConfigDict`,
change some fields, and return it. The command line overrides fields. Entry points
convert it back with `from_dict`, which checks it. Inside the project only
the frozen dataclasses are used.

The limits of a field stand at the field. Conditions on several fields are in the method
`check` of the dataclass that has them. Its argument `where` is the path of the fields
inside the whole config, such as "encoder.", for messages.
"""

from bert_jax.config.fields import (
    architecture,
    check,
    differences,
    fill_in,
    from_dict,
    leaves,
    to_configdict,
    to_dict,
)
from bert_jax.config.finetuning import FinetuneConfig
from bert_jax.config.model import (
    BERT_VOCAB_SIZE,
    EncoderConfig,
    PoolerConfig,
    PredictionHeadConfig,
)
from bert_jax.config.objectives import (
    PAIR_TASKS,
    SINGLE_SEGMENTS,
    CausalLmConfig,
    DistillationConfig,
    MaskedLmConfig,
    MaskingConfig,
    ObjectiveConfig,
    PermutationLmConfig,
    ReplacedTokensConfig,
)
from bert_jax.config.pretraining import (
    FIELD_PREFIXES,
    DataConfig,
    PhaseConfig,
    PretrainConfig,
)
from bert_jax.config.tasks import (
    FINETUNE_COMMANDS,
    GLUE,
    ChoiceConfig,
    ClassificationConfig,
    EmbeddingConfig,
    SquadConfig,
    TaggingConfig,
    TaskConfig,
)
from bert_jax.config.training import LoopConfig, MeshConfig, OptimizerConfig
