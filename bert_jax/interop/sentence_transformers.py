"""Files that let `sentence_transformers` load an exported encoder as an embedder."""

import pathlib
from typing import Any

from bert_jax.interop import json_files

# Modules of the library, in the order in which it applies them, and their folders.
_MODULES = {"Transformer": "", "Pooling": "1_Pooling", "Normalize": "2_Normalize"}


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
        "modules.json": [
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
