"""A corpus and a model for notebooks, made in seconds.

The text is the Python language reference, which is part of Python.
"""

import dataclasses
import os
import pathlib
import pydoc_data.topics

from bert_jax import config as config_lib
from bert_jax import pretraining
from bert_jax.corpus import build, shards, sources, tokenizer_training
from bert_jax.demo import recipe
from bert_jax.demo.config import DemoConfig

_DEMO = config_lib.from_dict(DemoConfig, recipe.get_config()).pretrain
# The demo's encoder and optimizer, with the rows of configs/speedrun.py. After 800
# steps, heads attend to neighbours (notebooks/attention.ipynb).
CONFIG = config_lib.PretrainConfig(
    encoder=_DEMO.encoder,
    objective=config_lib.MaskedLmConfig(
        segments="consecutive", short_sequence_rate=0.0
    ),
    phases=(config_lib.PhaseConfig(steps=800, length=64, batch_size=16),),
    optimizer=_DEMO.optimizer,
    loop=config_lib.LoopConfig(eval_batches=20),
)


def make_corpus(folder: str | os.PathLike) -> shards.Corpus:
    """Build a corpus of the reference in FOLDER/corpus, with its own vocabulary."""
    path = pathlib.Path(folder)
    text = "\n\n".join(
        "\n".join(line for line in topic.splitlines() if line.strip())
        for topic in pydoc_data.topics.topics.values()
    )
    (path / "reference.txt").write_text(text, encoding="utf-8")
    source = sources.Source(str(path / "reference.txt"), "text")
    tokenizer = tokenizer_training.learn(
        source,
        "wordpiece",
        2000,
        lower_case=True,
        strip_accents=True,
        sample_bytes=10**6,
    )
    settings = build.Settings(held_out=0.1)
    return build.build(source, settings, tokenizer, path / "corpus", workers=1)


def pretrain(folder: str | os.PathLike, steps: int = CONFIG.total_steps) -> str:
    """Build the corpus, pretrain a small model on it, and return the workdir."""
    corpus = make_corpus(folder)
    workdir = str(pathlib.Path(folder) / "run")
    phase = dataclasses.replace(CONFIG.phases[0], steps=steps)
    data = dataclasses.replace(CONFIG.data, corpus=str(corpus.folder))
    config = dataclasses.replace(CONFIG, phases=(phase,), data=data)
    pretraining.pretrain(config, workdir)
    return workdir
