r"""Pretrain and fine-tune a small BERT on the documentation of the packages at hand.

  python -m bert_jax.run.demo --workdir=DIR

Needs no download, and about ten minutes on two cores. Learns a vocabulary, builds a
corpus with a held-out part, pretrains with masked tokens and next sentences, then
fine-tunes a classifier from the checkpoint and from random weights. Ends with a table,
a picture with the curves, and sentences with a blank. The same command again continues
what was stopped, or reports again.
"""

import contextlib
import dataclasses
import json
import pathlib
import shutil
import textwrap
from collections.abc import Iterator, Sequence

import jax
import numpy as np
from absl import flags

import bert_jax
from bert_jax import knobs, terminal
from bert_jax import tokenizer as tokenizer_lib
from bert_jax.corpus import build, python_docs, report, shards, sources, vocabulary
from bert_jax.data import chunks
from bert_jax.demo.config import DemoConfig
from bert_jax.run import command_line, fill_mask, finetune_classifier, pretrain
from bert_jax.tasks import classification, parameter_pairs
from bert_jax.training import curves, workdir

RECIPE = pathlib.Path(bert_jax.__file__).parents[1] / "configs/demo.py"

BLANKS = (
    "Returns [MASK] if the file exists.",
    "The default value is [MASK].",
    "The number of [MASK] in the array.",
    "Raises a ValueError if the [MASK] is not valid.",
    "This function [MASK] a list of strings.",
    "The input array is [MASK] modified.",
)

_PRETRAIN = "pretrain"  # folder of pretraining
# Names of the two ways to begin fine-tuning; also the folders they are in.
_PRETRAINED, _RANDOM = "pretrained", "random"


@dataclasses.dataclass(frozen=True)
class Results:
    """What the demo found; saved as results.json.

    Attributes:
      documentation: tokens for training and held out.
      held_out: of pretraining: `mlm_loss` (nats), `mlm_accuracy`, `nsp_accuracy`.
      unigram_entropy: nats; the loss of a model that knows how often each token occurs
        in the held-out text, and no more.
      most_frequent_token: its share of the held-out text.
      accuracies: of the fine-tuned classifier by seed, from either beginning.
      most_frequent_class: its share of the evaluation examples.
      train_examples: that the classifier was fine-tuned on.
      eval_examples: that it was evaluated on.
    """

    documentation: dict[str, int]
    held_out: dict[str, float]
    unigram_entropy: float
    most_frequent_token: float
    accuracies: dict[str, list[float]]
    most_frequent_class: float
    train_examples: int
    eval_examples: int


def demo(config: DemoConfig, folder: str) -> Results:
    """Do, or continue, all of it.

    Args:
      config: of all parts.
      folder: for what comes of them; a part that is done there is not done again.

    Raises:
      UserError: the folder holds another demo, or cannot be written.
      Interrupted: it was asked to stop, and what was done is saved.
    """
    with workdir.claim(folder, config, terminal.say) as place:
        if not jax.config.jax_compilation_cache_dir:
            # Fine-tuning from the checkpoint and from random weights, and all that is
            # continued, compile once.
            jax.config.update("jax_compilation_cache_dir", str(place / "compiled"))
        _heading(1, "vocabulary and corpus from the documentation of Python packages")
        corpus = _corpus(config, place)
        terminal.say(report.describe(corpus))

        _heading(2, "pretraining: masked tokens and next sentences")
        settings = dataclasses.replace(
            config.pretrain.data, corpus=str(place / "corpus")
        )
        pretraining = dataclasses.replace(config.pretrain, data=settings)
        pretrain.pretrain(pretraining, str(place / _PRETRAIN))

        _heading(3, "fine-tuning: does a parameter's description belong to a function?")
        task = _task(config, place)
        accuracies, records = _finetune(config, place, task)

        _heading(4, "results")
        results = _results(place, corpus, task, accuracies)
        _draw(place, results, records)
        return results


def _heading(number: int, what: str) -> None:
    terminal.say(f"[{number}/4] {what}")


def _corpus(config: DemoConfig, place: pathlib.Path) -> shards.Corpus:
    if (place / "corpus" / shards.MANIFEST).exists():
        # Packages may have been installed since; the demo stays with what it has.
        return shards.open_corpus(place / "corpus")
    if (place / "tokenizer").exists():
        tokenizer = tokenizer_lib.Tokenizer.load(place / "tokenizer")
    else:
        tokenizer = vocabulary.learn(
            # Small splits make a good sample.
            sources.Source("", "python_docs", split_bytes=500_000),
            "wordpiece",
            config.vocab_size,
            lower_case=True,
            strip_accents=True,
            sample_bytes=config.sample_megabytes * 1_000_000,
        )
        with _new_folder(place / "tokenizer") as folder:
            tokenizer.save(folder)
    return report.build_with_progress(
        sources.Source("", "python_docs", split_bytes=2_000_000),
        build.Settings(held_out=config.held_out),
        tokenizer,
        place / "corpus",
    )


@contextlib.contextmanager
def _new_folder(folder: pathlib.Path) -> Iterator[pathlib.Path]:
    """A folder to write into that appears as a whole or not at all."""
    temporary = folder.with_name(folder.name + ".tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir()
    yield temporary
    temporary.rename(folder)


@dataclasses.dataclass(frozen=True)
class _Task:
    """Files of the classification task, and what is in them."""

    train_path: pathlib.Path
    eval_path: pathlib.Path
    train: list[classification.Example]
    held_out: list[classification.Example]


def _task(config: DemoConfig, place: pathlib.Path) -> _Task:
    paths = [place / "task/train.tsv", place / "task/eval.tsv"]
    if not (place / "task").exists():
        bar = terminal.progress_bar(
            iterable=python_docs.source_files(), desc="gathering labels", unit="file"
        )
        train, held_out = parameter_pairs.collect(bar, config.held_out)
        with _new_folder(place / "task") as folder:
            train = train[: config.train_examples]
            classification.write_tsv(folder / "train.tsv", train)
            classification.write_tsv(folder / "eval.tsv", held_out)
    return _Task(*paths, *(classification.read_tsv(path) for path in paths))


def _finetune(
    config: DemoConfig, place: pathlib.Path, task: _Task
) -> tuple[dict[str, list[float]], dict[str, list[list[dict]]]]:
    """Accuracies and metrics by beginning and seed."""
    files = dataclasses.replace(
        config.finetune.task, train=str(task.train_path), eval=str(task.eval_path)
    )
    base = dataclasses.replace(
        config.finetune, task=files, init_from=str(place / _PRETRAIN)
    )
    accuracies: dict[str, list[float]] = {}
    records: dict[str, list[list[dict]]] = {}
    for beginning in (_PRETRAINED, _RANDOM):
        accuracies[beginning], records[beginning] = [], []
        for seed in range(base.seed, base.seed + config.repeats):
            terminal.say(f"fine-tuning, {beginning} weights, seed {seed}")
            run = dataclasses.replace(base, seed=seed, random_init=beginning == _RANDOM)
            folder = place / "finetune" / f"{beginning}-{seed}"
            found = finetune_classifier.finetune(run, str(folder))
            accuracies[beginning].append(found["accuracy"])
            records[beginning].append(curves.read_metrics(folder))
    return accuracies, records


def _results(
    place: pathlib.Path,
    corpus: shards.Corpus,
    task: _Task,
    accuracies: dict[str, list[float]],
) -> Results:
    evaluated = [
        r for r in curves.read_metrics(place / _PRETRAIN) if r["split"] == "eval"
    ]
    names = ("mlm_loss", "mlm_accuracy", "nsp_accuracy")
    frequencies = token_frequencies(corpus, shards.HELD_OUT)
    labels = [example.label for example in task.held_out]
    results = Results(
        documentation={s: corpus.count(s, "tokens") for s in shards.SPLITS},
        held_out={name: evaluated[-1][name] for name in names},
        unigram_entropy=entropy(frequencies),
        most_frequent_token=float(frequencies.max()),
        accuracies=accuracies,
        most_frequent_class=max(map(labels.count, labels)) / len(labels),
        train_examples=len(task.train),
        eval_examples=len(task.held_out),
    )
    text = json.dumps(dataclasses.asdict(results), indent=2) + "\n"
    (place / "results.json").write_text(text, encoding="utf-8")
    return results


def token_frequencies(corpus: shards.Corpus, split: str) -> np.ndarray:
    """Share of each token in the text of a split, [vocabulary]."""
    tokens = chunks.load_tokens(corpus, split).tokens
    counts = np.bincount(tokens, minlength=corpus.tokenizer.vocab_size)
    return counts / counts.sum()


def entropy(frequencies: np.ndarray) -> float:
    """In nats."""
    positive = frequencies[frequencies > 0]
    return float(-(positive * np.log(positive)).sum())


def _draw(
    place: pathlib.Path, results: Results, records: dict[str, list[list[dict]]]
) -> None:
    levels = {
        "mlm_loss": (results.unigram_entropy, "unigram entropy"),
        "mlm_accuracy": (results.most_frequent_token, "most frequent token"),
        "nsp_accuracy": (0.5, "chance"),
    }
    picture = curves.draw(
        curves.read_metrics(place / _PRETRAIN),
        "A small BERT on the documentation of Python packages",
        levels=levels,
        finetuned={f"{name} weights": runs for name, runs in records.items()},
    )
    picture.savefig(place / "curves.png")


def table(results: Results) -> str:
    """The results for people."""
    found = results.held_out
    gain = np.mean(results.accuracies[_PRETRAINED]) - np.mean(
        results.accuracies[_RANDOM]
    )
    rows = [
        ("held-out text", "this model", "to compare with"),
        (
            "masked tokens, loss (nats)",
            f"{found['mlm_loss']:.2f}",
            f"{results.unigram_entropy:.2f}  unigram entropy of that text",
        ),
        (
            "masked tokens, accuracy",
            f"{found['mlm_accuracy']:.1%}",
            f"{results.most_frequent_token:.1%}  always the most frequent token",
        ),
        ("next sentence, accuracy", f"{found['nsp_accuracy']:.1%}", "50.0%  chance"),
        ("", "", ""),
        ("fine-tuned", "from the checkpoint", "from random weights"),
        (
            f"accuracy, mean of {len(results.accuracies[_RANDOM])} seeds",
            _mean(results.accuracies[_PRETRAINED]),
            _mean(results.accuracies[_RANDOM]),
        ),
        (
            "  by seed",
            _each(results.accuracies[_PRETRAINED]),
            _each(results.accuracies[_RANDOM]),
        ),
    ]
    lines = [f"{name:<30}{a:<23}{b}".rstrip() for name, a, b in rows]
    note = (
        "The task: given what a function does and the description of a parameter, both "
        "from the documentation, say whether they belong together or come from two "
        f"modules; {results.train_examples:,} pairs to learn from, "
        f"{results.eval_examples:,} to evaluate on, from modules held out of "
        f"pretraining too; always the same answer is right in "
        f"{results.most_frequent_class:.1%}. It is related to next sentence "
        f"prediction. Pretraining gives {100 * gain:+.1f} points: in so few steps and "
        "from so few pairs, random weights learn next to nothing."
    )
    return "\n".join([*lines, "", *textwrap.wrap(note, 78)])


def _mean(values: Sequence[float]) -> str:
    spread = f" (sd {100 * np.std(values, ddof=1):.1f})" if len(values) > 1 else ""
    return f"{np.mean(values):.1%}{spread}"


def _each(values: Sequence[float]) -> str:
    return " ".join(f"{100 * value:.1f}" for value in values)


def define_flags() -> None:
    """Define the flags of this entrypoint."""
    command_line.define_config(str(RECIPE), "configs/demo.py")
    command_line.define_workdir()
    flags.adopt_module_key_flags(command_line)


def main() -> int:
    """The entrypoint."""
    config = knobs.from_configdict(DemoConfig, command_line.config())
    folder = command_line.required("workdir", "give a folder, --workdir=DIR")
    results = demo(config, folder)
    place = pathlib.Path(folder)
    filled = fill_mask.fill(str(place / _PRETRAIN), list(BLANKS))
    report = f"{table(results)}\n\n{fill_mask.describe(list(BLANKS), filled)}\n"
    (place / "report.txt").write_text(report, encoding="utf-8")
    print(f"\n{report}\nAlso in {place}: report.txt, results.json, curves.png")
    return 0


if __name__ == "__main__":
    command_line.main(main, define_flags)
