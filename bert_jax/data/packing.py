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

    Chunks come by falling size, in random order where sizes are equal. Each chunk goes
    to the row with the least room that is enough, to the earliest of several such rows,
    and to a new row if there is none. No row has more than `max_examples`.
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

    def examples(self, rows: order.Visits) -> tuple[order.Visits, tf.Tensor]:
        """Return the examples of some rows.

        Chunks, [examples], come row by row, with the number in each row, int64 [B].
        """
        begin = tf.gather(self._starts, rows.index)
        end = tf.gather(self._starts, rows.index + 1)
        count = end - begin
        chunks = order.Visits(
            epoch=tf.repeat(rows.epoch, count),
            index=tf.gather(self._chunks, tf.ragged.range(begin, end).values),
            is_real=tf.repeat(rows.is_real, count),
        )
        return chunks, count

    def lay_out(
        self,
        examples: dict[str, tf.Tensor],
        count: tf.Tensor,
    ) -> dict[str, tf.Tensor]:
        """Pack examples into rows, with the arrays that `data/batches.py` lists."""
        examples = dict(examples)
        sizes = tf.math.count_nonzero(examples.pop("attention_mask"), axis=1)
        tokens = _Layout(sizes, count, self._max_examples, self._length)
        packed = {
            "attention_mask": tokens.is_used,
            "positions": tf.cast(tokens.offset, tf.int32),
            "documents": tf.cast(tokens.number, tf.int32),
            "input_ids": tokens.take(examples.pop("input_ids"), self._pad_id),
        }
        if "segment_ids" in examples:
            packed["segment_ids"] = tokens.take(examples.pop("segment_ids"))
        if "mlm_weights" in examples:
            examples["mlm_positions"] += tf.cast(tokens.before, tf.int32)[:, None]
            used = tf.math.count_nonzero(examples["mlm_weights"], axis=1)
            slots = _Layout(used, count, self._max_examples, self._max_predictions)
            for name in ("mlm_positions", "mlm_labels", "mlm_weights"):
                packed[name] = slots.take(examples.pop(name))
        if "weights" in examples:  # equal for all examples of a row
            first = tf.cumsum(count, exclusive=True)
            packed["weights"] = tf.gather(examples.pop("weights"), first)
        if examples:  # labels and weights of the pair task
            examples["pooled_positions"] = tf.cast(tokens.before, tf.int32)
            one = tf.ones_like(sizes)
            layout = _Layout(one, count, self._max_examples, self._max_examples)
            for name, values in examples.items():
                packed[name] = layout.take(values[:, None])
        return packed


class _Layout:
    """Layout of parts of examples, such as tokens, end to end in rows of W columns.

    Attributes:
      is_used: bool [B, W].
      number: int64 [B, W], index of the example in its row; 0 where there is none.
      offset: int64 [B, W], index in the example; 0 where there is none.
      before: int64 [examples], columns of the row before each example.
    """

    def __init__(self, sizes: tf.Tensor, count: tf.Tensor, most: int, width: int):
        """Lay out the examples of some rows.

        Args:
          sizes: int64 [examples], columns of each example, row by row.
          count: int64 [B], examples of each row.
          most: Examples in a row, at most: S.
          width: Columns of a row, W.
        """
        in_rows = tf.RaggedTensor.from_row_lengths(sizes, count, validate=False)
        in_rows = in_rows.to_tensor(shape=[None, most])  # [B, S]
        ends = tf.cumsum(in_rows, axis=1)
        begins = ends - in_rows
        self.before = tf.boolean_mask(begins, tf.sequence_mask(count, most))
        column = tf.range(width, dtype=tf.int64)[None, :]
        column = tf.tile(column, [tf.shape(count)[0], 1])
        self.is_used = column < ends[:, -1:]
        number = tf.searchsorted(ends, column, side="right", out_type=tf.int64)
        self.number = tf.where(self.is_used, number, 0)
        offset = column - tf.gather(begins, self.number, batch_dims=1)
        self.offset = tf.where(self.is_used, offset, 0)
        self._example = tf.cumsum(count, exclusive=True)[:, None] + self.number

    def take(self, values: tf.Tensor, padding: int = 0) -> tf.Tensor:
        """Gather the first values of each example: [examples, N] to [B, W]."""
        index = self._example * values.shape[1] + self.offset
        taken = tf.gather(tf.reshape(values, [-1]), index)
        return tf.where(self.is_used, taken, tf.cast(padding, values.dtype))


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
