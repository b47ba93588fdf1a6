"""A loaded checkpoint: its description, its parameters, and its outputs."""

import dataclasses
from typing import Any

import jax

from bert_jax import config as config_lib
from bert_jax import tokenizer as tokenizer_lib
from bert_jax.errors import UserError
from bert_jax.interop import checkpoints, lazy_checkpoint
from bert_jax.interop.families.family import BARE
from bert_jax.model import parameters
from bert_jax.training import inference, restore, sharding
from bert_jax.training import metadata as metadata_lib

# Default for the largest number of rows in a batch.
BATCH_SIZE = 32


class TrainedModel:
    """A checkpoint on one device.

    Parameters are loaded when a computation first needs them, and kept.

    Attributes:
      source: Path of the checkpoint.
      metadata: Metadata of the checkpoint.
    """

    def __init__(self, source: str, metadata: metadata_lib.Metadata):
        self.source = source
        self.metadata = metadata
        # Loaded parameters by path. An ELECTRA's generator has a cache of its own,
        # because it reads the embeddings without the discriminator's differences.
        self._arrays: dict[str, jax.Array] = {}
        self._generator_arrays: dict[str, jax.Array] = {}
        self._engines: dict[inference.Computation, inference.Engine] = {}
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

    def description(self) -> str:
        """Describe the training of the checkpoint, for messages."""
        saved = self.metadata.config
        if task := saved.get("task"):
            return f"it was fine-tuned for {task['kind']}"
        if objective := saved.get("objective"):
            return (
                f"it was pretrained with objective.kind={objective['kind']!r} and "
                f"objective.segments={objective.get('segments')!r}"
            )
        return f"it is a {saved.get('kind')}"

    def saved_config(self, section: str, config_class: type) -> Any | None:
        """Return a section of the run's config, or None if it is of another class."""
        saved = self.metadata.config.get(section, {})
        if saved.get("kind") != config_class.kind:
            return None
        try:
            return config_lib.from_dict(config_class, saved)
        except UserError as error:
            raise UserError(f"{self.source} cannot be used: {error}") from error

    def task(self, config_class: type) -> tuple[Any, dict[str, Any]]:
        """Return config and settings of the fine-tuning task of the checkpoint."""
        config = self.saved_config("task", config_class)
        if config is None:
            kind = config_class.kind
            # Several classes share the names of a head.
            hint = ", or name the class of its head in config.json (architectures)"
            is_bare = self.metadata.config.get("kind") == BARE
            raise UserError(
                f"{self.source} is not a checkpoint of {kind}: {self.description()}; "
                f"use a workdir of {config_lib.FINETUNE_COMMANDS[kind]}{hint * is_bare}"
            )
        return config, self.metadata.task

    def engine(
        self, computation: inference.Computation, purpose: str = "", hint: str = ""
    ) -> inference.Engine:
        """Return the compiled engine of a computation, made at its first use.

        Raises:
          UserError: The checkpoint is damaged, or lacks the head. The message has the
            head's purpose, such as "to fill blanks", and a hint.
        """
        if computation in self._engines:
            return self._engines[computation]
        with sharding.use(self._mesh):  # and not the caller's mesh
            shapes = sharding.state_shapes(computation.init, self._mesh)
            wanted = parameters.flatten(shapes)
            params = self._load(wanted)
            if missing := [path for path in wanted if path not in params]:
                lacks = f"head {purpose}" if purpose else missing[0]
                raise UserError(
                    f"{self.source} has no {lacks}: {self.description()}; "
                    f"{hint or 'use another checkpoint'}"
                )
            self._engines[computation] = inference.Engine(
                computation,
                parameters.unflatten(params),
                self._mesh,
                _bucket_lengths(self.encoder.max_position_embeddings),
            )
        return self._engines[computation]

    def _load(self, wanted: dict[str, jax.ShapeDtypeStruct]) -> dict[str, jax.Array]:
        """Return the wanted parameters that the checkpoint has, by path."""
        is_generator = any(map(lazy_checkpoint.is_generator_parameter, wanted))
        arrays = self._generator_arrays if is_generator else self._arrays
        new = {path: shape for path, shape in wanted.items() if path not in arrays}
        if new and is_generator:
            # With the differences requested, too, embeddings are not loaded as sums.
            for path, shape in wanted.items():
                if difference := parameters.embedding_difference_path(path):
                    new[difference] = shape
        if new:
            source = restore.absolute(self.source)
            arrays |= checkpoints.load_params(source, parameters.unflatten(new)).params
        return {path: arrays[path] for path in wanted if path in arrays}


def _bucket_lengths(positions: int) -> list[int]:
    """Return 16, 24, 32, 48, 64, ... up to the number of positions."""
    sizes = [n for i in range(4, 20) for n in (2**i, 3 * 2 ** (i - 1))]
    return [*(n for n in sizes if n < positions), positions]
