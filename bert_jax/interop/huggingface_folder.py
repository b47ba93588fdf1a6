"""Folders that `transformers` saved."""

import pathlib

from bert_jax.errors import UserError
from bert_jax.interop import configs, json_files, published, safetensors, vocabularies
from bert_jax.interop.families.family import ACTIVATIONS
from bert_jax.interop.safetensors import Stored

CONFIG = "config.json"
ARRAYS = "model.safetensors"
INDEX = "model.safetensors.index.json"
_PICKLES = ("pytorch_model*.bin", "*.pt", "*.pth")


def is_one(folder: pathlib.Path) -> bool:
    """Return whether a folder is one, even if it is damaged or of an unknown family."""
    if any((folder / name).exists() for name in (ARRAYS, INDEX)):
        return True
    if not (folder / CONFIG).exists():
        return bool(_pickles(folder))
    values = json_files.read(folder / CONFIG)
    return "model_type" in values or "architectures" in values


def _pickles(folder: pathlib.Path) -> list[pathlib.Path]:
    return [path for pattern in _PICKLES for path in sorted(folder.glob(pattern))]


def read(folder: pathlib.Path) -> published.Published:
    """Read the checkpoint in a folder.

    Raises:
      UserError: A file is missing or damaged, or the model is of an unknown family.
    """
    values = json_files.read(folder / CONFIG)
    family = configs.family_of(folder / CONFIG, values)
    encoder = configs.encoder(folder / CONFIG, values, ACTIVATIONS, family)
    files = _files(folder)
    arrays: dict[str, Stored] = {}
    for path in files:
        arrays |= safetensors.read(path)
    if (folder / INDEX).exists() and files[0].name != ARRAYS:
        missing = _weight_map(folder / INDEX).keys() - arrays.keys()
        if missing:
            raise UserError(
                f"{folder}: {INDEX} lists {min(missing)}, and no file has it"
            )
    tokenizer = vocabularies.read(folder, family)
    return published.make(
        str(folder),
        files,
        folder / CONFIG,
        values,
        family,
        encoder,
        tokenizer,
        arrays,
    )


def _files(folder: pathlib.Path) -> tuple[pathlib.Path, ...]:
    """Return the files with the arrays."""
    if (folder / ARRAYS).exists():
        return (folder / ARRAYS,)
    if not (folder / INDEX).exists():
        if pickles := _pickles(folder):
            raise UserError(
                f"{pickles[0]} is a pickle, which can run code when it is read, so it "
                "is not read; save it anew, in Python: from transformers import "
                f"AutoModelForPreTraining as M; M.from_pretrained({str(folder)!r})"
                ".save_pretrained(NEW_FOLDER)"
            )
        raise UserError(f"{folder} has no {ARRAYS}, and no {INDEX}")
    names = sorted(set(_weight_map(folder / INDEX).values()))
    for name in names:
        if pathlib.Path(name).name != name or not (folder / name).is_file():
            raise UserError(f"{folder} has no {name}, one of {len(names)} in {INDEX}")
    return tuple(folder / name for name in names)


def _weight_map(index: pathlib.Path) -> dict[str, str]:
    """Return the file of each array, by name."""
    files = json_files.value(index, json_files.read(index), "weight_map", dict)
    if not files or not all(isinstance(name, str) for name in files.values()):
        raise UserError(f"{index}: weight_map names no files")
    return files
