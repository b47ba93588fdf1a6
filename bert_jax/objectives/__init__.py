"""What the model is asked to predict: from parameters and a batch to loss and metrics.

`Objective` is what all of them promise. A term is a sum and a count that stay apart
until they are reported. The loss of a batch is the weighted sum over losses of
sum / count with the counts of the whole batch (`terms.total`), so that it does not
depend on how the batch is cut into micro-batches or spread over devices.
"""

from collections.abc import Mapping
from typing import Any, Protocol

import jax
import numpy as np

from bert_jax import config as config_lib
from bert_jax.objectives import metric_sums

Batch = dict[str, jax.Array]


class Objective(Protocol):
    """What training asks of an objective; a frozen dataclass.

    Attributes:
      encoder: Shape of the encoder that fine-tuning reads.
      encoder_path: Where it is in the parameters, such as "encoder".
    """

    encoder: config_lib.EncoderConfig
    encoder_path: str

    @property
    def losses(self) -> Mapping[str, float]:
        """Names of the losses with their weights in the sum."""

    @property
    def metrics(self) -> tuple[str, ...]:
        """Names of all terms, the losses among them."""

    def batch_shapes(
        self, batch_size: int, length: int
    ) -> dict[str, jax.ShapeDtypeStruct]:
        """Shapes and types of the arrays of a batch; all have `batch_size` rows."""

    def sequence_flops(self, length: int) -> float:
        """Operations to train on one sequence, as a formula."""

    def init(self, key: jax.Array) -> Any:
        """Initial parameters, boxed with the names of their dimensions."""

    def counts(self, batch: Batch) -> dict[str, jax.Array]:
        """What each loss of a batch is divided by: float32 scalars."""

    def terms(
        self,
        params: Any,
        batch: Batch,
        *,
        dropout_keys: jax.Array | None,
        sampling_keys: jax.Array,
    ) -> metric_sums.Terms:
        """All losses and metrics of a batch.

        Whether dropout is on and what is drawn at random are two questions: an
        evaluation has no dropout, and an objective that samples still does.

        Args:
          params: Parameters, without boxes.
          batch: Arrays of `batch_shapes`, or some of their rows.
          dropout_keys: uint32 [B], a key for each row; None for no dropout.
          sampling_keys: uint32 [B], a key for each row; for objectives that draw
            something of their own.
        """


class PretrainingObjective(Objective, Protocol):
    """What pretraining asks of an objective, beyond what training asks of all."""

    def without_context(self, frequencies: np.ndarray) -> Mapping[str, float]:
        """What a model scores that knows how often each token occurs, and no context.

        Args:
          frequencies: float64 [V], the share of each token in held-out text.

        Returns:
          Values by the names of metrics; of those for which this can be said.
        """
