"""Model cards of exported checkpoints, in Markdown."""

import json
import pathlib
from typing import Any

from bert_jax import config as config_lib
from bert_jax import knobs, storage
from bert_jax.corpus import mixture, shards
from bert_jax.errors import Unavailable, UserError
from bert_jax.interop import huggingface
from bert_jax.interop.families import family
from bert_jax.training import metadata as metadata_lib
from bert_jax.training import metrics_file

# Class of `transformers` that loads the model of each purpose.
_AUTO = {
    family.NEXT_SENTENCE: "AutoModelForPreTraining",
    family.SENTENCE_ORDER: "AutoModelForPreTraining",
    family.REPLACED_TOKENS: "AutoModelForPreTraining",
    family.ONLY_NEXT_SENTENCE: "AutoModelForNextSentencePrediction",
    family.MASKED_LM: "AutoModelForMaskedLM",
    family.CAUSAL_LM: "AutoModelForCausalLM",
    family.PERMUTATION_LM: "AutoModelForCausalLM",
    family.CLASSIFICATION: "AutoModelForSequenceClassification",
    family.TAGGING: "AutoModelForTokenClassification",
    family.ANSWERING: "AutoModelForQuestionAnswering",
    family.CHOICE: "AutoModelForMultipleChoice",
    family.BARE: "AutoModel",
}


def text(source: str, metadata: metadata_lib.Metadata, form: huggingface.Form) -> str:
    """Return the model card of a checkpoint.

    Args:
      source: The checkpoint. The reports in its workdir are read, if there are any.
      metadata: Metadata of the checkpoint.
      form: Class of `transformers`.
    """
    encoder, tokenizer = metadata.encoder, metadata.tokenizer
    title, auto = form.family.title, _AUTO[form.purpose]
    rows = [
        ("class", f"`{form.name}`"),
        ("layers", encoder.num_layers),
        ("hidden size", encoder.hidden_size),
        ("attention heads", encoder.num_heads),
        ("feed-forward size", encoder.intermediate_size),
        ("positions", encoder.max_position_embeddings),
        ("vocabulary", f"{tokenizer.vocab_size:,} tokens, {tokenizer.kind}"),
        ("lower case", "yes" if tokenizer.lower_case else "no"),
        ("accents removed", "yes" if tokenizer.strip_accents else "no"),
        *_training(source, metadata),
    ]
    table = "\n".join(f"| {key} | {value} |" for key, value in rows)
    return f"""---
library_name: transformers
tags:
- {form.family.model_type}
---

# {"An" if title[0] in "AEX" else "A"} {title} encoder

Trained or converted with bert_jax.

| | |
|---|---|
{table}

```python
from transformers import {auto}, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained("FOLDER")
model = {auto}.from_pretrained("FOLDER")
```
"""


def _training(source: str, metadata: metadata_lib.Metadata) -> list[tuple[str, Any]]:
    """Return the table's rows about the training run."""
    rows: list[tuple[str, Any]] = []
    saved = metadata.config
    path = pathlib.PurePath(source)
    if not path.name.isdecimal():  # no checkpoint of a run
        return rows
    step = int(path.name)
    if step:
        rows.append(("steps", f"{step:,}"))
    for phase in saved.get("phases") or ():
        rows.append(
            (
                "steps planned",
                f"{phase['steps']:,} of {phase['batch_size']} sequences of "
                f"{phase['length']} tokens",
            )
        )
    task = saved.get("task")
    if isinstance(task, dict):
        rows.append(("fine-tuned for", task.get("name") or task.get("kind")))
    rows += _corpus(saved.get("data"))
    # WORKDIR/checkpoints/STEP
    workdir, *_ = source.rsplit("/", 2)
    return rows + _held_out(storage.path(workdir), step)


def _corpus(data: Any) -> list[tuple[str, Any]]:
    try:
        config = knobs.from_dict(config_lib.DataConfig, data)
        corpora = mixture.open_corpora(config.folders)
    except (UserError, Unavailable):
        return []
    if mixture.fingerprint(corpora) != config.fingerprint:
        return []
    counts = [
        f"{sum(corpus.count(shards.TRAIN, what) for corpus in corpora):,} {what}"
        for what in ("documents", "sentences", "tokens")
    ]
    of = f", of {len(corpora)} corpora" if len(corpora) > 1 else ""
    return [("corpus", ", ".join(counts) + of)]


def _held_out(workdir: storage.Path, step: int) -> list[tuple[str, Any]]:
    """Return rows about the last evaluation up to a step, and about results.json."""
    rows: list[tuple[str, Any]] = []
    try:
        records = metrics_file.read(workdir)
    except (UserError, Unavailable):
        records = []
    evaluated = [r for r in records if r["split"] == "eval" and r["step"] <= step]
    if evaluated:
        rows = [
            (f"held out, {name}", f"{value:.4g}")
            for name, value in evaluated[-1].items()
            if name not in ("step", "split")
        ]
    try:
        results = json.loads((workdir / "results.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return rows
    if isinstance(results, dict) and results.get("step") == step:
        rows += [
            (f"results, {name}", f"{value:.4g}")
            for name, value in results.items()
            if isinstance(value, float)
        ]
    return rows
