"""Parameters as arrays of `transformers`, and back.

Neither torch nor `transformers` is needed. A parameter corresponds to one array or,
where layers are stacked, to one array in each layer. Several parameters may be parts of
one array, such as query, key and value in ModernBERT's `Wqkv`.
"""

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from bert_jax import config as config_lib
from bert_jax.errors import UserError
from bert_jax.interop.families.family import CAUSAL_LM, Family, ModelClass
from bert_jax.model import parameters

# `transformers` stores a kernel with its output dimension first.
_LEAF = {"kernel": "weight", "scale": "weight", "bias": "bias"}
_STACKED = "encoder/layers/"


@dataclasses.dataclass(frozen=True)
class Form:
    """A model class of `transformers` with a config.

    Attributes:
      family: Family of the class.
      purpose: Purpose of the class.
      encoder: Config of the encoder.
      pad_id: Id of the padding.

    Raises:
      UserError: The class computes something else than the encoder.
    """

    family: Family
    purpose: str
    encoder: config_lib.EncoderConfig
    pad_id: int

    def __post_init__(self):
        c, family = self.encoder, self.family
        if family.is_projected and c.embedding_columns == c.hidden_size:
            raise UserError(
                f"the embeddings have hidden_size={c.hidden_size} columns; "
                f"{family.title} of transformers projects them even so, and bert_jax "
                "does not"
            )
        if c.causal and CAUSAL_LM not in family.classes:
            raise UserError(
                f"the encoder is causal; {family.title} of transformers has no causal "
                "class"
            )
        activation = c.prediction_head.activation or c.activation
        if self.model_class.head_activation not in ("", activation):
            raise UserError(
                f"the head of {self.name} computes {self.model_class.head_activation}; "
                f"the head of this encoder computes {activation}"
            )

    @property
    def model_class(self) -> ModelClass:
        """The class."""
        return self.family.classes[self.purpose]

    @property
    def name(self) -> str:
        """Name of the class."""
        return self.model_class.name

    @property
    def skipped_positions(self) -> int:
        """Rows of the published position embedding that no token uses."""
        return self.pad_id + 1 if self.family.has_padding_positions else 0

    @property
    def heads(self) -> list[str]:
        """First parts of the paths of the class's heads and pooler."""
        heads = [
            p if p.startswith("encoder/") else p.split("/")[0]
            for p in self.model_class.parts
        ]
        return list(dict.fromkeys(heads))


def names(path: str, form: Form) -> list[str]:
    """Return the names of a parameter's arrays.

    There is one name, or one for each layer that has the array. The list is empty if
    the class has no such parameter.
    """
    family = form.family
    if not path.startswith(_STACKED):
        name = _name(path, family.encoder) or _name(path, form.model_class.parts)
        return [name] if name else []
    name = _name(path.removeprefix(_STACKED), family.layer)
    if not name:
        return []
    layers = range(_first_layer(path, form), form.encoder.num_distinct_layers)
    return [f"{family.layer_prefix.format(i)}.{name}" for i in layers]


def parts(path: str, form: Form) -> list[str]:
    """Return the paths of the parameters that share this one's arrays, in order.

    Each array holds as many output rows of one parameter as of the next. Most arrays
    hold one parameter.
    """
    if not path.startswith(_STACKED):
        return [path]
    within = path.removeprefix(_STACKED)
    table = form.family.layer
    key = within if within in table else within.rpartition("/")[0]
    leaf = within.removeprefix(key)
    return [f"{_STACKED}{k}{leaf}" for k in table if table[k] == table.get(key)]


def optional(form: Form) -> dict[str, tuple[int, ...]]:
    """Return the shapes of arrays that every model of the class has.

    An encoder of bert_jax may lack them; they are zeros then. These are the segment
    embeddings, and XLNet's target embedding.
    """
    c = form.encoder
    types, heads = c.type_vocab_size, (c.num_heads, c.head_size)
    shapes = {
        "encoder/embeddings/segment_embedding": (types, c.embedding_columns),
        "encoder/layers/attention/segment_bias": (c.num_layers, *heads),
        "encoder/layers/attention/segment_embedding": (c.num_layers, 2, *heads),
        "target_embedding": (c.hidden_size,),
    }
    return {
        name: array_shape(path, parameter_shape, form)
        for path, parameter_shape in shapes.items()
        for name in names(path, form)
    }


def _name(path: str, table: Mapping[str, str]) -> str:
    if path in table:
        return table[path]
    parent, _, leaf = path.rpartition("/")
    return f"{table[parent]}.{_LEAF[leaf]}" if parent in table else ""


def _first_layer(path: str, form: Form) -> int:
    """Return the first layer that has a parameter's array.

    Parameters are stacked over all layers, even where layer 0 has no attention norm.
    """
    is_missing = path.startswith(f"{_STACKED}attention_norm/")
    return int(is_missing and not form.encoder.first_attention_norm)


def array_shape(path: str, shape: Sequence[int], form: Form) -> tuple[int, ...]:
    """Return the shape of each array of a parameter.

    Args:
      path: Path of the parameter.
      shape: Shape of the parameter.
      form: Class and config.
    """
    first, *rest = _part_shape(path, shape, form)
    return first * len(parts(path, form)), *rest


def _part_shape(path: str, shape: Sequence[int], form: Form) -> tuple[int, ...]:
    """Return the shape of the part of an array that is one parameter in one layer."""
    if path.startswith(_STACKED):
        shape = shape[1:]
    if _keeps_dimensions(path, form):
        return (shape[-1], *shape[:-1]) if _is_output(path) else tuple(shape)
    if path == "target_embedding":
        return 1, 1, *shape
    if parameters.has_row_for_each_token(path):
        return form.encoder.vocab_size, *shape[1:]
    if _has_row_for_each_position(path):
        return shape[0] + form.skipped_positions, *shape[1:]
    if _is_output(path):  # [H, K, D]
        return shape[-1], math.prod(shape[:-1])
    if path.endswith("kernel"):  # [D, F] or [D, H, K]
        return math.prod(shape[1:]), shape[0]
    if path.endswith("bias"):  # [F] or [H, K]
        return (math.prod(shape),)
    return tuple(shape)


def _has_row_for_each_position(path: str) -> bool:
    return path.endswith("position_embedding")


def _is_output(path: str) -> bool:
    return path.endswith("attention/output/kernel")


def _keeps_dimensions(path: str, form: Form) -> bool:
    """Return whether an array has the parameter's dimensions, [D, H, K].

    An output kernel [H, K, D] is an array [D, H, K].
    """
    return path.removeprefix(_STACKED) in form.family.layer


def to_arrays(values: Mapping[str, np.ndarray], form: Form) -> list[np.ndarray]:
    """Return the arrays of parameters that share them, in the order of `names`.

    Args:
      values: The parameters, by the paths of `parts` and in their order.
      form: Class and config.

    Returns:
      Views of the parameter if possible.
    """
    by_part = [_part_arrays(path, value, form) for path, value in values.items()]
    if len(by_part) == 1:
        return by_part[0]
    return [np.concatenate(arrays) for arrays in zip(*by_part, strict=True)]


def _part_arrays(path: str, value: np.ndarray, form: Form) -> list[np.ndarray]:
    stacked = path.startswith(_STACKED)
    layers = list(value[_first_layer(path, form) :]) if stacked else [value]
    if _keeps_dimensions(path, form):
        return [np.moveaxis(x, -1, 0) for x in layers] if _is_output(path) else layers
    shape = _part_shape(path, value.shape, form)
    if path.endswith("kernel"):
        # The transpose of [D, F], [D, H K] or [H K, D].
        return [layer.reshape(shape[::-1]).T for layer in layers]
    if _has_row_for_each_position(path) and form.skipped_positions:
        skipped = np.zeros((form.skipped_positions, value.shape[1]), value.dtype)
        return [np.concatenate([skipped, value])]
    has_tokens = parameters.has_row_for_each_token(path)
    rows = slice(form.encoder.vocab_size if has_tokens else None)
    return [layer[rows].reshape(shape) for layer in layers]


def to_parameter(
    path: str, arrays: Iterable[np.ndarray], shape: Sequence[int], form: Form
) -> np.ndarray:
    """Return a parameter, in float32. Rows that pad the vocabulary are 0.

    Args:
      path: Path of the parameter.
      arrays: Its arrays in the order of `names`; each is read when it is copied.
      shape: Shape of the parameter.
      form: Class and config.
    """
    value = np.zeros(shape, np.float32)
    layers = value if path.startswith(_STACKED) else value[None]
    first = _first_layer(path, form)
    if path.endswith("scale"):
        layers[:first] = 1  # the initial value of a scale that no layer uses
    together = parts(path, form)
    for layer, whole in zip(layers[first:], arrays, strict=True):
        array = np.split(whole, len(together))[together.index(path)]
        if _keeps_dimensions(path, form):
            layer[...] = np.moveaxis(array, 0, -1) if _is_output(path) else array
        elif path.endswith("kernel"):
            layer[...] = array.T.reshape(layer.shape)
        elif parameters.has_row_for_each_token(path):
            layer[: len(array)] = array
        elif _has_row_for_each_position(path):
            layer[...] = array[form.skipped_positions :]
        else:
            layer[...] = array.reshape(layer.shape)
    return value


def to_huggingface(params: Any, form: Form) -> dict[str, np.ndarray]:
    """Convert a tree of parameters, or of their gradients, to a state dict.

    Args:
      params: Parameters without boxes. Those that the class does not have are left out.
      form: Class and config.
    """
    by_path = parameters.flatten(params)
    state = {}
    for path in by_path:
        together = parts(path, form)
        if names(path, form) and path == together[0]:
            values = {each: np.asarray(by_path[each]) for each in together}
            arrays = to_arrays(values, form)
            state |= dict(zip(names(path, form), arrays, strict=True))
    return state


def from_huggingface(state: Mapping[str, np.ndarray], template: Any, form: Form) -> Any:
    """Convert a state dict to a tree of parameters, the inverse of `to_huggingface`.

    Args:
      state: Arrays by name.
      template: Tree of arrays or shapes like the result.
      form: Class and config.

    Raises:
      KeyError: A parameter is missing from `state`.
    """

    def parameter(path, leaf):
        arrays = [np.asarray(state[name]) for name in names(path, form)]
        return to_parameter(path, arrays, leaf.shape, form)

    return parameters.map_with_path(parameter, template)
