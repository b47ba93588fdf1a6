"""Checkpoints from one project's format to another's, once and for all."""

import contextlib
import dataclasses
import os
import pathlib
import shutil
import uuid
from collections.abc import Iterator

import jax
import numpy as np

from bert_jax import config as config_lib
from bert_jax import knobs, storage
from bert_jax.errors import UserError
from bert_jax.interop import (
    architectures,
    card,
    classes,
    configs,
    huggingface,
    huggingface_folder,
    json_files,
    safetensors,
    sources,
    tensorflow,
    vocabularies,
)
from bert_jax.model import parameters
from bert_jax.training import checkpoint, stored
from bert_jax.training import metadata as metadata_lib

FORMATS = ("huggingface", "tensorflow", "ours")
# Folder in that of an ELECTRA for its generator, and how names of its parameters begin.
GENERATOR = "generator"
_OF_GENERATOR = "generator_head/", "generator/"
# Room for what is written besides the arrays.
_MARGIN_BYTES = 1 << 20


@dataclasses.dataclass(frozen=True)
class Model:
    """A checkpoint of any project, as ours.

    Attributes:
      source: The checkpoint.
      metadata: What it says of itself.
      params: Parameters by path.
      ignored: What there is in it besides.
      form: What it is in `transformers`, if it is from another project.
    """

    source: str
    metadata: metadata_lib.Metadata
    params: dict[str, np.ndarray]
    ignored: tuple[str, ...] = ()
    form: huggingface.Form | None = None


@dataclasses.dataclass(frozen=True)
class Converted:
    """What became of a checkpoint.

    Attributes:
      to: Format that was written.
      name: Class of `transformers` that the checkpoint is of; "" if it is not known.
      written: Names of the arrays, as they are in the output.
      missing: Parts that the class has, and the checkpoint has not.
      ignored: What is in the checkpoint, and not in the output.
    """

    to: str
    name: str
    written: list[str]
    missing: list[str]
    ignored: list[str]


def convert(source: str, output: str, to: str = "") -> Converted:
    """Read a checkpoint, and write it in another format.

    The output appears when it is complete.

    Args:
      source: Workdir, checkpoint, or folder of another project.
      output: Folder to write; new or empty.
      to: One of `FORMATS`; "": ours for a folder of another project, and else that of
        Hugging Face.

    Raises:
      UserError: The checkpoint cannot be used or cannot be had in that format, or the
        folder cannot be written.
      Unavailable: The checkpoint may be readable later.
    """
    folder = new_folder(output)
    model = read(source)
    to = to or ("ours" if model.form else "huggingface")
    form = model.form if to == "ours" else _form(model)
    paths = set(model.params)
    kept = paths if to == "ours" else _kept(model, form)
    write = {"huggingface": _huggingface, "tensorflow": _tensorflow, "ours": _ours}[to]
    generator = _generator(model) if to == "huggingface" else None
    with _complete_or_not_at_all(folder, model) as temporary:
        written = write(model, form, temporary)
        if generator:
            (temporary / GENERATOR).mkdir()
            names = write(generator, _form(generator), temporary / GENERATOR)
            written += [f"{GENERATOR}/{name}" for name in names]
            kept |= {path for path in paths if path.startswith(_OF_GENERATOR)}
    heads = form.heads if form else []
    return Converted(
        to,
        form.name if form else "",
        written,
        [
            head
            for head in heads
            if not any(path.startswith(f"{head}/") for path in kept)
        ],
        [*sorted(paths - kept), *model.ignored],
    )


def read(source: str) -> Model:
    """All parameters of a checkpoint.

    Raises:
      UserError: The checkpoint cannot be used.
      Unavailable: It may be readable later.
    """
    if other := sources.published(source):
        params = {path: other.parameter(path) for path in sorted(other.shapes)}
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
    shapes = parameters.unflatten(stored.shapes(where))
    loaded = stored.load_params(where, shapes)
    # Views of the device's memory, which is that of the host.
    params = {path: np.asarray(array) for path, array in loaded.params.items()}
    return Model(str(where), metadata, params)


def write_ours(model: Model, output: str) -> None:
    """Write a checkpoint of ours; the folder appears when it is complete.

    Args:
      model: A checkpoint, whose parameters are taken out of it.
      output: Folder to write; new or empty.

    Raises:
      UserError: The folder cannot be written.
    """
    with _complete_or_not_at_all(new_folder(output), model) as temporary:
        _ours(model, None, temporary)


# ---- the folder


def new_folder(output: str) -> pathlib.Path:
    """A folder that can be written, from what a user gave.

    Raises:
      UserError: It is remote, a file, or not empty.
    """
    if storage.is_remote(output):
        raise UserError(f"{output}: the output must be a local folder; copy it then")
    folder = pathlib.Path(os.path.abspath(output))
    if folder.is_dir() and any(folder.iterdir()):
        raise UserError(f"{folder} is not empty; give a new folder")
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder} is a file; give a new folder")
    stored.check_name(folder)
    return folder


@contextlib.contextmanager
def _complete_or_not_at_all(
    folder: pathlib.Path, model: Model
) -> Iterator[pathlib.Path]:
    """A folder to write into, which gets its name when the block is done."""
    temporary = folder.with_name(f"{folder.name}.{uuid.uuid4().hex[:12]}.tmp")
    try:
        with storage.writing(folder, "make room, or give another folder"):
            temporary.mkdir(parents=True)
            needed = sum(x.nbytes for x in model.params.values()) + _MARGIN_BYTES
            free = shutil.disk_usage(temporary).free
            if free < needed:
                raise UserError(
                    f"cannot write to {folder}: {needed:,} bytes are needed, and "
                    f"{free:,} are free; make room, or give another folder"
                )
            try:
                yield temporary
            except Exception as error:
                # Libraries have error types of their own for a full disk.
                if reason := storage.disk_error(error):
                    raise OSError(reason) from error
                raise
            os.replace(temporary, folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


# ---- the formats


def _form(model: Model) -> huggingface.Form:
    """What a checkpoint is in `transformers`.

    Raises:
      UserError: There is no class for it.
    """
    # There, an encoder has one type of segments at least.
    types = max(1, model.metadata.encoder.type_vocab_size)
    encoder = dataclasses.replace(model.metadata.encoder, type_vocab_size=types)
    try:
        return classes.of_metadata(dataclasses.replace(model.metadata, encoder=encoder))
    except UserError as error:
        raise UserError(f"{model.source} cannot go out: {error}") from error


def _generator(model: Model) -> Model | None:
    """The generator of an ELECTRA as a checkpoint of masked tokens.

    None if there is none, or if `transformers` has no class that computes it.
    """
    if not any(path.startswith(_OF_GENERATOR) for path in model.params):
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
    generator = Model(model.source, metadata, params)
    try:
        _form(generator)
    except UserError:
        return None
    return generator


def _kept(model: Model, form: huggingface.Form) -> set[str]:
    """Paths that the output has arrays for.

    Raises:
      UserError: The class has no place for a part of the encoder.
    """
    kept = {path for path in model.params if huggingface.names(path, form)}
    for path in sorted(model.params.keys() - kept):
        if path.startswith("encoder/") and not path.startswith("encoder/pooler/"):
            raise UserError(
                f"{model.source} has {path}, for which the class {form.name} has no "
                "place; such a checkpoint can be used with bert_jax only"
            )
    return kept


def _arrays(model: Model, form: huggingface.Form) -> dict[str, np.ndarray]:
    """Arrays by Hugging Face's names."""
    arrays: dict[str, np.ndarray] = {}
    for path in sorted(_kept(model, form)):
        theirs = huggingface.to_theirs(path, model.params[path], form)
        arrays |= dict(zip(huggingface.names(path, form), theirs, strict=True))
    segments = form.architecture.outside["encoder/embeddings/segment_embedding"]
    zeros = np.zeros((1, form.encoder.embedding_columns), np.float32)
    return dict(sorted(({segments: zeros} | arrays).items()))


def _huggingface(
    model: Model, form: huggingface.Form, folder: pathlib.Path
) -> list[str]:
    arrays = _arrays(model, form)
    if form.kind == architectures.BARE:
        prefix = f"{form.architecture.kind}."
        arrays = {key.removeprefix(prefix): value for key, value in arrays.items()}
    tokenizer = model.metadata.tokenizer
    values = {
        "architectures": [form.name],
        **configs.to_huggingface(form),
        **classes.labels(model.metadata),
    }
    safetensors.write(folder / huggingface_folder.ARRAYS, arrays)
    json_files.write(folder / huggingface_folder.CONFIG, values)
    vocabularies.write(tokenizer, folder, form.encoder)
    text = card.text(model.source, model.metadata, form)
    (folder / "README.md").write_text(text, encoding="utf-8")
    return list(arrays)


def _tensorflow(
    model: Model, form: huggingface.Form, folder: pathlib.Path
) -> list[str]:
    tokenizer = model.metadata.tokenizer
    if form.architecture is not architectures.BERT or form.kind not in tensorflow.KINDS:
        raise UserError(
            f"{model.source} is of the class {form.name}, for which the original code "
            "has no model; convert --to=huggingface"
        )
    if tokenizer.kind != "wordpiece":
        raise UserError(
            f"{model.source} has a {tokenizer.kind} vocabulary, and the original code "
            "reads WordPiece only; convert --to=huggingface"
        )
    values = configs.to_tensorflow(form.encoder)
    arrays = _arrays(model, form)
    tensorflow.write(arrays, folder)
    json_files.write(folder / tensorflow.CONFIG, values)
    # Its settings are flags in the original; here they are a file that we read again.
    vocabularies.write(tokenizer, folder, form.encoder)
    (folder / "tokenizer.json").unlink()
    return sorted(map(tensorflow.original_name, arrays))


def _ours(
    model: Model, form: huggingface.Form | None, folder: pathlib.Path
) -> list[str]:
    del form  # all that there is goes out
    paths = sorted(model.params)
    # One by one, so that memory holds few of them twice.
    params = {path: jax.device_put(model.params.pop(path)) for path in paths}
    checkpoint.save_parameters(
        folder / "checkpoints", parameters.unflatten(params), model.metadata
    )
    # For run.build_corpus, of text to go on with.
    model.metadata.tokenizer.save(folder / "tokenizer")
    return paths
