"""Description of a family of models in `transformers`.

A family is a `model_type` with its classes. It maps parameter paths of bert_jax to
array names of `transformers`, and config fields to config values. A path may name a
layer, which stands for its kernel or scale and its bias. `huggingface.py` and
`configs.py` apply the description.
"""

import dataclasses
from collections.abc import Callable, Collection, Mapping
from typing import Any

from bert_jax import config as config_lib
from bert_jax.errors import UserError
from bert_jax.interop.json_files import JsonFile
from bert_jax.tokenizer import Tokenizer

# Purposes of model classes, the same in all families.
BARE = "bare encoder"
NEXT_SENTENCE = "masked tokens with next sentence"
SENTENCE_ORDER = "masked tokens with sentence order"
MASKED_LM = "masked tokens"
CAUSAL_LM = "left to right"
PERMUTATION_LM = "permuted tokens"
REPLACED_TOKENS = "replaced tokens"
CLASSIFICATION = "classification"
TAGGING = "tagging"
ANSWERING = "answering"
CHOICE = "multiple choice"
TASKS = CLASSIFICATION, TAGGING, ANSWERING, CHOICE
# Purposes of classes that read a pooled vector.
POOLED = CLASSIFICATION, CHOICE, NEXT_SENTENCE, SENTENCE_ORDER
# Projections that attention begins with.
INPUTS = "query", "key", "value"
# Ends of the names of model classes.
_ENDINGS = {
    BARE: "Model",
    NEXT_SENTENCE: "ForPreTraining",
    SENTENCE_ORDER: "ForPreTraining",
    MASKED_LM: "ForMaskedLM",
    CAUSAL_LM: "LMHeadModel",
    PERMUTATION_LM: "LMHeadModel",
    REPLACED_TOKENS: "ForPreTraining",
    CLASSIFICATION: "ForSequenceClassification",
    TAGGING: "ForTokenClassification",
    ANSWERING: "ForQuestionAnswering",
    CHOICE: "ForMultipleChoice",
}

# Activations of bert_jax by their names in `transformers`, whose "gelu" is exact.
ACTIVATIONS = {
    "gelu": "gelu_erf",
    "gelu_python": "gelu_erf",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "silu": "silu",
    "swish": "silu",
}
ACTIVATION_NAMES = {"gelu_erf": "gelu", "gelu_tanh": "gelu_new", "silu": "silu"}


def read_linear_bias(file: JsonFile) -> bool:
    """Return whether the linear layers of ModernBERT and later families have biases."""
    names = "attention_bias", "mlp_bias"
    attention, mlp = (file.value(name, bool, False) for name in names)
    if attention != mlp:
        raise UserError(
            f"{file.path}: attention_bias is {attention} and mlp_bias is {mlp}; "
            "bert_jax supports equal values only"
        )
    return attention


@dataclasses.dataclass(frozen=True)
class Family:
    """The classes of one `model_type`, and what their encoders have in common."""

    model_type: str  # in `config.json`
    title: str  # in messages and model cards
    # Prefix of the names of the encoder's arrays; a bare encoder has none.
    prefix: str
    encoder: Mapping[str, str]  # names of arrays outside its layers, by parameter path
    # Prefix of the names of a layer's arrays, with {} for its number.
    layer_prefix: str
    # Names within a layer, by path within a layer. Paths with the same name are parts
    # of one array, in order, stacked along its output dimension. If the path of a
    # kernel itself is listed, its array keeps the dimensions of the parameter, with the
    # output dimension first.
    layer: Mapping[str, str]
    decoder: str  # name of the layer that may hold a copy of the token embedding
    # By purpose, the names of the arrays of a class's heads and pooler, by parameter
    # path. The first class whose arrays a folder has is read.
    classes: Mapping[str, Mapping[str, str]]
    class_prefix: str  # prefix of the names of its classes
    # Whether an export tries this family, by encoder, purpose and tokenizer.
    exports: Callable[[config_lib.EncoderConfig, str, Tokenizer], bool]
    older_prefix: str = ""  # the same as `prefix`, in older files; "": none
    # Ends of the names of its classes that differ from other families.
    endings: Mapping[str, str] = dataclasses.field(default_factory=dict)
    # Ends of the names of further classes. Only their encoder is read.
    encoder_only: tuple[str, ...] = ()
    # Purposes of classes that `config.json` must name, because another class has arrays
    # of the same names.
    ambiguous_purposes: Collection[str] = (CLASSIFICATION, TAGGING, CHOICE)
    # Activation in the head of the class for masked tokens, whatever the config says;
    # "": the encoder's.
    masked_lm_activation: str = ""
    # Entries of `FIELDS` in `configs.py` that differ, or that only this family has.
    fields: Mapping[str, tuple[str, type, Any]] = dataclasses.field(
        default_factory=dict
    )
    # Names of values in `config.json` by their aliases. If a file has both,
    # `transformers` uses the alias.
    synonyms: Mapping[str, str] = dataclasses.field(default_factory=dict)
    # The only supported values of these keys in `config.json`. An export writes them.
    constants: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    # Fields of `EncoderConfig` that all encoders of the family share.
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    # Returns a `config.json` with the names that `transformers` uses now.
    read_older: Callable[[JsonFile], JsonFile] = lambda file: file
    # Returns fields of `EncoderConfig` that do not correspond to one value each.
    read_fields: Callable[[JsonFile], dict[str, Any]] = lambda file: {}
    # The inverse, for an encoder and the purpose of its class.
    write_fields: Callable[[config_lib.EncoderConfig, str], dict[str, Any]] = (
        lambda encoder, purpose: {}
    )
    activation: str = "hidden_act"  # name of the activation in `config.json`
    # Whether embeddings are projected even if they are as wide as hidden states.
    is_projected: bool = False
    # Whether positions start at `pad_token_id` + 1. The first rows of the position
    # embedding are then unused.
    has_padding_positions: bool = False
    cls_is_last: bool = False  # whether [CLS] follows the text, and padding precedes it
    min_segments: int = 1  # smallest `type_vocab_size` of the family's encoders
    lower_case: bool = True  # whether tokenizers lower-case text by default

    def class_name(self, purpose: str) -> str:
        """Return the name of a class."""
        return self.class_prefix + {**_ENDINGS, **self.endings}[purpose]

    def required_activation(self, purpose: str) -> str:
        """Return the activation that a class's head must have in bert_jax; "": any."""
        return self.masked_lm_activation if purpose == MASKED_LM else ""

    @property
    def bare_prefixes(self) -> set[str]:
        """First parts of the names in a folder that has the encoder alone."""
        names = [*self.encoder.values(), self.layer_prefix]
        for parts in self.classes.values():
            names += parts.values()
        own = [n.removeprefix(self.prefix) for n in names if n.startswith(self.prefix)]
        return {name.split(".")[0] for name in own}

    @property
    def output_bias(self) -> str:
        """Name of the array with the output bias of the language model's head."""
        purpose = MASKED_LM if MASKED_LM in self.classes else PERMUTATION_LM
        parts = self.classes[purpose].items()
        return next((n for path, n in parts if path.endswith("/output_bias")), "")
