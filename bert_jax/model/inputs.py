"""What an encoder is given: one structure for all objectives and tasks."""

from collections.abc import Mapping
from typing import NamedTuple

import jax
from jaxtyping import Array, Bool, Int


class Inputs(NamedTuple):
    """Rows of tokens. What is None is left out at no cost.

    Attributes:
      input_ids: Tokens, below `config.vocab_size`.
      attention_mask: Which positions are not padding, which is at the end of a row.
      segment_ids: Segment of each token, 0 or 1; None: all 0.
      positions: Position of each token in its text; None: 0, 1, 2 and so on.
      documents: Document of a packed row that each token is of; tokens attend to those
        of their own document. None: all are of one.
      ranks: Place of each token in an order in which they are predicted; tokens attend
        to those whose place is not later than their own. None: to all.
      target_positions: Positions of a second stream of vectors, which know where they
        are but not what stands there (Yang et al. 2019, XLNet, 2.3). Each attends to
        tokens of earlier places than that of the token there. None: there is none.
      memory_ids: Tokens that stand before the row in its text, the nearest last. Each
        layer attends to their hidden states, too, which get no gradient (Dai et al.
        2019, 3.2). Only of encoders of relative positions. None: there are none.
      memory_mask: Which of them are not padding, which is at the beginning.
    """

    input_ids: Int[Array, "B L"]
    attention_mask: Bool[Array, "B L"]
    segment_ids: Int[Array, "B L"] | None = None
    positions: Int[Array, "B L"] | None = None
    documents: Int[Array, "B L"] | None = None
    ranks: Int[Array, "B L"] | None = None
    target_positions: Int[Array, "B P"] | None = None
    memory_ids: Int[Array, "B M"] | None = None
    memory_mask: Bool[Array, "B M"] | None = None

    @classmethod
    def of(cls, batch: Mapping[str, jax.Array]) -> "Inputs":
        """Those arrays of a batch that an encoder is given."""
        return cls(**{name: batch[name] for name in cls._fields if name in batch})
