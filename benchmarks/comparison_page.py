"""Tables and picture of `compare_objectives.py`."""

import argparse
import itertools
import pathlib
import statistics

import comparison_runs as runs
import jax
from comparison_runs import BUDGETS, MODES, OBJECTIVES, TASKS
from matplotlib import axes, figure

from bert_jax import config as config_lib
from bert_jax import pretraining
from bert_jax.training import metrics_file


def shape_row(config: config_lib.PretrainConfig) -> list[str]:
    """Return parameters, encoder parameters, predictions and M operations of a row."""
    objective = pretraining.OBJECTIVES[config.objective.kind](
        config.encoder, config.objective
    )
    shapes = jax.eval_shape(objective.init, jax.random.key(0))
    operations = objective.sequence_flops(config.phases[0].length) / 1e6
    sizes = [
        sum(x.size for x in jax.tree.leaves(tree))
        for tree in (shapes, shapes[objective.encoder_path])
    ]
    return [*(f"{size:,}" for size in sizes), predictions(config), f"{operations:.0f}"]


def predictions(config: config_lib.PretrainConfig) -> str:
    """Return the largest number of positions of a row that have a loss."""
    objective, (phase,) = config.objective, config.phases
    if objective.kind == "causal_lm":
        return str(phase.length - 1)
    if objective.kind == "permutation_lm":
        return str(objective.predictions(phase.length))
    masked = objective.masking.predictions(phase.length)
    if objective.kind == "replaced_tokens":
        return f"{masked} and {phase.length}"
    return str(masked)


def mean(values: list[float], form: str) -> str:
    """Format the mean, and half the range of the seeds."""
    if not values:
        return "-"
    text = format(statistics.fmean(values), form)
    if len(values) > 1:
        text += f" ± {format((max(values) - min(values)) / 2, form)}"
    return text


def metric_of(record: dict) -> str:
    """Return the prefix of the token metrics: "mlm", "lm" or "plm"."""
    end = f"_loss{metrics_file.WITHOUT_CONTEXT}"
    return next(key for key in record if key.endswith(end)).removesuffix(end)


def evaluations(records: list[dict]) -> list[dict]:
    return [record for record in records if record["split"] == "eval"]


def question(records: list[dict]) -> str:
    """Format accuracy and majority baseline of the objective's second head."""
    for name in ("nsp", "sop", "disc"):
        if f"{name}_accuracy" in records[0]:
            right = [100 * record[f"{name}_accuracy"] for record in records]
            never = 1 - records[0].get("replaced_fraction", 0.5)
            return f"{mean(right, '.1f')} ({100 * never:.1f})"
    return ""


def pretraining_row(budget: str, name: str, values: argparse.Namespace) -> list[str]:
    """Return the cost and the final metrics of an objective."""
    reports = runs.read_runs(budget, name, values)
    if not reports:
        return ["-"] * 7
    last = [evaluations(records)[-1] for records in reports]
    steps = last[0]["step"]
    (phase,) = runs.recipe(name, steps, 0, values).phases
    padding = statistics.fmean(r["padding_fraction"] for r in reports[0])
    tokens = steps * phase.batch_size * phase.length * (1 - padding)
    seconds = steps * runs.seconds_of_steps(values)[name]
    cells = [f"{steps:,}", f"{tokens / 1e6:.2f}", f"{seconds:.0f}"]
    for what, scale, form in (("loss", 1, ".2f"), ("accuracy", 100, ".1f")):
        key = f"{metric_of(last[0])}_{what}"
        level = scale * last[0][key + metrics_file.WITHOUT_CONTEXT]
        measured = [scale * record[key] for record in last]
        cells += [f"{mean(measured, form)} ({format(level, form)})"]
    return [*cells, question(last), str(len(reports))]


def finetuning_row(
    folders: list[pathlib.Path], mode: str, tasks: list[str]
) -> list[str]:
    """Return the score of each task, and the mean of complete seeds."""
    found = [runs.scores(folder, mode, tasks) for folder in folders]
    means = [statistics.fmean(s.values()) for s in found if len(s) == len(tasks)]
    cells = [mean([s[task] for s in found if task in s], ".1f") for task in tasks]
    return [*cells, mean(means, ".1f")]


def print_table(title: str, header: list[str], rows: list[list[str]]) -> None:
    """Print a table in Markdown."""
    print(f"\n{title}\n\n| {' | '.join(header)} |\n|---|{'---:|' * (len(header) - 1)}")
    for row in rows:
        print(f"| {' | '.join(row)} |")


def print_tables(values: argparse.Namespace) -> None:
    """Print all tables, with "-" for missing runs."""
    seconds, rows = runs.seconds_of_steps(values), []
    for name in values.objectives:
        config = runs.recipe(name, values.steps, 0, values)
        cells = [*shape_row(config), f"{1e3 * seconds[name]:.1f}"]
        rows += [[OBJECTIVES[name], *cells]]
    header = ["", "parameters", "of the encoder", "predicted in a row"]
    header += ["M operations a row", "ms a step, one core"]
    print_table("What differs", header, rows)
    header = ["", "steps", "M tokens", "processor s", "loss (without context)"]
    header += ["accuracy (without context)", "question (without)", "seeds"]
    for budget in BUDGETS:
        rows = [
            [OBJECTIVES[name], *pretraining_row(budget, name, values)]
            for name in values.objectives
        ]
        print_table(f"Pretraining, the same {budget}", header, rows)
    header = ["", *(f"{task}, {TASKS[task][0]}" for task in values.tasks), "mean"]
    seeds = range(values.seeds)
    for budget, mode in itertools.product(BUDGETS, MODES):
        folders = {
            OBJECTIVES[name]: [runs.workdir(budget, name, s, values) for s in seeds]
            for name in values.objectives
        }
        folders["random weights"] = [runs.random_folder(s, values) for s in seeds]
        rows = [
            [label, *finetuning_row(of_seeds, mode, values.tasks)]
            for label, of_seeds in folders.items()
        ]
        print_table(f"Fine-tuned ({mode}), the same {budget}", header, rows)


def draw(values: argparse.Namespace) -> figure.Figure:
    """Draw held-out losses over tokens and over time, and mean scores."""
    picture = figure.Figure(figsize=(11, 8.5), dpi=110)
    above, below = picture.subplots(2, 2)
    for axis, budget in zip(above, BUDGETS, strict=True):
        draw_losses(axis, budget, values)
    for axis, mode in zip(below, MODES, strict=True):
        draw_scores(axis, mode, values)
    for axis in (*above, *below):
        axis.grid(alpha=0.3)
    lines, labels = above[0].get_legend_handles_labels()
    picture.legend(lines, labels, loc="upper center", ncols=5, fontsize="small")
    picture.tight_layout(rect=(0, 0, 1, 0.94))
    return picture


def draw_losses(axis: axes.Axes, budget: str, values: argparse.Namespace) -> None:
    """Draw the losses of the first seed above the loss without context."""
    for place, name in enumerate(values.objectives):
        reports = runs.read_runs(budget, name, values)
        if not reports:
            continue
        records = evaluations(reports[0])
        key = f"{metric_of(records[0])}_loss"
        unit = runs.seconds_of_steps(values)[name]
        if budget == "tokens":
            (phase,) = runs.recipe(name, values.steps, 0, values).phases
            unit = phase.batch_size * phase.length / 1e6
        distances = [r[key] - r[key + metrics_file.WITHOUT_CONTEXT] for r in records]
        x = [unit * r["step"] for r in records]
        axis.plot(x, distances, ".-", color=f"C{place}", label=OBJECTIVES[name])
    axis.axhline(0, color="black", linewidth=1, linestyle=":")
    axis.set_title(f"the same {budget}")
    axis.set_xlabel({"tokens": "millions of tokens", "compute": "processor s"}[budget])
    axis.set_ylabel("held-out loss above that without context")


def draw_scores(axis: axes.Axes, mode: str, values: argparse.Namespace) -> None:
    """Draw the mean score of each run, with lines for random weights."""

    def means(folder):
        found = runs.scores(folder, mode, values.tasks)
        is_complete = len(found) == len(values.tasks)
        return [statistics.fmean(found.values())] if is_complete else []

    seeds = range(values.seeds)
    for budget, marker in zip(BUDGETS, "o^", strict=True):
        points = [
            (place, score)
            for place, name in enumerate(values.objectives)
            for seed in seeds
            for score in means(runs.workdir(budget, name, seed, values))
        ]
        x, y = zip(*points, strict=True) if points else ((), ())
        axis.plot(x, y, marker, label=f"the same {budget}", alpha=0.7)
    for seed in seeds:
        for score in means(runs.random_folder(seed, values)):
            axis.axhline(score, color="black", linewidth=1, linestyle=":")
    labels = [OBJECTIVES[name] for name in values.objectives]
    axis.set_xticks(range(len(labels)), labels, rotation=30, ha="right")
    axis.set_ylabel(f"mean of the scores, {mode}")
    axis.legend(fontsize="small")
