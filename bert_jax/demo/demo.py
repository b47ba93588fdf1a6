"""Program of the demo: a corpus, pretraining, fine-tuning, and a report.

A part that is done is not repeated.
"""

import dataclasses
import json
import pathlib
import shutil
from typing import Any

import jax

from bert_jax import finetuning, prediction, pretraining, storage, terminal
from bert_jax import tokenizer as tokenizer_lib
from bert_jax.corpus import build, python_docs, shards, sources, tokenizer_training
from bert_jax.demo import parameter_pairs, report
from bert_jax.demo.config import DemoConfig
from bert_jax.errors import UserError
from bert_jax.tasks import labelled_texts
from bert_jax.training import metrics_file, workdir

BLANKS = (
    "Returns [MASK] if the file exists.",
    "The default value is [MASK].",
    "The number of [MASK] in the array.",
    "Raises a ValueError if the [MASK] is not valid.",
    "This function [MASK] a list of strings.",
    "The input array is [MASK] modified.",
)


def demo(config: DemoConfig, folder: str) -> str:
    """Run or continue the demo.

    Returns:
      The report, which is also written to report.txt, beside results.json and
      curves.png.

    Raises:
      UserError: The folder is remote, holds another demo, or cannot be written.
      Interrupted: The demo was asked to stop, and what was done is saved.
    """
    if storage.is_remote(folder):
        raise UserError(f"--workdir={folder}: the demo needs a local folder")
    with workdir.claim(folder, config) as path:
        if not jax.config.jax_compilation_cache_dir:
            # So that all fine-tuning runs, and continued runs, compile once.
            jax.config.update("jax_compilation_cache_dir", str(path / "compiled"))
        jax.devices()  # fails here, and not after the corpus, if there are none
        _heading(1, "vocabulary and corpus from the documentation of Python packages")
        corpus = _corpus(config, path)
        terminal.say(build.describe(corpus))

        _heading(2, "pretraining: masked tokens and next sentences")
        data = dataclasses.replace(config.pretrain.data, corpus=str(path / "corpus"))
        pretrain = dataclasses.replace(config.pretrain, data=data)
        pretraining.pretrain(pretrain, str(path / "pretrain"))
        pretrained = metrics_file.read(path / "pretrain")

        _heading(3, "fine-tuning: does a parameter's description belong to a function?")
        train, held_out = _task(config, path)
        accuracies, finetuned = _finetune(config, path)

        _heading(4, "results")
        results = report.make_results(corpus, pretrained, train, held_out, accuracies)
        filled = prediction.load(str(path / "pretrain")).fill(list(BLANKS))
        blanks = report.describe_blanks(BLANKS, filled)
        text = f"{report.table(results)}\n\n{blanks}\n"
        with storage.writing(path):
            numbers = json.dumps(dataclasses.asdict(results), indent=2)
            storage.write_text(path / "results.json", f"{numbers}\n")
            picture = report.draw(pretrained, finetuned)
            picture.savefig(path / "curves.png")
            storage.write_text(path / "report.txt", text)
        return text


def _heading(number: int, title: str) -> None:
    terminal.say(f"[{number}/4] {title}")


def _corpus(config: DemoConfig, path: pathlib.Path) -> shards.Corpus:
    if (path / "corpus" / shards.MANIFEST).exists():
        # Keep the corpus if packages have been installed since.
        return shards.open_corpus(path / "corpus")
    if (path / "tokenizer" / tokenizer_lib.PIPELINE_FILE).exists():
        tokenizer = tokenizer_lib.Tokenizer.load(path / "tokenizer")
    else:
        tokenizer = tokenizer_training.learn(
            # Small splits give a better sample.
            sources.Source("", "python_docs", split_bytes=500_000),
            "wordpiece",
            config.vocab_size,
            lower_case=True,
            strip_accents=True,
            sample_bytes=config.sample_megabytes * 1_000_000,
        )
        tokenizer.save(path / "tokenizer")
    return build.build(
        sources.Source("", "python_docs", split_bytes=2_000_000),
        build.Settings(held_out=config.held_out),
        tokenizer,
        path / "corpus",
    )


def _task(
    config: DemoConfig, path: pathlib.Path
) -> tuple[list[labelled_texts.Example], list[labelled_texts.Example]]:
    """Return training and evaluation examples, whose files are made if missing."""
    folder = path / "task"
    if not folder.exists():
        bar = terminal.progress_bar(
            iterable=python_docs.source_files(), desc="gathering labels", unit="file"
        )
        train, held_out = parameter_pairs.collect(bar, config.held_out)
        with storage.writing(folder):
            # The folder is renamed when it is complete.
            temporary = folder.with_name("task.tmp")
            shutil.rmtree(temporary, ignore_errors=True)
            temporary.mkdir()
            train = train[: config.train_examples]
            labelled_texts.write_tsv(temporary / "train.tsv", train)
            labelled_texts.write_tsv(temporary / "eval.tsv", held_out)
            temporary.rename(folder)
    return tuple(labelled_texts.read(folder / x) for x in ("train.tsv", "eval.tsv"))


def _finetune(
    config: DemoConfig, path: pathlib.Path
) -> tuple[dict[str, list[float]], dict[str, list[list[dict[str, Any]]]]]:
    """Fine-tune from pretrained and from random weights, with several seeds.

    Return accuracies and records of metrics.jsonl, by initial weights and seed.
    """
    files = dataclasses.replace(
        config.finetune.task,
        train=str(path / "task/train.tsv"),
        eval=str(path / "task/eval.tsv"),
    )
    base = dataclasses.replace(
        config.finetune, task=files, init_from=str(path / "pretrain")
    )
    accuracies: dict[str, list[float]] = {}
    records: dict[str, list[list[dict[str, Any]]]] = {}
    for weights in (report.PRETRAINED, report.RANDOM):
        accuracies[weights], records[weights] = [], []
        for seed in range(base.seed, base.seed + config.repeats):
            terminal.say(f"fine-tuning, {weights} weights, seed {seed}")
            run = dataclasses.replace(base, seed=seed)
            if weights == report.RANDOM:
                run = dataclasses.replace(run, random_init=True, reinit_layers=0)
            folder = path / "finetune" / f"{weights}-{seed}"
            results = finetuning.finetune(run, str(folder))
            accuracies[weights].append(results["accuracy"])
            records[weights].append(metrics_file.read(folder))
    return accuracies, records
