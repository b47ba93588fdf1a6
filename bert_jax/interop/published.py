"""Checkpoints of other projects, with the interface of native checkpoints.

Arrays have the names of `transformers`, whatever the format of the files.
"""

import dataclasses
import hashlib
import pathlib
import re
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from bert_jax.errors import UserError
from bert_jax.interop import configs, huggingface, model_classes
from bert_jax.interop.configs import ConfigFile
from bert_jax.interop.families.family import Family
from bert_jax.interop.safetensors import LazyArray
from bert_jax.model import parameters
from bert_jax.objectives import Objective
from bert_jax.tokenizer import Tokenizer
from bert_jax.training import metadata as metadata_lib
from bert_jax.training import processes, restore

_EMBEDDING = "encoder/embeddings/token_embedding"

# An embedding may be padded to a multiple of one of these numbers, by
# `pad_to_multiple_of` in `transformers`, by Megatron-LM, or by DeBERTa's authors.
_MULTIPLES = 8, 16, 32, 64, 100, 128, 256, 512, 1000, 1024


@dataclasses.dataclass(frozen=True)
class Published:
    """A checkpoint of another project."""

    source: str  # folder or file that the user named
    files: tuple[pathlib.Path, ...]  # with the arrays
    spec: huggingface.ModelSpec
    metadata: metadata_lib.Metadata  # in the form of native checkpoints
    arrays: dict[str, LazyArray]  # by Hugging Face's names
    ignored: tuple[str, ...]  # arrays and modules that are no parameters, and why
    shapes: dict[str, jax.ShapeDtypeStruct]  # of the parameters, by path
    missing: tuple[str, ...]  # paths of the parameters of heads that have no array

    def fingerprint(self) -> str:
        """Return a hash of the files with the arrays."""
        digest = hashlib.sha256()
        for path in self.files:
            with open(path, "rb") as stream:
                digest.update(hashlib.file_digest(stream, "sha256").digest())
        return digest.hexdigest()[:16]

    def parameter(self, path: str) -> np.ndarray:
        """Read a parameter.

        Raises:
          UserError: An array is damaged, is not floating point, or is not finite.
        """
        arrays = map(self._weights, huggingface.names(path, self.spec))
        shape = self.shapes[path].shape
        return huggingface.to_parameter(path, arrays, shape, self.spec)

    def _weights(self, name: str) -> np.ndarray:
        array = self.arrays[name].read()
        if not jnp.issubdtype(array.dtype, jnp.floating):
            raise UserError(
                f"{self.source}: {name} is of type {array.dtype}; weights must be "
                "floating-point numbers"
            )
        if not np.isfinite(array).all():
            raise UserError(f"{self.source}: {name} has NaN or infinite values")
        return array

    def load_params(self, shapes: Any) -> restore.LoadedParams:
        wanted = parameters.flatten(shapes)
        params: dict[str, jax.Array] = {}
        used: set[str] = set()
        with processes.raise_in_all():
            for path in sorted(wanted.keys() & self.shapes.keys()):
                leaf = wanted[path]
                if problem := restore.shape_mismatch(path, self.shapes[path], leaf):
                    raise UserError(f"{self.source}: {problem}")
                value = self.parameter(path).astype(leaf.dtype, copy=False)
                # Each process fills the shards of its own devices.
                params[path] = jax.make_array_from_callback(
                    value.shape, leaf.sharding, value.__getitem__
                )
                used.update(huggingface.names(path, self.spec))
        return restore.LoadedParams(
            params=params,
            missing=sorted(wanted.keys() - params.keys()),
            ignored=[*sorted(self.arrays.keys() - used), *self.ignored],
        )


def assemble(
    source: str,
    files: tuple[pathlib.Path, ...],
    config: ConfigFile,
    tokenizer: Tokenizer,
    arrays: dict[str, LazyArray],
    *,
    tokens_are_lines: bool,
) -> Published:
    """Assemble a checkpoint from its files, and check that they fit together.

    `tokens_are_lines`: whether the tokens were read from the lines of a `vocab.txt`.

    Raises:
      UserError: The files contradict each other, or the encoder is incomplete.
    """
    family, encoder = config.family, config.encoder
    arrays, ignored = _with_current_names(arrays, family)
    decoder, embedding = f"{family.decoder}.weight", family.encoder[_EMBEDDING]
    if encoder.prediction_head.tied and embedding not in arrays and decoder in arrays:
        # `save_model` of safetensors writes a tied array under its first name only.
        arrays[embedding] = arrays.pop(decoder)
    if decoder in arrays:
        is_copy = embedding in arrays and np.array_equal(
            arrays[decoder].read(), arrays[embedding].read()
        )
        if is_copy:
            del arrays[decoder]
            ignored.append(f"{decoder} (a copy of the token embedding)")
        head = dataclasses.replace(encoder.prediction_head, tied=is_copy)
        encoder = dataclasses.replace(encoder, prediction_head=head)
    purpose = model_classes.purpose_of_arrays(
        family, config.class_name, arrays.keys(), encoder
    )
    activation = family.required_activation(purpose)
    if activation not in ("", encoder.head_activation):  # whatever config.json says
        head = dataclasses.replace(encoder.prediction_head, activation=activation)
        encoder = dataclasses.replace(encoder, prediction_head=head)
    pad_id = 0
    if family.has_padding_positions:
        pad_id = configs.pad_id(config.file)
        if tokenizer.pad_id != pad_id:
            raise UserError(
                f"{source}: pad_token_id, from which positions are counted, is "
                f"{pad_id} in {config.file.path.name} and {tokenizer.pad_id} in the "
                "vocabulary"
            )
    try:
        spec = huggingface.ModelSpec(family, purpose, encoder, pad_id)
    except UserError as error:
        raise UserError(f"{config.file.path}: {error}") from error
    metadata, objective = model_classes.metadata_and_objective(
        spec, config, tokenizer, arrays
    )
    name = config.file.path.name
    sizes = tokenizer.vocab_size, encoder.vocab_size
    _check_vocabulary(source, name, *sizes, tokens_are_lines=tokens_are_lines)
    shapes, missing = _shapes(source, name, spec, objective, arrays)
    return Published(
        source, files, spec, metadata, arrays, tuple(ignored), shapes, tuple(missing)
    )


def _check_vocabulary(
    source: str, config_name: str, tokens: int, rows: int, *, tokens_are_lines: bool
) -> None:
    """Check that the rows of an embedding fit the tokens of the vocabulary.

    If a line of a `vocab.txt` is missing, all later tokens have wrong ids. So the
    number of rows must be the next multiple of a usual padding.
    """
    padded = {-(-tokens // multiple) * multiple for multiple in _MULTIPLES}
    if tokens_are_lines:
        fits = rows in padded | {tokens}
        limit = f"the next multiple of {', '.join(map(str, _MULTIPLES))}"
    else:
        fits = tokens <= rows < tokens + _MULTIPLES[-1]
        limit = f"up to {_MULTIPLES[-1] - 1} more"
    if not fits:
        raise UserError(
            f"{source}: the vocabulary has {tokens} tokens, the model {rows} "
            f"(vocab_size in {config_name}); expected the same number, or {limit}; use "
            "this model's own vocabulary, or save it after "
            f"resize_token_embeddings({tokens})"
        )


def _with_current_names(
    arrays: dict[str, LazyArray], family: Family
) -> tuple[dict[str, LazyArray], list[str]]:
    """Rename arrays as current `transformers` does, and list those left out.

    Constants are left out.
    """
    renamed, ignored = {}, []
    for name, array in arrays.items():
        new = re.sub(r"\.gamma$", ".weight", re.sub(r"\.beta$", ".bias", name))
        new = new.removeprefix(family.older_prefix)
        if new.split(".")[0] in family.bare_prefixes:
            new = f"{family.prefix}{new}"
        if new.endswith((".position_ids", ".embeddings.token_type_ids")):
            ignored.append(f"{name} (a constant)")
        else:
            renamed[new] = array
    # If there are both biases, `transformers` uses the decoder's, tied or not.
    decoder_bias = f"{family.decoder}.bias"
    if decoder_bias in renamed and family.output_bias:
        renamed[family.output_bias] = renamed.pop(decoder_bias)
    return renamed, ignored


def _shapes(
    source: str,
    config_name: str,
    spec: huggingface.ModelSpec,
    objective: Objective,
    arrays: dict[str, LazyArray],
) -> tuple[dict[str, jax.ShapeDtypeStruct], list[str]]:
    """Return the shapes of the parameters by path, and paths that have no array."""
    encoder, family = spec.encoder, spec.family
    pattern = re.escape(family.layer_prefix).replace(r"\{\}", r"(\d+)") + r"\."
    matches = [re.match(pattern, name) for name in arrays]
    if not any(matches):
        raise UserError(
            f"{source} has no arrays {family.layer_prefix.format(0)}.*, as "
            f"{family.title} has in transformers, but {min(arrays, default='none')}; "
            "check model_type, and save the model without a wrapper around it"
        )
    count = 1 + max(int(match[1]) for match in matches if match)
    if count != encoder.num_distinct_layers:
        layers = "groups of layers" if encoder.num_layer_groups else "layers"
        raise UserError(
            f"{source} has arrays of {count} {layers}; {config_name} says "
            f"{encoder.num_distinct_layers}"
        )
    initial = nn.unbox(jax.eval_shape(objective.init, jax.random.key(0)))
    heads = tuple(f"{head}/" for head in spec.heads)
    shapes, absent = {}, []
    for path, leaf in parameters.flatten(initial).items():
        if not huggingface.has_parameter(path, spec):
            continue  # another class has this parameter
        names = huggingface.names(path, spec)
        if missing := [name for name in names if name not in arrays]:
            is_encoder = path.startswith("encoder/") and "/pooler/" not in path
            if is_encoder or len(missing) < len(names):
                raise UserError(f"{source} has no array {missing[0]}")
            if path.startswith(heads):
                absent.append(path)
            continue
        wanted = huggingface.array_shape(path, leaf.shape, spec) if names else ()
        for name in names:
            if arrays[name].shape != wanted:
                raise UserError(
                    f"{source}: {name} has shape {arrays[name].shape}; expected "
                    f"{wanted} from {config_name}"
                )
        shapes[path] = leaf
    return shapes, absent
