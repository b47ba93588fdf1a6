r"""Sequences a second of the input pipeline, for each kind of batch.

    python benchmarks/input_pipeline.py --corpus=DIR
    python benchmarks/input_pipeline.py --corpus=DIR,DIR --recipes bert_base
    python benchmarks/input_pipeline.py --corpus=DIR --recipes bert_base --collator

Several corpora are mixed by their sizes. The recipes take turns. The best round is the
one with the least other work on the machine; the report has all rounds.

`--collator` adds Hugging Face's `DataCollatorForLanguageModeling`, which only masks
rows that are already cut and padded (`pip install -e '.[bench]' -c constraints.txt`),
on the same cores, with the fastest of lists, NumPy arrays and torch tensors as input.
Prints one JSON object.
"""

import functools
import json
import os
import statistics
import time
import warnings

import interleaved_timing
import numpy as np
import program_flags
import show_batches

from bert_jax.corpus import shards
from bert_jax.run import exit_status

RECIPES = (*show_batches.RECIPES, "albert:base", "electra:small", "roberta:base")


def rate(make, batch_size, seconds):
    """Return the sequences a second of a function that makes a batch."""
    done, start = 0, time.perf_counter()
    while time.perf_counter() - start < seconds:
        make()
        done += batch_size
    return done / (time.perf_counter() - start)


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

    def made_from(convert, result):
        collate = transformers.DataCollatorForLanguageModeling(
            tokenizer, mlm_probability=0.15, return_tensors=result
        )
        ones = convert(np.ones(length, rows.dtype))
        examples = [{"input_ids": convert(r), "attention_mask": ones} for r in rows]
        return lambda: collate([dict(example) for example in examples])

    kinds = [(np.ndarray.tolist, "pt"), (np.ndarray.tolist, "np"), (torch.tensor, "pt")]
    kinds += [(np.asarray, "pt"), (np.asarray, "np")]
    makers = [made_from(*kind) for kind in kinds]
    return max(makers, key=lambda make: rate(make, batch_size, 1.0))


def main():
    parser = program_flags.make_parser(__doc__)
    parser.add_argument(
        "--corpus", required=True, help="from run.build_corpus; or several"
    )
    parser.add_argument(
        "--recipes", nargs="+", default=RECIPES, help="recipes to measure"
    )
    parser.add_argument("--collator", action="store_true", help="Hugging Face's, too")
    parser.add_argument("--length", type=int, default=128, help="of rows")
    parser.add_argument("--batch_size", type=int, default=1024, help="rows of a batch")
    parser.add_argument("--seconds", type=float, default=2.0, help="of a measurement")
    parser.add_argument("--rounds", type=int, default=5, help="number of measurements")
    values = parser.parse_args()
    warnings.simplefilter("ignore")
    shape = {"length": values.length, "batch_size": values.batch_size}
    makers = {}
    try:
        corpora = [shards.open_corpus(folder) for folder in values.corpus.split(",")]
        for recipe in values.recipes:
            made = show_batches.batches(corpora, recipe, **shape)
            makers[recipe] = made.batches(0, 10**9).__next__
    except FileNotFoundError as error:  # no such recipe
        parser.error(str(error))
    if values.collator:
        makers["collator"] = collator(corpora[0], **shape)
    measures = {
        name: functools.partial(rate, make, values.batch_size, values.seconds)
        for name, make in makers.items()
    }
    measured = interleaved_timing.rounds(measures, values.rounds)
    report = {
        **shape,
        "cores": len(os.sched_getaffinity(0)),
        "sequences_per_sec": {
            name: {
                "best": round(max(rates)),
                "median": round(statistics.median(rates)),
                "all": [round(r) for r in rates],
            }
            for name, rates in measured.items()
        },
    }
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    with exit_status.reported_errors():
        main()
