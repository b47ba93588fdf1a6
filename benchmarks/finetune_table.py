r"""Fine-tune encoders, and random weights of the first one's shape, on eight tasks.

    python benchmarks/finetune_table.py --data=DIR --pretrained=WORKDIR,WORKDIR \
        --output=DIR

DIR of `--data` has the files as they are published, plain or `.gz`:
glue/{CoLA,SST-2,MRPC,RTE,STS-B}/{train,dev}.tsv, wnut17/{train,dev}.conll,
squad/dev-v1.1.json, whose first 38 of 48 articles are to train on, and
arc/ARC-E/{dev-arc_easy_dev,test-arc_easy_test}.csv, of which the first is to train on.
Each task is trained with `--seeds` seeds from each of the models.
An interrupted run resumes; a finished run only predicts again. The table goes to
standard output: one score of each task on its evaluation set, in percent, as mean and
standard deviation over seeds.
"""

import argparse
import json
import math
import pathlib

import program_flags

from bert_jax import config as config_lib
from bert_jax import finetuning
from bert_jax.run import exit_status
from bert_jax.tasks import task_files

SQUAD_TRAIN_ARTICLES = 38
RANDOM = "random weights"
# Name of the task, its epochs, its score, and what that is in percent.
TASKS = {
    "CoLA": (3, "matthews", 100),
    "SST-2": (2, "accuracy", 100),
    "MRPC": (4, "f1", 100),
    "RTE": (4, "accuracy", 100),
    "STS-B": (4, "pearson", 100),
    "SQuAD v1.1": (2, "f1", 1),
    "WNUT-17": (6, "f1", 100),
    "ARC-Easy": (4, "accuracy", 100),
}


def split_squad(source: pathlib.Path, folder: pathlib.Path) -> None:
    """Write the articles of dev-v1.1 as a file to train on and one to evaluate."""
    folder.mkdir(parents=True, exist_ok=True)
    text = task_files.read(existing(source / "dev-v1.1.json"))
    articles = json.loads(text)["data"]
    for part, chosen in (
        ("train", articles[:SQUAD_TRAIN_ARTICLES]),
        ("eval", articles[SQUAD_TRAIN_ARTICLES:]),
    ):
        content = json.dumps({"version": "1.1", "data": chosen})
        (folder / f"{part}.json").write_text(content, encoding="utf-8")


def existing(path: pathlib.Path) -> str:
    """Return the path of a file or of its compressed form."""
    return str(path if path.exists() else f"{path}.gz")


def task_config(name: str, values: argparse.Namespace) -> config_lib.TaskConfig:
    """Return the config of a task."""
    data, length = pathlib.Path(values.data), values.length
    if name == "SQuAD v1.1":
        folder = pathlib.Path(values.output) / "data"
        split_squad(data / "squad", folder)
        return config_lib.SquadConfig(
            train=str(folder / "train.json"),
            eval=str(folder / "eval.json"),
            length=length,
            stride=length // 3,
        )
    if name == "WNUT-17":
        return config_lib.TaggingConfig(
            train=existing(data / "wnut17/train.conll"),
            eval=existing(data / "wnut17/dev.conll"),
            length=min(length, 128),
        )
    if name == "ARC-Easy":
        return config_lib.ChoiceConfig(
            train=existing(data / "arc/ARC-E/dev-arc_easy_dev.csv"),
            eval=existing(data / "arc/ARC-E/test-arc_easy_test.csv"),
            length=min(length, 128),
        )
    return config_lib.ClassificationConfig(
        name=f"glue/{name.replace('-', '').lower()}",
        folder=str(data / "glue"),
        length=min(length, 128),
    )


def run(name: str, model: str, values: argparse.Namespace) -> dict:
    """Fine-tune all seeds of a task, and return the summary."""
    pretrained = values.pretrained[0] if model == RANDOM else model
    # The whole path: workdirs may share their last name.
    kind = f"{RANDOM}-" if model == RANDOM else ""
    label = f"{name}-{kind}{pretrained}".replace(" ", "-").replace("/", "-")
    folder = pathlib.Path(values.output) / label
    return finetuning.finetune(
        config_lib.FinetuneConfig(
            init_from=pretrained,
            random_init=model == RANDOM,
            repeats=values.seeds,
            epochs=TASKS[name][0],
            batch_size=values.batch_size,
            task=task_config(name, values),
            optimizer=config_lib.OptimizerConfig(
                learning_rate=values.learning_rate,
                warmup_fraction=0.1,
                bias_correction=True,
            ),
            loop=config_lib.LoopConfig(log_every=100),
        ),
        str(folder),
    )


def main() -> None:
    parser = program_flags.make_parser(__doc__)
    parser.add_argument("--data", required=True)
    parser.add_argument(
        "--pretrained",
        required=True,
        type=lambda text: text.split(","),
        help="workdirs of pretraining",
    )
    parser.add_argument("--output", required=True, help="folder for all runs")
    names = program_flags.names_of(TASKS)
    parser.add_argument("--tasks", default=[*TASKS], type=names, help="some of them")
    parser.add_argument("--learning_rate", type=float, default=3e-4, help="peak")
    parser.add_argument("--batch_size", type=int, default=32, help="rows of a batch")
    parser.add_argument("--length", type=int, default=384, help="longest rows")
    parser.add_argument("--seeds", type=int, default=3, help="runs, two or more")
    values = parser.parse_args()
    if values.seeds < 2:
        parser.error("--seeds must be at least 2, for a standard deviation")
    print(f"| | {' | '.join(f'{name}, {TASKS[name][1]}' for name in values.tasks)} |")
    print(f"|---|{'---:|' * len(values.tasks)}")
    for model in (*values.pretrained, RANDOM):
        cells = [model]
        for name in values.tasks:
            _, score, percent = TASKS[name]
            of_seeds = run(name, model, values)["scores"][score]
            # None: undefined, as the correlation of constant predictions is.
            mean, deviation = (
                math.nan if of_seeds[key] is None else of_seeds[key]
                for key in ("mean", "standard_deviation")
            )
            cells.append(f"{percent * mean:.1f} ± {percent * deviation:.1f}")
        print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    with exit_status.reported_errors():
        main()
