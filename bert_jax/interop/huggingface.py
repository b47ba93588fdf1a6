"""Parameter names and layouts of models of Hugging Face.

Only arrays and names; neither torch nor transformers is needed. A name of ours is the
path of a parameter; it stands for one array of theirs or, where layers are stacked, for
one in each layer.
"""

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from bert_jax import config as config_lib
from bert_jax.errors import UserError
from bert_jax.interop.architectures import CAUSAL_LM, Architecture, Class
from bert_jax.model import parameters

# A kernel of theirs is ours transposed.
_LEAF = {"kernel": "weight", "scale": "weight", "bias": "bias"}
_STACKED = "encoder/layers/"


@dataclasses.dataclass(frozen=True)
class Form:
    """What a checkpoint is there: a class, with a shape.

    Attributes:
      architecture: Architecture.
      kind: What the class is made for.
      encoder: Config of the encoder.
      pad_id: Id of the padding.

    Raises:
      UserError: The class does not compute what this encoder does.
    """

    architecture: Architecture
    kind: str
    encoder: config_lib.EncoderConfig
    pad_id: int

    def __post_init__(self):
        c, theirs = self.encoder, self.architecture
        if theirs.is_projected and c.embedding_columns == c.hidden_size:
            raise UserError(
                f"the embeddings have hidden_size={c.hidden_size} columns; "
                f"{theirs.title} of transformers projects them even so, and bert_jax "
                "does not"
            )
        if c.num_layer_groups and "num_layer_groups" not in theirs.fields:
            raise UserError(f"there is no {theirs.title} whose layers share parameters")
        if c.causal and CAUSAL_LM not in theirs.classes:
            raise UserError(
                f"the encoder is causal; there is no such {theirs.title} in "
                "transformers"
            )
        if self.of.activation not in ("", c.activation):
            raise UserError(
                f"the head of {self.name} computes {self.of.activation} whatever the "
                f"encoder does, which is {c.activation} here"
            )

    @property
    def of(self) -> Class:
        """The class."""
        return self.architecture.classes[self.kind]

    @property
    def name(self) -> str:
        """The name of the class."""
        return self.of.name

    @property
    def skipped_positions(self) -> int:
        """Rows of their position embedding that no position has."""
        return self.pad_id + 1 if self.architecture.is_offset else 0

    @property
    def heads(self) -> list[str]:
        """Our parts that the class has, besides the encoder."""
        own = [
            p if p.startswith("encoder/") else p.split("/")[0] for p in self.of.parts
        ]
        return list(dict.fromkeys(own))


def names(path: str, form: Form) -> list[str]:
    """Their names for a parameter: one, or one for each layer; [] if they have none."""
    theirs = form.architecture
    if not path.startswith(_STACKED):
        name = _name(path, theirs.outside) or _name(path, form.of.parts)
        return [name] if name else []
    name = _name(path.removeprefix(_STACKED), theirs.layer)
    count = form.encoder.num_distinct_layers if name else 0
    return [f"{theirs.layers.format(i)}.{name}" for i in range(count)]


def optional(form: Form) -> dict[str, tuple[int, ...]]:
    """Shapes of arrays that each class has there, and not each model here.

    They are zeros then: embeddings of segments, and XLNet's vector for what is asked.
    """
    c = form.encoder
    types, heads = c.type_vocab_size, (c.num_heads, c.head_size)
    ours = {
        "encoder/embeddings/segment_embedding": (types, c.embedding_columns),
        "encoder/layers/attention/segment_bias": (c.num_layers, *heads),
        "encoder/layers/attention/segment_embedding": (c.num_layers, 2, *heads),
        "target_embedding": (c.hidden_size,),
    }
    return {
        name: shape(path, of_ours, form)
        for path, of_ours in ours.items()
        for name in names(path, form)
    }


def _name(path: str, table: Mapping[str, str]) -> str:
    if path in table:
        return table[path]
    parent, _, leaf = path.rpartition("/")
    return f"{table[parent]}.{_LEAF[leaf]}" if parent in table else ""


def shape(path: str, ours: Sequence[int], form: Form) -> tuple[int, ...]:
    """The shape of each of their arrays for a parameter of this shape of ours."""
    if path.startswith(_STACKED):
        ours = ours[1:]
    if _is_of_heads(path, form):
        return (ours[-1], *ours[:-1]) if _is_output(path) else tuple(ours)
    if path == "target_embedding":
        return 1, 1, *ours
    if parameters.has_row_for_each_token(path):
        return form.encoder.vocab_size, *ours[1:]
    if _is_of_positions(path):
        return ours[0] + form.skipped_positions, *ours[1:]
    if _is_output(path):  # H K D
        return ours[-1], math.prod(ours[:-1])
    if path.endswith("kernel"):  # D F, or D H K
        return math.prod(ours[1:]), ours[0]
    if path.endswith("bias"):  # F, or H K
        return (math.prod(ours),)
    return tuple(ours)


def _is_of_positions(path: str) -> bool:
    return path.endswith("position_embedding")


def _is_output(path: str) -> bool:
    return path.endswith("attention/output/kernel")


def _is_of_heads(path: str, form: Form) -> bool:
    """Whether their array has the dimensions of ours: D H K; the output's is D H K."""
    return path.removeprefix(_STACKED) in form.architecture.layer


def to_theirs(path: str, value: np.ndarray, form: Form) -> list[np.ndarray]:
    """Arrays of theirs, in the order of `names`; views of the parameter if possible."""
    layers = list(value) if path.startswith(_STACKED) else [value]
    if _is_of_heads(path, form):
        return [np.moveaxis(x, -1, 0) for x in layers] if _is_output(path) else layers
    if path.endswith("kernel"):
        # The transposed of D F, of D (H K) and of (H K) D.
        theirs = shape(path, value.shape, form)
        return [layer.reshape(theirs[::-1]).T for layer in layers]
    if _is_of_positions(path) and form.skipped_positions:
        skipped = np.zeros((form.skipped_positions, value.shape[1]), value.dtype)
        return [np.concatenate([skipped, value])]
    rows = slice(
        form.encoder.vocab_size if parameters.has_row_for_each_token(path) else None
    )
    return [layer[rows].reshape(shape(path, value.shape, form)) for layer in layers]


def to_ours(
    path: str, arrays: Iterable[np.ndarray], ours: Sequence[int], form: Form
) -> np.ndarray:
    """A parameter, float32, of arrays of theirs; padding of the vocabulary becomes 0.

    Args:
      path: Name of the parameter.
      arrays: Arrays in the order of `names`; each is asked for when it is copied.
      ours: Shape of the parameter.
      form: What they are of.
    """
    value = np.zeros(ours, np.float32)
    layers = value if path.startswith(_STACKED) else value[None]
    for layer, array in zip(layers, arrays, strict=True):
        if _is_of_heads(path, form):
            layer[...] = np.moveaxis(array, 0, -1) if _is_output(path) else array
        elif path.endswith("kernel"):
            layer[...] = array.T.reshape(layer.shape)
        elif parameters.has_row_for_each_token(path):
            layer[: len(array)] = array
        elif _is_of_positions(path):
            layer[...] = array[form.skipped_positions :]
        else:
            layer[...] = array.reshape(layer.shape)
    return value


def to_huggingface(params: Any, form: Form) -> dict[str, np.ndarray]:
    """Parameters by the names of a Hugging Face state dict.

    Args:
      params: Parameters without boxes, or a tree like them, such as gradients. Those
        that the class has no name for are left out.
      form: What they are to be.
    """
    state = {}
    for path, value in parameters.flatten(params).items():
        theirs = names(path, form)
        if theirs:
            arrays = to_theirs(path, np.asarray(value), form)
            state |= dict(zip(theirs, arrays, strict=True))
    return state


def from_huggingface(state: Mapping[str, np.ndarray], template: Any, form: Form) -> Any:
    """The inverse of `to_huggingface`. The vocabulary's padding becomes 0.

    Args:
      state: Arrays by Hugging Face's names.
      template: Tree of arrays or shapes like the parameters to make.
      form: What the arrays are of.

    Raises:
      KeyError: A parameter is missing from `state`.
    """

    def ours(path, leaf):
        arrays = [np.asarray(state[name]) for name in names(path, form)]
        return to_ours(path, arrays, leaf.shape, form)

    return parameters.map_with_path(ours, template)
