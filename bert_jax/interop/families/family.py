"""Description of a family of models in `transformers`.

A family is a `model_type` with its classes. Its description has the names of arrays
and config values; `huggingface.py` and `configs.py` apply it. Parameter paths of
bert_jax are keys, and names of `transformers` are values. A path may be that of a layer
with a kernel or scale, and a bias.
"""

import dataclasses
import pathlib
from collections.abc import Callable, Mapping
from typing import Any

from bert_jax import config as config_lib

# Purposes of model classes, the same in all families.
BARE = "bare encoder"
NEXT_SENTENCE = "masked tokens with next sentence"
SENTENCE_ORDER = "masked tokens with sentence order"
MASKED_LM = "masked tokens"
ONLY_NEXT_SENTENCE = "next sentence"
CAUSAL_LM = "left to right"
PERMUTATION_LM = "permuted tokens"
REPLACED_TOKENS = "replaced tokens"
CLASSIFICATION = "classification"
TAGGING = "tagging"
ANSWERING = "answering"
CHOICE = "multiple choice"

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


@dataclasses.dataclass(frozen=True)
class ModelClass:
    """A model class of `transformers`.

    Attributes:
      name: Name of the class.
      parts: Names of its heads and its pooler, by parameter path.
      head_activation: Activation of its head, whatever the config says, by its name in
        bert_jax; "": that of the encoder.
      is_named: Whether a folder must name the class in `config.json`, because other
        classes have arrays of the same names.
    """

    name: str
    parts: Mapping[str, str]
    head_activation: str = ""
    is_named: bool = False


@dataclasses.dataclass(frozen=True)
class Family:
    """The classes of one `model_type`.

    Attributes:
      model_type: `model_type` in `config.json`.
      title: Name of the family in messages and model cards.
      prefix: Prefix of the encoder's arrays; a class of the encoder alone omits it.
      encoder: Names of the encoder's arrays outside its layers, by parameter path.
      layer_prefix: Prefix of a layer's arrays, with {} for its number.
      layer: Names within a layer, by path within a layer. Paths of one name are the
        parts of one array, in order, stacked along its output dimension. An array whose
        own path is listed, not that of its layer, has the dimensions of the parameter,
        the output dimension first.
      decoder: Name of the layer that may hold a copy of the token embedding.
      classes: Classes by purpose. The first whose arrays a folder has is read.
      exports: Function of an encoder, its purpose and its kind of tokenizer; returns
        whether an export tries this family.
      fields: `FIELDS` of `configs.py` that have another name or default, or that only
        this family has.
      constants: Required values in `config.json`, where it has them.
      settings: Fields of `EncoderConfig` that all encoders of the family share.
      read_fields: Function of a `config.json` and its values; returns fields of
        `EncoderConfig` that do not correspond to one value each.
      write_fields: The inverse of `read_fields`.
      activation: Name of the activation in `config.json`.
      is_projected: Whether embeddings are projected even if they are as wide as hidden
        states.
      has_padding_positions: Whether positions are counted from `pad_token_id` + 1, so
        that the table begins with rows for padding.
      cls_is_last: Whether [CLS] stands behind the text, and padding before it.
      min_segments: Smallest `type_vocab_size` of the family's encoders.
      lower_case: Default of tokenizers whose settings do not say it.
    """

    model_type: str
    title: str
    prefix: str
    encoder: Mapping[str, str]
    layer_prefix: str
    layer: Mapping[str, str]
    decoder: str
    classes: Mapping[str, ModelClass]
    exports: Callable[[config_lib.EncoderConfig, str, str], bool]
    fields: Mapping[str, tuple[str, type, Any]] = dataclasses.field(
        default_factory=dict
    )
    constants: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    read_fields: Callable[[pathlib.Path, Mapping[str, Any]], dict[str, Any]] = (
        lambda path, values: {}
    )
    write_fields: Callable[[config_lib.EncoderConfig], dict[str, Any]] = (
        lambda encoder: {}
    )
    activation: str = "hidden_act"
    is_projected: bool = False
    has_padding_positions: bool = False
    cls_is_last: bool = False
    min_segments: int = 1
    lower_case: bool = True

    @property
    def bare_prefixes(self) -> set[str]:
        """First parts of the names in a folder that has the encoder alone."""
        names = [*self.encoder.values(), self.layer_prefix]
        for each in self.classes.values():
            names += each.parts.values()
        own = [n.removeprefix(self.prefix) for n in names if n.startswith(self.prefix)]
        return {name.split(".")[0] for name in own}

    @property
    def language_model(self) -> dict[str, str]:
        """Names of the language model's head, by path within the head."""
        purpose = MASKED_LM if MASKED_LM in self.classes else PERMUTATION_LM
        parts = self.classes[purpose].parts
        return {path.partition("/")[2]: name for path, name in parts.items()}
