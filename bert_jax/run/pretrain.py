r"""Pretrain BERT on a corpus.

  python -m bert_jax.run.pretrain --config=configs/bert_mini.py \
      --config.data.corpus=DIR --workdir=DIR

The same command again continues a run that was stopped, to the same end. On a pod it is
started once on each host (launch/README.md). Exit status: 0 when all steps are done, 75
when the run was stopped and saved itself, 2 for a mistake in what was given, anything
else for a crash.
"""

import functools
import time
from collections.abc import Callable, Sequence

import jax
import numpy as np
from absl import flags

from bert_jax import config as config_lib
from bert_jax import knobs
from bert_jax.corpus import shards
from bert_jax.errors import UserError
from bert_jax.objectives import mlm_nsp
from bert_jax.run import command_line
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
from bert_jax.training import step as step_lib


def pretrain(
    config: config_lib.PretrainConfig, folder: str
) -> tuple[step_lib.TrainState, config_lib.PretrainConfig]:
    """Run, or continue, pretraining.

    Args:
      config: of the run; what it leaves open is taken from the corpus.
      folder: the workdir.

    Returns:
      The final state, and the config with nothing left open.

    Raises:
      UserError: config, corpus, devices or workdir do not fit.
      Unavailable: corpus or workdir cannot be reached now.
      Interrupted: the run was asked to stop, and has saved itself.
    """
    ledger = goodput.Ledger(time.time())
    loop.use_compilation_cache(config.run)

    # Corpus, and what the config leaves open. What one process lacks, stops all.
    with watchdog.watch(config.run.hang_seconds), processes.together():
        corpus = shards.open_corpus(config.data.corpus)
        config = resolve(config, corpus)

    # Mesh, model, optimizer, and the phases with their data.
    mesh = sharding.make_mesh(config.mesh)
    opens = [
        functools.partial(open_data, config, corpus, i)
        for i in range(len(config.phases))
    ]
    run = make_run(config, mesh, opens)

    metadata = checkpoint.make_metadata(
        knobs.to_dict(config),
        knobs.to_dict(config.encoder),
        corpus.tokenizer.dumps(),
    )

    # The folder: from here on there is something to lose.
    with (
        watchdog.watch(config.run.hang_seconds) as alive,
        workdir.claim(folder, config, processes.say) as place,
    ):
        checkpoints = checkpoint.Checkpoints(
            place / "checkpoints", config.run.keep_checkpoints, metadata
        )

        # State: continued if there is a checkpoint, else initial.
        shapes = run.state_shapes()
        state = checkpoints.restore(shapes, processes.say)
        if state is None:
            state = sharding.initialise(run.init, shapes, jax.random.key(config.seed))

        # Loop.
        state = loop.train(run, state, checkpoints, ledger, place, alive)
        checkpoints.close()
    return state, config


def make_run(
    config: config_lib.PretrainConfig,
    mesh: jax.sharding.Mesh,
    opens: Sequence[Callable[[np.ndarray], loop.StageData]],
) -> loop.Run:
    """All that training is, except for its data.

    Args:
      config: resolved.
      mesh: to train on.
      opens: of each phase, what opens its data.

    Raises:
      UserError: model and batches cannot be dealt out over the mesh.
    """
    sharding.check_encoder(mesh, config.encoder)
    for i, phase in enumerate(config.phases):
        where = f"phases[{i}]."
        sharding.check_batch(mesh, where, phase.batch_size, phase.micro_batches)
    schedule = optimizer.make_schedule(config.optimizer, config.total_steps)
    return loop.Run(
        objective=mlm_nsp.MlmNsp(config.encoder),
        optimizer=optimizer.make_optimizer(config.optimizer, schedule),
        schedule=schedule,
        stages=tuple(make_stage(config, i, opens[i]) for i in range(len(opens))),
        seed=config.seed,
        config=config.run,
        mesh=mesh,
        shard_optimizer=config.mesh.shard_optimizer,
    )


def resolve(
    config: config_lib.PretrainConfig, corpus: shards.Corpus
) -> config_lib.PretrainConfig:
    """Fill in what a config leaves to the corpus.

    Raises:
      UserError: the config asks for another corpus or vocabulary.
    """
    size = corpus.tokenizer.vocab_size
    config = knobs.filled_in(
        config,
        "encoder.vocab_size",
        size,
        f"the tokenizer has {size} tokens; leave it 0 to follow the tokenizer",
    )
    return knobs.filled_in(
        config,
        "data.fingerprint",
        corpus.fingerprint,
        f"the corpus {config.data.corpus} has {corpus.fingerprint}",
    )


def make_stage(
    config: config_lib.PretrainConfig,
    index: int,
    open_stage: Callable[[np.ndarray], loop.StageData],
) -> loop.Stage:
    """One phase of the config as a stage of the loop."""
    phase = config.phases[index]
    name = f"phase {index + 1}/{len(config.phases)}, length {phase.length}"
    return loop.Stage(
        name=name if len(config.phases) > 1 else "pretraining",
        steps=phase.steps,
        batch_size=phase.batch_size,
        micro_batches=phase.micro_batches,
        flops=flops.pretraining_flops(
            config.encoder, phase.length, phase.max_predictions
        ),
        open=open_stage,
    )


def batch_of_step(
    config: config_lib.PretrainConfig, step: int
) -> dict[str, np.ndarray]:
    """The batch that a run of this config trains on at a step, without the run.

    Args:
      config: of the run; `data.corpus` must be set.
      step: counted from 0 over all phases, as `TrainState.step` counts.

    Returns:
      See `data/sentence_pairs.py`.

    Raises:
      UserError: there is no such step or corpus.
    """
    corpus = shards.open_corpus(config.data.corpus)
    config = resolve(config, corpus)
    begin = 0
    for i, phase in enumerate(config.phases):
        if begin <= step < begin + phase.steps:
            rows = np.arange(phase.batch_size)
            return _pairs(config, corpus, i, rows, held_out=False).batch(step - begin)
        begin += phase.steps
    raise UserError(f"step {step} is not one of the {config.total_steps} of this run")


def open_data(
    config: config_lib.PretrainConfig,
    corpus: shards.Corpus,
    index: int,
    rows: np.ndarray,
) -> loop.StageData:
    """The batches of a phase, to train on and to evaluate on."""
    train = _pairs(config, corpus, index, rows, held_out=False)
    if corpus.count(shards.HELD_OUT, "documents") < 2:
        processes.say("the corpus has no held-out documents: there is no evaluation")
        return loop.StageData(train.batches, None, train.row_names)
    held_out = _pairs(config, corpus, index, rows, held_out=True)
    limit = config.run.eval_batches or held_out.num_batches
    return loop.StageData(
        train.batches,
        lambda: held_out.batches(0, min(limit, held_out.num_batches)),
        train.row_names,
    )


def _pairs(
    config: config_lib.PretrainConfig,
    corpus: shards.Corpus,
    index: int,
    rows: np.ndarray,
    *,
    held_out: bool,
):
    from bert_jax.data import sentence_pairs  # brings TensorFlow

    phase = config.phases[index]
    return sentence_pairs.SentencePairs(
        corpus,
        config.data,
        length=phase.length,
        max_predictions=phase.max_predictions,
        batch_size=phase.batch_size,
        seed=config.seed,
        phase=index,
        held_out=held_out,
        rows=rows,
    )


def define_flags() -> None:
    """Define the flags of this entrypoint."""
    command_line.define_config(None, "configs/bert_base.py")
    command_line.define_workdir()
    command_line.define_processes()
    flags.adopt_module_key_flags(command_line)


def main() -> int:
    """The entrypoint."""
    command_line.start_processes()
    config = knobs.from_configdict(config_lib.PretrainConfig, command_line.config())
    folder = command_line.required("workdir", "give a folder, --workdir=DIR")
    pretrain(config, folder)
    return 0


if __name__ == "__main__":
    command_line.main(main, define_flags)
