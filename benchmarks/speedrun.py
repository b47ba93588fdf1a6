r"""Pretrain small encoders for equal CPU time, and tabulate loss and BLiMP.

    mkdir text; cp novels/*.txt.gz text
    zcat wikipedia/wiki_*.gz | sed -e '/^$/d' -e 's/^<\/\?doc.*$//' \
        | gzip > text/wikipedia.txt.gz
    python -m bert_jax.run.train_tokenizer --input='text/*' --vocab_size=8192 \
        --output=tokenizer
    python -m bert_jax.run.build_corpus --input='text/*' --tokenizer=tokenizer \
        --output=corpus --held_out=0.01
    XLA_FLAGS=--xla_cpu_multi_thread_eigen=false taskset -c 0 \
        python benchmarks/speedrun.py --corpus=corpus --pairs=blimp.jsonl \
        --output=DIR

Each row of the table is its parent with one change. The budget is the CPU time of
`--steps` steps of the first row, the demo's `bert` variant. 18,000 are ten minutes
of two cores that train 480 sequences a second. The time of a step is measured once, on
one thread, all rows in turns, after compilation, batches included.

All rows are evaluated on the same held-out rows with the same masks, whatever they
train on. An interrupted run resumes, and a finished run is skipped. Other settings need
another `--output`. The same flags with `--rows=` print the table alone.
"""

import argparse
import dataclasses
import functools
import json
import pathlib
import statistics
import time
from collections.abc import Callable, Iterable

import interleaved_timing
import jax
import numpy as np
import program_flags
import training_steps

from bert_jax import config as config_lib
from bert_jax import prediction, pretraining, recipe_variants, teacher
from bert_jax.corpus import shards
from bert_jax.demo import recipe
from bert_jax.errors import UserError
from bert_jax.objectives import metric_sums
from bert_jax.prediction import minimal_pair_files
from bert_jax.run import exit_status
from bert_jax.training import curves, metrics_file, sharding

MUON, SHORT = "+ Muon", "short rows first"
WINNER = "+ two segments"  # the recipe configs/speedrun.py
WSD = {"optimizer.schedule": "wsd", "optimizer.decay_fraction": 0.4}
# Of each row, the row that it changes, and the new values of fields, by path. "phases"
# has the share of the budget, the length and the batch size of each phase.
ROWS = {
    "BERT": ("", {"phases": [(1.0, 64, 16)]}),
    "no next sentence": ("BERT", {"objective.segments": "full_sentences"}),
    "+ rotary": ("no next sentence", {"encoder.positions": "rotary"}),
    "+ pre-norm gated": (
        "+ rotary",
        {
            "encoder.norm_placement": "pre",
            "encoder.feed_forward": "gated",
            "encoder.intermediate_size": 344,
            "encoder.linear_bias": False,
            "encoder.norm_bias": False,
        },
    ),
    MUON: (
        "+ pre-norm gated",
        {"optimizer.name": "muon", "optimizer.learning_rate": 3e-3},
    ),
    "30 % masked": (MUON, {"objective.masking.rate": 0.3}),
    "wsd": (MUON, WSD),
    "with a teacher": (MUON, {"objective.kind": "distillation"}),
    "and its hidden states": ("with a teacher", {"objective.hidden_weight": 0.5}),
    "of both layers": (
        "with a teacher",
        {"objective.hidden_weight": 1.0, "objective.hidden_layers": "all"},
    ),
    "4 layers": (MUON, {"encoder.num_layers": 4}),
    "192 columns": (
        MUON,
        {
            "encoder.hidden_size": 192,
            "encoder.num_heads": 3,
            "encoder.intermediate_size": 512,
        },
    ),
    "half as wide embeddings": (MUON, {"encoder.embedding_size": 64}),
    "small batches first": (
        MUON,
        {"phases": [(0.2, 64, 4), (0.3, 64, 8), (0.5, 64, 16)]},
    ),
    SHORT: (MUON, {"phases": [(0.5, 32, 32), (0.5, 64, 16)]}),
    WINNER: (
        SHORT,
        {"objective.segments": "consecutive", "objective.short_sequence_rate": 0.0},
    ),
    "+ wsd": (WINNER, WSD),
    # A global layer, two local ones, a global one.
    "small ModernBERT": (
        "+ wsd",
        {
            "encoder.num_layers": 4,
            "encoder.hidden_size": 192,
            "encoder.num_heads": 3,
            "encoder.intermediate_size": 512,
            "encoder.attention_window": 16,
            "encoder.global_layer_every": 3,
        },
    ),
    "small ModernBERT with next sentence": (
        "small ModernBERT",
        {"objective.segments": "next_sentence"},
    ),
}
HELD_OUT_ROWS = 1600
SECONDS = "step_seconds.json"  # in the folder for all runs
SCORES = "scores.json"  # in the workdir of a finished run
# Flags that choose among the runs, or how to show them.
CHOICES = ("output", "rows", "objectives", "seeds", "picture")


# ---- configs and budgets


def changes_of(name: str) -> dict:
    """Return the phases of a row, and all values by which it differs from the first."""
    parent, changes = ROWS[name]
    return (changes_of(parent) if parent else {}) | changes


def has_teacher(name: str) -> bool:
    """Return whether a row imitates the checkpoint `--teacher`."""
    return "objective.kind" in changes_of(name)


def recipe_of(
    name: str, steps: list[int], seed: int, values: argparse.Namespace
) -> config_lib.PretrainConfig:
    """Return the resolved config of a row with a number of steps for each phase."""
    changes = changes_of(name)
    phases = changes.pop("phases")
    cfg = recipe.get_config("bert").pretrain
    if has_teacher(name):
        taught = config_lib.DistillationConfig(teacher=values.teacher)
        cfg.objective = config_lib.to_configdict(taught)
    cfg.update_from_flattened_dict(changes)
    if values.smoke:
        recipe_variants.shrink_pretraining(cfg)
    cfg.phases = [
        dict(cfg.phases[0], steps=count, length=length, batch_size=batch)
        for count, (_, length, batch) in zip(steps, phases, strict=True)
    ]
    cfg.seed, cfg.data.corpus = seed, values.corpus
    cfg.loop.update(eval_every=max(1, sum(steps) // 8), checkpoint_every=1000)
    cfg.loop.eval_batches = min(HELD_OUT_ROWS // phases[-1][2], 2 * steps[-1])
    config = config_lib.from_dict(config_lib.PretrainConfig, cfg)
    corpus = shards.open_corpus(values.corpus)
    if has_teacher(name):
        folder = str(workdir(name, seed, values))
        config = teacher.fill_in_teacher(config, folder, corpus, ())
    return pretraining.fill_in_from_corpora(config, [corpus])


def seconds_of_steps(values: argparse.Namespace) -> dict[str, list[float]]:
    """Return the CPU seconds of a step of each phase of each row."""

    def phases_of(name):
        steps = [1000] * len(changes_of(name)["phases"])
        full = recipe_of(name, steps, 0, values)
        return [dataclasses.replace(full, phases=(phase,)) for phase in full.phases]

    return measure(["BERT", *values.rows], phases_of, values)


def known_seconds(values: argparse.Namespace) -> tuple[dict, dict[str, list[float]]]:
    """Return the settings of the runs in `--output`, and the seconds of their steps.

    Raises:
      UserError: The runs have other settings.
    """
    file = pathlib.Path(values.output) / SECONDS
    stored = json.loads(file.read_text()) if file.exists() else {}
    settings, seconds = stored.get("settings", {}), stored.get("seconds", {})
    given = {name: x for name, x in vars(values).items() if name not in CHOICES}
    if not given.get("teacher"):  # needed by some rows only
        given.pop("teacher", None)
    for name, value in given.items():
        if settings.get(name, value) != value:
            raise UserError(
                f"--{name}={value}, but the runs in {values.output} have "
                f"{settings[name]}; give another --output"
            )
    return settings | given, seconds


def measure(
    names: Iterable[str],
    phases_of: Callable[[str], list[config_lib.PretrainConfig]],
    values: argparse.Namespace,
) -> dict[str, list[float]]:
    """Return the CPU seconds of a step, medians of rounds.

    Times are stored in `--output`. If a name has none, all are measured again, in
    turns. New times are scaled by the ratio of the first name's stored and new time.
    Stored times never change, because the steps of finished runs follow from them.

    `phases_of` is a function from the name of a model to configs of one phase each.
    """
    settings, known = known_seconds(values)
    names = list(dict.fromkeys([*known, *names]))
    if set(names) <= known.keys():
        return known
    sides = {
        (name, i): timed(config, values.timed_steps)
        for name in names
        for i, config in enumerate(phases_of(name))
    }
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for (name, _), times in interleaved_timing.rounds(sides, values.rounds).items():
        seconds[name].append(statistics.median(times))
    if known:
        scale = known[names[0]][0] / seconds[names[0]][0]
        seconds = {name: [x * scale for x in seconds[name]] for name in names} | known
    content = json.dumps({"settings": settings, "seconds": seconds}, indent=2)
    (pathlib.Path(values.output) / SECONDS).write_text(f"{content}\n")
    return seconds


def timed(config: config_lib.PretrainConfig, steps: int) -> Callable[[], float]:
    """Return a function that trains, and returns the CPU seconds of a step.

    They are summed over all threads, and include the batch.
    """
    corpus = shards.open_corpus(config.data.corpus)
    run = pretraining.make_run(config, sharding.make_mesh(config.mesh), [corpus])
    train = training_steps.steps_of_run(run)

    def seconds() -> float:
        start = time.process_time()
        train(steps)
        return (time.process_time() - start) / steps

    return seconds


def steps_of(name: str, values: argparse.Namespace) -> list[int]:
    """Return the number of steps of each phase that take the budget."""
    seconds, phases = seconds_of_steps(values), changes_of(name)["phases"]
    budget = values.steps * seconds["BERT"][0]
    return [
        max(1, round(share * budget / of_step))
        for (share, _, _), of_step in zip(phases, seconds[name], strict=True)
    ]


# ---- runs


def workdir(name: str, seed: int, values: argparse.Namespace) -> pathlib.Path:
    return pathlib.Path(values.output) / f"{name}-{seed}".replace(" ", "_")


def run(name: str, seed: int, values: argparse.Namespace) -> None:
    """Pretrain and evaluate a row, unless it is done."""
    folder = workdir(name, seed, values)
    file = folder / SCORES
    if file.exists():
        return
    config = recipe_of(name, steps_of(name, values), seed, values)
    state, config = pretraining.pretrain(config, str(folder))
    scores = held_out(state.params, config)
    if values.pairs:
        scores |= blimp(folder, values)
    file.write_text(json.dumps(scores, indent=2) + "\n")


def held_out(params, config: config_lib.PretrainConfig) -> dict[str, float]:
    """Return loss and accuracy of masked tokens, on the same rows for all models."""
    masked_lm = config_lib.MaskedLmConfig(segments="full_sentences")
    common = config_lib.PretrainConfig(
        encoder=config.encoder,
        objective=masked_lm,
        data=config.data,
        phases=(dataclasses.replace(config.phases[-1], batch_size=16),),
        loop=config_lib.LoopConfig(eval_batches=HELD_OUT_ROWS // 16),
    )
    corpus = shards.open_corpus(config.data.corpus)
    data = pretraining.open_data(common, [corpus], 0, np.arange(16))
    objective = pretraining.OBJECTIVES["masked_lm"](config.encoder, masked_lm)

    keys = {"dropout_keys": None, "sampling_keys": None}  # it samples nothing
    sums = jax.jit(functools.partial(objective.sums, **keys))
    total = None
    for batch in data.held_out[0].batches():
        added = jax.device_get(sums(params, batch))
        total = jax.tree.map(np.add, total, added) if total else added
    return metric_sums.report(objective.loss_weights, total)


def blimp(folder: pathlib.Path, values: argparse.Namespace) -> dict[str, float]:
    """Return the accuracy on every N-th minimal pair, and its standard error."""
    pairs = [pair for _, pair in minimal_pair_files.read(values.pairs)][:: values.every]
    sentences = [(p[minimal_pair_files.GOOD], p[minimal_pair_files.BAD]) for p in pairs]
    scores = list(prediction.load(str(folder)).score_pairs(sentences))
    measured = minimal_pair_files.accuracies(pairs, scores, "")
    of_all = measured[minimal_pair_files.ALL]
    return {"blimp": of_all.accuracy, "standard_error": of_all.standard_error}


# ---- table and picture


def scores_of(name: str, values: argparse.Namespace) -> dict[pathlib.Path, dict]:
    """Return the scores of the finished seeds of a row, by workdir."""
    folders = (workdir(name, seed, values) for seed in range(values.seeds))
    return {
        folder: json.loads((folder / SCORES).read_text())
        for folder in folders
        if (folder / SCORES).exists()
    }


def print_table(values: argparse.Namespace) -> None:
    """Print a row of Markdown for each row that has results."""
    print("| | ms a step | steps | loss | accuracy | BLiMP |")
    print("|---|---:|---:|---:|---:|---:|")
    seconds = seconds_of_steps(values)
    for name in ROWS:
        if not (results := [*scores_of(name, values).values()]):
            continue
        cells = [
            name,
            ", ".join(f"{1e3 * x:.1f}" for x in seconds[name]),
            " + ".join(f"{x:,}" for x in steps_of(name, values)),
            cell(results, "mlm_loss", 1, ".3f"),
            cell(results, "mlm_accuracy", 100, ".1f"),
            cell(results, "blimp", 100, ".1f"),
        ]
        print(f"| {' | '.join(cells)} |")


def cell(results: list[dict[str, float]], key: str, scale: float, form: str) -> str:
    """Format a value of each seed that has it."""
    return ", ".join(format(scale * x[key], form) for x in results if key in x)


def draw(values: argparse.Namespace):
    """Draw the held-out loss of the first seed of `--rows` over CPU seconds."""
    seconds = seconds_of_steps(values)
    runs = {}
    for name in values.rows:
        steps = np.cumsum([0, *steps_of(name, values)])
        at = np.cumsum([0, *np.diff(steps) * seconds[name]])
        records = metrics_file.read(workdir(name, 0, values))
        runs[name] = [
            {
                "split": "eval",
                "step": float(np.interp(record["step"], steps, at)),
                "mlm_loss": record["mlm_loss"],
            }
            for record in records
            if record["split"] == "eval"
        ]
    picture = curves.compare(runs)
    (axis,) = picture.axes
    axis.autoscale(axis="y")  # not from 0
    axis.set_xlabel("CPU seconds")
    return picture


def make_parser(description: str):
    """Return a parser of the flags that comparisons share.

    Also return a function that adds a flag with its default and its help.
    """
    parser = program_flags.make_parser(description)

    def add(name, default, text, **options):
        kind = type(default)
        of_default = str if kind is str else program_flags.positive(kind)
        options = {"type": of_default, **options}
        parser.add_argument(f"--{name}", default=default, help=text, **options)

    parser.add_argument("--corpus", required=True, help="from run.build_corpus")
    parser.add_argument("--output", required=True, help="folder for all runs")
    add("pairs", "", "file of BLiMP; by default, no minimal pairs", type=file_of_pairs)
    add("every", 10, "score every N-th pair only")
    add("seeds", 1, "of each run")
    add("rounds", 5, "of timing")
    add("timed_steps", 10, "in a round")
    add("picture", "", "file for the picture")
    parser.add_argument("--smoke", action="store_true", help="smallest shapes, to try")
    return parser, add


def file_of_pairs(text: str) -> str:
    """Check that a file of minimal pairs can be read, and return its name."""
    # No pipe: the file is read again after each run.
    if text and not pathlib.Path(text).is_file():
        raise argparse.ArgumentTypeError(f"there is no file {text}")
    try:
        if text:
            list(minimal_pair_files.read(text))
    except UserError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    return text


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """Parse the flags."""
    parser, add = make_parser(__doc__)
    without_teacher = [name for name in ROWS if not has_teacher(name)]
    add("rows", without_teacher, "some of the rows", type=program_flags.names_of(ROWS))
    add("teacher", "", "checkpoint that the row with a teacher imitates")
    add("steps", 18_000, "of the first row, whose time is the budget")
    values = parser.parse_args(arguments)
    if values.picture and not values.rows:
        parser.error("--picture shows --rows; give at least one of them")
    return values


def main(arguments: list[str] | None = None) -> None:
    values = parse(arguments)
    pathlib.Path(values.output).mkdir(parents=True, exist_ok=True)
    known_seconds(values)  # refuses an --output of other settings
    for seed in range(values.seeds):
        for name in values.rows:
            run(name, seed, values)
    print_table(values)
    if values.picture:
        draw(values).savefig(values.picture)


if __name__ == "__main__":
    with exit_status.reported_errors():
        main()
