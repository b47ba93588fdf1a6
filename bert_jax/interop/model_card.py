"""Model cards of exported checkpoints, in Markdown."""

import contextlib
import json
import pathlib
from typing import Any

from bert_jax import storage
from bert_jax.errors import Unavailable, UserError
from bert_jax.interop.huggingface import ModelSpec
from bert_jax.training import metadata as metadata_lib
from bert_jax.training import metrics_file

_CODE = """\
from transformers import AutoTokenizer, {name}

tokenizer = AutoTokenizer.from_pretrained("FOLDER")
model = {name}.from_pretrained("FOLDER")"""
_EMBEDDER_CODE = """\
from sentence_transformers import SentenceTransformer

vectors = SentenceTransformer("FOLDER").encode(["a text", "another text"])"""


def render(source: str, metadata: metadata_lib.Metadata, spec: ModelSpec) -> str:
    """Return the model card of a checkpoint.

    `source` is the path of a run's checkpoint; "" for a published one.
    """
    encoder, tokenizer = metadata.encoder, metadata.tokenizer
    title = spec.family.title
    rows = [
        ("class", f"`{spec.name}`"),
        ("layers", encoder.num_layers),
        ("hidden size", encoder.hidden_size),
        ("attention heads", encoder.num_heads),
        ("feed-forward size", encoder.intermediate_size),
        ("positions", encoder.max_position_embeddings),
        ("vocabulary", f"{tokenizer.vocab_size:,} tokens, {tokenizer.model_type}"),
        *_run(source, metadata.config),
    ]
    table = "\n".join(f"| {key} | {value} |" for key, value in rows)
    library, code = "transformers", _CODE.format(name=spec.name)
    if metadata.config.get("task", {}).get("kind") == "embedding":
        library, code = "sentence-transformers", _EMBEDDER_CODE
    return f"""---
library_name: {library}
tags:
- {spec.family.model_type}
---

# {title} encoder

Trained or converted with bert_jax.

| | |
|---|---|
{table}

```python
{code}
```
"""


def _run(source: str, saved: dict[str, Any]) -> list[tuple[str, Any]]:
    """Return rows about the run that saved the checkpoint WORKDIR/checkpoints/STEP."""
    name = pathlib.PurePath(source).name
    if not name.isdecimal():
        return []
    step = int(name)
    rows: list[tuple[str, Any]] = [("steps", f"{step:,}")] if step else []
    rows += [
        (
            "steps planned",
            f"{phase['steps']:,} of {phase['batch_size']} sequences of "
            f"{phase['length']} tokens",
        )
        for phase in saved.get("phases") or ()
    ]
    if task := saved.get("task"):
        rows.append(("fine-tuned for", task.get("name") or task.get("kind")))
    workdir = storage.path(source.rsplit("/", 2)[0])
    # The reports may be gone.
    with contextlib.suppress(UserError, Unavailable):
        records = metrics_file.read(workdir)
        evaluated = [r for r in records if r["split"] == "eval" and r["step"] <= step]
        rows += _numbers("held out", evaluated[-1] if evaluated else {})
    with contextlib.suppress(OSError, ValueError):
        results = json.loads((workdir / "results.json").read_text(encoding="utf-8"))
        rows += _numbers("results", results if results.get("step") == step else {})
    return rows


def _numbers(title: str, values: dict[str, Any]) -> list[tuple[str, str]]:
    return [
        (f"{title}, {name}", f"{value:.4g}")
        for name, value in values.items()
        if isinstance(value, float)
    ]
