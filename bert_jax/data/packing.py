"""Packing: the choice of the examples that share a row, and their layout.

An example is a row of its own before packing: the tokens of a chunk, with masks and a
label. A packed row holds whole examples, end to end, with padding after the last. Each
example has positions from 0 on, its own [CLS], and attends to itself only.

The choice depends on the sizes of the examples and a key, and not on the draws of an
epoch. So it is made once, when the chunks are cut, and the order of an epoch
(`order.py`) is an order of packed rows.
"""

import bisect
import collections
import heapq

import numpy as np
import tensorflow as tf

from bert_jax.data import order, random_bits


class Packing:
    """Chunks packed into rows by best fit, decreasing.

    Chunks are sorted by falling size, in random order where sizes are equal. Each goes
    to the row with the least room that suffices: the earliest of several such rows, or
    a new row if there is none. No row has more than `max_examples`.
    """

    def __init__(
        self,
        sizes: np.ndarray,
        *,
        length: int,
        max_examples: int,
        max_predictions: int,
        pad_id: int,
        key: tf.Tensor,
    ):
        """Choose the chunks that share a row.

        `sizes`, int64 [chunks], are the tokens of each chunk's example, at most
        `length`, the tokens in a row. A row has at most S = `max_examples` examples and
        P = `max_predictions` predictions. `key` is the uint64 key of the order of
        chunks of equal size.
        """
        draws = random_bits.fold_in(key, tf.range(len(sizes), dtype=tf.int64)).numpy()
        falling = np.lexsort((draws, -sizes))
        row = _best_fit(sizes[falling], length, max_examples)
        starts = np.concatenate([[0], np.cumsum(np.bincount(row))])
        self.num_rows = len(starts) - 1
        # All chunks, row by row, and the index of each row's first chunk.
        self._chunks = tf.constant(falling[np.argsort(row, kind="stable")])
        self._starts = tf.constant(starts)
        self._length = length
        self._max_examples = max_examples
        self._max_predictions = max_predictions
        self._pad_id = pad_id

    def examples(self, rows: order.Selection) -> tuple[order.Selection, tf.Tensor]:
        """Return the examples of some rows.

        Chunks, [examples], come row by row, with the number in each row, int64 [B].
        """
        begin = tf.gather(self._starts, rows.index)
        end = tf.gather(self._starts, rows.index + 1)
        count = end - begin
        chunks = order.Selection(
            epoch=tf.repeat(rows.epoch, count),
            index=tf.gather(self._chunks, tf.ragged.range(begin, end).values),
            is_real=tf.repeat(rows.is_real, count),
        )
        return chunks, count

    def lay_out(
        self, examples: dict[str, tf.Tensor], count: tf.Tensor
    ) -> dict[str, tf.Tensor]:
        """Pack examples into rows, with the arrays that `data/batches.py` lists."""
        examples = dict(examples)
        mask = examples.pop("attention_mask")
        sizes = tf.math.count_nonzero(mask, axis=1)
        number = tf.ragged.range(count).values  # of each example in its row
        first = tf.cumsum(count, exclusive=True)  # index of each row's first example
        # Tokens of the row before each example: int32 [examples].
        before = tf.cumsum(sizes, exclusive=True)
        before = tf.cast(before - tf.repeat(tf.gather(before, first), count), tf.int32)

        def tokens(values: tf.Tensor, padding: int = 0) -> tf.Tensor:
            values = tf.broadcast_to(values, tf.shape(mask))
            return _end_to_end(values, sizes, count, self._length, padding)

        packed = {
            "attention_mask": tokens(mask),
            "positions": tokens(tf.range(self._length)[None, :]),
            "documents": tokens(tf.cast(number, tf.int32)[:, None]),
            "input_ids": tokens(examples.pop("input_ids"), self._pad_id),
        }
        if "segment_ids" in examples:
            packed["segment_ids"] = tokens(examples.pop("segment_ids"))
        if "mlm_weights" in examples:
            examples["mlm_positions"] += before[:, None]
            used = tf.math.count_nonzero(examples["mlm_weights"], axis=1)
            for name in ("mlm_positions", "mlm_labels", "mlm_weights"):
                values = examples.pop(name)
                packed[name] = _end_to_end(values, used, count, self._max_predictions)
        if "weights" in examples:  # equal for all examples of a row
            packed["weights"] = tf.gather(examples.pop("weights"), first)
        if examples:  # labels and weights of the pair task
            examples["pooled_positions"] = before
            for name, values in examples.items():
                packed[name] = _padded_rows(values, count, self._max_examples)
        return packed


def _end_to_end(
    values: tf.Tensor, sizes: tf.Tensor, count: tf.Tensor, width: int, padding: int = 0
) -> tf.Tensor:
    """Lay the first values of each example end to end: [examples, N] to [B, `width`].

    `sizes`, int64 [examples], are the numbers of these values, and `count`, int64 [B],
    the examples of each row.
    """
    row = tf.repeat(tf.range(tf.size(count)), count)  # of each example
    values = tf.gather_nd(values, tf.where(tf.sequence_mask(sizes)))
    return _padded_rows(values, tf.math.segment_sum(sizes, row), width, padding)


def _padded_rows(
    values: tf.Tensor, lengths: tf.Tensor, width: int, padding: int = 0
) -> tf.Tensor:
    """Cut values into rows of some lengths, int64 [B], and pad them: [B, `width`]."""
    rows = tf.RaggedTensor.from_row_lengths(values, lengths, validate=False)
    return rows.to_tensor(tf.cast(padding, values.dtype), shape=[None, width])


def _best_fit(sizes: np.ndarray, length: int, max_examples: int) -> np.ndarray:
    """Return the row of each example, as `Packing` defines it, for falling sizes."""
    rows = np.empty(len(sizes), np.int64)
    held: list[int] = []  # number of examples in each row
    # Heaps of the rows that take more examples, by the tokens that still fit.
    open_rows: dict[int, list[int]] = collections.defaultdict(list)
    rooms: list[int] = []  # keys of `open_rows`, ascending
    for i, size in enumerate(sizes.tolist()):
        place = bisect.bisect_left(rooms, size)
        if place < len(rooms):
            room = rooms[place]
            row = heapq.heappop(open_rows[room])
            if not open_rows[room]:
                del rooms[place]
        else:
            room, row = length, len(held)
            held.append(0)
        rows[i] = row
        held[row] += 1
        room -= size
        if held[row] < max_examples:
            if not open_rows[room]:
                bisect.insort(rooms, room)
            heapq.heappush(open_rows[room], row)
    return rows
