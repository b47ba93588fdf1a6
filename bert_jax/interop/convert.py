"""Checkpoints from one project's format to another's, once and for all."""

import dataclasses
import math
import pathlib
from collections.abc import Iterator

import jax
import numpy as np

from bert_jax.errors import UserError
from bert_jax.interop import (
    architectures,
    card,
    classes,
    configs,
    huggingface,
    huggingface_folder,
    json_files,
    models,
    output,
    safetensors,
    tensorflow,
    vocabularies,
)
from bert_jax.interop.models import Model
from bert_jax.model import parameters
from bert_jax.training import checkpoint

FORMATS = ("huggingface", "tensorflow", "ours")
# Folder in that of an ELECTRA for its generator.
GENERATOR = "generator"
# Without it, nobody takes a folder for one of this format.
_LAST = {"huggingface": huggingface_folder.CONFIG, "tensorflow": tensorflow.CONFIG}


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


def convert(source: str, folder: str, to: str = "") -> Converted:
    """Read a checkpoint, and write it in another format.

    The output appears when it is complete.

    Args:
      source: Workdir, checkpoint, or folder of another project.
      folder: Folder to write; new or empty.
      to: One of `FORMATS`; "": ours for a folder of another project, and else that of
        Hugging Face.

    Raises:
      UserError: The checkpoint cannot be used or cannot be had in that format, or the
        folder cannot be written.
      Unavailable: The checkpoint may be readable later, or the folder be writable.
    """
    new = output.check(folder)
    model = models.read(source)
    to = to or ("ours" if model.form else "huggingface")
    form = model.form if to == "ours" else models.form_of(model)
    paths = set(model.params)
    if to == "ours":
        written, kept = write_ours(model, folder), paths
    else:
        kept = _kept(model, form)
        generator = models.generator(model) if to == "huggingface" else None
        write = _huggingface if to == "huggingface" else _tensorflow
        with output.complete_or_not_at_all(new, _size(model), _LAST[to]) as temporary:
            written = write(model, form, temporary)
            if generator:
                (temporary / GENERATOR).mkdir()
                of_it = models.form_of(generator)
                names = write(generator, of_it, temporary / GENERATOR)
                written += [f"{GENERATOR}/{name}" for name in names]
                kept |= {path for path in paths if models.is_of_generator(path)}
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


def _size(model: Model) -> int:
    """Bytes of all arrays, which are float32."""
    return sum(4 * math.prod(array.shape) for array in model.params.values())


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


# ---- the formats


def _shapes(model: Model, form: huggingface.Form) -> dict[str, tuple[int, ...]]:
    """Shapes of the arrays by Hugging Face's names, sorted."""
    shapes = {
        name: huggingface.shape(path, model.params[path].shape, form)
        for path in _kept(model, form)
        for name in huggingface.names(path, form)
    }
    return dict(sorted((huggingface.optional(form) | shapes).items()))


def _arrays(model: Model, form: huggingface.Form) -> Iterator[tuple[str, np.ndarray]]:
    """Arrays with Hugging Face's names; memory holds one parameter at a time."""
    names: set[str] = set()
    for path in sorted(_kept(model, form)):
        theirs = huggingface.to_theirs(path, model.params[path].read(), form)
        yield from zip(huggingface.names(path, form), theirs, strict=True)
        names.update(huggingface.names(path, form))
    for name, shape in huggingface.optional(form).items():
        if name not in names:
            yield name, np.zeros(shape, np.float32)


def _huggingface(
    model: Model, form: huggingface.Form, folder: pathlib.Path
) -> list[str]:
    bare = form.kind == architectures.BARE
    prefix = form.architecture.prefix if bare else ""
    types = {
        name.removeprefix(prefix): jax.ShapeDtypeStruct(shape, np.float32)
        for name, shape in _shapes(model, form).items()
    }
    arrays = ((n.removeprefix(prefix), array) for n, array in _arrays(model, form))
    values = {
        "architectures": [form.name],
        **configs.to_huggingface(form),
        **classes.labels(model.metadata),
    }
    safetensors.write(folder / huggingface_folder.ARRAYS, types, arrays)
    json_files.write(folder / huggingface_folder.CONFIG, values)
    vocabularies.write(model.metadata.tokenizer, folder, form.encoder)
    text = card.text(model.source, model.metadata, form)
    (folder / "README.md").write_text(text, encoding="utf-8")
    return list(types)


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
    names = tensorflow.write(_arrays(model, form), folder)
    json_files.write(folder / tensorflow.CONFIG, values)
    # Its settings are flags in the original; here they are a file that we read again.
    vocabularies.write(tokenizer, folder, form.encoder)
    (folder / "tokenizer.json").unlink()
    return names


def write_ours(model: Model, folder: str) -> list[str]:
    """Write a checkpoint of ours; the folder appears when it is complete.

    Args:
      model: A checkpoint.
      folder: Folder to write; new or empty.

    Returns:
      Paths of the parameters.

    Raises:
      UserError: The folder cannot be written.
    """
    new, paths = output.check_local(folder), sorted(model.params)
    with output.complete_or_not_at_all(new, _size(model), "") as temporary:
        # One by one, so that memory holds only one of them twice: the largest first, as
        # long as there is little else.
        params = {
            path: jax.block_until_ready(jax.device_put(model.params[path].read()))
            for path in sorted(paths, key=lambda p: -math.prod(model.params[p].shape))
        }
        checkpoint.save_parameters(
            temporary / "checkpoints", parameters.unflatten(params), model.metadata
        )
        # For run.build_corpus, of text to go on with.
        model.metadata.tokenizer.save(temporary / "tokenizer")
    return paths
