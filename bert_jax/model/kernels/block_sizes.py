"""Sizes of the TPU kernels' blocks, which fit the registers and memory of a core."""

import dataclasses

# Columns of a TPU's registers.
LANES = 128
# Queries that the TPU's attention kernel computes at once.
QUERY_CHUNK = 128
# Longer rows are cut into pieces.
MAX_LENGTH = 1024
# Longest row whose attention fits the default memory limit of 16 MiB with all options.
# A core of v4 has no more.
MAX_LENGTH_IN_16_MIB = 8192
# With a larger window, most of a piece of a long row would be overlap.
MAX_WINDOW = 128
# Rows of a bfloat16 register. A block of a TPU kernel has a multiple of them.
ROW_CHUNK = 16
# Part of a core's memory that the kernels of the feed-forward network may use.
_FEED_FORWARD_MEMORY = 112 * 2**20
# Predictions in a block of the kernels for the cross entropy.
CROSS_ENTROPY_ROWS = 512
# Bytes that blocks of the factors of logits may use, of the default limit of 16 MiB.
_CROSS_ENTROPY_MEMORY = 11 * 2**20


def piece_size(length: int) -> int:
    """Return the size of the largest equal pieces that the kernel takes of a row."""
    sizes = range(QUERY_CHUNK, MAX_LENGTH + 1, QUERY_CHUNK)
    return max(size for size in sizes if length % size == 0)


def cross_entropy_columns(embedding_columns: int) -> int | None:
    """Return how many tokens a block of logits has that fits a core, or None."""
    for size in (1024, 512, 256):
        # Two blocks of predictions and two of the table, in bfloat16.
        blocks = 2 * 2 * (CROSS_ENTROPY_ROWS + size) * embedding_columns
        if blocks <= _CROSS_ENTROPY_MEMORY:
            return size
    return None


@dataclasses.dataclass(frozen=True)
class FeedForwardBlock:
    """Block of the kernels for the feed-forward network."""

    rows: int
    memory: int  # bytes of the core's memory


def feed_forward_block(
    hidden_size: int, intermediate_size: int
) -> FeedForwardBlock | None:
    """Return the largest block whose backward pass fits a core's memory, or None."""
    intermediate_size = -(-intermediate_size // LANES) * LANES
    # The kernels in bfloat16, and their gradients in float32.
    parameters = (2 + 4) * 3 * hidden_size * intermediate_size
    for rows in (512, 256):
        # Two blocks of each of five arrays in bfloat16: x, g, dx, gates and values.
        blocks = 2 * 2 * rows * (3 * hidden_size + 2 * intermediate_size)
        temporaries = 4 * 4 * rows * intermediate_size  # four arrays in float32
        memory = parameters + blocks + temporaries
        if memory <= _FEED_FORWARD_MEMORY:
            return FeedForwardBlock(rows, memory)
    return None
