"""Checkpoints of any format, with parameters that are read on demand."""

import dataclasses
import functools

import jax
import numpy as np
from etils import epath

from bert_jax import config as config_lib
from bert_jax.errors import UserError
from bert_jax.interop import checkpoints, huggingface, model_classes
from bert_jax.interop.safetensors import LazyArray
from bert_jax.model import parameters
from bert_jax.training import metadata as metadata_lib
from bert_jax.training import restore

# Prefixes of parameters of an ELECTRA's generator, and of a masked language model.
_GENERATOR = {"generator_head/": "mlm_head/", "generator/": "encoder/"}


@dataclasses.dataclass(frozen=True)
class LazyCheckpoint:
    """A checkpoint of any format."""

    source: str  # workdir, checkpoint or folder
    metadata: metadata_lib.Metadata  # in the form of native checkpoints
    # By path. Each is read from disk at every access: memory need not hold all of them.
    params: dict[str, LazyArray]
    ignored: tuple[str, ...] = ()  # its arrays and modules that are no parameters
    spec: huggingface.ModelSpec | None = None  # if it is a published checkpoint
    missing: tuple[str, ...] = ()  # paths of parameters of its heads that it lacks


def read(source: str) -> LazyCheckpoint:
    """Open a checkpoint.

    Raises:
      UserError: The checkpoint is unusable.
    """
    if other := checkpoints.open_published(source):
        params = {
            path: LazyArray(leaf.shape, functools.partial(other.parameter, path))
            for path, leaf in sorted(other.shapes.items())
        }
        used = {name for path in params for name in huggingface.names(path, other.spec)}
        unused = (*sorted(other.arrays.keys() - used), *other.ignored)
        return LazyCheckpoint(
            other.source, other.metadata, params, unused, other.spec, other.missing
        )
    where = restore.find(source)
    metadata = restore.read_metadata(where)
    stored = restore.shapes(where)
    params = {
        path: LazyArray(leaf.shape, functools.partial(_parameter, where, stored, path))
        for path, leaf in sorted(stored.items())
    }
    return LazyCheckpoint(str(where), metadata, params)


def _parameter(
    where: epath.Path, stored: dict[str, jax.ShapeDtypeStruct], path: str
) -> np.ndarray:
    """Read a parameter of a native checkpoint as it is stored."""
    asked = {path, parameters.embedding_difference_path(path)} & stored.keys()
    shapes = parameters.unflatten({each: stored[each] for each in asked})
    # On a CPU, this is a view: device memory is host memory.
    return np.asarray(restore.load_params(where, shapes).params[path])


def with_summed_embeddings(checkpoint: LazyCheckpoint) -> LazyCheckpoint:
    """Return a checkpoint with the encoder's embeddings in place of differences."""
    params = dict(checkpoint.params)
    for path, shared in checkpoint.params.items():
        if difference := params.pop(parameters.embedding_difference_path(path), None):
            params[path] = LazyArray(
                shared.shape, lambda a=shared, b=difference: a.read() + b.read()
            )
    return dataclasses.replace(checkpoint, params=params)


def is_generator_parameter(path: str) -> bool:
    """Return whether a parameter belongs to an ELECTRA's generator alone."""
    return path.startswith(tuple(_GENERATOR))


def extract_generator(
    checkpoint: LazyCheckpoint,
) -> tuple[LazyCheckpoint, huggingface.ModelSpec] | None:
    """Return the generator of an ELECTRA, as a masked language model, and its class.

    The result is None if there is no generator, or no class of `transformers` for it.
    """
    if not any(map(is_generator_parameter, checkpoint.params)):
        return None
    objective = config_lib.from_dict(
        config_lib.ReplacedTokensConfig, checkpoint.metadata.config["objective"]
    )
    masked_lm = config_lib.MaskedLmConfig(segments=objective.segments)
    shared = {"encoder/embeddings/": "encoder/embeddings/"}
    params = {
        path.replace(prefix, new_prefix, 1): value
        for path, value in checkpoint.params.items()
        for prefix, new_prefix in (shared | _GENERATOR).items()
        if path.startswith(prefix)
    }
    metadata = dataclasses.replace(
        checkpoint.metadata,
        config={"kind": "pretraining", "objective": config_lib.to_dict(masked_lm)},
        encoder=objective.generator(checkpoint.metadata.encoder),
    )
    try:
        spec = model_classes.export_spec(metadata, checkpoint.source)
    except UserError:
        return None
    return LazyCheckpoint(checkpoint.source, metadata, params), spec
