"""Every knob of the project, declared once: its default, its limits and its reason.

Recipes in `configs/` turn these dataclasses into an `ml_collections.ConfigDict`, change
what differs, and return it; the command line overrides fields of it; entrypoints turn
it back with `knobs.from_configdict`, which checks it. Inside the project only the
frozen dataclasses travel.

Limits of one field stand at the field. What must hold between fields is in the method
`check` of the dataclass that has them; its argument `where` is the path of the fields
inside the whole config, such as "encoder.", for messages.
"""

from bert_jax.config.finetuning import FinetuneConfig
from bert_jax.config.model import (
    BERT_VOCAB_SIZE,
    EncoderConfig,
    PredictionHeadConfig,
)
from bert_jax.config.objectives import (
    PAIR_QUESTIONS,
    SINGLE_SEGMENTS,
    CausalLmConfig,
    MaskedLmConfig,
    MaskingConfig,
    PermutationLmConfig,
    ReplacedTokensConfig,
)
from bert_jax.config.pretraining import DataConfig, PhaseConfig, PretrainConfig
from bert_jax.config.tasks import (
    GLUE,
    ChoiceConfig,
    ClassificationConfig,
    SquadConfig,
    TaggingConfig,
    TaskConfig,
)
from bert_jax.config.training import LoopConfig, MeshConfig, OptimizerConfig

__all__ = [
    "BERT_VOCAB_SIZE",
    "GLUE",
    "PAIR_QUESTIONS",
    "SINGLE_SEGMENTS",
    "CausalLmConfig",
    "ChoiceConfig",
    "ClassificationConfig",
    "DataConfig",
    "EncoderConfig",
    "FinetuneConfig",
    "LoopConfig",
    "MaskedLmConfig",
    "MaskingConfig",
    "MeshConfig",
    "OptimizerConfig",
    "PermutationLmConfig",
    "PhaseConfig",
    "PredictionHeadConfig",
    "PretrainConfig",
    "ReplacedTokensConfig",
    "SquadConfig",
    "TaggingConfig",
    "TaskConfig",
]
