"""Folders that `transformers` saved."""

import dataclasses
import glob
import os
import pathlib

from bert_jax.errors import UserError
from bert_jax.interop import (
    configs,
    flax_msgpack,
    json_files,
    published,
    safetensors,
    sentence_transformers,
    special_token_layout,
    tokenizer_files,
)
from bert_jax.interop.safetensors import LazyArray
from bert_jax.tokenizer import PIPELINE_FILE

CONFIG = "config.json"
ARRAYS = "model.safetensors"
INDEX = "model.safetensors.index.json"
FLAX = "flax_model.msgpack"
PICKLE = "pytorch_model*.bin"
_SEGMENTS = "token_type_embeddings.weight"
_PICKLES = (PICKLE, "*.pt", "*.pth")


def is_checkpoint(folder: pathlib.Path) -> bool:
    """Return whether `transformers` saved a folder, damaged or not."""
    if any((folder / name).exists() for name in (ARRAYS, INDEX, FLAX)):
        return True
    values = json_files.read_or_empty(folder / CONFIG)
    return "model_type" in values or "architectures" in values


def read(folder: pathlib.Path) -> published.Published:
    """Read the checkpoint in a folder.

    Raises:
      UserError: A file is missing or damaged, or the model is of an unknown family.
    """
    config = configs.read(folder / CONFIG)
    if (folder / ARRAYS).exists():
        files, arrays = (folder / ARRAYS,), safetensors.read(folder / ARRAYS)
    elif (folder / INDEX).exists():
        files, arrays = _read_shards(folder)
    elif (folder / FLAX).exists():
        files, arrays = (folder / FLAX,), flax_msgpack.read(folder / FLAX)
    elif pickles := [path for name in _PICKLES for path in sorted(folder.glob(name))]:
        # Classes of `transformers` would leave out arrays, or invent heads.
        first = pickles[0]
        # All shards, if it is one of them.
        name = PICKLE if first.match(PICKLE) else glob.escape(first.name)
        found = os.path.join(glob.escape(str(folder)), name)
        raise UserError(
            f"{first} is a pickle, and reading a pickle can run code; write its "
            "arrays as safetensors, on a local disk, in Python: import glob, torch; "
            "from safetensors.torch import save_file; save_file({k: "
            f"v.contiguous().clone() for f in glob.glob({found!r}) for k, v in "
            f"torch.load(f, weights_only=True).items()}}, {str(folder / ARRAYS)!r})"
        )
    else:
        raise UserError(f"{folder} has no {ARRAYS}, {INDEX} or {FLAX}")
    tokenizer = tokenizer_files.read(folder)
    has_segments = config.encoder.type_vocab_size > 1
    # XLNet was trained with segments, whatever its tokenizer's class says now.
    may_lack_them = has_segments and config.family.min_segments < 2
    if may_lack_them and tokenizer_files.has_one_segment(folder, tokenizer):
        has_segments = False
        encoder = dataclasses.replace(config.encoder, type_vocab_size=1)
        config = config._replace(encoder=encoder)
        arrays = {
            name: _first_row(array) if name.endswith(_SEGMENTS) else array
            for name, array in arrays.items()
        }
    if (folder / PIPELINE_FILE).exists():
        special_token_layout.check(
            str(folder),
            tokenizer,
            cls_is_last=config.family.cls_is_last,
            has_segments=has_segments,
        )
    made = published.assemble(
        str(folder),
        files,
        config,
        tokenizer,
        arrays,
        tokens_are_lines=tokenizer_files.has_tokens_in_lines(folder),
    )
    modules = sentence_transformers.modules_after_encoder(folder)
    return dataclasses.replace(made, ignored=(*made.ignored, *modules))


def _first_row(array: LazyArray) -> LazyArray:
    return LazyArray((1, *array.shape[1:]), lambda: array.read()[:1])


def _read_shards(
    folder: pathlib.Path,
) -> tuple[tuple[pathlib.Path, ...], dict[str, LazyArray]]:
    """Return the files in the index, and the arrays in the files."""
    index = json_files.JsonFile(folder / INDEX, json_files.read(folder / INDEX))
    names = sorted(set(map(str, index.value("weight_map", dict).values())))
    arrays: dict[str, LazyArray] = {}
    for name in names:
        if not (folder / name).is_file():
            raise UserError(f"{folder} has no {name}, one of {len(names)} in {INDEX}")
        arrays |= safetensors.read(folder / name)
    return tuple(folder / name for name in names), arrays
