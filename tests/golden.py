"""Batches, and reports of smoke runs, which must not change by accident.

    python tests/golden.py [FOLDER]

writes the files that `test_golden.py` compares with, or the same to another folder, to
compare two versions of the code on one machine bit for bit. The text is made here, so
that nothing depends on the machine but the last digits of the reports.
"""

import hashlib
import json
import pathlib
import sys
import tempfile

import numpy as np
import recipes
import runs
from corpora import build_text

from bert_jax import config as config_lib
from bert_jax import finetuning, pretraining
from bert_jax import tokenizer as tokenizer_lib
from bert_jax.corpus import shards
from bert_jax.data import batches as batches_lib
from bert_jax.data.labelled_batches import LabelledBatches
from bert_jax.tokenizer import pipelines

HERE = pathlib.Path(__file__).parent
FOLDER = HERE / "fixtures" / "golden"


def make_corpus(folder: pathlib.Path) -> shards.Corpus:
    """Make a corpus of invented words in several shards, some documents held out."""
    words = [f"w{i}" for i in range(100)] + [f"##c{i}" for i in range(20)]
    tokens = [*tokenizer_lib.SPECIAL_TOKENS, ".", *words]
    tokenizer = tokenizer_lib.make(pipelines.wordpiece(tokens, True, True))
    sentences = [
        " ".join(
            f"w{i * j % 97}" + f"c{j % 20}" * (i * j % 3 == 0)
            for j in range(1, 5 + i % 17)
        )
        + ". "
        for i in range(4000)
    ]
    text = "".join(s + "\n\n" * (i % 23 == 0) for i, s in enumerate(sentences))
    return build_text([text], tokenizer, folder / "corpus", held_out=0.1)


def batch_hashes(corpus: shards.Corpus) -> dict[str, str]:
    """Return a hash of some batches by case; `test_batches.py` has other settings."""

    def hash_of(batches):
        digest = hashlib.sha256()
        for batch in batches:
            for name in sorted(batch):
                digest.update(name.encode() + batch[name].tobytes())
        return digest.hexdigest()[:16]

    config = config_lib.PretrainConfig(
        phases=(config_lib.PhaseConfig(length=128, batch_size=32),)
    )
    train, held_out = (
        batches_lib.PretrainingBatches([corpus], config, 0, held_out=held_out)
        for held_out in (False, True)
    )
    labelled = {
        "input_ids": np.arange(1000, dtype=np.int32).reshape(50, 20),
        "weights": np.ones(50, np.float32),
    }

    def labelled_hash(**options):
        made = LabelledBatches(labelled, batch_size=8, seed=3, **options)
        return hash_of(made.batches(0, made.num_batches))

    return {
        "length 128": hash_of([*train.batches(0, 3), train.batch(1000)]),
        "held out": hash_of(held_out.batches(0, held_out.num_batches)),
        "labelled": labelled_hash(),
        "labelled, held out": labelled_hash(held_out=True),
        "labelled, rows of one process": labelled_hash(rows=np.array([1, 6])),
    }


def smoke_reports(corpus: shards.Corpus, folder: pathlib.Path) -> dict[str, list[dict]]:
    """Return records of metrics.jsonl of smoke runs, by name, without times.

    In bfloat16, reports of two CPUs would differ too much.
    """
    cfg = recipes.load("bert_base", "smoke")
    cfg.data.corpus = str(corpus.folder)
    cfg.encoder.dtype = "float32"
    pretrained = folder / "pretraining"
    config = config_lib.from_dict(config_lib.PretrainConfig, cfg)
    pretraining.pretrain(config, str(pretrained))
    rows = [
        f"w{i % 7} w{i % 11}c1\tw{i * i % 13}\t{'yes' if i % 3 else 'no'}"
        for i in range(60)
    ]
    for name, part in (("train", rows[:40]), ("eval", rows[40:])):
        text = "\n".join(["text_a\ttext_b\tlabel", *part]) + "\n"
        (folder / f"{name}.tsv").write_text(text)
    cfg = recipes.load("classifier", "smoke")
    cfg.init_from = str(pretrained)
    cfg.task.train, cfg.task.eval = (
        str(folder / f"{name}.tsv") for name in ("train", "eval")
    )
    finetuned = folder / "finetuning"
    config = config_lib.from_dict(config_lib.FinetuneConfig, cfg)
    finetuning.finetune(config, str(finetuned))
    return {run.name: runs.metrics(run) for run in (pretrained, finetuned)}


def main(folder: pathlib.Path) -> None:
    """Write all records."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as name:
        work = pathlib.Path(name)
        corpus = make_corpus(work)
        hashes = batch_hashes(corpus)
        text = "".join(f"{hashed} {case}\n" for case, hashed in hashes.items())
        (folder / "batches.txt").write_text(text)
        for run, records in smoke_reports(corpus, work).items():
            lines = "".join(json.dumps(record) + "\n" for record in records)
            (folder / f"{run}.jsonl").write_text(lines)


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER)
