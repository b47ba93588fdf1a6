r"""Pretrain one small encoder with nine objectives for equal CPU time.

The help of speedrun.py has the commands from text to a corpus. Then:

    XLA_FLAGS=--xla_cpu_multi_thread_eigen=false taskset -c 0 \
        python benchmarks/compare_objectives.py --corpus=corpus --pairs=blimp.jsonl \
        --output=DIR --picture=comparison.png
    python benchmarks/finetune_table.py --pretrained=DIR/bert-0,DIR/xlnet-0 \
        --tasks=MRPC,STS-B --length=64 --data=DATA --output=DIR/tasks

The recipe is configs/comparison.py. Each objective has as many steps as fit into
`--minutes` of CPU time. The time of a step is measured once, on one thread, all
objectives in turns, after compilation, batches included. It is CPU time, which
other work disturbs little.

An interrupted run resumes, and a finished run is skipped. Other settings need another
`--output`. The first table has the size and cost of each objective, the second
one the results of finished runs.
"""

import argparse
import json
import pathlib
import runpy

import jax
import program_flags
import speedrun
from matplotlib import figure

from bert_jax import config as config_lib
from bert_jax import pretraining
from bert_jax.corpus import shards
from bert_jax.run import exit_status
from bert_jax.training import metrics_file

RECIPE = pathlib.Path(__file__).parents[1] / "configs/comparison.py"
# By the names of the recipe's variants.
OBJECTIVES = {
    "bert": "BERT",
    "absolute": "BERT, absolute positions",
    "no_nsp": "no next sentence",
    "whole_words": "whole words",
    "ngrams": "n-grams, sentence order",
    "full_sentences": "full sentences",
    "left_to_right": "left to right",
    "electra": "ELECTRA",
    "albert": "ALBERT",
    "xlnet": "XLNet",
}


def recipe_of(
    name: str, steps: int, seed: int, values: argparse.Namespace
) -> config_lib.PretrainConfig:
    """Return the resolved config of a run."""
    cfg = runpy.run_path(str(RECIPE))["get_config"](name + ",smoke" * values.smoke)
    cfg.seed, cfg.data.corpus, cfg.phases[0].steps = seed, values.corpus, steps
    cfg.loop.eval_every = max(1, steps // 20)
    config = config_lib.from_dict(config_lib.PretrainConfig, cfg)
    return pretraining.fill_in_from_corpora(config, [shards.open_corpus(values.corpus)])


def seconds_of_steps(values: argparse.Namespace) -> dict[str, float]:
    """Return the CPU seconds of a step, by name of the objective."""
    measured = speedrun.measure(
        values.objectives, lambda name: [recipe_of(name, 1000, 0, values)], values
    )
    return {name: seconds for name, (seconds,) in measured.items()}


def steps_of(name: str, values: argparse.Namespace) -> int:
    """Return the number of steps that take the budget."""
    return max(1, round(60 * values.minutes / seconds_of_steps(values)[name]))


def run(name: str, seed: int, values: argparse.Namespace) -> None:
    """Pretrain and score minimal pairs, unless it is done."""
    folder = speedrun.workdir(name, seed, values)
    file = folder / speedrun.SCORES
    if file.exists():
        return
    config = recipe_of(name, steps_of(name, values), seed, values)
    pretraining.pretrain(config, str(folder))
    scores = speedrun.blimp(folder, values) if values.pairs else {}
    file.write_text(json.dumps(scores, indent=2) + "\n")


# ---- tables and picture


def shape_cells(config: config_lib.PretrainConfig) -> list[str]:
    """Return parameters, encoder parameters, predictions and M operations of a row."""
    objective = pretraining.OBJECTIVES[config.objective.kind](
        config.encoder, config.objective
    )
    shapes = jax.eval_shape(objective.init, jax.random.key(0))
    sizes = [
        sum(x.size for x in jax.tree.leaves(tree))
        for tree in (shapes, shapes["encoder"])
    ]
    (phase,) = config.phases
    operations = objective.sequence_flops(phase.length) / 1e6
    batch = objective.batch_shapes(1, phase.length)
    columns = [x.shape[1] for n, x in batch.items() if n.endswith("_positions")]
    (predicted,) = columns or [phase.length - 1]  # left to right: all but the first
    return [*(f"{size:,}" for size in sizes), str(predicted), f"{operations:.0f}"]


def finished(name: str, values: argparse.Namespace) -> list[tuple[dict, list[dict]]]:
    """Return the scores and the held-out metrics of an objective's finished seeds."""
    return [
        (scores, [r for r in metrics_file.read(folder) if r["split"] == "eval"])
        for folder, scores in speedrun.scores_of(name, values).items()
    ]


def tokens_metric(record: dict) -> str:
    """Return the prefix of the token metrics: "mlm", "lm" or "plm"."""
    end = f"_loss{metrics_file.WITHOUT_CONTEXT}"
    return next(key for key in record if key.endswith(end)).removesuffix(end)


def result_cells(name: str, values: argparse.Namespace) -> list[str]:
    """Return steps, loss, accuracy, accuracy of the second task, and BLiMP."""
    runs = finished(name, values)
    last = [records[-1] for _, records in runs]
    cells = [f"{last[0]['step']:,}"]
    for what, scale, form in (("loss", 1, ".3f"), ("accuracy", 100, ".1f")):
        key = f"{tokens_metric(last[0])}_{what}"
        level = format(scale * last[0][key + metrics_file.WITHOUT_CONTEXT], form)
        cells.append(speedrun.cell(last, key, scale, form) + f" ({level})")
    second = ""
    for task in ("nsp", "sop", "disc"):
        if f"{task}_accuracy" in last[0]:
            majority = 1 - last[0].get("replaced_fraction", 0.5)
            cell = speedrun.cell(last, f"{task}_accuracy", 100, ".1f")
            second = f"{cell} ({100 * majority:.1f})"
    scores = [each for each, _ in runs]
    return [*cells, second, speedrun.cell(scores, "blimp", 100, ".1f")]


def print_table(header: list[str], rows: list[list[str]]) -> None:
    """Print a table in Markdown."""
    print(f"\n| {' | '.join(header)} |\n|---|{'---:|' * (len(header) - 1)}")
    for row in rows:
        print(f"| {' | '.join(row)} |")


def print_tables(values: argparse.Namespace) -> None:
    """Print what differs, and the results of finished runs."""
    seconds, shapes, results = seconds_of_steps(values), [], []
    for name in values.objectives:
        cells = shape_cells(recipe_of(name, 1000, 0, values))
        shapes += [[OBJECTIVES[name], *cells, f"{1e3 * seconds[name]:.1f}"]]
        if finished(name, values):
            results += [[OBJECTIVES[name], *result_cells(name, values)]]
    header = ["", "parameters", "of the encoder", "predicted in a row"]
    print_table([*header, "M operations a row", "ms a step, one core"], shapes)
    header = ["", "steps", "loss (without context)", "accuracy (without context)"]
    print_table([*header, "second task (majority)", "BLiMP"], results)


def draw(values: argparse.Namespace) -> figure.Figure:
    """Draw held-out losses of the first seed over time, and BLiMP of all seeds."""
    picture = figure.Figure(figsize=(11, 5), dpi=110)
    left, right = picture.subplots(1, 2)
    seconds, shown = seconds_of_steps(values), []
    for name in values.objectives:
        if not (runs := finished(name, values)):
            continue
        color, (_, records) = f"C{len(shown)}", runs[0]
        key = f"{tokens_metric(records[0])}_loss"
        distances = [r[key] - r[key + metrics_file.WITHOUT_CONTEXT] for r in records]
        times = [seconds[name] * r["step"] for r in records]
        left.plot(times, distances, color=color, label=OBJECTIVES[name])
        scores = [100 * each["blimp"] for each, _ in runs if each]
        right.plot(scores, [len(shown)] * len(scores), "o", color=color)
        shown.append(OBJECTIVES[name])
    left.axhline(0, color="black", linewidth=1, linestyle=":")
    left.set_xlabel("CPU seconds")
    left.set_ylabel("held-out loss above that without context")
    left.legend(fontsize="small", ncols=2)
    right.axvline(50, color="black", linewidth=1, linestyle=":")
    right.set_xlabel("BLiMP, per cent")
    right.set_yticks(range(len(shown)), shown)
    right.invert_yaxis()
    for axis in (left, right):
        axis.grid(alpha=0.3)
    picture.tight_layout()
    return picture


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """Parse the flags."""
    parser, add = speedrun.make_parser(__doc__)
    names = program_flags.names_of(OBJECTIVES)
    add("objectives", list(OBJECTIVES), "some of them", type=names)
    add("minutes", 20.0, "of CPU time, for each run")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> None:
    values = parse(arguments)
    pathlib.Path(values.output).mkdir(parents=True, exist_ok=True)
    speedrun.known_seconds(values)  # refuses an --output of other settings
    for seed in range(values.seeds):
        for name in values.objectives:
            run(name, seed, values)
    print_tables(values)
    if values.picture:
        draw(values).savefig(values.picture)


if __name__ == "__main__":
    with exit_status.reported_errors():
        main()
