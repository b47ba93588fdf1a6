"""Fine-tuning of a pretrained encoder on a task."""

import contextlib
import dataclasses
import functools
import hashlib
import json
import math
import tempfile
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
from jax.experimental.compilation_cache import compilation_cache

from bert_jax import config as config_lib
from bert_jax import storage, tasks, warm_start
from bert_jax.errors import UserError
from bert_jax.finetuning import batches, initialise
from bert_jax.interop import checkpoints
from bert_jax.objectives import Objective
from bert_jax.tasks import choice, classification, embedding, squad, tagging, task_files
from bert_jax.training import (
    inference,
    optimizer,
    processes,
    session,
    sharding,
    workdir,
)
from bert_jax.training.run_description import Phase, Run

# Class of each task, by the kind of its config.
TASKS = {
    "classification": classification.Classification,
    "squad": squad.Squad,
    "tagging": tagging.Tagging,
    "choice": choice.Choice,
    "embedding": embedding.Embedding,
}


def finetune(config: config_lib.FinetuneConfig, folder: str) -> dict[str, Any]:
    """Start or continue fine-tuning, and evaluate the result.

    With `config.repeats`, each run has its own folder, such as `FOLDER/seed-0`.

    Returns:
      The content of results.json: scores of one run, or a summary of several.

    Raises:
      UserError: Config, files, checkpoint, devices or workdir are invalid.
      Interrupted: The run was asked to stop, and has saved a checkpoint.
    """
    with session.reading_inputs(config):
        _check_repeats(config.repeats, storage.path(folder))
    if config.repeats == 1:
        return _finetune_once(config, folder)[1]
    scores = {}
    # All seeds begin with one checkpoint, even if there is a newer one by then, and
    # have the same examples.
    with processes.raise_in_all():
        seeds = range(config.seed, config.seed + config.repeats)
        folders = [storage.path(folder) / f"seed-{seed}" for seed in seeds]
        begun = (each for each in folders if (each / "config.json").exists())
        source = warm_start.find_checkpoint(config, str(next(begun, folders[0])))
        missing = [each for each in folders if not workdir.had_checkpoint(each)]
        if missing and not checkpoints.exists(source.path):
            raise UserError(
                f"{missing[0]} cannot begin: {source.path}, with which an earlier seed "
                "began, is gone; restore it, or give another --workdir"
            )
    config = dataclasses.replace(config, init_from=str(source.path))
    config = warm_start.fill_in_fingerprint(config, source)
    with _compiling_once():
        for seed, path in zip(seeds, folders, strict=True):
            once = dataclasses.replace(config, seed=seed, repeats=1)
            processes.say(f"run {path.name}")
            scores[path.name], _, task = _finetune_once(once, str(path))
            config = dataclasses.replace(config, task=task)
    summary = _as_json(summarise(scores, config.keep_best))
    processes.call_on_main(lambda: _write_results(storage.path(folder), summary))
    return summary


def _check_repeats(repeats: int, folder: storage.Path) -> None:
    """Check that a folder does not hold one run where several are asked for."""
    if repeats > 1 and (folder / "config.json").exists():
        raise UserError(
            f"{folder} holds one run; with repeats={repeats}, give another --workdir"
        )
    if repeats == 1 and any(folder.glob("seed-*/config.json")):
        raise UserError(
            f"{folder} holds runs of several seeds; set --config.repeats to continue "
            "them, or give another --workdir"
        )


def summarise(scores: dict[str, dict[str, float]], keep_best: str) -> dict[str, Any]:
    """Return the scores of several runs by name, their statistics, and the best run.

    Statistics are of the defined values: a correlation may be NaN. The standard
    deviation is a sample's (N - 1). The best run has the largest `keep_best`, or the
    largest first score if `keep_best` is "" or a loss.
    """
    values = {
        name: [run[name] for run in scores.values()]
        for name, value in next(iter(scores.values())).items()
        if isinstance(value, int | float)
    }
    by = keep_best if keep_best in values else next(iter(values))
    # NaN compares False with everything.
    best = max(scores, key=lambda run: np.nan_to_num(scores[run][by], nan=-np.inf))
    return {
        "runs": scores,
        "scores": {name: _statistics(x) for name, x in values.items()},
        "best": {"run": best, "by": by},
    }


def _statistics(values: list[float]) -> dict[str, float]:
    defined = [x for x in values if not math.isnan(x)]
    x = defined or [math.nan]
    return {
        "median": float(np.median(x)),
        "mean": float(np.mean(x)),
        "standard_deviation": float(np.std(x, ddof=1)) if len(x) > 1 else math.nan,
        "least": float(np.min(x)),
        "greatest": float(np.max(x)),
        "undefined": len(values) - len(defined),
    }


@contextlib.contextmanager
def _compiling_once() -> Iterator[None]:
    """Share compiled programs between runs that differ only in their seed."""
    if jax.config.jax_compilation_cache_dir:
        yield
        return
    with tempfile.TemporaryDirectory(prefix="bert_jax_compiled_") as cache:
        jax.config.update("jax_compilation_cache_dir", cache)
        compilation_cache.reset_cache()
        try:
            yield
        finally:
            jax.config.update("jax_compilation_cache_dir", None)
            compilation_cache.reset_cache()


def _finetune_once(
    config: config_lib.FinetuneConfig, folder: str
) -> tuple[dict[str, Any], dict[str, Any], config_lib.TaskConfig]:
    """Run once.

    Returns:
      Scores, the content of results.json, and the task with its fingerprint.
    """
    with session.reading_inputs(config) as ledger:
        source = warm_start.find_checkpoint(config, folder)
        tokenizer = source.metadata.tokenizer
        encoder = initialise.resolve_encoder(config, source.metadata.encoder)
        task = TASKS[config.task.kind](config.task, tokenizer)
    config = config_lib.fill_in(
        dataclasses.replace(config, init_from=str(source.path)),
        "task.fingerprint",
        task.fingerprint,
        f"the examples at hand have {task.fingerprint}",
    )
    config = warm_start.fill_in_fingerprint(config, source)
    _check_same_held_out_rows(task)
    run, engine = make_run(config, encoder, task)
    processes.say(describe_counts(task.description))
    with session.open_session(run, folder, tokenizer, ledger, task.settings) as saver:
        load = functools.partial(initialise.load_initial_params, run, source.path)
        state = session.train(saver, load)
        engine.params = state.params
        processes.wait_for_all()  # a start after the last step has run no program yet
        rows_at_once = config.batch_size // config.micro_batches
        predictions = {
            name: task.decode(name, engine.outputs(rows, rows_at_once, saver.heartbeat))
            for name, rows in task.held_out.items()
        }
        scores = all_scores(task, predictions)
        results = _as_json(
            {
                **scores,
                **task.description,
                "init_from": "random" if config.random_init else str(source.path),
                "step": int(state.step),
                "steps": run.total_steps,
                "seed": config.seed,
            }
        )
        with processes.raise_in_all():
            if processes.is_main():
                for name, predicted in predictions.items():
                    task.write(saver.folder, name, predicted)
                _write_results(saver.folder, results)
        return scores, results, config.task


def _check_same_held_out_rows(task: tasks.Task) -> None:
    """Check that all processes have the same rows to predict for.

    The fingerprint of a task leaves out test sets.

    Raises:
      UserError: A process differs from process 0.
    """
    digest = hashlib.sha256()
    for name, rows in task.held_out.items():
        for key, values in rows.items():
            digest.update(f"{name} {key} {values.shape}\n".encode() + values.tobytes())
    own = digest.hexdigest()
    main = processes.call_on_main(lambda: own)
    with processes.raise_in_all():
        if own != main:
            raise UserError(
                f"process {jax.process_index()} has other examples to predict for than "
                "process 0; give all processes the same files"
            )


def describe_counts(description: dict[str, Any]) -> str:
    """List the counts that are not 0 in the description of a task's examples."""
    leaves = jax.tree.leaves_with_path(description)
    return ", ".join(
        f"{jax.tree_util.keystr(path, simple=True, separator=' in ')}: {count:,}"
        for path, count in leaves
        if isinstance(count, int) and count
    )


def all_scores(task: tasks.Task, predictions: dict[str, Any]) -> dict[str, Any]:
    """Return the scores of all sets; names have a prefix for sets other than "eval"."""
    return {
        task_files.prefix_with_set(name, metric): value
        for name, predicted in predictions.items()
        for metric, value in task.scores(name, predicted).items()
    }


def _as_json(results: dict[str, Any]) -> dict[str, Any]:
    """Return results with None for NaN, which JSON lacks."""
    return json.loads(json.dumps(results), parse_constant=lambda _: None)


def _write_results(folder: storage.Path, results: dict[str, Any]) -> None:
    task_files.write(folder / "results.json", json.dumps(results, indent=2) + "\n")


def make_run(
    config: config_lib.FinetuneConfig,
    encoder: config_lib.EncoderConfig,
    task: tasks.Task,
) -> tuple[Run, inference.Engine]:
    """Build the run, and the engine that predicts for its held-out rows.

    Raises:
      UserError: The parts of the run do not fit together.
    """
    mesh, objective = sharding.make_mesh(config.mesh), task.objective(encoder)
    _check_run(config, encoder, objective, task)
    sharding.check_encoder(mesh, encoder)
    sharding.check_batch(mesh, "", config.batch_size, config.micro_batches)
    batches_of_run = config.epochs * len(task.train["weights"]) / config.batch_size
    # 1.1 * 800 / 16 is a bit over 55.
    steps = max(1, math.ceil(round(batches_of_run, 6)))
    # No error, because runs that began with it must resume.
    if config.keep_best and not 0 < config.loop.eval_every < steps:
        processes.say(
            f"keep_best={config.keep_best!r} has only the evaluation of the last step, "
            f"{steps:,}, to choose from; pass --config.loop.eval_every="
            f"{math.ceil(steps / 5)}, for example, to evaluate earlier, too"
        )
    lengths, held_out_lengths = batches.lengths(config, task)
    engine = inference.Engine(objective, None, mesh, lengths + held_out_lengths)
    phase = Phase(
        name="fine-tuning",
        objective=objective,
        steps=steps,
        lengths=lengths,
        held_out_lengths=held_out_lengths,
        batch_size=config.batch_size,
        micro_batches=config.micro_batches,
        open_data=functools.partial(
            batches.open_data, config, task, objective, engine, steps
        ),
    )
    run = Run(
        schedule=optimizer.make_schedule(config.optimizer, steps),
        phases=(phase,),
        config=config,
        mesh=mesh,
        encoders={"encoder": encoder},
        is_frozen=initialise.is_frozen if config.frozen else None,
        best_metric=config.keep_best,
    )
    return run, engine


def _check_run(
    config: config_lib.FinetuneConfig,
    encoder: config_lib.EncoderConfig,
    objective: Objective,
    task: tasks.Task,
) -> None:
    """Check the config's fields that depend on the encoder or the task."""
    if config.task.length > encoder.max_position_embeddings:
        raise UserError(
            f"task.length={config.task.length} is more than the "
            f"{encoder.max_position_embeddings} positions of the encoder; set it to "
            f"{encoder.max_position_embeddings} or less"
        )
    if config.reinit_layers > encoder.num_distinct_layers:
        raise UserError(
            f"reinit_layers={config.reinit_layers} is more than the "
            f"{encoder.num_distinct_layers} distinct layers of the encoder"
        )
    if encoder.causal and getattr(config.task, "no_answers", False):
        raise UserError(
            "task.no_answers=True does not go with a left-to-right encoder, whose "
            "[CLS] has seen no question; use questions that all have answers"
        )
    is_embedder = isinstance(config.task, config_lib.EmbeddingConfig)
    if is_embedder and config.batch_size == 1 and objective.num_texts == 2:
        raise UserError(
            "batch_size=1 gives a pair no other text to be compared with; increase it, "
            "or give negatives"
        )
    # The share of padding does not depend on the parameters.
    known = dict.fromkeys(["loss", *objective.metrics, *task.metrics])
    del known["padding_fraction"]
    if config.keep_best not in ("", *known):
        raise UserError(
            f"keep_best={config.keep_best!r} must be one of {', '.join(known)}"
        )
