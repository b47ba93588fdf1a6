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
from bert_jax.interop import classes, configs, huggingface
from bert_jax.interop.architectures import Architecture
from bert_jax.interop.safetensors import Stored
from bert_jax.model import parameters
from bert_jax.objectives import Objective
from bert_jax.tokenizer import Tokenizer
from bert_jax.training import metadata as metadata_lib
from bert_jax.training import processes, stored

_EMBEDDING = "encoder/embeddings/token_embedding"

# Rows of embeddings are padded to such numbers, if at all: `pad_to_multiple_of` of
# `transformers`, `make-vocab-size-divisible-by` of Megatron-LM times its devices.
_MULTIPLES = 8, 16, 32, 64, 128, 256, 512, 1024


@dataclasses.dataclass(frozen=True)
class Published:
    """A checkpoint of another project.

    Attributes:
      source: Folder or file that was given.
      files: Files with the arrays.
      form: What it is there.
      metadata: What it is, as a checkpoint of ours would say it.
      arrays: Arrays by Hugging Face's names.
      ignored: Names of arrays that mean nothing here, with the reason.
      shapes: Shapes of our parameters that it has arrays for, by path.
    """

    source: str
    files: tuple[pathlib.Path, ...]
    form: huggingface.Form
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
        names = huggingface.names(path, self.form)
        arrays = (self.arrays[name].read() for name in names)
        return huggingface.to_ours(path, arrays, self.shapes[path], self.form)

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
                used.update(huggingface.names(source, self.form))
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
    theirs: Architecture,
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
      theirs: Architecture that it is of.
      encoder: Config of the encoder in it.
      tokenizer: Tokenizer of the encoder.
      arrays: Arrays, by Hugging Face's names or older ones.

    Raises:
      UserError: They contradict each other, or the encoder is not complete.
    """
    arrays, ignored = _with_one_name_each(arrays, theirs)
    ignored += _untied(arrays, theirs)
    named = values.get("architectures")
    kind = classes.of_arrays(
        theirs,
        str(named[0]) if isinstance(named, list) and named else "",
        arrays.keys(),
        causal=encoder.causal,
    )
    try:
        pad_id = configs.pad_id(config_file, values) if theirs.is_offset else 0
        form = huggingface.Form(theirs, kind, encoder, pad_id)
    except UserError as error:
        raise UserError(f"{config_file}: {error}") from error
    metadata, objective = classes.metadata(form, config_file, values, tokenizer, arrays)
    _check_vocabulary(
        source, config_file.name, tokenizer.vocab_size, encoder.vocab_size
    )
    if theirs.is_offset and tokenizer.pad_id != form.pad_id:
        raise UserError(
            f"{source}: positions are counted from pad_token_id, {form.pad_id} in "
            f"{config_file.name}, but in the vocabulary it is {tokenizer.pad_id}"
        )
    shapes = _shapes(source, config_file.name, form, objective, arrays)
    return Published(source, files, form, metadata, arrays, tuple(ignored), shapes)


def _check_vocabulary(source: str, config_name: str, tokens: int, rows: int) -> None:
    """Refuse an embedding that is neither of such a vocabulary nor of it with padding.

    Raises:
      UserError: It is neither.
    """
    if tokens > rows:
        raise UserError(
            f"{source}: the vocabulary has {tokens} tokens, the model only {rows} "
            f"(vocab_size in {config_name})"
        )
    padded = {-(-tokens // multiple) * multiple for multiple in _MULTIPLES}
    if rows not in padded | {tokens}:
        raise UserError(
            f"{source}: the vocabulary has {tokens} tokens, the model {rows} "
            f"(vocab_size in {config_name}), which is no padding of them to a multiple "
            f"of {', '.join(map(str, _MULTIPLES))}; give its own vocabulary, or, if it "
            f"is this one, save the model anew after resize_token_embeddings({tokens})"
        )


def _with_one_name_each(
    arrays: dict[str, Stored], theirs: Architecture
) -> tuple[dict[str, Stored], list[str]]:
    """Arrays by the names of today's `transformers`, and those without a meaning."""
    renamed, ignored = {}, []
    for name, array in arrays.items():
        new = re.sub(r"\.gamma$", ".weight", re.sub(r"\.beta$", ".bias", name))
        if new.split(".")[0] in theirs.of_encoder:  # bare
            new = f"{theirs.prefix}{new}"
        if new.endswith((".position_ids", ".embeddings.token_type_ids")):
            ignored.append(f"{name} (a constant)")
        else:
            renamed[new] = array
    bias = renamed.pop(f"{theirs.decoder}.bias", None)
    if bias is not None:
        renamed.setdefault(theirs.language_model["output_bias"], bias)
    return renamed, ignored


def _untied(arrays: dict[str, Stored], theirs: Architecture) -> list[str]:
    """Take out the decoder, and with it the head if it is no copy of the embedding."""
    decoder = arrays.pop(f"{theirs.decoder}.weight", None)
    if decoder is None:
        return []
    tied = arrays.get(theirs.outside[_EMBEDDING])
    if (
        tied
        and tied.shape == decoder.shape
        and np.array_equal(tied.read(), decoder.read())
    ):
        return [f"{theirs.decoder}.weight (the token embedding once more)"]
    parts = tuple(theirs.language_model.values())
    head = [name for name in arrays if name.startswith(parts)]
    for name in head:
        del arrays[name]
    reason = "(its decoder is not the token embedding)"
    return [f"{name} {reason}" for name in (*head, f"{theirs.decoder}.weight")]


def _shapes(
    source: str,
    config_name: str,
    form: huggingface.Form,
    objective: Objective,
    arrays: dict[str, Stored],
) -> dict[str, tuple[int, ...]]:
    """Shapes of the parameters that there are arrays for."""
    encoder, theirs = form.encoder, form.architecture
    pattern = re.escape(theirs.layers).replace(r"\{\}", r"(\d+)") + r"\."
    layers = [re.match(pattern, name) for name in arrays]
    count = 1 + max((int(match[1]) for match in layers if match), default=-1)
    if count != encoder.num_distinct_layers:
        what = "layers", "num_hidden_layers"
        if encoder.num_layer_groups:
            what = "groups of layers", "num_hidden_groups"
        raise UserError(
            f"{source}: the arrays are of {count} {what[0]}, but {what[1]} in "
            f"{config_name} is {encoder.num_distinct_layers}"
        )
    initial = nn.unbox(jax.eval_shape(objective.init, jax.random.key(0)))
    shapes = {}
    for path, leaf in parameters.flatten(initial).items():
        names = huggingface.names(path, form)
        if not names:  # another class has it
            continue
        missing = [name for name in names if name not in arrays]
        is_encoder = path.startswith("encoder/") and "/pooler/" not in path
        if missing and (is_encoder or len(missing) < len(names)):
            raise UserError(f"{source} has no array {missing[0]}")
        if missing:
            continue
        wanted = huggingface.shape(path, leaf.shape, form)
        for name in names:
            if arrays[name].shape != wanted:
                raise UserError(
                    f"{source}: {name} has shape {arrays[name].shape}, but by "
                    f"{config_name} it has {wanted}"
                )
        shapes[path] = tuple(leaf.shape)
    return shapes
