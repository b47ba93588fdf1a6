"""What people fine-tune for: labelled examples to arrays, outputs to scores and files.

`Task` is what all of them promise.
"""

from typing import Any, Protocol

import jax
import numpy as np

from bert_jax import config as config_lib
from bert_jax import storage
from bert_jax.objectives import Batch, Objective

Arrays = dict[str, np.ndarray]


class TaskObjective(Objective, Protocol):
    """An objective whose predictions are wanted, too."""

    def outputs(self, params: Any, batch: Batch) -> dict[str, jax.Array]:
        """What the model says of each row of a batch, without dropout.

        Returns:
          Arrays with a row for each row of the batch.
        """


class Task(Protocol):
    """What fine-tuning asks of a task.

    A class is made from its config and the tokenizer of the encoder. A row of the
    arrays is what goes through the model at once; there may be several for an example.
    One of the arrays is `weights`, and one `attention_mask`, which says how long a row
    is: batches are cut to the longest of theirs, rounded up.

    Attributes:
      train: Rows to train on, by name of the array: those of the objective's
        `batch_shapes`, all of them, because programs are compiled for these.
      held_out: Sets of rows to predict for, by name of the set: "eval", which the loop
        evaluates on, and others such as "test". Where a label is not known, the weight
        is 0.
      length: Tokens in a row.
      fingerprint: Hash of all examples.
      description: What results.json says of the examples.
      settings: What a checkpoint keeps for predictions, such as names of classes; JSON.
    """

    train: Arrays
    held_out: dict[str, Arrays]
    length: int
    fingerprint: str
    description: dict[str, Any]
    settings: dict[str, Any]

    def objective(self, encoder: config_lib.EncoderConfig) -> TaskObjective:
        """What is predicted, with an encoder of this shape."""

    def decode(self, outputs: dict[str, Arrays]) -> dict[str, Any]:
        """What is predicted for each example, by name of the set.

        Args:
          outputs: Of `TaskObjective.outputs`, for all rows of each set of `held_out`.

        Returns:
          For each set, whatever the other two functions of the task work with.
        """

    def scores(self, predictions: dict[str, Any]) -> dict[str, Any]:
        """The field's metrics of what `decode` gives, as JSON."""

    def write(self, folder: storage.Path, predictions: dict[str, Any]) -> None:
        """Write what `decode` gives in the task's official format.

        Raises:
          UserError: The folder cannot be written.
        """
