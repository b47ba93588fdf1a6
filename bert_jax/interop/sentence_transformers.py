"""Files with which `sentence_transformers` loads an encoder as an embedder."""

import json
import pathlib
from typing import Any

from bert_jax.interop import json_files

# Modules of the library, in the order in which it applies them, and their folders.
_MODULES_FILE = "modules.json"
_MODULES = {"Transformer": "", "Pooling": "1_Pooling", "Normalize": "2_Normalize"}


def modules_after_encoder(folder: pathlib.Path) -> list[str]:
    """Return the modules of an embedder's folder that bert_jax does not read."""
    try:
        modules = json.loads((folder / _MODULES_FILE).read_text(encoding="utf-8"))
        paths = [module["path"] for module in modules if module["path"]]
    except (OSError, ValueError, TypeError, KeyError):  # nothing depends on the file
        paths = []
    return [f"{path} (a module of sentence_transformers)" for path in paths]


def write(
    folder: pathlib.Path, task: dict[str, Any], hidden_size: int, *, reads_last: bool
) -> None:
    """Write the modules that compute vectors of texts with an exported encoder.

    `task` has the fields of an `EmbeddingConfig`. `reads_last` says that pool="cls"
    reads the last token.
    """
    cls = "lasttoken" if reads_last else "cls_token"
    mode = {"mean": "mean_tokens", "cls": cls}[task["pool"]]
    modes = "cls_token", "mean_tokens", "lasttoken"
    pooling = {f"pooling_mode_{each}": each == mode for each in modes}
    files = {
        _MODULES_FILE: [
            {
                "idx": i,
                "name": str(i),
                "path": path,
                "type": f"sentence_transformers.models.{name}",
            }
            for i, (name, path) in enumerate(_MODULES.items())
        ],
        "1_Pooling/config.json": {"word_embedding_dimension": hidden_size} | pooling,
        "2_Normalize/config.json": {},
        "sentence_bert_config.json": {
            "max_seq_length": task["length"],
            "do_lower_case": False,
        },
    }
    for name, values in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        json_files.write(folder / name, values)
