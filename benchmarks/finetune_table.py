r"""Fine-tune one encoder, and random weights of its shape, on eight tasks.

    python benchmarks/finetune_table.py --data=DIR --pretrained=WORKDIR --output=DIR

DIR of `--data` has the files as they are published, plain or compressed:
glue/{CoLA,SST-2,MRPC,RTE,STS-B}/{train,dev}.tsv, squad/dev-v1.1.json,
wnut17/{train,dev}.conll, and arc/ARC-E/{dev-arc_easy_dev,test-arc_easy_test}.csv, of
which the larger one is to train on. SQuAD is split by article, the first 38 of 48 of
dev-v1.1 to train on. Each task is trained with three seeds from both initialisations.
An interrupted run resumes, and a finished run is skipped. The table goes to standard
output: one score of each task on its evaluation set, in percent, as mean and standard
deviation over seeds, and the minutes for all six runs.
"""

import argparse
import json
import pathlib
import time

import comparison_runs

from bert_jax import config as config_lib
from bert_jax import finetuning

SEEDS = 3
ALL = 10**9  # examples
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


def existing(path: pathlib.Path) -> str:
    """Return the path of a file or of its compressed form."""
    return str(path if path.exists() else f"{path}.gz")


def task_config(name: str, values: argparse.Namespace) -> config_lib.TaskConfig:
    """Return the config of a task."""
    data, length = pathlib.Path(values.data), values.length
    if name == "SQuAD v1.1":
        folder = pathlib.Path(values.output) / "data"
        comparison_runs.sample_squad(data / "squad", folder, ALL)
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


def run(name: str, is_random: bool, values: argparse.Namespace) -> dict:
    """Fine-tune all seeds of a task, and return the summary."""
    beginning = "random" if is_random else "pretrained"
    folder = pathlib.Path(values.output) / f"{name.replace(' ', '-')}-{beginning}"
    results = folder / "results.json"
    if results.exists():
        return json.loads(results.read_text())
    start = time.monotonic()
    summary = finetuning.finetune(
        config_lib.FinetuneConfig(
            init_from=values.pretrained,
            random_init=is_random,
            repeats=SEEDS,
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
    summary["minutes"] = (time.monotonic() - start) / 60
    results.write_text(json.dumps(summary, indent=2) + "\n")
    return summary


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", required=True)
    parser.add_argument("--pretrained", required=True, help="workdir of pretraining")
    parser.add_argument("--output", required=True, help="folder for all runs")
    parser.add_argument("--tasks", default=",".join(TASKS), help="some of the eight")
    parser.add_argument("--learning_rate", type=float, default=3e-4)
    parser.add_argument("--batch_size", type=int, default=32)
    parser.add_argument("--length", type=int, default=384, help="longest rows")
    values = parser.parse_args()
    print("| task | score | pretrained | random weights | gain | minutes |")
    print("|---|---|---:|---:|---:|---:|")
    for name in values.tasks.split(","):
        _, score, percent = TASKS[name]
        both = [run(name, is_random, values) for is_random in (False, True)]
        scores = [summary["scores"][score] for summary in both]
        means = [percent * of_seeds["mean"] for of_seeds in scores]
        cells = [
            f"{mean:.1f} ± {percent * of_seeds['standard_deviation']:.1f}"
            for mean, of_seeds in zip(means, scores, strict=True)
        ]
        gain = f"{means[0] - means[1]:+.1f}"
        minutes = f"{sum(summary['minutes'] for summary in both):.1f}"
        row = " | ".join([name, score, *cells, gain, minutes])
        print(f"| {row} |", flush=True)


if __name__ == "__main__":
    main()
