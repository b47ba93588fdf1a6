"""Training objectives: from parameters and a batch to losses and metrics.

All objectives implement `Objective`. A metric is a sum and a count, which are divided
only when they are reported. The loss of a batch is the weighted sum over losses of
sum / count, with the counts of the whole batch (`metric_sums.total`). So it does not
depend on how the batch is split into micro-batches or sharded over devices.
"""

from collections.abc import Mapping
from typing import Any, Protocol

import jax

from bert_jax import config as config_lib
from bert_jax.objectives import metric_sums

Batch = dict[str, jax.Array]
BatchShapes = dict[str, jax.ShapeDtypeStruct]


class Objective(Protocol):
    """Interface of an objective, which is a frozen dataclass."""

    encoder: config_lib.EncoderConfig  # architecture that fine-tuning loads
    # Name, for messages, of a second reader of the logits of predicted tokens, which
    # must then be stored; "": none.
    logits_reader: str
    # Whether the losses of a row do not depend on the other rows of its batch.
    rows_are_independent: bool

    @property
    def loss_weights(self) -> Mapping[str, float]:
        """Weight of each loss in the sum, by name."""

    @property
    def metrics(self) -> tuple[str, ...]:
        """Names of all metrics, losses included."""

    def batch_shapes(self, batch_size: int, length: int) -> BatchShapes:
        """Return the shapes and types of the arrays of a batch, each with B rows."""

    def num_predictions(self, length: int) -> int:
        """Return P, the number of tokens of the vocabulary that a row predicts."""

    def sequence_flops(self, length: int) -> float:
        """Return the FLOPs of training on one sequence, by formula."""

    def init(self, key: jax.Array) -> Any:
        """Return initial parameters, boxed with the names of their dimensions.

        The encoder's parameters are in the group "encoder".
        """

    def counts(self, batch: Batch) -> dict[str, jax.Array]:
        """Return the divisor of each loss in a batch: float32 scalars."""

    def sums(
        self,
        params: Any,
        batch: Batch,
        *,
        dropout_keys: jax.Array | None,
        sampling_keys: jax.Array,
    ) -> metric_sums.MetricSums:
        """Return sum and count of each loss and metric of a batch.

        The batch may be a micro-batch. The keys are uint32 [B], a key for each row;
        without dropout keys there is no dropout. Sampling has keys of its own, because
        an evaluation has no dropout but may sample.
        """
