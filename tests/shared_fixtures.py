"""Fixtures of all tests: meshes, tokenizers, a corpus of real English, kernels."""

import functools
import gc
import json
import pathlib
import pydoc_data.topics
import types

import jax
import jaxtyping
import numpy as np
import pytest
import tensorflow as tf
from jax.experimental.pallas import tpu as pltpu

# Shapes in the model's signatures can be checked from here on (`checked_shapes`).
jaxtyping.install_import_hook(
    ["bert_jax.model", "bert_jax.objectives"], "beartype.beartype"
)
jaxtyping.config.update("jaxtyping_disable", True)

import published
import saved
from corpora import build_reference, with_prefix_space

from bert_jax import tokenizer as tokenizer_lib
from bert_jax.corpus import shards, tokenizer_training
from bert_jax.interop import tokenizer_files
from bert_jax.model import feed_forward
from bert_jax.model.deberta import attention as deberta_attention
from bert_jax.model.kernels import attention, residual
from bert_jax.training import sharding

# Graphs of batches run a few times; their optimisation takes longer.
tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
# Tracing makes many objects, few of them garbage.
gc.set_threshold(20_000, 10, 100)


def pytest_collection_finish():
    """Exclude the imported modules from garbage collection, which they slow down."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="module", autouse=True)
def forgotten_programs():
    """Discard the programs and traces of a file, which no other file uses.

    Otherwise they add up to several GB, which the garbage collector visits again and
    again: tests took four tenths longer than alone.
    """
    yield
    jax.clear_caches()
    gc.collect()


@pytest.fixture(scope="module")
def checked_shapes():
    """Check the shapes in the model's signatures at every call.

    The files that use it call every part of the model. In others that trace models, the
    checks would take a tenth of the time.
    """
    jaxtyping.config.update("jaxtyping_disable", False)
    yield
    jaxtyping.config.update("jaxtyping_disable", True)


@pytest.fixture(scope="session", autouse=True)
def meshes_of_one_device():
    """Build the default mesh on one of the eight devices.

    Programs for eight emulated devices take up to twice the time. A test that is about
    several devices says so in its mesh, `MeshConfig(data=8)`.
    """
    make_mesh = sharding.make_mesh

    def make_small_mesh(config, devices=None):
        if devices is None and config == type(config)():
            devices = jax.devices()[:1]
        return make_mesh(config, devices)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sharding, "make_mesh", make_small_mesh)
        yield


@pytest.fixture(scope="session")
def documents() -> list[str]:
    """Chapters of the Python language reference: English, and always at hand."""
    topics = pydoc_data.topics.topics
    paragraphs = [topics[name].split("\n\n") for name in sorted(topics)]
    return ["\n".join(p.strip() for p in ps if p.strip()) for ps in paragraphs]


@pytest.fixture(scope="session")
def text_file(documents, tmp_path_factory):
    path = tmp_path_factory.mktemp("text") / "reference.txt"
    path.write_text("\n\n".join(documents), encoding="utf-8")
    return path


@pytest.fixture(scope="session")
def wordpiece(documents) -> tokenizer_lib.Tokenizer:
    return tokenizer_training.train_wordpiece(documents, 1000)


@pytest.fixture(scope="session")
def saved_wordpiece(wordpiece, tmp_path_factory):
    """Return a folder with the tokenizer `wordpiece`."""
    folder = tmp_path_factory.mktemp("wordpiece")
    wordpiece.save(folder)
    return folder


@pytest.fixture(scope="session")
def sentencepiece(documents) -> tokenizer_lib.Tokenizer:
    return tokenizer_training.train_sentencepiece(documents, 800)


@pytest.fixture(scope="session")
def byte_bpe(documents) -> tokenizer_lib.Tokenizer:
    return tokenizer_training.train_byte_bpe(documents, 1000)


@pytest.fixture(scope="session")
def tokenizer_of(request, tmp_path_factory):
    """Return a function that returns the tokenizer of a kind, as families have them."""

    @functools.cache
    def tokenizer(kind):
        if kind not in ("camembert", "xlm-roberta"):
            made = request.getfixturevalue(kind)
            return with_prefix_space(made, False) if kind == "byte_bpe" else made
        folder = tmp_path_factory.mktemp(kind)
        pieces = published.pieces_of_fairseq(request.getfixturevalue("documents")[:20])
        (folder / "sentencepiece.bpe.model").write_bytes(pieces)
        (folder / "config.json").write_text(json.dumps({"model_type": kind}))
        return tokenizer_files.read(folder)

    return tokenizer


@pytest.fixture(scope="session")
def corpus(text_file, wordpiece, tmp_path_factory):
    """Return a corpus of several shards, with a tenth of its documents held out."""
    folder = tmp_path_factory.mktemp("corpus") / "reference"
    build_reference(text_file, wordpiece, folder)
    return shards.open_corpus(folder)


@pytest.fixture(scope="session")
def byte_bpe_corpus(text_file, byte_bpe, tmp_path_factory):
    """Return the same text, tokenised as RoBERTa's was: no space before a document."""
    folder = tmp_path_factory.mktemp("corpus") / "byte_bpe"
    build_reference(text_file, with_prefix_space(byte_bpe, False), folder)
    return shards.open_corpus(folder)


@pytest.fixture(scope="session")
def pretrained(corpus, tmp_path_factory):
    """Return a workdir for fine-tuning to begin with."""
    return saved.pretrained(corpus, tmp_path_factory.mktemp("pretrained"))


@pytest.fixture(scope="session")
def labelled_files(tmp_path_factory):
    """Files to train and to evaluate on: a label depends on one word of the text."""
    folder, rng = tmp_path_factory.mktemp("labelled"), np.random.default_rng(0)
    words = ["the", "a", "object", "value", "name", "module", "is", "of", "to", "in"]
    files = {}
    for name, count in (("train", 200), ("eval", 40)):
        lines = ["text\tlabel\n"]
        for i in range(count):
            label = ["class", "statement"][i % 2]
            text = " ".join([*rng.choice(words, 6), label, *rng.choice(words, 3)])
            lines.append(f"{text}\tabout {label}\n")
        files[name] = str(folder / f"{name}.tsv")
        pathlib.Path(files[name]).write_text("".join(lines))
    return files


def _run_kernels(monkeypatch, interpreter):
    """Compute as on a TPU, with kernels that are interpreted on the CPU."""

    def as_on_tpu(*arrays, default, tpu=None, **_):
        return (tpu or default)(*arrays)

    lax = types.SimpleNamespace(platform_dependent=as_on_tpu)
    for dispatcher in (attention, deberta_attention, feed_forward, residual):
        monkeypatch.setattr(dispatcher, "lax", lax)
    with pltpu.force_tpu_interpret_mode(interpreter):
        yield


@pytest.fixture
def interpreted_kernels(monkeypatch):
    """Run TPU kernels interpreted, on the CPU."""
    yield from _run_kernels(monkeypatch, True)


@pytest.fixture
def simulated_kernels(monkeypatch):
    """Run TPU kernels on a simulated core.

    Its memory begins with NaN, and it refuses to write a block of an output again after
    another. For one device: the simulations of several may wait for each other.
    """
    yield from _run_kernels(monkeypatch, pltpu.InterpretParams(random_seed=0))
