"""A checkpoint of another project, read: what it is, and its parameters as ours.

Whatever the format, arrays have Hugging Face's names here (`huggingface.py`).
"""

import dataclasses
import hashlib
import pathlib
import re
from typing import Any

import flax.linen as nn
import jax
import numpy as np

from bert_jax import config as config_lib
from bert_jax.errors import UserError
from bert_jax.interop import classes, huggingface
from bert_jax.interop.safetensors import Stored
from bert_jax.model import parameters
from bert_jax.objectives import Objective
from bert_jax.tokenizer import Tokenizer
from bert_jax.training import metadata as metadata_lib
from bert_jax.training import processes, stored

_EMBEDDING = "bert.embeddings.word_embeddings.weight"
_HEAD = "cls.predictions."


@dataclasses.dataclass(frozen=True)
class Published:
    """A checkpoint of another project.

    Attributes:
      source: Folder or file that was given.
      files: Files with the arrays.
      metadata: What it is, as a checkpoint of ours would say it.
      arrays: Arrays by Hugging Face's names.
      ignored: Names of arrays that mean nothing here, with the reason.
      shapes: Shapes of our parameters that it has arrays for, by path.
    """

    source: str
    files: tuple[pathlib.Path, ...]
    metadata: metadata_lib.Metadata
    arrays: dict[str, Stored]
    ignored: tuple[str, ...]
    shapes: dict[str, tuple[int, ...]]

    def fingerprint(self) -> str:
        """A hash of the files with the arrays."""
        digest = hashlib.sha256()
        for path in self.files:
            with open(path, "rb") as stream:
                digest.update(hashlib.file_digest(stream, "sha256").digest())
        return digest.hexdigest()[:16]

    def parameter(self, path: str) -> np.ndarray:
        """A parameter of ours."""
        names = huggingface.names(path, self.metadata.encoder)
        arrays = [self.arrays[name].read() for name in names]
        return huggingface.to_ours(path, arrays, self.shapes[path])

    def load_params(self, shapes: Any, part: str, stored_part: str) -> stored.Loaded:
        """See `stored.load_params`."""
        wanted = parameters.flatten(shapes)
        ours, theirs = (f"{path}/" if path else "" for path in (part, stored_part))
        params: dict[str, jax.Array] = {}
        used: set[str] = set()
        with processes.fail_together():
            for path, leaf in wanted.items():
                source = theirs + path.removeprefix(ours)
                if not path.startswith(ours) or source not in self.shapes:
                    continue
                if self.shapes[source] != tuple(leaf.shape):
                    raise UserError(
                        f"{self.source}: {source} has shape {self.shapes[source]}, the "
                        f"model wants {tuple(leaf.shape)}"
                    )
                value = self.parameter(source).astype(leaf.dtype, copy=False)
                # Each process hands over the parts of its own devices.
                params[path] = jax.make_array_from_callback(
                    value.shape, leaf.sharding, value.__getitem__
                )
                used.update(huggingface.names(source, self.metadata.encoder))
        return stored.Loaded(
            params=params,
            loaded=sorted(params),
            new=sorted(wanted.keys() - params.keys()),
            ignored=[*sorted(self.arrays.keys() - used), *self.ignored],
        )


def make(
    source: str,
    files: tuple[pathlib.Path, ...],
    config_file: pathlib.Path,
    values: dict[str, Any],
    encoder: config_lib.EncoderConfig,
    tokenizer: Tokenizer,
    arrays: dict[str, Stored],
) -> Published:
    """Check the parts of a checkpoint against each other.

    Args:
      source: Folder or file that was given.
      files: Files with the arrays.
      config_file: File with the config.
      values: What is in it.
      encoder: Config of the encoder in it.
      tokenizer: Tokenizer of the encoder.
      arrays: Arrays, by Hugging Face's names or older ones.

    Raises:
      UserError: They contradict each other, or the encoder is not complete.
    """
    arrays, ignored = _with_one_name_each(arrays)
    ignored += _untied(arrays)
    named = values.get("architectures")
    name = classes.of_arrays(
        str(named[0]) if isinstance(named, list) and named else "",
        arrays.keys(),
        causal=encoder.causal,
    )
    metadata, objective = classes.metadata(
        name, config_file, values, encoder, tokenizer, arrays
    )
    if tokenizer.vocab_size > encoder.vocab_size:
        raise UserError(
            f"{source}: the vocabulary has {tokenizer.vocab_size} tokens, the model "
            f"only {encoder.vocab_size} (vocab_size in {config_file.name})"
        )
    shapes = _shapes(source, config_file.name, objective, arrays)
    return Published(source, files, metadata, arrays, tuple(ignored), shapes)


def _with_one_name_each(
    arrays: dict[str, Stored],
) -> tuple[dict[str, Stored], list[str]]:
    """Arrays by the names of today's `transformers`, and those without a meaning."""
    renamed, ignored = {}, []
    for name, array in arrays.items():
        new = re.sub(r"\.gamma$", ".weight", re.sub(r"\.beta$", ".bias", name))
        if re.match(r"(embeddings|encoder|pooler)\.", new):  # of a bare encoder
            new = f"bert.{new}"
        if new.endswith((".position_ids", ".embeddings.token_type_ids")):
            ignored.append(f"{name} (a constant)")
        else:
            renamed[new] = array
    bias = renamed.pop(f"{_HEAD}decoder.bias", None)
    if bias is not None:
        renamed.setdefault(f"{_HEAD}bias", bias)
    return renamed, ignored


def _untied(arrays: dict[str, Stored]) -> list[str]:
    """Take out the decoder, and with it the head if it is no copy of the embedding."""
    decoder = arrays.pop(f"{_HEAD}decoder.weight", None)
    if decoder is None:
        return []
    tied = arrays.get(_EMBEDDING)
    if (
        tied
        and tied.shape == decoder.shape
        and np.array_equal(tied.read(), decoder.read())
    ):
        return [f"{_HEAD}decoder.weight (the token embedding once more)"]
    head = [name for name in arrays if name.startswith(_HEAD)]
    for name in head:
        del arrays[name]
    reason = "(its decoder is not the token embedding)"
    return [f"{name} {reason}" for name in (*head, f"{_HEAD}decoder.weight")]


def _shapes(
    source: str, config_name: str, objective: Objective, arrays: dict[str, Stored]
) -> dict[str, tuple[int, ...]]:
    """Shapes of the parameters that there are arrays for."""
    encoder = objective.encoder
    layers = [re.match(r"bert\.encoder\.layer\.(\d+)\.", name) for name in arrays]
    count = 1 + max((int(match[1]) for match in layers if match), default=-1)
    if count != encoder.num_layers:
        raise UserError(
            f"{source}: the arrays are of {count} layers, but num_hidden_layers in "
            f"{config_name} is {encoder.num_layers}"
        )
    initial = nn.unbox(jax.eval_shape(objective.init, jax.random.key(0)))
    shapes = {}
    for path, leaf in parameters.flatten(initial).items():
        names = huggingface.names(path, encoder)
        missing = [name for name in names if name not in arrays]
        is_encoder = path.startswith("encoder/") and "/pooler/" not in path
        if missing and (is_encoder or len(missing) < len(names)):
            raise UserError(f"{source} has no array {missing[0]}")
        if missing:
            continue
        wanted = huggingface.shape(path, leaf.shape, encoder)
        for name in names:
            if arrays[name].shape != wanted:
                raise UserError(
                    f"{source}: {name} has shape {arrays[name].shape}, but by "
                    f"{config_name} it has {wanted}"
                )
        shapes[path] = tuple(leaf.shape)
    return shapes
