"""Build a corpus: text to sentences to token shards.

`build_split` turns one input split into one shard for training and one held out; it is
a pure function of its arguments, so that any runner gives the same shards. `build`
plans, has a runner do the splits that are not done yet, and finishes. What is done is
kept in the folder that is built, so that a build which was cut off continues there,
with the same runner or another. `run_locally` is the runner with local processes,
`corpus/beam.py` the one for a cluster.

A document is held out by a hash of its text. Copies of a document therefore never lie
on both sides, and the choice does not depend on order, splits or runner.
"""

import collections
import concurrent.futures
import dataclasses
import functools
import hashlib
import itertools
import json
import multiprocessing
import os
from collections.abc import Callable, Iterator, Sequence

import sentencex

from bert_jax import storage
from bert_jax import tokenizer as tokenizer_lib
from bert_jax.corpus import shards, sources
from bert_jax.errors import UserError

_WORK = "unfinished"  # folder with the state of a build that is not complete
_BATCH_SENTENCES = 2000  # go through the tokenizer together
_READERS = 16  # threads that read results
# The codes of ISO 639-1. For some, `sentencex` has rules of its own; for the others it
# takes those of a relative or of English. Which, it does not say.
_ISO_639_1 = """
aa ab ae af ak am an ar as av ay az ba be bg bi bm bn bo br bs ca ce ch co cr cs
cu cv cy da de dv dz ee el en eo es et eu fa ff fi fj fo fr fy ga gd gl gn gu gv
ha he hi ho hr ht hu hy hz ia id ie ig ii ik io is it iu ja jv ka kg ki kj kk kl
km kn ko kr ks ku kv kw ky la lb lg li ln lo lt lu lv mg mh mi mk ml mn mr ms mt
my na nb nd ne ng nl nn no nr nv ny oc oj om or os pa pi pl ps pt qu rm rn ro ru
rw sa sc sd se sg si sk sl sm sn so sq sr ss st su sv sw ta te tg th ti tk tl tn
to tr ts tt tw ty ug uk ur uz ve vi vo wa wo xh yi yo za zh zu
"""
LANGUAGES = frozenset(_ISO_639_1.split())


@dataclasses.dataclass(frozen=True)
class Settings:
    """What a build makes of its source. Saved; a build continues only with the same.

    Attributes:
      held_out: fraction of documents set apart for evaluation.
      language: ISO 639-1 code for the sentence splitter.

    Raises:
      UserError: there is no such code.
    """

    held_out: float = 0.01
    language: str = "en"

    def __post_init__(self):
        # The splitter would take any text for a code, and the rules of English for it.
        if self.language not in LANGUAGES:
            raise UserError(
                f"unknown language {self.language!r}; give the two letters that "
                "ISO 639-1 has for it, such as en, de or zh"
            )


@dataclasses.dataclass(frozen=True)
class Job:
    """What all splits of a build have in common."""

    source: sources.Source
    settings: Settings
    tokenizer: tokenizer_lib.Tokenizer
    output: str


@dataclasses.dataclass(frozen=True)
class SplitResult:
    """What came of one split."""

    train: shards.Shard
    held_out: shards.Shard
    text_bytes: int
    problem_count: int
    problems: list[str]


# From a job and numbered splits to their results, in any order. A runner has each split
# go through `build_and_keep`, on a machine that reaches the input and the output.
Runner = Callable[
    [Job, Sequence[tuple[int, sources.Split]]], Iterator[tuple[int, SplitResult]]
]


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
    folder = storage.path(output)
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


def build_and_keep(job: Job, index: int, split: sources.Split) -> SplitResult:
    """`build_split`, and keep the result for `build` to find."""
    result = build_split(
        index, split, job.source, job.settings, job.tokenizer, job.output
    )
    text = json.dumps(dataclasses.asdict(result))
    storage.write_text(_result_path(storage.path(job.output), index), text)
    return result


def is_begun(job: Job) -> bool:
    """Whether the output, as this machine sees it, is a build under way."""
    return _settings_path(storage.path(job.output)).exists()


def is_kept(job: Job, index: int) -> bool:
    """Whether `build_and_keep` is done with a split."""
    return _result_path(storage.path(job.output), index).exists()


def read_kept(
    output: str | os.PathLike, indices: Sequence[int]
) -> Iterator[tuple[int, SplitResult]]:
    """Numbers and results of splits that are done, in the order of `indices`."""

    def read(index):
        values = json.loads(_result_path(folder, index).read_text(encoding="utf-8"))
        for name in shards.SPLITS:
            values[name] = shards.Shard(**values[name])
        return SplitResult(**values)

    folder = storage.path(output)
    # Threads, for a store takes its time to answer.
    with concurrent.futures.ThreadPoolExecutor(_READERS) as pool:
        yield from zip(indices, pool.map(read, indices), strict=True)


def _settings_path(folder: storage.Path) -> storage.Path:
    return folder / _WORK / "settings.json"


def _result_path(folder: storage.Path, index: int) -> storage.Path:
    return folder / _WORK / f"split-{index}.json"


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
    runner: Runner | None = None,
    workers: int = 0,
    on_split: Callable[[int, int, SplitResult], None] | None = None,
) -> shards.Corpus:
    """Build a corpus, or continue a build that was cut off.

    Args:
      source: what to read.
      settings: what to make of it.
      tokenizer: from text to ids; a copy goes into the corpus.
      output: folder to write; new, empty, or holding the same build.
      runner: has the splits built; None for `run_locally`.
      workers: local processes; 0 for one on each core.
      on_split: is called with (splits done, splits in all, result) for each split.

    Returns:
      The finished corpus.

    Raises:
      UserError: the input is not there, or the folder holds something else.
    """
    folder = storage.path(output)
    splits = sources.plan(source)
    identity = _identity(splits, source, settings, tokenizer)
    done = _continue(folder, identity)
    if done is not None:
        runner = runner or functools.partial(run_locally, workers=workers)
        job = Job(source, settings, tokenizer, os.fspath(output))
        todo = [(i, split) for i, split in enumerate(splits) if i not in done]
        results = done
        for index, result in runner(job, todo):
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


def _continue(folder: storage.Path, identity: dict) -> dict[int, SplitResult] | None:
    """Results of splits already built; None if the corpus is complete."""
    state = _settings_path(folder)
    storage.check(folder)
    try:
        storage.make_folder(folder)
    except OSError as error:
        raise _cannot_write(folder, error) from error
    if (folder / shards.MANIFEST).exists():
        found = shards.open_corpus(folder).settings
    elif state.exists():
        found = json.loads(state.read_text(encoding="utf-8"))
    elif any(folder.glob("*")):
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
    storage.make_folder(folder / _WORK)
    try:
        storage.write_text(state, json.dumps(identity))
    except OSError as error:
        raise _cannot_write(folder, error) from error
    names = [path.name for path in (folder / _WORK).glob("split-*.json")]
    done = [int(n.removeprefix("split-").removesuffix(".json")) for n in names]
    return dict(read_kept(folder, done))


def _cannot_write(folder: storage.Path, error: OSError) -> UserError:
    return UserError(f"cannot write to {folder}: {error.strerror or error}")


def run_locally(
    job: Job, todo: Sequence[tuple[int, sources.Split]], *, workers: int = 0
) -> Iterator[tuple[int, SplitResult]]:
    """Build splits with some processes, and a bounded number of splits under way.

    Args:
      job: what they have in common.
      todo: the splits and their numbers.
      workers: processes; 0 for one on each core.

    Yields:
      Number and result of each split, as they come.
    """
    workers = workers or os.cpu_count() or 1
    if min(workers, len(todo)) <= 1:
        for index, split in todo:
            yield index, build_and_keep(job, index, split)
        return
    # Each process has one core; the tokenizer's own threads would only compete.
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(workers, mp_context=context) as pool:
        queue = collections.deque(todo)
        running: dict[concurrent.futures.Future, int] = {}
        while queue or running:
            while queue and len(running) < 2 * workers:
                index, split = queue.popleft()
                running[pool.submit(build_and_keep, job, index, split)] = index
            ended, _ = concurrent.futures.wait(
                running, return_when=concurrent.futures.FIRST_COMPLETED
            )
            for future in ended:
                yield running.pop(future), future.result()


def _finish(
    folder: storage.Path,
    tokenizer: tokenizer_lib.Tokenizer,
    identity: dict,
    results: list[SplitResult],
) -> None:
    if not any(result.train.documents for result in results):
        lines = [line for result in results for line in result.problems]
        why = f" ({lines[0]})" if lines else ""
        # Leave nothing that would stand in the way of the corrected command.
        storage.remove_folder(folder)
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
    for left in folder.glob("*.tmp"):  # of a process that was killed
        left.unlink()
    shards.write_manifest(folder, tokenizer, found, identity, problems)
    storage.remove_folder(folder / _WORK)
