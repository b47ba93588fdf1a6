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
from bert_jax import storage
from bert_jax.errors import UserError
from bert_jax.interop import (
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
      is_published: Whether it is one of another project.
    """

    source: str
    metadata: metadata_lib.Metadata
    params: dict[str, np.ndarray]
    ignored: tuple[str, ...]
    is_published: bool


@dataclasses.dataclass(frozen=True)
class Converted:
    """What became of a checkpoint.

    Attributes:
      to: Format that was written.
      name: Class of `transformers` that the checkpoint is of.
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
    to = to or ("ours" if model.is_published else "huggingface")
    name = classes.of_metadata(model.metadata)
    write = {"huggingface": _huggingface, "tensorflow": _tensorflow, "ours": _ours}[to]
    paths = set(model.params)
    kept = {path for path in paths if to == "ours" or _is_of(path, name)}
    with _complete_or_not_at_all(folder, model) as temporary:
        written = write(model, name, temporary)
    return Converted(
        to,
        name,
        written,
        [
            head
            for head in classes.HEADS[name]
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
        used = {
            name
            for path in params
            for name in huggingface.names(path, other.metadata.encoder)
        }
        unused = (*sorted(other.arrays.keys() - used), *other.ignored)
        return Model(other.source, other.metadata, params, unused, True)
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
    return Model(str(where), metadata, params, (), False)


def write_ours(model: Model, output: str) -> None:
    """Write a checkpoint of ours; the folder appears when it is complete.

    Args:
      model: A checkpoint, whose parameters are taken out of it.
      output: Folder to write; new or empty.

    Raises:
      UserError: The folder cannot be written.
    """
    with _complete_or_not_at_all(new_folder(output), model) as temporary:
        _ours(model, "", temporary)


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


def _is_of(path: str, name: str) -> bool:
    """Whether a class of `transformers` has a parameter of ours."""
    if path.startswith("encoder/") and not path.startswith("encoder/pooler/"):
        return True
    return path.startswith(tuple(f"{head}/" for head in classes.HEADS[name]))


def _arrays(model: Model, name: str) -> dict[str, np.ndarray]:
    """Arrays by Hugging Face's names.

    Raises:
      UserError: The class has no name for what it cannot do without.
    """
    encoder = model.metadata.encoder
    if encoder.num_layer_groups:
        raise UserError(
            f"{model.source} has layers that share parameters "
            f"(num_layer_groups={encoder.num_layer_groups}), and the class {name} has "
            "none; it can be used with bert_jax only"
        )
    paths = [path for path in sorted(model.params) if _is_of(path, name)]
    arrays: dict[str, np.ndarray] = {}
    for path in paths:
        if not huggingface.names(path, encoder):
            raise UserError(
                f"{model.source} has {path}, for which the class {name} has no place; "
                "it can be used with bert_jax only"
            )
        theirs = huggingface.to_theirs(path, model.params[path], encoder)
        arrays |= dict(zip(huggingface.names(path, encoder), theirs, strict=True))
    if not encoder.type_vocab_size:  # there, an encoder has one type at least
        zeros = np.zeros((1, encoder.hidden_size), np.float32)
        arrays["bert.embeddings.token_type_embeddings.weight"] = zeros
    return dict(sorted(arrays.items()))


def _encoder(model: Model) -> config_lib.EncoderConfig:
    """The encoder as the arrays have it."""
    encoder = model.metadata.encoder
    return dataclasses.replace(encoder, type_vocab_size=max(1, encoder.type_vocab_size))


def _huggingface(model: Model, name: str, folder: pathlib.Path) -> list[str]:
    encoder = _encoder(model)
    arrays = _arrays(model, name)
    if name == classes.BARE:
        arrays = {key.removeprefix("bert."): value for key, value in arrays.items()}
    values = {
        "architectures": [name],
        **configs.to_huggingface(encoder),
        "pad_token_id": model.metadata.tokenizer.pad_id,
        **classes.labels(model.metadata),
    }
    safetensors.write(folder / huggingface_folder.ARRAYS, arrays)
    json_files.write(folder / huggingface_folder.CONFIG, values)
    vocabularies.write(model.metadata.tokenizer, folder, encoder)
    text = card.text(model.source, model.metadata, name)
    (folder / "README.md").write_text(text, encoding="utf-8")
    return list(arrays)


def _tensorflow(model: Model, name: str, folder: pathlib.Path) -> list[str]:
    tokenizer = model.metadata.tokenizer
    if name not in tensorflow.CLASSES:
        raise UserError(
            f"{model.source} is of the class {name}, for which the original code has "
            "no model; convert --to=huggingface"
        )
    if tokenizer.kind != "wordpiece":
        raise UserError(
            f"{model.source} has a {tokenizer.kind} vocabulary, and the original code "
            "reads WordPiece only; convert --to=huggingface"
        )
    encoder = _encoder(model)
    values = configs.to_tensorflow(encoder)
    arrays = _arrays(model, name)
    tensorflow.write(arrays, folder)
    json_files.write(folder / tensorflow.CONFIG, values)
    # Its settings are flags in the original; here they are a file that we read again.
    vocabularies.write(tokenizer, folder, encoder)
    (folder / "tokenizer.json").unlink()
    return sorted(map(tensorflow.original_name, arrays))


def _ours(model: Model, name: str, folder: pathlib.Path) -> list[str]:
    del name  # all that there is goes out
    paths = sorted(model.params)
    # One by one, so that memory holds few of them twice.
    params = {path: jax.device_put(model.params.pop(path)) for path in paths}
    checkpoint.save_parameters(
        folder / "checkpoints", parameters.unflatten(params), model.metadata
    )
    # For run.build_corpus, of text to go on with.
    model.metadata.tokenizer.save(folder / "tokenizer")
    return paths
