"""Parameters as arrays of `transformers`, and back.

Neither torch nor `transformers` is needed. A parameter corresponds to one array or,
where layers are stacked, to one array in each layer. Several parameters may be parts of
one array, such as query, key and value in ModernBERT's `Wqkv`.
"""

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from bert_jax import config as config_lib
from bert_jax.errors import UserError
from bert_jax.interop.families.family import CAUSAL_LM, MASKED_LM, POOLED, Family
from bert_jax.interop.safetensors import LazyArray, zeros
from bert_jax.model import parameters

# `transformers` stores a kernel with its output dimension first.
_LEAF = {"kernel": "weight", "scale": "weight", "bias": "bias"}
_STACKED = "encoder/layers/"


@dataclasses.dataclass(frozen=True)
class ModelSpec:
    """A model class of `transformers` with a config.

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
                f"the encoder is causal; bert_jax has no causal class of {family.title}"
            )
        if c.causal and c.pooler.pooling == "cls" and self.purpose in POOLED:
            raise UserError(
                f"the encoder is causal; {self.name} of transformers pools the first "
                "token, and bert_jax the last"
            )
        activation = family.required_activation(self.purpose)
        if activation not in ("", c.head_activation):
            raise UserError(
                f"the head of {self.name} computes {activation}; the head of this "
                f"encoder computes {c.head_activation}"
            )

    @property
    def parts(self) -> Mapping[str, str]:
        """Names of the arrays of the class's heads and pooler, by parameter path."""
        return self.family.classes[self.purpose]

    @property
    def name(self) -> str:
        return self.family.class_name(self.purpose)

    @property
    def skipped_positions(self) -> int:
        """Rows of the published position embedding that no token uses."""
        return self.pad_id + 1 if self.family.has_padding_positions else 0

    @property
    def heads(self) -> list[str]:
        """First parts of the paths of the heads and the pooler that the class has."""
        absent = absent_parts(self.encoder.prediction_head)
        if self.purpose == MASKED_LM:
            absent += ("encoder/pooler",)  # optional: only older releases save it
        heads = [
            p if p.startswith("encoder/") else p.split("/")[0]
            for p in self.parts
            if not p.endswith(absent)
        ]
        return list(dict.fromkeys(heads))


def absent_parts(head: config_lib.PredictionHeadConfig) -> tuple[str, ...]:
    """Return the ends of the paths of parameters that a prediction head lacks."""
    lacks = {"output_embedding": head.tied, "output_bias": not head.output_bias}
    return tuple(name for name, is_absent in lacks.items() if is_absent)


def names(path: str, spec: ModelSpec) -> list[str]:
    """Return the names of a parameter's arrays.

    There is one name, or one for each layer that has the array. The list is empty if
    the class has no such parameter.
    """
    if not (name := _name(path, spec)):
        return []
    if not path.startswith(_STACKED):
        return [name]
    layers = range(_first_layer(path, spec), spec.encoder.num_distinct_layers)
    return [f"{spec.family.layer_prefix.format(i)}.{name}" for i in layers]


def has_parameter(path: str, spec: ModelSpec) -> bool:
    """Return whether a class has a parameter, even if no layer has an array of it."""
    return bool(_name(path, spec))


def sharing_arrays(path: str, spec: ModelSpec) -> list[str]:
    """Return the paths of the parameters in the same arrays as this one, in order.

    They have equal numbers of output rows. Most arrays hold one parameter.
    """
    if not path.startswith(_STACKED):
        return [path]
    within = path.removeprefix(_STACKED)
    table = spec.family.layer
    key = within if within in table else within.rpartition("/")[0]
    leaf = within.removeprefix(key)
    return [f"{_STACKED}{k}{leaf}" for k in table if table[k] == table.get(key)]


def zeros_by_default(spec: ModelSpec) -> dict[str, LazyArray]:
    """Return zeros for parameters that an encoder of bert_jax may lack, by path.

    If a class has them, every model of the class does: segment embeddings, and XLNet's
    target embedding.
    """
    c = spec.encoder
    types, heads = c.type_vocab_size, (c.num_heads, c.head_size)
    shapes = {
        "encoder/embeddings/segment_embedding": (types, c.embedding_columns),
        "encoder/layers/attention/segment_bias": (c.num_layers, *heads),
        "encoder/layers/attention/segment_embedding": (c.num_layers, 2, *heads),
        "target_embedding": (c.hidden_size,),
    }
    return {path: zeros(shape) for path, shape in shapes.items() if 0 not in shape}


def _name(path: str, spec: ModelSpec) -> str:
    """Return the name of a parameter's array, within a layer if it is in one; or ""."""
    table = {**spec.family.encoder, **spec.parts}
    if path.startswith(_STACKED):
        path, table = path.removeprefix(_STACKED), spec.family.layer
    if path in table:
        return table[path]
    parent, _, leaf = path.rpartition("/")
    return f"{table[parent]}.{_LEAF[leaf]}" if parent in table else ""


def _first_layer(path: str, spec: ModelSpec) -> int:
    """Return the first layer that has a parameter's array.

    Parameters are stacked over all layers, even where layer 0 has no attention norm.
    """
    is_missing = path.startswith(f"{_STACKED}attention_norm/")
    return int(is_missing and not spec.encoder.first_attention_norm)


def array_shape(path: str, shape: Sequence[int], spec: ModelSpec) -> tuple[int, ...]:
    """Return the shape of each array of a parameter of the given path and shape."""
    view, *_ = _views(path, np.broadcast_to(np.float32(0), shape), spec)
    rows = _skipped_rows(path, spec) + len(view) * len(sharing_arrays(path, spec))
    return rows, *view.shape[1:]


def _views(path: str, value: np.ndarray, spec: ModelSpec) -> list[np.ndarray]:
    """Return views of a parameter with the shapes of its arrays, one for each layer.

    Rows that pad the vocabulary are left out.
    """
    stacked = path.startswith(_STACKED)
    layers = list(value[_first_layer(path, spec) :]) if stacked else [value]
    is_output = path.endswith("attention/output/kernel")
    if path.removeprefix(_STACKED) in spec.family.layer:
        # The array has the dimensions of the parameter, the output dimension first.
        return [np.moveaxis(x, -1, 0) for x in layers] if is_output else layers
    if path == "target_embedding":
        return [value[None, None]]  # [1, 1, D]
    if parameters.is_vocabulary_table(path):
        return [value[: spec.encoder.vocab_size]]
    if is_output:
        return [x.reshape(-1, x.shape[-1]).T for x in layers]  # [D, H K]
    if path.endswith("kernel"):
        return [x.reshape(len(x), -1).T for x in layers]  # [F, D] or [H K, D]
    if path.endswith("bias"):
        return [x.reshape(-1) for x in layers]  # [F] or [H K]
    return layers


def _skipped_rows(path: str, spec: ModelSpec) -> int:
    """Return how many leading rows of an array the parameter lacks."""
    return spec.skipped_positions if path.endswith("position_embedding") else 0


def to_arrays(
    paths: Iterable[str], read: Callable[[str], np.ndarray], spec: ModelSpec
) -> Iterator[tuple[str, np.ndarray]]:
    """Yield the names and arrays of the parameters that the class has.

    Memory holds the parameters of one array at a time.
    """
    for path in (path for path in paths if has_parameter(path, spec)):
        together = sharing_arrays(path, spec)
        if path != together[0]:
            continue
        by_part = [_views(each, read(each), spec) for each in together]
        skipped = _skipped_rows(path, spec)
        for name, *parts in zip(names(path, spec), *by_part, strict=True):
            array = np.concatenate(parts) if parts[1:] else parts[0]
            yield name, np.pad(array, ((skipped, 0), (0, 0))) if skipped else array


def to_parameter(
    path: str, arrays: Iterable[np.ndarray], shape: Sequence[int], spec: ModelSpec
) -> np.ndarray:
    """Return a parameter, in float32, from its arrays in the order of `names`.

    Each array is read when it is copied. Rows that pad the vocabulary are 0.
    """
    value = np.zeros(shape, np.float32)
    if path.endswith("scale"):
        value[: _first_layer(path, spec)] = 1  # initial value; layer 0 does not use it
    together = sharing_arrays(path, spec)
    skipped = _skipped_rows(path, spec)
    for view, array in zip(_views(path, value, spec), arrays, strict=True):
        view[...] = np.split(array, len(together))[together.index(path)][skipped:]
    return value


def state_dict(params: Any, spec: ModelSpec) -> dict[str, np.ndarray]:
    """Convert a tree of parameters, or of their gradients, to a state dict."""
    by_path = parameters.flatten(params)
    return dict(to_arrays(by_path, lambda path: np.asarray(by_path[path]), spec))
