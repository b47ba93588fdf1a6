"""Corpus builds: plan the splits, let a runner build them, and write the manifest.

The state of a build is kept in its folder (`corpus/build_state.py`), so that an
interrupted build continues, with the same runner or another: `corpus/local_runner.py`
with local processes, or `corpus/beam_runner.py` on a cluster.
"""

import contextlib
import functools
import os
from collections.abc import Callable, Generator, Sequence
from typing import Any

from bert_jax import storage, terminal
from bert_jax import tokenizer as tokenizer_lib
from bert_jax.corpus import build_state, local_runner, shards, sources, splits
from bert_jax.errors import Unavailable, UserError

# An alias, so that callers of `build` need not import `splits`.
Settings = splits.Settings

# A runner calls `build_state.build_and_save` for each numbered split, in any order and
# on any machine that can access input and output. It yields numbers and results, and is
# closed when the build ends, completed or not.
Runner = Callable[
    [splits.Job, Sequence[tuple[int, sources.InputSplit]]],
    Generator[tuple[int, splits.SplitResult], None, None],
]

# Character that vocabularies lack, unless they have all bytes.
_RUNE = "\u16a0"
# Fraction of unknown tokens that causes a warning; a good vocabulary has far fewer.
_MANY_UNKNOWN = 0.03
# Average number of sentences in a document below which a warning is printed.
_FEW_SENTENCES = 1.5


def build(
    source: sources.Source,
    settings: Settings,
    tokenizer: tokenizer_lib.Tokenizer,
    output: str | os.PathLike,
    *,
    runner: Runner | None = None,
    workers: int = 0,
) -> shards.Corpus:
    """Build a corpus, or continue a build that was interrupted, and show the progress.

    Args:
      source: Source of the text.
      settings: Fraction of held-out documents, and language of the text.
      tokenizer: Tokenizer for the text; the corpus gets a copy.
      output: Folder to write. It is new, empty, or holds the same build.
      runner: Runner for the splits; None for local processes.
      workers: Number of local processes; 0 for one per core.

    Raises:
      UserError: The input has no document to train on, the folder holds something else
        or cannot be written, or another build is running on it.
    """
    folder = storage.path(output)
    planned = sources.plan(source)
    job = splits.Job(source, settings, tokenizer, os.fspath(output))
    identity = build_state.identity(job, planned)
    if _is_complete(folder, identity):
        # A killed build may have left its state. The disk may be read-only.
        with contextlib.suppress(UserError, Unavailable):
            _remove_state(folder)
        return shards.open_corpus(folder)
    if not tokenizer.encode(_RUNE):
        terminal.say(
            "warning: the tokenizer has no token for unknown text: characters that are "
            "not in its vocabulary will be missing from the corpus"
        )
    runner = runner or functools.partial(local_runner.run, workers=workers)
    with build_state.claimed(folder):
        results = _build_splits(job, identity, planned, runner)
        if not _is_unchanged(job, identity):
            terminal.say(
                "warning: the input has changed while it was read; text may be missing"
            )
        problems = [line for result in results for line in result.problems.lines]
        has_documents = any(result.train.documents for result in results)
        if has_documents:
            _finish(folder, tokenizer, identity, results, problems)
        else:  # nothing is worth keeping, and the corrected command needs the folder
            for left in folder.glob("*.arrow*"):
                left.unlink()
    # The lock is closed by now: network file systems keep folders with open files.
    _remove_state(folder)
    if has_documents:
        return shards.open_corpus(folder)
    if held_out := sum(result.held_out.documents for result in results):
        raise UserError(
            f"no document is left for training: held_out={settings.held_out} holds out "
            f"every document of the input ({held_out:,}); give more text or a smaller "
            "fraction"
        )
    why = f" ({problems[0]})" if problems else ""
    raise UserError(f"no document for training in the input{why}")


def _is_unchanged(job: splits.Job, identity: dict[str, Any]) -> bool:
    """Return whether the input is still the one that the build began with."""
    try:
        return build_state.identity(job, sources.plan(job.source)) == identity
    except UserError:  # deleted, or not accessible any more
        return False


def _remove_state(folder: storage.Path) -> None:
    with storage.writing(folder), contextlib.suppress(FileNotFoundError):
        storage.remove_folder(folder / build_state.FOLDER)


def _build_splits(
    job: splits.Job,
    identity: dict[str, Any],
    planned: list[sources.InputSplit],
    runner: Runner,
) -> list[splits.SplitResult]:
    """Build the splits that are not done, and return all results in order."""
    results = build_state.start_or_resume(
        storage.path(job.output), identity, len(planned)
    )
    todo = [(i, split) for i, split in enumerate(planned) if i not in results]
    total, warned = len(planned), set()
    bar = terminal.progress_bar(
        desc="building corpus", unit="split", total=total, initial=len(results)
    )
    with contextlib.closing(runner(job, todo)) as built, bar:
        for index, result in built:
            results[index] = result
            _warn(result, job.tokenizer, warned)
            bar.update()
            done = len(results)
            if bar.disable and (done == total or done % max(1, total // 20) == 0):
                terminal.say(f"building corpus: {done} of {total} splits")
    return [results[i] for i in range(total)]


def _warn(
    result: splits.SplitResult, tokenizer: tokenizer_lib.Tokenizer, warned: set[str]
) -> None:
    """Print a split's problems, and each hint whose kind is not in `warned` yet."""
    terminal.warn(result.problems.lines, result.problems.count)
    hints = {hint: hint for hint in result.problems.hints}
    share = result.train.unknown_tokens / max(1, result.train.tokens)
    if share > _MANY_UNKNOWN:
        hints["unknown"] = (
            f"{share:.1%} of the tokens of {result.train.file} are "
            f"{tokenizer.special_tokens.unk}: the vocabulary does not cover this text; "
            "train one on it with run.train_tokenizer"
        )
    new = [hint for kind, hint in hints.items() if kind not in warned]
    terminal.warn(new)
    warned.update(hints)


def _is_complete(folder: storage.Path, identity: dict[str, Any]) -> bool:
    """Return whether the folder holds the complete corpus."""
    with storage.writing(folder):  # one of its parents may not be accessible
        if not (folder / shards.MANIFEST).exists():
            return False
    corpus = shards.open_corpus(folder)
    build_state.check_same(folder, corpus.settings, identity)
    shards.check_sizes(corpus)
    return True


def _finish(
    folder: storage.Path,
    tokenizer: tokenizer_lib.Tokenizer,
    identity: dict[str, Any],
    results: list[splits.SplitResult],
    problems: list[str],
) -> None:
    """Remove empty shards, and write the tokenizer and the manifest."""
    listed: dict[str, list[shards.Shard]] = {name: [] for name in shards.SPLITS}
    with storage.writing(folder, shards.RESUME_HINT):
        for result in results:
            for name in shards.SPLITS:
                shard = getattr(result, name)
                if shard.documents:
                    listed[name].append(shard)
                else:
                    (folder / shard.file).unlink(missing_ok=True)
        tokenizer.save(folder / shards.TOKENIZER)
        for left in folder.glob("*.tmp"):  # by processes that were killed
            left.unlink()
        count = sum(result.problems.count for result in results)
        shards.write_manifest(
            folder,
            tokenizer,
            listed,
            settings=identity,
            problems={"count": count, "first": problems[:100]},
        )


def describe(corpus: shards.Corpus) -> str:
    """Return a summary of a corpus in one line, and warnings in further ones."""
    train, held_out = (
        ", ".join(
            terminal.pluralise(corpus.count(split, what), what.removesuffix("s"))
            for what in shards.COUNTS[:3]
        )
        for split in shards.SPLITS
    )
    documents, sentences, tokens, unknown = (
        corpus.count(shards.TRAIN, what) for what in shards.COUNTS
    )
    special = corpus.tokenizer.special_tokens
    if special.unk != special.mask:
        train += f" ({unknown / tokens:.2%} {special.unk})"
    text = f"{corpus.folder}: {train}; held out: {held_out}"
    has_few = corpus.count(shards.HELD_OUT, "documents") < 2
    if has_few and corpus.settings["held_out"]:
        text += (
            "\nwarning: fewer than two documents are held out, too few for an "
            "evaluation; increase --held_out"
        )
    if sentences < _FEW_SENTENCES * documents:
        text += (
            "\nwarning: most documents have a single sentence, which next_sentence and "
            "sentence_order cut in two; in --format=text, blank lines separate "
            "documents, not sentences"
        )
    return text
