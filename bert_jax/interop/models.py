"""A checkpoint of any project as ours; arrays are read when they are wanted."""

import dataclasses
import functools

import numpy as np
from etils import epath

from bert_jax import config as config_lib
from bert_jax import knobs
from bert_jax.errors import UserError
from bert_jax.interop import classes, huggingface, sources
from bert_jax.interop.safetensors import Stored
from bert_jax.model import parameters
from bert_jax.training import metadata as metadata_lib
from bert_jax.training import stored

# How names of parameters of an ELECTRA's generator begin.
_OF_GENERATOR = "generator_head/", "generator/"


@dataclasses.dataclass(frozen=True)
class Model:
    """A checkpoint of any project, as ours.

    Attributes:
      source: The checkpoint.
      metadata: What it says of itself.
      params: Parameters by path. Each is read anew whenever it is asked for, so that
        memory need not hold all.
      ignored: What there is in it besides.
      form: What it is in `transformers`, if it is from another project.
    """

    source: str
    metadata: metadata_lib.Metadata
    params: dict[str, Stored]
    ignored: tuple[str, ...] = ()
    form: huggingface.Form | None = None


def read(source: str) -> Model:
    """All parameters of a checkpoint.

    Raises:
      UserError: The checkpoint cannot be used.
      Unavailable: It may be readable later.
    """
    if other := sources.published(source):
        params = {
            path: Stored(shape, functools.partial(other.parameter, path))
            for path, shape in sorted(other.shapes.items())
        }
        used = {name for path in params for name in huggingface.names(path, other.form)}
        unused = (*sorted(other.arrays.keys() - used), *other.ignored)
        return Model(other.source, other.metadata, params, unused, other.form)
    where = stored.find(source)
    metadata = stored.read_metadata(where)
    if metadata.encoder_path != "encoder":
        raise UserError(
            f"{where}: its encoder is at {metadata.encoder_path}; only checkpoints "
            "with one at encoder can be converted"
        )
    params = {
        path: Stored(tuple(leaf.shape), functools.partial(_parameter, where, path))
        for path, leaf in sorted(stored.shapes(where).items())
    }
    return Model(str(where), metadata, params)


def _parameter(where: epath.Path, path: str) -> np.ndarray:
    """A parameter of a checkpoint of ours."""
    shape = parameters.unflatten({path: stored.shapes(where)[path]})
    # A view of the device's memory, which is that of the host.
    return np.asarray(stored.load_params(where, shape).params[path])


def is_of_generator(path: str) -> bool:
    """Whether a parameter is of an ELECTRA's generator alone."""
    return path.startswith(_OF_GENERATOR)


def generator(model: Model) -> Model | None:
    """The generator of an ELECTRA as a checkpoint of masked tokens.

    None if there is none, or if `transformers` has no class that computes it.
    """
    if not any(map(is_of_generator, model.params)):
        return None
    objective = knobs.from_dict(
        config_lib.ReplacedTokensConfig, model.metadata.config["objective"]
    )
    asked = config_lib.MaskedLmConfig(segments=objective.segments)
    of_head, of_encoder = _OF_GENERATOR
    params = {}
    for path, value in model.params.items():
        if path.startswith("encoder/embeddings/"):  # both have them
            params[path] = value
        elif path.startswith(of_head):
            params[f"mlm_head/{path.removeprefix(of_head)}"] = value
        elif path.startswith(of_encoder):
            params[f"encoder/{path.removeprefix(of_encoder)}"] = value
    metadata = dataclasses.replace(
        model.metadata,
        config={"kind": "pretraining", "objective": knobs.to_dict(asked)},
        encoder=objective.generator(model.metadata.encoder),
    )
    made = Model(model.source, metadata, params)
    try:
        form_of(made)
    except UserError:
        return None
    return made


def form_of(model: Model) -> huggingface.Form:
    """What a checkpoint is in `transformers`.

    Raises:
      UserError: There is no class for it.
    """
    # There, an encoder has one type of segments at least; an XLNet has two.
    encoder = model.metadata.encoder
    types = 2 if encoder.is_relative else max(1, encoder.type_vocab_size)
    encoder = dataclasses.replace(encoder, type_vocab_size=types)
    try:
        return classes.of_metadata(dataclasses.replace(model.metadata, encoder=encoder))
    except UserError as error:
        raise UserError(f"{model.source} cannot go out: {error}") from error
