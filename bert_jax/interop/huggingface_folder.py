"""Folders that `transformers` saved."""

import pathlib

from bert_jax.errors import UserError
from bert_jax.interop import configs, json_files, published, safetensors, vocabularies
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
    config = configs.read(folder / CONFIG)
    files, names = _files(folder, config.class_name)
    arrays: dict[str, Stored] = {}
    for path in files:
        arrays |= safetensors.read(path)
    if missing := names - arrays.keys():
        raise UserError(f"{folder}: {INDEX} lists {min(missing)}, and no file has it")
    tokenizer = vocabularies.read(folder, config.family)
    return published.make(str(folder), files, config, tokenizer, arrays)


def _files(
    folder: pathlib.Path, class_name: str
) -> tuple[tuple[pathlib.Path, ...], set[str]]:
    """Return the files with the arrays, and the names of arrays in the index."""
    if (folder / ARRAYS).exists():
        return (folder / ARRAYS,), set()
    if not (folder / INDEX).exists():
        if pickles := _pickles(folder):
            auto = class_name or "AutoModelForPreTraining"
            raise UserError(
                f"{pickles[0]} is a pickle, and reading a pickle can run code; save "
                f"the model as safetensors, in Python: from transformers import {auto} "
                f"as M; M.from_pretrained({str(folder)!r}).save_pretrained(NEW_FOLDER)"
            )
        raise UserError(f"{folder} has no {ARRAYS}, and no {INDEX}")
    index = folder / INDEX
    file_of = json_files.value(index, json_files.read(index), "weight_map", dict)
    if not file_of or not all(isinstance(name, str) for name in file_of.values()):
        raise UserError(f"{index}: weight_map names no files")
    names = sorted(set(file_of.values()))
    for name in names:
        if pathlib.Path(name).name != name or not (folder / name).is_file():
            raise UserError(f"{folder} has no {name}, one of {len(names)} in {INDEX}")
    return tuple(folder / name for name in names), set(file_of)
