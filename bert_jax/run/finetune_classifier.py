r"""Fine-tune a pretrained encoder to classify texts or pairs of texts.

  python -m bert_jax.run.finetune_classifier --config=configs/classifier.py \
      --config.task.train=TRAIN.tsv --config.task.eval=EVAL.tsv \
      --config.init_from=PRETRAIN_WORKDIR --workdir=DIR

The files are TSV with a header: `text`, or `text_a` and `text_b`, and `label`. Shape
and tokenizer come from the checkpoint. Leaves results.json and predictions.tsv in the
workdir. The same command again continues a run that was stopped.
"""

import dataclasses
import functools
import json
import math
import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from absl import flags
from etils import epath

from bert_jax import config as config_lib
from bert_jax import knobs, storage
from bert_jax import tokenizer as tokenizer_lib
from bert_jax.errors import UserError
from bert_jax.objectives import classification as objective_lib
from bert_jax.run import command_line
from bert_jax.tasks import classification as task_lib
from bert_jax.training import (
    checkpoint,
    flops,
    goodput,
    loop,
    optimizer,
    processes,
    sharding,
    watchdog,
    workdir,
)


def finetune(config: config_lib.ClassifierConfig, folder: str) -> dict:
    """Run, or continue, fine-tuning, and evaluate the result.

    Args:
      config: of the run.
      folder: the workdir.

    Returns:
      What results.json holds.

    Raises:
      UserError: config, files, checkpoint, devices or workdir do not fit.
      Interrupted: the run was asked to stop, and has saved itself.
    """
    ledger = goodput.Ledger(time.time())
    loop.use_compilation_cache(config.run)

    # Task, and the checkpoint that gives shape and tokenizer.
    with watchdog.watch(config.run.hang_seconds), processes.together():
        _check_given(config)
        train = task_lib.read_tsv(config.task.train)
        held_out = task_lib.read_tsv(config.task.eval)
        labels = task_lib.label_names(train, held_out)
        source = _source(config, folder)
        # A continuation has all it needs, whatever has become of the source.
        metadata = checkpoint.read_metadata(
            source if source.exists() else checkpoint.find(folder)
        )
        tokenizer = tokenizer_lib.Tokenizer.loads(metadata["tokenizer"])
        encoder = _encoder(config, metadata["encoder"])
        fingerprint = task_lib.fingerprint(train, held_out)
        config = knobs.filled_in(
            config,
            "task.fingerprint",
            fingerprint,
            f"{config.task.train} and {config.task.eval} have {fingerprint}",
        )
        config = dataclasses.replace(config, init_from=str(source))

    # Mesh.
    mesh = sharding.make_mesh(config.mesh)
    sharding.check_encoder(mesh, encoder)
    sharding.check_batch(mesh, "", config.batch_size, config.micro_batches)

    # Model, optimizer, data.
    objective = objective_lib.Classification(encoder, len(labels))
    steps = math.ceil(config.epochs * len(train) / config.batch_size)
    schedule = optimizer.make_schedule(config.optimizer, steps)
    features = functools.partial(
        task_lib.to_features,
        labels=labels,
        tokenizer=tokenizer,
        length=config.task.length,
    )
    stage = loop.Stage(
        name="fine-tuning",
        steps=steps,
        batch_size=config.batch_size,
        micro_batches=config.micro_batches,
        flops=flops.classifier_flops(encoder, config.task.length, len(labels)),
        open=functools.partial(_open_data, config, features(train), features(held_out)),
    )
    run = loop.Run(
        objective=objective,
        optimizer=optimizer.make_optimizer(config.optimizer, schedule),
        schedule=schedule,
        stages=(stage,),
        seed=config.seed,
        config=config.run,
        mesh=mesh,
        shard_optimizer=config.mesh.shard_optimizer,
    )

    with (
        watchdog.watch(config.run.hang_seconds) as alive,
        workdir.claim(folder, config, processes.say) as place,
    ):
        # State: continued, else from the pretrained encoder, else random.
        checkpoints = checkpoint.Checkpoints(
            place / "checkpoints",
            config.run.keep_checkpoints,
            checkpoint.make_metadata(
                knobs.to_dict(config),
                knobs.to_dict(encoder),
                metadata["tokenizer"],
            ),
        )
        shapes = run.state_shapes()
        state = checkpoints.restore(shapes, processes.say)
        if state is None:
            state = sharding.initialise(run.init, shapes, jax.random.key(config.seed))
            if not config.random_init:
                loaded = checkpoint.load_params(source, shapes.params, below="encoder/")
                processes.say(_describe(source, loaded))
                params = checkpoint.merge(state.params, loaded)
                state = dataclasses.replace(state, params=params)

        # Loop.
        state = loop.train(run, state, checkpoints, ledger, place, alive)
        checkpoints.close()

        # Results.
        predicted = _predict(run, stage, state.params, len(held_out), alive)
        right = np.array([labels.index(example.label) for example in held_out])
        results = {
            **task_lib.metrics(predicted, right, len(labels)),
            "examples": len(held_out),
            "train_examples": len(train),
            "labels": labels,
            "init_from": "random" if config.random_init else str(source),
            "steps": steps,
            "seed": config.seed,
        }
        if processes.is_main():
            task_lib.write_predictions(place / "predictions.tsv", predicted, labels)
            text = json.dumps(results, indent=2) + "\n"
            (place / "results.json").write_text(text, encoding="utf-8")
        return results


def _check_given(config: config_lib.ClassifierConfig) -> None:
    for name in ("train", "eval"):
        if not getattr(config.task, name):
            raise UserError(f"task.{name} is empty; pass --config.task.{name}=FILE.tsv")
    if not config.init_from:
        raise UserError(
            "init_from is empty; pass --config.init_from=WORKDIR of a pretraining run"
        )


def _source(config: config_lib.ClassifierConfig, folder: str) -> epath.Path:
    """The checkpoint to begin with; of a run that has begun, the one it began with.

    The source may have gone on since, and have newer checkpoints.
    """
    given = checkpoint.absolute(config.init_from)
    path = storage.path(folder) / "config.json"
    if path.exists():
        earlier = knobs.load_json(
            config_lib.ClassifierConfig, path.read_text(encoding="utf-8"), str(path)
        )
        source = checkpoint.absolute(earlier.init_from)
        if given == source or given in source.parents:
            return source
    return checkpoint.find(given)


def _encoder(
    config: config_lib.ClassifierConfig, values: dict
) -> config_lib.EncoderConfig:
    """The pretrained encoder's config with what fine-tuning may change."""
    encoder = knobs.from_dict(config_lib.EncoderConfig, values)
    if config.task.length > encoder.max_position_embeddings:
        raise UserError(
            f"task.length={config.task.length} is more than the "
            f"{encoder.max_position_embeddings} positions of the encoder"
        )
    return dataclasses.replace(
        encoder,
        dtype=config.dtype or encoder.dtype,
        dropout_rate=config.dropout_rate,
        attention_dropout_rate=config.dropout_rate,
    )


def _open_data(
    config: config_lib.ClassifierConfig,
    train: dict[str, np.ndarray],
    held_out: dict[str, np.ndarray],
    rows: np.ndarray,
) -> loop.StageData:
    from bert_jax.data import examples  # brings TensorFlow

    options = {"batch_size": config.batch_size, "seed": config.seed, "rows": rows}
    training = examples.Examples(train, **options)
    evaluation = examples.Examples(held_out, held_out=True, **options)
    return loop.StageData(
        training.batches,
        lambda: evaluation.batches(0, evaluation.num_batches),
        training.row_names,
    )


def _predict(
    run: loop.Run,
    stage: loop.Stage,
    params: Any,
    count: int,
    alive: Callable[[], None],
) -> np.ndarray:
    """The most probable class of each evaluation example."""

    @functools.partial(jax.jit, out_shardings=sharding.replicated(run.mesh))
    def best(params, batch):
        return run.objective.logits(params, batch, None).argmax(-1)

    rows = sharding.local_rows(run.mesh, stage.batch_size)
    predicted = []
    with sharding.use(run.mesh):
        for batch in stage.open(rows).held_out():
            batch = sharding.to_devices(run.mesh, batch, rows, stage.batch_size)
            predicted.append(np.asarray(best(params, batch)))
            alive()
    return np.concatenate(predicted)[:count]


def _describe(source: epath.Path, loaded: checkpoint.Loaded) -> str:
    """Which parameters were loaded, are new, and were ignored, for people."""
    lines = [f"from {source}:"]
    for name in ("loaded", "new", "ignored"):
        paths = getattr(loaded, name)
        parts = sorted({path.split("/")[0] for path in paths})
        where = f" ({', '.join(parts)})" if parts else ""
        lines.append(f"  {name}: {len(paths)} parameters{where}")
    return "\n".join(lines)


def define_flags() -> None:
    """Define the flags of this entrypoint."""
    command_line.define_config(None, "configs/classifier.py")
    command_line.define_workdir()
    command_line.define_processes()
    flags.adopt_module_key_flags(command_line)


def main() -> int:
    """The entrypoint."""
    command_line.start_processes()
    config = knobs.from_configdict(config_lib.ClassifierConfig, command_line.config())
    folder = command_line.required("workdir", "give a folder, --workdir=DIR")
    results = finetune(config, folder)
    if processes.is_main():
        print(json.dumps(results, indent=2))
    return 0


if __name__ == "__main__":
    command_line.main(main, define_flags)
