"""A loaded checkpoint: its description, its parameters, and its outputs."""

import dataclasses
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from bert_jax import config as config_lib
from bert_jax import knobs
from bert_jax import tokenizer as tokenizer_lib
from bert_jax.errors import UserError
from bert_jax.interop import checkpoints
from bert_jax.model import parameters
from bert_jax.tasks import Arrays
from bert_jax.training import inference, restore, sharding
from bert_jax.training import metadata as metadata_lib
from bert_jax.training.inference import Question

# Fine-tuning command of each kind of task.
_PROGRAMS = {
    "classification": "run.finetune_classifier",
    "squad": "run.finetune_squad",
    "tagging": "run.finetune_tagger",
    "choice": "run.finetune_choice",
}


# Default for the largest number of rows in a batch.
BATCH_SIZE = 32


class Trained:
    """A checkpoint on one device.

    Parameters are loaded when a question first needs them, and kept.

    Attributes:
      source: Path of the checkpoint.
      metadata: Metadata of the checkpoint.
    """

    def __init__(self, source: str, metadata: metadata_lib.Metadata):
        self.source = source
        self.metadata = metadata
        self._arrays: dict[str, jax.Array] = {}
        self._engines: dict[Question, inference.Engine] = {}
        self._mesh = sharding.make_mesh(config_lib.MeshConfig(), jax.devices()[:1])

    @property
    def encoder(self) -> config_lib.EncoderConfig:
        """Architecture of the encoder."""
        # The machine that trained it may have had other kernels.
        return dataclasses.replace(self.metadata.encoder, kernels="auto")

    @property
    def tokenizer(self) -> tokenizer_lib.Tokenizer:
        """Tokenizer of the checkpoint."""
        return self.metadata.tokenizer

    # ---- description

    def description(self) -> str:
        """Describe the training of the checkpoint, for messages."""
        saved = self.metadata.config
        if saved.get("kind") == "finetuning":
            return f"it was fine-tuned for {_kind(saved.get('task'))}"
        if saved.get("kind") == "pretraining":
            objective = saved.get("objective")
            segments = objective.get("segments") if isinstance(objective, dict) else ""
            return f"it was pretrained with {_kind(objective)} on {segments}"
        return f"it is of kind {saved.get('kind')!r}"

    def task(self, config_class: type) -> tuple[Any, dict[str, Any]]:
        """Return config and settings of the fine-tuning task of the checkpoint.

        Args:
          config_class: Class of the task's config.

        Raises:
          UserError: The checkpoint is not of this task.
        """
        kind, saved = knobs.kind_of(config_class), self.metadata.config
        if saved.get("kind") != "finetuning" or _kind(saved.get("task")) != kind:
            raise UserError(
                f"{self.source} is not a checkpoint of {kind}: {self.description()}; "
                f"use a workdir of {_PROGRAMS[kind]}"
            )
        try:
            return knobs.from_dict(config_class, saved["task"]), self.metadata.task
        except UserError as error:
            raise UserError(f"{self.source} cannot be used: {error}") from error

    # ---- outputs

    def check_has(self, question: Question, purpose: str, hint: str) -> None:
        """Load the parameters that a question needs.

        Args:
          question: Question.
          purpose: Purpose of the head for the message, such as "to fill blanks".
          hint: Advice for the message.

        Raises:
          UserError: The checkpoint lacks the head, or is damaged.
        """
        if question not in self._engines and self._read(self._wanted(question)):
            raise UserError(
                f"{self.source} has no head {purpose}: {self.description()}; {hint}"
            )

    def outputs(
        self, question: Question, rows: Arrays, batch_size: int = BATCH_SIZE
    ) -> Arrays:
        """Return the outputs of all rows, in their order; see `inference.Engine`.

        Raises:
          UserError: The checkpoint lacks parameters of the question.
        """
        return self._engine(question).outputs(rows, batch_size)

    def batches(
        self, question: Question, rows: Arrays, batch_size: int = BATCH_SIZE
    ) -> Iterator[tuple[np.ndarray, Arrays]]:
        """Yield row indices and outputs of each batch; see `inference.Engine`."""
        return self._engine(question).batches(rows, batch_size)

    # ---- parameters

    def _engine(self, question: Question) -> inference.Engine:
        """Return the engine of a question, made at its first use."""
        if question not in self._engines:
            wanted = self._wanted(question)
            if missing := self._read(wanted):
                raise UserError(
                    f"{self.source} has no {missing[0]}: {self.description()}; use "
                    "another checkpoint"
                )
            params = {
                path: self._arrays[source] for path, (source, _) in wanted.items()
            }
            self._engines[question] = inference.Engine(
                question,
                parameters.unflatten(params),
                self._mesh,
                _bucket_lengths(self.encoder.max_position_embeddings),
            )
        return self._engines[question]

    def _wanted(
        self, question: Question
    ) -> dict[str, tuple[str, jax.ShapeDtypeStruct]]:
        """Return each parameter's path in the checkpoint, and its shape."""
        shapes = parameters.flatten(sharding.state_shapes(question.init, self._mesh))
        ours, theirs = f"{question.encoder_path}/", f"{self.metadata.encoder_path}/"
        return {
            path: (theirs + path[len(ours) :] if path.startswith(ours) else path, shape)
            for path, shape in shapes.items()
        }

    def _read(self, wanted: dict[str, tuple[str, jax.ShapeDtypeStruct]]) -> list[str]:
        """Load parameters not loaded yet. Return the paths that are missing."""
        shapes = {
            source: shape
            for source, shape in wanted.values()
            if source not in self._arrays or self._arrays[source].shape != shape.shape
        }
        if not shapes:
            return []
        loaded = checkpoints.load_params(
            restore.absolute(self.source), parameters.unflatten(shapes)
        )
        if not loaded.new:
            self._arrays |= loaded.params
        return loaded.new


def _bucket_lengths(positions: int) -> list[int]:
    """Return 16, 24, 32, 48, 64, ... up to the number of positions."""
    sizes = [n for i in range(4, 20) for n in (2**i, 3 * 2 ** (i - 1))]
    return [*(n for n in sizes if n < positions), positions]


def _kind(values: Any) -> str:
    return str(values.get("kind")) if isinstance(values, dict) else "nothing known"
