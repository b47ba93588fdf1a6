"""Fine-tuning: from a pretrained encoder and a task to a run, and the run itself."""

import dataclasses
import functools
import json
import math
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from etils import epath

from bert_jax import config as config_lib
from bert_jax import knobs, storage, tasks
from bert_jax.errors import UserError
from bert_jax.tasks import classification
from bert_jax.training import metadata as metadata_lib
from bert_jax.training import (
    optimizer,
    processes,
    session,
    sharding,
    stored,
    workdir,
)
from bert_jax.training import step as step_lib
from bert_jax.training.run import Phase, PhaseData, Run

# The class of a task by the kind of its config.
TASKS = {"classification": classification.Classification}


def finetune(config: config_lib.FinetuneConfig, folder: str) -> dict[str, Any]:
    """Run, or continue, fine-tuning, and evaluate the result.

    Args:
      config: Config of the run.
      folder: Workdir.

    Returns:
      What results.json holds.

    Raises:
      UserError: Config, files, checkpoint, devices or workdir do not fit.
      Interrupted: The run was asked to stop, and has saved itself.
    """
    with session.prepare(config.loop) as ledger:
        source, fingerprint = _source(config, folder)
        # A continuation has all it needs, whatever has become of the source.
        pretrained = stored.read_metadata(
            source if source.exists() else stored.find(folder)
        )
        encoder = _encoder(config, pretrained.encoder)
        task = TASKS[config.task.kind](config.task, pretrained.tokenizer)
        config = resolve(config, task, source)
    config = knobs.filled_in(
        config,
        "init_fingerprint",
        fingerprint or stored.fingerprint(source),
        f"{source} has other parameters",
    )
    run = make_run(config, sharding.make_mesh(config.mesh), encoder, task)
    metadata = metadata_lib.of_run(
        config, run.objective, pretrained.tokenizer, task.settings
    )
    with session.open_session(run, folder, config, metadata, ledger) as opened:
        state = opened.train(functools.partial(_begin, config, run, source))
        outputs = predict(run, state.params, task, opened.heartbeat)
        results = {
            **task.scores(outputs),
            **task.description,
            "init_from": "random" if config.random_init else str(source),
            "steps": run.total_steps,
            "seed": config.seed,
        }
        if processes.is_main():
            task.write(opened.folder, outputs)
            with storage.writing(opened.folder):
                text = json.dumps(results, indent=2) + "\n"
                storage.write_text(opened.folder / "results.json", text)
        return results


def resolve(
    config: config_lib.FinetuneConfig, task: tasks.Task, source: epath.Path
) -> config_lib.FinetuneConfig:
    """Fill in what a config leaves to the task and to the checkpoint.

    Raises:
      UserError: The config asks for other examples.
    """
    config = knobs.filled_in(
        config,
        "task.fingerprint",
        task.fingerprint,
        f"the examples at hand have {task.fingerprint}",
    )
    return dataclasses.replace(config, init_from=str(source))


def make_run(
    config: config_lib.FinetuneConfig,
    mesh: jax.sharding.Mesh,
    encoder: config_lib.EncoderConfig,
    task: tasks.Task,
) -> Run:
    """All that training is.

    Raises:
      UserError: The encoder is too short for the task, or model and batches cannot be
        dealt out over the mesh.
    """
    if task.length > encoder.max_position_embeddings:
        raise UserError(
            f"task.length={task.length} is more than the "
            f"{encoder.max_position_embeddings} positions of the encoder"
        )
    sharding.check_encoder(mesh, encoder)
    sharding.check_batch(mesh, "", config.batch_size, config.micro_batches)
    steps = math.ceil(config.epochs * len(task.train["weights"]) / config.batch_size)
    schedule = optimizer.make_schedule(config.optimizer, steps)
    phase = Phase(
        name="fine-tuning",
        steps=steps,
        length=task.length,
        batch_size=config.batch_size,
        micro_batches=config.micro_batches,
        open_data=functools.partial(_open_data, config, task),
    )
    return Run(
        objective=task.objective(encoder),
        optimizer=optimizer.make_optimizer(config.optimizer, schedule),
        schedule=schedule,
        phases=(phase,),
        seed=config.seed,
        config=config.loop,
        mesh=mesh,
        shard_optimizer=config.mesh.shard_optimizer,
    )


def predict(
    run: Run, params: Any, task: tasks.Task, heartbeat: Callable[[], None]
) -> dict[str, tasks.Arrays]:
    """What the model says of each row of each held-out set of a task, on the host."""
    (phase,) = run.phases
    outputs_of = jax.jit(
        run.objective.outputs, out_shardings=sharding.replicated(run.mesh)
    )
    owned = sharding.local_rows(run.mesh, phase.batch_size)

    def outputs_for(rows: tasks.Arrays) -> tasks.Arrays:
        from bert_jax.data import examples  # imports TensorFlow

        batches = examples.Examples(
            rows, batch_size=phase.batch_size, seed=0, held_out=True, rows=owned
        )
        parts = []
        for batch in batches.batches(0, batches.num_batches):
            batch = sharding.to_devices(run.mesh, batch, owned, phase.batch_size)
            parts.append(jax.device_get(outputs_of(params, batch)))
            heartbeat()
        count = len(rows["weights"])
        return {
            name: np.concatenate([part[name] for part in parts])[:count]
            for name in parts[0]
        }

    with sharding.use(run.mesh):
        return {name: outputs_for(rows) for name, rows in task.held_out.items()}


def _source(config: config_lib.FinetuneConfig, folder: str) -> tuple[epath.Path, str]:
    """The checkpoint to begin with, and its fingerprint if that is known.

    Of a run that has begun it is the one that it began with: the source may have gone
    on since, and have newer checkpoints, or be gone.
    """
    if not config.init_from:
        raise UserError(
            "init_from is empty; pass --config.init_from=WORKDIR of a pretraining run"
        )
    given = stored.absolute(config.init_from)
    earlier = workdir.read_config(storage.path(folder), type(config))
    if earlier is not None:
        source = stored.absolute(earlier.init_from)
        if given == source or given in source.parents:
            return source, earlier.init_fingerprint
    return stored.find(given), ""


def _encoder(
    config: config_lib.FinetuneConfig, encoder: config_lib.EncoderConfig
) -> config_lib.EncoderConfig:
    """The pretrained encoder's config with what fine-tuning may change."""
    return dataclasses.replace(
        encoder,
        dtype=config.dtype or encoder.dtype,
        dropout_rate=config.dropout_rate,
        attention_dropout_rate=config.attention_dropout_rate,
    )


def _open_data(
    config: config_lib.FinetuneConfig, task: tasks.Task, rows: np.ndarray
) -> PhaseData:
    from bert_jax.data import examples  # imports TensorFlow

    options = {"batch_size": config.batch_size, "seed": config.seed, "rows": rows}
    training = examples.Examples(task.train, **options)
    evaluation = examples.Examples(task.held_out["eval"], held_out=True, **options)
    return PhaseData(
        training.batches,
        lambda: evaluation.batches(0, evaluation.num_batches),
        training.row_names,
    )


def _begin(
    config: config_lib.FinetuneConfig,
    run: Run,
    source: epath.Path,
    state: step_lib.TrainState,
) -> step_lib.TrainState:
    """The initial state with the pretrained encoder in it."""
    if config.random_init:
        return state
    loaded = stored.load_params(
        source,
        run.state_shapes().params,
        part=run.objective.encoder_path,
        stored_part=stored.read_metadata(source).encoder_path,
    )
    processes.say(loaded.describe(source))
    return dataclasses.replace(state, params=stored.merge(state.params, loaded))
