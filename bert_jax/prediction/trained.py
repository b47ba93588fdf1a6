"""A checkpoint that can be asked: what it is, its parameters, rows in, outputs out."""

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import jax
import numpy as np

from bert_jax import config as config_lib
from bert_jax import knobs
from bert_jax import tokenizer as tokenizer_lib
from bert_jax.errors import UserError
from bert_jax.interop import checkpoints
from bert_jax.model import parameters
from bert_jax.objectives import Batch
from bert_jax.prediction import batching
from bert_jax.tasks import Arrays
from bert_jax.training import metadata as metadata_lib
from bert_jax.training import restore, sharding

# The program that fine-tunes for each kind of task.
_PROGRAMS = {
    "classification": "run.finetune_classifier",
    "squad": "run.finetune_squad",
    "tagging": "run.finetune_tagger",
    "choice": "run.finetune_choice",
}


class Question(Protocol):
    """What is asked of a model; hashable. The objective of a task is one.

    Attributes:
      encoder_path: Where the encoder is in the parameters.
    """

    encoder_path: str

    def batch_shapes(
        self, batch_size: int, length: int
    ) -> dict[str, jax.ShapeDtypeStruct]:
        """Shapes and types of the arrays that `outputs` takes, and maybe others."""

    def init(self, key: jax.Array) -> Any:
        """Initial parameters, boxed with the names of their dimensions."""

    def outputs(self, params: Any, batch: Batch) -> dict[str, jax.Array]:
        """Arrays with a row for each row of the batch."""


class Trained:
    """A checkpoint on one device.

    Parameters are read when something is asked that needs them, and stay.

    Attributes:
      source: The checkpoint.
      metadata: What it says of itself.
    """

    def __init__(self, source: str, metadata: metadata_lib.Metadata):
        self.source = source
        self.metadata = metadata
        self._arrays: dict[str, jax.Array] = {}
        self._ready: dict[Question, tuple[Any, Callable]] = {}
        self._shapes: dict[Any, dict[str, jax.ShapeDtypeStruct]] = {}

    @property
    def encoder(self) -> config_lib.EncoderConfig:
        """Shape of the encoder."""
        # This may be another machine than the one that trained it.
        return dataclasses.replace(self.metadata.encoder, kernels="auto")

    @property
    def tokenizer(self) -> tokenizer_lib.Tokenizer:
        """From text to ids."""
        return self.metadata.tokenizer

    # ---- what it is

    def description(self) -> str:
        """What the checkpoint is of, for messages."""
        saved = self.metadata.config
        if saved.get("kind") == "finetuning":
            return f"it was fine-tuned for {_kind(saved.get('task'))}"
        if saved.get("kind") == "pretraining":
            objective = saved.get("objective")
            segments = objective.get("segments") if isinstance(objective, dict) else ""
            return f"it was pretrained with {_kind(objective)} on {segments}"
        return f"it is of kind {saved.get('kind')!r}"

    def task(self, config_class: type) -> tuple[Any, dict[str, Any]]:
        """The task that the checkpoint was fine-tuned for.

        Args:
          config_class: Class of the task's config.

        Returns:
          Its config, and the settings that it keeps for predictions.

        Raises:
          UserError: It is a checkpoint of something else.
        """
        kind, saved = knobs.kind_of(config_class), self.metadata.config
        if saved.get("kind") != "finetuning" or _kind(saved.get("task")) != kind:
            raise UserError(
                f"{self.source} is no checkpoint of {kind}: {self.description()}; give "
                f"a workdir of {_PROGRAMS[kind]}"
            )
        try:
            return knobs.from_dict(config_class, saved["task"]), self.metadata.task
        except UserError as error:
            raise UserError(f"{self.source} cannot be used: {error}") from error

    # ---- asking it

    def check_has(self, question: Question, purpose: str, hint: str) -> None:
        """Read the parameters that a question needs.

        Args:
          question: The question.
          purpose: What the head is for, such as "to fill blanks", for the message.
          hint: What would be right.

        Raises:
          UserError: The checkpoint has no such head, or is damaged.
        """
        if question not in self._ready and self._read(self._wanted(question)):
            raise UserError(
                f"{self.source} has no head {purpose}: {self.description()}; {hint}"
            )

    def outputs(
        self, question: Question, rows: Arrays, batch_size: int = batching.BATCH_SIZE
    ) -> Arrays:
        """What the model answers for each row, in the order of the rows.

        Rows go through the model by length, in batches of a few shapes. What depends on
        the length has that of `rows` in the outputs, too; zeros stand where there is
        only padding.

        Args:
          question: What is asked.
          rows: Arrays with a row for each; `attention_mask` says how long a row is.
          batch_size: Rows that go through the model at once, at most.

        Raises:
          UserError: The checkpoint does not fit the question, or a row is too long.
        """
        params, _ = self._prepare(question)
        names, axes = _arrays_of(question, rows)

        def shapes(length):
            row = {n: batching.fit(rows[n][:1], axes[n], length) for n in names}
            key = question, *((n, x.shape, x.dtype) for n, x in row.items())
            if key not in self._shapes:  # to trace the model takes a while
                made = jax.eval_shape(question.outputs, params, row)
                self._shapes[key] = made
            return self._shapes[key]

        count, length = len(rows["attention_mask"]), rows["attention_mask"].shape[-1]
        short, long = shapes(2), shapes(3)
        axes_of_outputs = batching.length_axes(short, long)
        results: Arrays = {}
        for name, shape in short.items():
            whole = [count, *shape.shape[1:]]
            if (axis := axes_of_outputs[name]) is not None:
                whole[axis] = length
            results[name] = np.zeros(whole, shape.dtype)
        for indices, answers in self.batches(question, rows, batch_size):
            for name, values in answers.items():
                fitted = batching.fit(values, axes_of_outputs[name], length)
                results[name][indices] = fitted
        return results

    def batches(
        self, question: Question, rows: Arrays, batch_size: int = batching.BATCH_SIZE
    ) -> Iterator[tuple[np.ndarray, Arrays]]:
        """`outputs` as they come, with the indices of their rows.

        What depends on the length has that of the batch: at least that of its rows.
        """
        params, answer = self._prepare(question)
        names, axes = _arrays_of(question, rows)
        sizes = batching.lengths(self.encoder.max_position_embeddings)
        mask = rows["attention_mask"]
        if mask[..., sizes[-1] :].any():
            raise UserError(f"a row has more than the model's {sizes[-1]} positions")
        for batch in batching.plan(mask, sizes, batch_size):
            arrays = batching.cut({n: rows[n] for n in names}, batch, axes)
            answers = jax.device_get(answer(params, arrays))
            count = len(batch.indices)
            yield batch.indices, {name: x[:count] for name, x in answers.items()}

    # ---- parameters

    def _prepare(self, question: Question) -> tuple[Any, Callable]:
        """The parameters for a question, and its `outputs`, compiled once per shape."""
        if question not in self._ready:
            wanted = self._wanted(question)
            if missing := self._read(wanted):
                raise UserError(
                    f"{self.source} has no {missing[0]}: {self.description()}; give "
                    "another checkpoint"
                )
            params = {
                path: self._arrays[source] for path, (source, _) in wanted.items()
            }
            self._ready[question] = (
                parameters.unflatten(params),
                jax.jit(question.outputs),
            )
        return self._ready[question]

    def _wanted(
        self, question: Question
    ) -> dict[str, tuple[str, jax.ShapeDtypeStruct]]:
        """Each parameter's path in the checkpoint, and its shape."""
        mesh = sharding.make_mesh(config_lib.MeshConfig(), jax.devices()[:1])
        shapes = parameters.flatten(sharding.state_shapes(question.init, mesh))
        ours, theirs = f"{question.encoder_path}/", f"{self.metadata.encoder_path}/"
        return {
            path: (theirs + path[len(ours) :] if path.startswith(ours) else path, shape)
            for path, shape in shapes.items()
        }

    def _read(self, wanted: dict[str, tuple[str, jax.ShapeDtypeStruct]]) -> list[str]:
        """Read what no question before needed; the paths that the checkpoint lacks."""
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


def _arrays_of(
    question: Question, rows: Arrays
) -> tuple[list[str], dict[str, int | None]]:
    """Names of the arrays that a question takes, and which dimension is the length."""
    short, long = question.batch_shapes(2, 2), question.batch_shapes(2, 3)
    names = sorted(short.keys() & rows.keys())
    return names, batching.length_axes(
        {name: short[name] for name in names}, {name: long[name] for name in names}
    )


def _kind(values: Any) -> str:
    return str(values.get("kind")) if isinstance(values, dict) else "nothing known"
