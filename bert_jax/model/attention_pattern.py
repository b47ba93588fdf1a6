"""Attention patterns: the positions that each position attends to."""

import dataclasses

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from bert_jax.model import rotary
from bert_jax.model.inputs import at_positions

# Score of a key that a query does not see. The softmax gives it probability 0 if the
# query sees any key.
MASKED_SCORE = -1e9


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class AttentionPattern:
    """Rules that decide which keys each query sees.

    Every implementation of attention takes a pattern; `mask` defines it. A query that
    sees no key has zero output and zero gradient.
    """

    # True at tokens, False at padding, which no query sees. Padding may see tokens;
    # nothing reads its output.
    is_token: Bool[Array, "B L"]
    # Document of each position: queries see keys of their own document only. None: each
    # row is one document.
    documents: Int[Array, "B L"] | None = None
    # Whether queries see no later keys.
    causal: bool = dataclasses.field(default=False, metadata={"static": True})
    # Largest distance at which queries see keys; None: any.
    window: int | None = dataclasses.field(default=None, metadata={"static": True})
    # Rotations of queries and keys by their positions; None without rotary positions.
    rotations: rotary.Rotations | None = None

    def mask(
        self, query_positions: Int[Array, "B P"] | None = None
    ) -> Bool[Array, "B _ L"]:
        """Return the mask, [B, P or 1, L]: True where query p sees key l.

        Args:
          query_positions: Positions of the queries in their rows; None: all positions.
        """
        length = self.is_token.shape[1]
        keys = jnp.arange(length)
        queries = keys[None] if query_positions is None else query_positions
        distance = queries[:, :, None] - keys  # [B or 1, P, L]
        mask = self.is_token[:, None, :]
        if self.causal:
            mask = mask & (distance >= 0)
        if self.window is not None:
            mask = mask & (abs(distance) <= self.window)
        if self.documents is not None:
            query_documents = at_positions(self.documents, query_positions)
            mask = mask & (query_documents[:, :, None] == self.documents[:, None, :])
        return mask
