"""Logits of models for prediction tests, from rows that are built by hand."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from toy import TINY, metadata

from bert_jax.model import heads
from bert_jax.model.cross_entropy import VocabularyLogits
from bert_jax.model.inputs import Inputs

TOKENIZER = metadata().tokenizer
WORDS = TOKENIZER.tokens[5:]
LENGTH = TINY.max_position_embeddings


def words(number, seed=0):
    """Return a text of random words."""
    return " ".join(np.random.default_rng(seed).choice(WORDS, number))


@functools.partial(jax.jit, static_argnames=("model", "method"))
def _apply(model, params, inputs, more, method):
    logits = model.apply({"params": params}, inputs, *more, method=method)
    if isinstance(logits, heads.PretrainingLogits):
        return vars(logits) | {"mlm": logits.mlm.compute()}
    return logits.compute() if isinstance(logits, VocabularyLogits) else logits


def logits_of(model, params, pairs, *more, method=None):
    """Return the logits of [CLS] first [SEP] second [SEP], for lists of tokens.

    All rows are one batch, padded to `LENGTH`, so that few programs are compiled.
    """
    ids = np.zeros((len(pairs), LENGTH), np.int32)
    segments, mask = np.zeros_like(ids), np.zeros(ids.shape, bool)
    for i, (first, second) in enumerate(pairs):
        first = ["[CLS]", *first, "[SEP]"]
        row = first + ([*second, "[SEP]"] if second else [])
        ids[i, : len(row)] = [TOKENIZER.tokens.index(token) for token in row]
        segments[i, len(first) : len(row)] = 1
        mask[i, : len(row)] = True
    inputs = Inputs(jnp.array(ids), jnp.array(mask), jnp.array(segments))
    return jax.tree.map(np.asarray, _apply(model, params, inputs, more, method))
