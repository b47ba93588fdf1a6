"""Runs of `compare_objectives.py`: folders, configs and data."""

import argparse
import gzip
import itertools
import json
import pathlib
import runpy
import statistics
import time
from collections.abc import Callable

import interleaved_timing
import steps as steps_lib

from bert_jax import config as config_lib
from bert_jax import finetuning, knobs, pretraining
from bert_jax.corpus import shards
from bert_jax.training import metrics_file, sharding

RECIPE = pathlib.Path(__file__).parents[1] / "configs/comparison.py"
# By the names of the recipe's variants.
OBJECTIVES = {
    "bert": "BERT",
    "no_nsp": "no next sentence",
    "whole_words": "whole words",
    "ngrams": "n-grams, sentence order",
    "full_sentences": "full sentences",
    "left_to_right": "left to right",
    "electra": "ELECTRA",
    "albert": "ALBERT",
    "xlnet": "XLNet",
}
BUDGETS = ("tokens", "compute")
MODES = ("full", "frozen")
# Score of each task, what it is in percent, and epochs.
TASKS = {
    "SST-2": ("accuracy", 100, 3),
    "MRPC": ("f1", 100, 3),
    "CoLA": ("matthews", 100, 3),
    "STS-B": ("pearson", 100, 3),
    "SQuAD": ("f1", 1, 1),
}
# Peak learning rates of fine-tuning. Features that stay as they are need a higher one.
RATES = {"full": 3e-4, "frozen": 1e-2}
SQUAD_TRAIN_ARTICLES = 38
# Times of a step that differ by less than this share count as one.
SAME_TIME = 0.05


# ---- pretraining


def recipe(name: str, steps: int, seed: int, values: argparse.Namespace):
    """Return the resolved config of a run."""
    cfg = runpy.run_path(str(RECIPE))["get_config"](name + ",smoke" * values.smoke)
    cfg.update(seed=seed)
    cfg.data.corpus = values.corpus
    cfg.phases[0].steps = steps
    config = knobs.from_configdict(config_lib.PretrainConfig, cfg)
    return pretraining.resolve(config, [shards.open_corpus(values.corpus)])


def timed(config: config_lib.PretrainConfig, steps: int) -> Callable[[], float]:
    """Return a function that trains, and returns the processor seconds of a step.

    They are those of all threads, and include the batch.
    """
    corpus = shards.open_corpus(config.data.corpus)
    run = pretraining.make_run(config, sharding.make_mesh(config.mesh), [corpus])
    train = steps_lib.steps_of_run(run)

    def seconds() -> float:
        start = time.process_time()
        train(steps)
        return (time.process_time() - start) / steps

    return seconds


def seconds_of_steps(values: argparse.Namespace) -> dict[str, float]:
    """Return the processor seconds of a step of each objective, medians of rounds.

    BERT is always included, for comparison. If the file of measurements lacks an
    objective, all are measured again, in turns.
    """
    file = pathlib.Path(values.output) / "seconds.json"
    known = json.loads(file.read_text()) if file.exists() else {}
    wanted = {"bert", *values.objectives}
    if wanted <= known.keys():
        return known
    names = [name for name in OBJECTIVES if name in wanted | known.keys()]
    # As many steps as in pretraining, if that is enough, make the same program.
    steps = max(values.steps, (1 + values.rounds) * values.timed_steps)
    sides = {
        name: timed(recipe(name, steps, 0, values), values.timed_steps)
        for name in names
    }
    measured = interleaved_timing.rounds(sides, values.rounds)
    seconds = {name: statistics.median(times) for name, times in measured.items()}
    file.write_text(json.dumps(seconds, indent=2) + "\n")
    return seconds


def steps_of(budget: str, name: str, values: argparse.Namespace) -> int:
    """Return the number of pretraining steps.

    Objectives with nearly BERT's time of a step have as many steps as BERT.
    """
    if budget == "tokens":
        return values.steps
    seconds = seconds_of_steps(values)
    ratio = seconds["bert"] / seconds[name]
    return values.steps if abs(ratio - 1) < SAME_TIME else round(ratio * values.steps)


def workdir(budget: str, name: str, seed: int, values: argparse.Namespace):
    """Return the folder of a run, shared by both budgets if the steps are equal."""
    is_one = budget == "tokens" or steps_of(budget, name, values) == values.steps
    budget = "tokens" if is_one else budget
    return pathlib.Path(values.output) / budget / name / f"seed-{seed}"


def pretrain(budget: str, name: str, seed: int, values: argparse.Namespace) -> None:
    folder = workdir(budget, name, seed, values)
    done = folder / "done"
    if not done.exists():
        config = recipe(name, steps_of(budget, name, values), seed, values)
        pretraining.pretrain(config, str(folder))
        done.touch()


# ---- fine-tuning


def evenly(items: list, count: int) -> list:
    """Return up to `count` items at even distances."""
    count = min(count, len(items))
    return [items[i * len(items) // count] for i in range(count)]


def read(path: pathlib.Path) -> str:
    """Return the text of a file, which may be compressed."""
    if path.exists():
        return path.read_text(encoding="utf-8")
    with gzip.open(f"{path}.gz", "rt", encoding="utf-8", newline="") as file:
        return file.read()


def sample_glue(name: str, source: pathlib.Path, folder: pathlib.Path, count: int):
    """Write the files of a GLUE task with `count` training lines."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = read(source / "train.tsv").rstrip("\n").split("\n")
    header = int(name != "CoLA")
    lines = lines[:header] + evenly(lines[header:], count)
    (folder / "train.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    (folder / "dev.tsv").write_text(read(source / "dev.tsv"), encoding="utf-8")


def sample_squad(source: pathlib.Path, folder: pathlib.Path, count: int) -> None:
    """Write `count` questions to train and to evaluate, of different articles."""
    folder.mkdir(parents=True, exist_ok=True)
    articles = json.loads(read(source / "dev-v1.1.json"))["data"]
    cut = min(SQUAD_TRAIN_ARTICLES, len(articles) - 1)
    for part, chosen in (("train", articles[:cut]), ("eval", articles[cut:])):
        paragraphs = [p for article in chosen for p in article["paragraphs"]]
        questions = [(p["context"], qa) for p in paragraphs for qa in p["qas"]]
        kept = [
            {"context": context, "qas": [qa for _, qa in group]}
            for context, group in itertools.groupby(
                evenly(questions, count), lambda question: question[0]
            )
        ]
        data = [{"title": part, "paragraphs": kept}]
        text = json.dumps({"version": "1.1", "data": data})
        (folder / f"{part}.json").write_text(text, encoding="utf-8")


def task_config(name: str, values: argparse.Namespace) -> config_lib.TaskConfig:
    """Return the config of a task on its sample of examples."""
    folder = pathlib.Path(values.output) / "data" / name
    length = recipe("bert", 1, 0, values).encoder.max_position_embeddings
    data = pathlib.Path(values.data)
    if name == "SQuAD":
        if not (folder / "eval.json").exists():
            sample_squad(data / "squad", folder, values.examples)
        return config_lib.SquadConfig(
            train=str(folder / "train.json"),
            eval=str(folder / "eval.json"),
            length=length,
            max_question=length * 3 // 8,
            stride=length // 2,
        )
    if not (folder / "dev.tsv").exists():
        sample_glue(name, data / "glue" / name, folder, values.examples)
    return config_lib.ClassificationConfig(
        name=f"glue/{name.replace('-', '').lower()}", folder=str(folder), length=length
    )


def results_file(source: pathlib.Path, task: str, mode: str) -> pathlib.Path:
    return source / f"{task}-{mode}" / "results.json"


def finetune(
    source: pathlib.Path, task: str, mode: str, seed: int, values: argparse.Namespace
) -> None:
    """Train a task from a workdir of pretraining, or from random weights."""
    results = results_file(source, task, mode)
    if results.exists():
        return
    is_random = source == random_folder(seed, values)
    begin = workdir("tokens", "bert", 0, values) if is_random else source
    config = config_lib.FinetuneConfig(
        seed=seed,
        init_from=str(begin),
        random_init=is_random,
        frozen=mode == "frozen",
        epochs=TASKS[task][2],
        batch_size=32,
        lengths=1,  # so that tasks share programs
        dropout_rate=0.0,
        attention_dropout_rate=0.0,
        task=task_config(task, values),
        optimizer=config_lib.OptimizerConfig(
            learning_rate=RATES[mode], warmup_fraction=0.1, bias_correction=True
        ),
    )
    finetuning.finetune(config, str(results.parent))


def random_folder(seed: int, values: argparse.Namespace) -> pathlib.Path:
    """Return the folder of the runs from random weights of BERT's shape."""
    return pathlib.Path(values.output) / "random" / f"seed-{seed}"


# ---- what came of them


def read_runs(budget: str, name: str, values: argparse.Namespace) -> list[list[dict]]:
    """Return the metrics of an objective's finished runs."""
    folders = [workdir(budget, name, seed, values) for seed in range(values.seeds)]
    return [metrics_file.read(f) for f in folders if (f / "done").exists()]


def scores(folder: pathlib.Path, mode: str, tasks: list[str]) -> dict[str, float]:
    """Return the scores of finished tasks, in percent."""
    files = {task: results_file(folder, task, mode) for task in tasks}
    return {
        task: TASKS[task][1] * json.loads(file.read_text())[TASKS[task][0]]
        for task, file in files.items()
        if file.exists()
    }
