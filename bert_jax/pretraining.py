"""Pretraining runs, built from a config and corpora."""

import functools
from collections.abc import Collection, Sequence
from typing import Any

import jax
import numpy as np

from bert_jax import config as config_lib
from bert_jax import teacher, warm_start
from bert_jax.corpus import mixture, shards
from bert_jax.errors import UserError
from bert_jax.objectives import (
    Objective,
    causal_lm,
    distillation,
    masked_lm,
    permutation_lm,
    replaced_tokens,
    unigram_baseline,
)
from bert_jax.training import metrics_file, optimizer, processes, session, sharding
from bert_jax.training import step as step_lib
from bert_jax.training.run_description import HeldOut, Phase, PhaseData, Run

# Objective class by the `kind` field of its config.
OBJECTIVES = {
    "masked_lm": masked_lm.MaskedLm,
    "distillation": distillation.Distillation,
    "causal_lm": causal_lm.CausalLm,
    "replaced_tokens": replaced_tokens.ReplacedTokens,
    "permutation_lm": permutation_lm.PermutationLm,
}


def pretrain(
    config: config_lib.PretrainConfig, folder: str, overrides: Collection[str] = ()
) -> tuple[step_lib.TrainState, config_lib.PretrainConfig]:
    """Pretrain, or resume the run.

    Args:
      config: Config of the run. Fields left open are filled in from the corpora.
      folder: Workdir.
      overrides: Paths of the fields that were given on the command line. The checkpoint
        `init_from` must agree with them, and phases may not replace them, even if they
        are at their defaults.

    Returns:
      The final state, and the config with all fields filled in.

    Raises:
      UserError: The config, a corpus, the devices or the workdir is invalid.
      Unavailable: A corpus or the workdir cannot be reached now.
      Interrupted: The run was asked to stop, and has saved a checkpoint.
    """
    source = None
    with session.reading_inputs(config) as ledger:
        corpora = mixture.open_corpora(config.data.folders)
        mixture.check_counts(config, corpora)
        if warning := mixture.held_out_warning(corpora):
            processes.say(warning)
        if config.init_from or "init_from" in overrides:
            source = warm_start.find_checkpoint(config, folder)
            warm_start.check_tokenizer(source, corpora[0])
            config = warm_start.adopt_encoder(config, source, overrides)
        if isinstance(config.objective, config_lib.DistillationConfig):
            config = teacher.fill_in_teacher(config, folder, corpora[0], overrides)
        config.check_rates(overrides)
        if config.phases[0].learning_rate and not config.phases[0].warmup_fraction:
            processes.say("phase 1 has no warmup; phases[0].warmup_fraction sets one")
        config = fill_in_from_corpora(config, corpora)
    if source:
        config = warm_start.fill_in_fingerprint(config, source)
    if isinstance(config.objective, config_lib.DistillationConfig):
        config = teacher.fill_in_fingerprint(config)
    run = make_run(config, sharding.make_mesh(config.mesh), corpora)
    tokenizer = corpora[0].tokenizer
    with session.open_session(run, folder, tokenizer, ledger) as saver:
        if not source:
            return session.train(saver), config
        load_initial = functools.partial(warm_start.load_initial_params, run, source)
        return session.train(saver, load_initial), config


def fill_in_from_corpora(
    config: config_lib.PretrainConfig, corpora: Sequence[shards.Corpus]
) -> config_lib.PretrainConfig:
    """Fill in the vocabulary size and the fingerprint from the corpora.

    Without corpora, as in a plan, an open vocabulary size becomes BERT's.

    Raises:
      UserError: The config names another corpus or vocabulary size.
    """
    if not corpora:
        size = config.encoder.vocab_size or config_lib.BERT_VOCAB_SIZE
        return config_lib.fill_in(config, "encoder.vocab_size", size, "")
    size = corpora[0].tokenizer.vocab_size
    # A published vocabulary may be padded.
    if not (config.init_from and config.encoder.vocab_size):
        config = config_lib.fill_in(
            config,
            "encoder.vocab_size",
            size,
            f"the tokenizer has {size} tokens; leave it 0 to follow the tokenizer",
        )
    found = mixture.fingerprint(corpora)
    reason = f"the corpus {config.data.corpus} has {found}"
    return config_lib.fill_in(config, "data.fingerprint", found, reason)


def make_run(
    config: config_lib.PretrainConfig,
    mesh: jax.sharding.Mesh,
    corpora: Sequence[shards.Corpus],
) -> Run:
    """Build the description of a run that `training.loop` carries out.

    The config has all fields filled in. A run that is only planned has no corpora.

    Raises:
      UserError: The objective or a phase does not fit the encoders, or the model or a
        batch cannot be split over the mesh.
    """
    config.check_encoders()
    config.check_phases_fit()
    for name, encoder in config.encoders.items():
        sharding.check_encoder(mesh, encoder, config_lib.FIELD_PREFIXES[name])
    for i, phase in enumerate(config.phases):
        where = f"phases[{i}]."
        sharding.check_batch(mesh, where, phase.batch_size, phase.micro_batches)
    phases = tuple(_phase(config, i, corpora) for i in range(len(config.phases)))
    constants = {}
    if isinstance(config.objective, config_lib.DistillationConfig):
        constants = {
            "init_constants": phases[0].objective.init_constants,
            "read_constants": functools.partial(teacher.load, config.objective.teacher),
        }
    return Run(
        schedule=optimizer.schedule_of_phases(config.optimizer, config.phases),
        phases=phases,
        config=config,
        mesh=mesh,
        encoders=config.encoders,
        **constants,
    )


def _phase(
    config: config_lib.PretrainConfig, index: int, corpora: Sequence[shards.Corpus]
) -> Phase:
    phase, count = config.phases[index], len(config.phases)
    name = f"phase {index + 1}/{count}, length {phase.length}"
    return Phase(
        name=name if count > 1 else "pretraining",
        objective=_objective(config.for_phase(index)),
        steps=phase.steps,
        lengths=(phase.length,),
        batch_size=phase.batch_size,
        micro_batches=phase.micro_batches,
        open_data=functools.partial(open_data, config, corpora, index),
    )


def open_data(
    config: config_lib.PretrainConfig,
    corpora: Sequence[shards.Corpus],
    index: int,
    rows: np.ndarray,
) -> PhaseData:
    """Open the training batches and the held-out batches of a phase.

    This process makes the `rows` of each batch, int [rows], ascending. The weight of a
    corpus in evaluations is its weight in training, not the size of its held-out text.
    All processes read the whole text, so that their baselines agree.
    """
    phase, limit = config.phases[index], config.loop.eval_batches
    train = _batches(corpora, config, index, rows=rows)
    for line in train.describe(phase.steps):
        processes.say(line)
    held_out, token_counts = [], 0
    names = mixture.names(corpora)
    weights = mixture.weights(config.for_phase(index).data, corpora)
    for name, corpus, weight in zip(names, corpora, weights, strict=True):
        if corpus.count(shards.HELD_OUT, "documents") < 2:
            processes.say(
                f"the corpus {name} is not evaluated: it has fewer than two held-out "
                "documents; build it with a larger --held_out"
            )
            continue
        batches = _batches([corpus], config, index, held_out=True, rows=rows)
        count = min(limit or batches.num_batches, batches.num_batches)
        token_counts += weight / batches.num_rows * batches.token_counts
        weight /= min(count * phase.batch_size, batches.num_rows)  # weight of a row
        read = functools.partial(batches.batches, 0, count)
        baselines = _baselines(config, batches.token_counts)
        held_out.append(HeldOut(read, name, weight, baselines))
    baselines = _baselines(config, token_counts) if held_out else {}
    return PhaseData(train.batches, held_out, train.row_names, baselines)


def _baselines(
    config: config_lib.PretrainConfig, token_counts: np.ndarray
) -> dict[str, float]:
    """Return the baselines of evaluations, computed from held-out token counts."""
    frequencies = token_counts / token_counts.sum()
    by_metric = unigram_baseline.by_metric(
        _objective(config).loss_weights, frequencies, config.objective.masking
    )
    return {
        metrics_file.UNIGRAM_ENTROPY: unigram_baseline.entropy(frequencies),
        **{name + metrics_file.WITHOUT_CONTEXT: x for name, x in by_metric.items()},
    }


def _objective(config: config_lib.PretrainConfig) -> Objective:
    return OBJECTIVES[config.objective.kind](config.encoder, config.objective)


def batch_of_step(
    config: config_lib.PretrainConfig, step: int
) -> dict[str, np.ndarray]:
    """Return the batch that a run of this config trains on at a step.

    Steps count from 1, as in reports, over all phases. `data/batches.py` describes
    batches.

    Raises:
      UserError: The run has no such step, or does not fit its corpora.
    """
    corpora = mixture.open_corpora(config.data.folders)
    config = fill_in_from_corpora(config, corpora)
    begin = 0
    for i, phase in enumerate(config.phases):
        if begin < step <= begin + phase.steps:
            return _batches(corpora, config, i).batch(step - begin - 1)
        begin += phase.steps
    raise UserError(
        f"step {step} is out of range: the run has {config.total_steps} steps"
    )


def _batches(*arguments: Any, **options: Any):
    from bert_jax.data import batches  # imports TensorFlow

    return batches.PretrainingBatches(*arguments, **options)
