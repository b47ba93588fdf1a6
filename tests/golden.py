"""What must not change by accident: batches, and what smoke runs report.

    python tests/golden.py [FOLDER]

writes the files that `test_golden.py` compares with, or the same to another folder, to
compare two versions of the code on one machine bit for bit. The text is made here, so
that nothing depends on the machine but the last digits of the reports.
"""

import dataclasses
import hashlib
import json
import pathlib
import sys
import tempfile

import numpy as np
import recipes

from bert_jax import config as config_lib
from bert_jax import knobs
from bert_jax import tokenizer as tokenizer_lib
from bert_jax.corpus import build, shards, sources
from bert_jax.data import examples, sentence_pairs
from bert_jax.run import finetune_classifier, pretrain

HERE = pathlib.Path(__file__).parent
FOLDER = HERE / "fixtures" / "golden"
# What two equal runs report differently.
_TIMINGS = ("_per_sec", "_fraction_", "data_wait", "goodput", "mfu")


def make_corpus(folder: pathlib.Path) -> shards.Corpus:
    """Sentences of invented words in several shards, some documents held out."""
    words = [f"w{i}" for i in range(100)] + [f"##c{i}" for i in range(20)]
    tokens = [*tokenizer_lib.SPECIAL_TOKENS, ".", *words]
    vocabulary = "".join(token + "\n" for token in tokens)
    tokenizer = tokenizer_lib.Tokenizer("wordpiece", True, True, vocabulary.encode())
    sentences = [
        " ".join(
            f"w{i * j % 97}" + f"c{j % 20}" * (i * j % 3 == 0)
            for j in range(1, 5 + i % 17)
        )
        + ". "
        for i in range(4000)
    ]
    text = "".join(s + "\n\n" * (i % 23 == 0) for i, s in enumerate(sentences))
    (folder / "text.txt").write_text(text)
    source = sources.Source(str(folder / "text.txt"), "text", split_bytes=20_000)
    settings = build.Settings(held_out=0.1)
    return build.build(source, settings, tokenizer, folder / "corpus", workers=1)


def batch_hashes(corpus: shards.Corpus) -> dict[str, str]:
    """A hash of some batches for each case."""
    data = config_lib.DataConfig()
    groups = dataclasses.replace(data, shard_groups=2)
    rates = dataclasses.replace(
        data,
        short_sequence_rate=1.0,
        mask_rate=0.4,
        mask_token_rate=0.3,
        random_token_rate=0.6,
    )

    def hash_of(batches):
        digest = hashlib.sha256()
        for batch in batches:
            for name in sorted(batch):
                digest.update(name.encode() + batch[name].tobytes())
        return digest.hexdigest()[:16]

    def pairs(data=data, *, length=128, predictions=20, seed=0, held_out=False, **more):
        made = sentence_pairs.SentencePairs(
            corpus,
            data,
            length=length,
            max_predictions=predictions,
            batch_size=32,
            seed=seed,
            held_out=held_out,
            **more,
        )
        stop = made.num_batches if held_out else 3
        far = [] if held_out else [made.batch(1000)]
        return hash_of([*made.batches(0, stop), *far])

    labelled = {
        "input_ids": np.arange(1000, dtype=np.int32).reshape(50, 20),
        "weights": np.ones(50, np.float32),
    }

    def labelled_hash(**options):
        made = examples.Examples(labelled, batch_size=8, seed=3, **options)
        return hash_of(made.batches(0, made.num_batches))

    return {
        "length 128": pairs(),
        "length 512": pairs(length=512, predictions=77),
        "length 64, seed 3, second phase": pairs(
            length=64, predictions=10, seed=3, phase=1
        ),
        "two shard groups": pairs(groups),
        "two shard groups, rows of one process": pairs(groups, rows=np.arange(8, 24)),
        "other rates": pairs(rates, predictions=60),
        "held out": pairs(held_out=True),
        "labelled": labelled_hash(),
        "labelled, held out": labelled_hash(held_out=True),
        "labelled, rows of one process": labelled_hash(rows=np.array([1, 6])),
    }


def smoke_reports(
    corpus: shards.Corpus, folder: pathlib.Path, dtype: str
) -> dict[str, list[dict]]:
    """Records of metrics.jsonl of smoke runs, by name, without what is timed."""
    cfg = recipes.load("bert_mini").get_config("smoke")
    cfg.data.corpus = str(corpus.folder)
    cfg.encoder.dtype = dtype
    pretrained = folder / f"pretraining_{dtype}"
    config = knobs.from_configdict(config_lib.PretrainConfig, cfg)
    pretrain.pretrain(config, str(pretrained))
    rows = [
        f"w{i % 7} w{i % 11}c1\tw{i * i % 13}\t{'yes' if i % 3 else 'no'}"
        for i in range(60)
    ]
    for name, part in (("train", rows[:40]), ("eval", rows[40:])):
        text = "\n".join(["text_a\ttext_b\tlabel", *part]) + "\n"
        (folder / f"{name}.tsv").write_text(text)
    cfg = recipes.load("classifier").get_config("smoke")
    cfg.init_from = str(pretrained)
    cfg.task.train, cfg.task.eval = (
        str(folder / f"{name}.tsv") for name in ("train", "eval")
    )
    finetuned = folder / f"finetuning_{dtype}"
    config = knobs.from_configdict(config_lib.ClassifierConfig, cfg)
    finetune_classifier.finetune(config, str(finetuned))
    return {run.name: _records(run) for run in (pretrained, finetuned)}


def _records(workdir: pathlib.Path) -> list[dict]:
    lines = (workdir / "metrics.jsonl").read_text().splitlines()
    return [
        {k: v for k, v in json.loads(line).items() if not any(t in k for t in _TIMINGS)}
        for line in lines
    ]


def main(folder: pathlib.Path) -> None:
    """Write all of it."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as name:
        work = pathlib.Path(name)
        corpus = make_corpus(work)
        hashes = batch_hashes(corpus)
        text = "".join(f"{hashed} {case}\n" for case, hashed in hashes.items())
        (folder / "batches.txt").write_text(text)
        for dtype in ("float32", "bfloat16"):
            for run, records in smoke_reports(corpus, work, dtype).items():
                lines = "".join(json.dumps(record) + "\n" for record in records)
                (folder / f"{run}.jsonl").write_text(lines)


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER)
