"""Rows of one corpus, or of one group of its shards: segments and masks.

A row is made from the chunk at its position in the order. A packed row is made from
several chunks (`packing.py`). Each draw is addressed by a key, its purpose, the epoch
and the chunk.
"""

import functools
import itertools

import numpy as np
import tensorflow as tf

from bert_jax import config as config_lib
from bert_jax import tokenizer as tokenizer_lib
from bert_jax.corpus import shards
from bert_jax.data import chunks as chunks_lib
from bert_jax.data import (
    masking,
    order,
    packing,
    permutations,
    random_bits,
    segment_pairs,
    segments,
)
from bert_jax.data.random_bits import Purpose
from bert_jax.errors import UserError

# Classes by `objective.segments`.
_KINDS: dict[str, type[segments.Segments]] = {
    "next_sentence": segment_pairs.NextSentence,
    "sentence_order": segment_pairs.SentenceOrder,
    "consecutive": segment_pairs.Consecutive,
    "full_sentences": segments.FullSentences,
    "doc_sentences": segments.DocSentences,
}


class CorpusRows:
    """Rows of one group of shards.

    Attributes:
      order: Order of the chunks, or of the packed rows.
      token_counts: int64 [V]; occurrences of each token, in the held-out split.
    """

    def __init__(
        self,
        corpus: shards.Corpus,
        config: config_lib.PretrainConfig,
        *,
        length: int,
        split: str,
        group: int,
        num_groups: int,
        key: tf.Tensor,
        name: str = "",
    ):
        """Read the shards, and prepare what does not depend on the rows.

        `config` is the phase's config (`PretrainConfig.for_phase`), and `length` is the
        number of tokens in a row. `key` is the uint64 key of all draws. The names of
        rows begin with `name`, the name of the corpus, unless it is "".

        Raises:
          UserError: There are too few documents, or a shard is damaged.
        """
        objective, tokenizer = config.objective, corpus.tokenizer
        held_out = split == shards.HELD_OUT
        table = chunks_lib.load_tokens(corpus, split, group, num_groups)
        if held_out:
            self.token_counts = chunks_lib.count_tokens(table, tokenizer.vocab_size)
        kind = _KINDS[objective.segments]
        num_documents = len(table.document_sentences) - 1
        if num_documents < kind.min_documents:
            where, less = "", ""
            if num_groups > 1:
                where = f" in group {group} of {num_groups}"
                less = ", or set a smaller data.shard_groups"
            raise UserError(
                f"too little text in {corpus.folder} for objective.segments="
                f"{objective.segments!r}: {split} documents{where}: {num_documents}, "
                f"needed: {kind.min_documents}; add documents{less}"
            )
        max_examples = objective.examples_per_row
        is_packed = max_examples > 1
        key_for = functools.partial(random_bits.fold_in, key)
        self._segments = kind(
            table,
            length=length,
            short_sequence_rate=objective.short_sequence_rate,
            tokenizer=tokenizer,
            target_key=key_for(Purpose.CHUNK_TARGETS) if is_packed else None,
        )
        self._pair_task = config_lib.PAIR_TASKS.get(objective.segments)
        self._choose_predictions = _choice_of_predictions(
            objective, length, tokenizer, held_out=held_out
        )
        self._packing, count = None, len(self._segments.chunk_documents)
        if is_packed:
            mask = objective.masking
            predictions = mask.num_predictions(length, max_examples) if mask else 0
            self._packing = packing.Packing(
                self._segments.sizes,
                length=length,
                max_examples=max_examples,
                max_predictions=predictions,
                pad_id=tokenizer.pad_id,
                key=key_for(Purpose.PACKING),
            )
            count = self._packing.num_rows
        self._name = f"{name} group {group}" if name else f"group {group}"
        self._key = key
        self.order = order.Order(count, key_for(Purpose.ORDER), once=held_out)

    def make(self, position: tf.Tensor) -> dict[str, tf.Tensor]:
        """Make the rows at positions in the order, int64 [B]."""
        items = self.order.at(position)
        if not self._packing:
            return self._examples(items)
        chunks, count = self._packing.examples(items)
        return self._packing.lay_out(self._examples(chunks), count)

    def _examples(self, chunks: order.Selection) -> dict[str, tf.Tensor]:
        """Make rows of one chunk each."""

        def keys_for(purpose: Purpose) -> tf.Tensor:
            return random_bits.fold_in(self._key, purpose, chunks.epoch, chunks.index)

        features = self._segments(chunks.index, keys_for(Purpose.SEGMENTS))
        weights = tf.cast(chunks.is_real, tf.float32)
        if self._pair_task:
            is_pair = tf.cast(features.pop("is_pair"), tf.float32)
            features[f"{self._pair_task}_labels"] = features.pop("labels")
            features[f"{self._pair_task}_weights"] = weights * is_pair
        if self._choose_predictions:
            features |= self._choose_predictions(features["input_ids"], keys_for)
            features[self._choose_predictions.weights] *= weights[:, None]
        else:
            features["weights"] = weights
        return features

    def row_names(self, position: tf.Tensor) -> list[str]:
        """Name the sources of the rows at positions in the order, for messages."""
        items = self.order.at(position)
        count = np.ones(len(items.index), np.int64)
        if self._packing:
            items, count = self._packing.examples(items)
        epochs, chunks = items.epoch.numpy(), items.index.numpy()
        documents = self._segments.chunk_documents[chunks]
        examples = (
            f"{self._name} document {d} chunk {c} epoch {e}"
            for e, c, d in zip(epochs, chunks, documents, strict=True)
        )
        return [" + ".join(itertools.islice(examples, int(n))) for n in count]


def _choice_of_predictions(
    objective: config_lib.ObjectiveConfig,
    length: int,
    tokenizer: tokenizer_lib.Tokenizer,
    *,
    held_out: bool,
) -> permutations.Permutations | masking.Masking | None:
    """Return the function that chooses the tokens to predict; None: all of them."""
    if isinstance(objective, config_lib.PermutationLmConfig):
        return permutations.Permutations(objective, length, tokenizer)
    if objective.masking is None:
        return None
    return masking.Masking(objective.masking, length, tokenizer, held_out=held_out)
