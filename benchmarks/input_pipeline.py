r"""Sequences a second of the input pipeline, for each kind of batch.

    python benchmarks/input_pipeline.py --corpus=DIR
    python benchmarks/input_pipeline.py --corpus=DIR,DIR --recipes bert_base
    python benchmarks/input_pipeline.py --corpus=DIR --recipes bert_base --collator

Several corpora are mixed by their sizes.

The recipes take turns. The best round is the one with the least other work on the
machine. The report has all rounds, and the rate for each second of processor time,
which other work disturbs less.

`--collator` adds Hugging Face's `DataCollatorForLanguageModeling`, which only masks
rows that are already cut and padded (`pip install -e '.[bench]' -c constraints.txt`),
on the same cores, with the fastest of lists, NumPy arrays and torch tensors as input.
Prints one JSON object.
"""

import argparse
import json
import os
import statistics
import time
import warnings

import numpy as np
import show_batches

from bert_jax.corpus import shards

RECIPES = (*show_batches.RECIPES, "albert:base", "electra:small", "roberta:base")


def ours(corpora, recipe, length, batch_size):
    """Return a function that makes the next batch of a recipe."""
    made = show_batches.batches(corpora, recipe, length=length, batch_size=batch_size)
    stream = made.batches(0, 10**9)
    for _ in range(20):
        next(stream)
    return lambda: next(stream)


def rates(make, batch_size, seconds):
    """Return sequences a second by the clock, and by processor time of all cores."""
    done, start, start_cpu = 0, time.perf_counter(), time.process_time()
    while time.perf_counter() - start < seconds:
        make()
        done += batch_size
    clock, cpu = time.perf_counter() - start, time.process_time() - start_cpu
    return done / clock, done / cpu


def collator(corpus, length, batch_size):
    """Return a function that makes a batch with the collator's fastest input type."""
    import torch
    import transformers

    tokens = corpus.tokenizer.tokens
    tokenizer = transformers.BertTokenizer(
        vocab={token: i for i, token in enumerate(tokens)}
    )
    rng = np.random.default_rng(0)
    rows = rng.integers(5, len(tokens), (batch_size, length))
    mask = np.ones_like(rows)
    makers = []
    for convert, result in (
        (lambda row: row.tolist(), "pt"),
        (lambda row: row.tolist(), "np"),
        (lambda row: row, "pt"),
        (lambda row: row, "np"),
        (torch.tensor, "pt"),
    ):
        collate = transformers.DataCollatorForLanguageModeling(
            tokenizer, mlm_probability=0.15, return_tensors=result
        )
        examples = [
            {"input_ids": convert(row), "attention_mask": convert(ones)}
            for row, ones in zip(rows, mask, strict=True)
        ]

        def make(collate=collate, examples=examples):
            return collate([dict(e) for e in examples])

        make()
        makers.append(make)
    return max(makers, key=lambda make: rates(make, batch_size, 1.0)[0])


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--corpus", required=True, help="from run.build_corpus; or several"
    )
    parser.add_argument("--recipes", nargs="+", default=RECIPES)
    parser.add_argument("--collator", action="store_true", help="Hugging Face's, too")
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--batch_size", type=int, default=1024)
    parser.add_argument(
        "--seconds", type=float, default=2.0, help="of each measurement"
    )
    parser.add_argument("--rounds", type=int, default=5)
    values = parser.parse_args()
    warnings.simplefilter("ignore")
    corpora = [shards.open_corpus(folder) for folder in values.corpus.split(",")]
    shape = values.length, values.batch_size
    makers = {recipe: ours(corpora, recipe, *shape) for recipe in values.recipes}
    if values.collator:
        makers["collator"] = collator(corpora[0], *shape)
    measured = {name: [] for name in makers}
    loads = []
    for _ in range(values.rounds):
        loads.append(os.getloadavg()[0])
        for name, make in makers.items():
            measured[name].append(rates(make, values.batch_size, values.seconds))
    report = {
        "length": values.length,
        "batch_size": values.batch_size,
        "cores": len(os.sched_getaffinity(0)),
        "load_before_rounds": [round(load, 1) for load in loads],
        "sequences_per_sec": {},
    }
    for name, pairs in measured.items():
        by_clock, by_cpu = zip(*pairs, strict=True)
        report["sequences_per_sec"][name] = {
            "best": round(max(by_clock)),
            "median": round(statistics.median(by_clock)),
            "all": [round(r) for r in by_clock],
            "best_per_core": round(max(by_cpu)),
        }
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
