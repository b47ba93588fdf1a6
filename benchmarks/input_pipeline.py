r"""Sequences a second of the input pipeline, beside Hugging Face's masking collator.

    pip install -e '.[bench]' -c constraints.txt
    python benchmarks/input_pipeline.py --corpus=DIR

Ours pairs segments and masks; `DataCollatorForLanguageModeling` only masks rows that
are already cut and padded. Both run on the same processor cores, in turn, and both give
arrays in memory. The collator gets what suits it best of lists, NumPy arrays and torch
tensors. Prints one JSON object.
"""

import argparse
import json
import statistics
import time
import warnings

import numpy as np
import torch
import transformers

from bert_jax import config as config_lib
from bert_jax.corpus import shards
from bert_jax.data import batches as batches_lib


def ours(corpus, length, batch_size, seconds):
    data = batches_lib.PretrainingBatches(
        corpus,
        config_lib.MaskedLmConfig(),
        length=length,
        batch_size=batch_size,
        seed=0,
    )
    batches = data.batches(0, 10**9)
    for _ in range(20):
        next(batches)
    return rate(lambda: next(batches), batch_size, seconds)


def rate(make, batch_size, seconds):
    """Sequences a second of a function that makes a batch."""
    done, start = 0, time.perf_counter()
    while time.perf_counter() - start < seconds:
        make()
        done += batch_size
    return done / (time.perf_counter() - start)


def huggingface(corpus, length, batch_size, seconds):
    """The collator's best rate, and the form of input that it has it with."""
    tokens = corpus.tokenizer.tokens
    tokenizer = transformers.BertTokenizer(
        vocab={token: i for i, token in enumerate(tokens)}
    )
    rng = np.random.default_rng(0)
    rows = rng.integers(5, len(tokens), (batch_size, length))
    mask = np.ones_like(rows)
    found = {}
    for form, convert in (
        ("lists", lambda row: row.tolist()),
        ("arrays", lambda row: row),
        ("tensors", torch.tensor),
    ):
        for result in ("pt", "np"):
            if form == "tensors" and result == "np":
                continue
            collator = transformers.DataCollatorForLanguageModeling(
                tokenizer, mlm_probability=0.15, return_tensors=result
            )
            examples = [
                {"input_ids": convert(row), "attention_mask": convert(ones)}
                for row, ones in zip(rows, mask, strict=True)
            ]

            def make(collator=collator, examples=examples):
                return collator([dict(e) for e in examples])

            make()
            found[f"{form} to {result}"] = rate(make, batch_size, seconds)
    best = max(found, key=found.get)
    return found[best], best


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--corpus", required=True, help="from run.build_corpus")
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--batch_size", type=int, default=1024)
    parser.add_argument(
        "--seconds", type=float, default=4.0, help="of each measurement"
    )
    parser.add_argument("--rounds", type=int, default=3)
    values = parser.parse_args()
    warnings.simplefilter("ignore")
    corpus = shards.open_corpus(values.corpus)
    shape = (corpus, values.length, values.batch_size, values.seconds)
    measured = {"bert_jax": [], "collator": []}
    for _ in range(values.rounds):
        measured["bert_jax"].append(ours(*shape))
        theirs, form = huggingface(*shape)
        measured["collator"].append(theirs)
    medians = {name: statistics.median(rates) for name, rates in measured.items()}
    report = {
        "length": values.length,
        "batch_size": values.batch_size,
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "collator_input": form,
        "sequences_per_sec": {name: round(r) for name, r in medians.items()},
        "all": {name: [round(r) for r in rates] for name, rates in measured.items()},
        "ratio": round(medians["bert_jax"] / medians["collator"], 1),
    }
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
