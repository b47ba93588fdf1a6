"""Fine-tuning tasks: labelled examples to arrays, model outputs to scores and files.

`Task` is the interface of all tasks.
"""

from typing import Any, Protocol

import jax
import numpy as np

from bert_jax import config as config_lib
from bert_jax import storage
from bert_jax.objectives import Batch, Objective

Arrays = dict[str, np.ndarray]


class TaskObjective(Objective, Protocol):
    """An objective that also makes predictions."""

    def outputs(self, params: Any, batch: Batch) -> dict[str, jax.Array]:
        """Return the outputs of the model without dropout, arrays [rows, ...]."""


class Task(Protocol):
    """The interface between a task and fine-tuning.

    A class is constructed from its config and the tokenizer of the encoder. An example
    has one row of tokens or several. The arrays include `weights` and `attention_mask`.
    Batches are trimmed to their longest row in `attention_mask`.
    """

    train: Arrays  # rows to train on, with all arrays of the objective's `batch_shapes`
    # Rows to predict for, by name of the set: "eval", on which the loop evaluates, and
    # further sets such as "test". A row without a label has weight 0.
    held_out: dict[str, Arrays]
    fingerprint: str  # hash of all labelled examples outside of test sets
    metrics: tuple[str, ...]  # scores of "eval" that may select the best parameters
    description: dict[str, Any]  # facts about the examples, for results.json
    settings: dict[str, Any]  # JSON stored for predictions, such as names of classes

    def objective(self, encoder: config_lib.EncoderConfig) -> TaskObjective:
        """Return the objective for an encoder of this shape."""

    def decode(self, name: str, outputs: Arrays) -> Any:
        """Return the predictions for the examples of a held-out set.

        `outputs` has `TaskObjective.outputs` for all rows of the set. The predictions
        have any form that `scores` and `write` accept.
        """

    def scores(self, name: str, predictions: Any) -> dict[str, Any]:
        """Return the metrics of the field for a set, as JSON; {} without labels.

        The first metric ranks runs.
        """

    def write(self, folder: storage.Path, name: str, predictions: Any) -> None:
        """Write the predictions for a set in the official format of the task.

        Raises:
          UserError: The folder cannot be written.
        """
