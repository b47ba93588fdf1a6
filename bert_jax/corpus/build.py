"""Build a corpus: text to sentences to token shards.

`build_split` turns one input split into one shard for training and one held out; it is
a pure function of its arguments, so that any runner gives the same shards. `build` is
the local runner: some processes, a folder that a cut-off build continues in.

A document is held out by a hash of its text. Copies of a document therefore never lie
on both sides, and the choice does not depend on order, splits or runner.
"""

import collections
import concurrent.futures
import dataclasses
import hashlib
import itertools
import json
import multiprocessing
import os
import pathlib
import shutil
from collections.abc import Callable, Iterator

import sentencex

from bert_jax import tokenizer as tokenizer_lib
from bert_jax.corpus import shards, sources
from bert_jax.errors import UserError

_WORK = "unfinished"  # folder with the state of a build that is not complete
_BATCH_SENTENCES = 2000  # go through the tokenizer together


@dataclasses.dataclass(frozen=True)
class Settings:
    """What a build makes of its source. Saved; a build continues only with the same.

    Attributes:
      held_out: fraction of documents set apart for evaluation.
      language: ISO 639-1 code for the sentence splitter.
    """

    held_out: float = 0.01
    language: str = "en"


@dataclasses.dataclass(frozen=True)
class SplitResult:
    """What came of one split."""

    train: shards.Shard
    held_out: shards.Shard
    text_bytes: int
    problem_count: int
    problems: list[str]


def is_held_out(text: str, fraction: float) -> bool:
    """Whether a document belongs to the held-out split."""
    digest = hashlib.blake2b(text.strip().encode("utf-8"), digest_size=8).digest()
    return int.from_bytes(digest, "big") < fraction * 2**64


def build_split(
    index: int,
    split: sources.Split,
    source: sources.Source,
    settings: Settings,
    tokenizer: tokenizer_lib.Tokenizer,
    output: str | os.PathLike,
) -> SplitResult:
    """Write the two shards of one split.

    Args:
      index: number of the split, for the names of the shards.
      split: what to read.
      source: how to read it.
      settings: what to make of it.
      tokenizer: from text to ids.
      output: folder for the shards.

    Returns:
      Counts, checksums, and what was wrong with the input.
    """
    folder = pathlib.Path(output)
    writers = {
        name: shards.ShardWriter(
            folder / f"{name}-{index:05d}.arrow", tokenizer.vocab_size
        )
        for name in shards.SPLITS
    }
    problems = sources.Problems()
    text_bytes = 0
    documents = sources.read(split, source, problems)
    for document, sentences in _tokenised(documents, settings, tokenizer):
        held_out = is_held_out(document.text, settings.held_out)
        text_bytes += len(document.text.encode("utf-8"))
        if sentences:
            name = shards.HELD_OUT if held_out else shards.TRAIN
            writers[name].add(sentences, document.source)
    closed = {name: writer.close() for name, writer in writers.items()}
    return SplitResult(
        closed[shards.TRAIN],
        closed[shards.HELD_OUT],
        text_bytes,
        problems.count,
        problems.lines,
    )


def _tokenised(
    documents: Iterator[sources.Document],
    settings: Settings,
    tokenizer: tokenizer_lib.Tokenizer,
) -> Iterator[tuple[sources.Document, list[list[int]]]]:
    """Documents with the ids of their sentences, empty ones left out."""
    waiting: list[tuple[sources.Document, int]] = []
    sentences: list[str] = []
    for document in itertools.chain(documents, [None]):
        if document is not None:
            found = sentencex.segment(settings.language, document.text)
            waiting.append((document, len(found)))
            sentences += found
        if document is None or len(sentences) >= _BATCH_SENTENCES:
            encoded = iter(tokenizer.encode_batch(sentences))
            for waited, count in waiting:
                ids = [next(encoded) for _ in range(count)]
                yield waited, [sentence for sentence in ids if sentence]
            waiting, sentences = [], []


def build(
    source: sources.Source,
    settings: Settings,
    tokenizer: tokenizer_lib.Tokenizer,
    output: str | os.PathLike,
    *,
    workers: int = 0,
    on_split: Callable[[int, int, SplitResult], None] | None = None,
) -> shards.Corpus:
    """Build a corpus with local processes, or continue a build that was cut off.

    Args:
      source: what to read.
      settings: what to make of it.
      tokenizer: from text to ids; a copy goes into the corpus.
      output: folder to write; new, empty, or holding the same build.
      workers: processes; 0 for one on each core.
      on_split: is called with (splits done, splits in all, result) for each split.

    Returns:
      The finished corpus.

    Raises:
      UserError: the input is not there, or the folder holds something else.
    """
    folder = pathlib.Path(output)
    splits = sources.plan(source)
    identity = _identity(splits, source, settings, tokenizer)
    done = _continue(folder, identity)
    if done is not None:
        todo = [i for i in range(len(splits)) if i not in done]
        results = done
        tasks = [(i, splits[i], source, settings, tokenizer, str(folder)) for i in todo]
        for index, result in _run(tasks, workers or os.cpu_count() or 1):
            _save_result(folder, index, result)
            results[index] = result
            if on_split:
                on_split(len(results), len(splits), result)
        _finish(folder, tokenizer, identity, [results[i] for i in range(len(splits))])
    return shards.open_corpus(folder)


def _identity(
    splits: list[sources.Split],
    source: sources.Source,
    settings: Settings,
    tokenizer: tokenizer_lib.Tokenizer,
) -> dict:
    """All that decides what the corpus will be; what a continued build must match."""
    listing = json.dumps([[dataclasses.astuple(p) for p in split] for split in splits])
    return {
        "source": dataclasses.asdict(source),
        **dataclasses.asdict(settings),
        "tokenizer": tokenizer.fingerprint,
        "input": hashlib.sha256(listing.encode()).hexdigest()[:16],
    }


def _continue(folder: pathlib.Path, identity: dict) -> dict[int, SplitResult] | None:
    """Results of splits already built; None if the corpus is complete."""
    state = folder / _WORK / "settings.json"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"cannot write to {folder}: {error.strerror}") from error
    if (folder / shards.MANIFEST).exists():
        found = shards.open_corpus(folder).settings
    elif state.exists():
        found = json.loads(state.read_text(encoding="utf-8"))
    elif any(folder.iterdir()):
        raise UserError(f"{folder} is not empty and holds no corpus; give a new folder")
    else:
        found = None
    if found not in (None, identity):
        differing = [k for k in identity if found.get(k) != identity[k]]
        raise UserError(
            f"{folder} holds another corpus (different {', '.join(differing)}); "
            "give a new folder or delete it"
        )
    if (folder / shards.MANIFEST).exists():
        return None
    state.parent.mkdir(exist_ok=True)
    shards.write_atomically(state, json.dumps(identity))
    results = {}
    for path in sorted(state.parent.glob("split-*.json")):
        values = json.loads(path.read_text(encoding="utf-8"))
        for name in shards.SPLITS:
            values[name] = shards.Shard(**values[name])
        results[int(path.stem.removeprefix("split-"))] = SplitResult(**values)
    return results


def _save_result(folder: pathlib.Path, index: int, result: SplitResult) -> None:
    path = folder / _WORK / f"split-{index}.json"
    shards.write_atomically(path, json.dumps(dataclasses.asdict(result)))


def _run(tasks: list[tuple], workers: int) -> Iterator[tuple[int, SplitResult]]:
    """Results of `build_split` as they come, with a bounded number under way."""
    if min(workers, len(tasks)) <= 1:
        for task in tasks:
            yield task[0], build_split(*task)
        return
    # Each process has one core; the tokenizer's own threads would only compete.
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(workers, mp_context=context) as pool:
        queue = collections.deque(tasks)
        running: dict[concurrent.futures.Future, int] = {}
        while queue or running:
            while queue and len(running) < 2 * workers:
                task = queue.popleft()
                running[pool.submit(build_split, *task)] = task[0]
            ended, _ = concurrent.futures.wait(
                running, return_when=concurrent.futures.FIRST_COMPLETED
            )
            for future in ended:
                yield running.pop(future), future.result()


def _finish(
    folder: pathlib.Path,
    tokenizer: tokenizer_lib.Tokenizer,
    identity: dict,
    results: list[SplitResult],
) -> None:
    if not any(result.train.documents for result in results):
        lines = [line for result in results for line in result.problems]
        why = f" ({lines[0]})" if lines else ""
        # Leave nothing that would stand in the way of the corrected command.
        shutil.rmtree(folder)
        raise UserError(f"no document for training in the input{why}")
    found = {
        name: [shard for r in results if (shard := getattr(r, name)).documents]
        for name in shards.SPLITS
    }
    for result in results:
        for name in shards.SPLITS:
            if not getattr(result, name).documents:
                (folder / getattr(result, name).file).unlink(missing_ok=True)
    problems = {
        "count": sum(result.problem_count for result in results),
        "first": [line for result in results for line in result.problems][:100],
    }
    tokenizer.save(folder / shards.TOKENIZER)
    shards.write_manifest(folder, tokenizer, found, identity, problems)
    shutil.rmtree(folder / _WORK)
