"""Runner that builds splits with Apache Beam, on a cluster or on this machine.

`make` returns a runner for `build.build`. Its workers call the same function as local
processes do, and write the same files to the same folder. Beam itself only handles
numbers and locations of splits, so it does not matter how Beam bundles them, or whether
it repeats one.

Only `run.build_corpus` imports this module. It needs the extra `beam`.
"""

import functools
import hashlib
import re
import shlex
import traceback
from collections.abc import Generator, Sequence

import apache_beam
from apache_beam.options import pipeline_options
from apache_beam.runners.runner import PipelineState

from bert_jax import storage
from bert_jax.corpus import build, build_state, sources, splits
from bert_jax.errors import Unavailable, UserError


def make(options: str) -> build.Runner:
    """Return a runner for `build.build`."""
    try:
        parsed = pipeline_options.PipelineOptions(shlex.split(options))
        pipeline = apache_beam.Pipeline(options=parsed)
    except ValueError as error:
        message = " ".join(str(error).split())
        raise UserError(f"--beam_options={options!r}: {message}") from error

    def run(
        job: splits.Job, todo: Sequence[tuple[int, sources.InputSplit]]
    ) -> Generator[tuple[int, splits.SplitResult], None, None]:
        if not todo:
            return
        indices = [index for index, _ in todo]
        # The graph of a job has a limited size, so the splits are planned in a worker.
        begin = pipeline | "Begin" >> apache_beam.Create([indices])
        numbered = begin | "Plan" >> apache_beam.FlatMap(_plan, job, _digest(todo))
        # Without a shuffle, all splits would stay on one worker.
        spread = numbered | "Spread" >> apache_beam.Reshuffle()
        versions = build_state.versions()
        _ = spread | "Build" >> apache_beam.Map(_build_split, job, versions)
        _wait(pipeline)
        read = functools.partial(build_state.read_result, storage.path(job.output))
        yield from zip(indices, storage.map_in_threads(read, indices), strict=True)

    return run


def _wait(pipeline: apache_beam.Pipeline) -> None:
    try:
        state = pipeline.run().wait_until_finish()
    except Exception as error:
        # Errors of workers arrive as a RuntimeError with a traceback as text.
        text = "".join(traceback.format_exception_only(error))
        pattern = r"(?m)(UserError|Unavailable): (.*?)(?: \[while running .*)?$"
        if line := re.search(pattern, text):
            kind = UserError if line[1] == "UserError" else Unavailable
            raise kind(line[2]) from error
        # Ctrl-C and SIGTERM, while this process builds a split.
        if "KeyboardInterrupt [while running" in text:
            raise KeyboardInterrupt from error
        raise
    if state != PipelineState.DONE:
        raise UserError(f"Beam's job ended as {state}; the same command continues")


def _digest(numbered: Sequence[tuple[int, sources.InputSplit]]) -> str:
    return hashlib.sha256(repr(list(numbered)).encode("utf-8")).hexdigest()


def _plan(
    indices: list[int], job: splits.Job, digest: str
) -> list[tuple[int, sources.InputSplit]]:
    """Return the numbered splits to build, in a worker."""
    wanted = set(indices)
    numbered = [(i, s) for i, s in enumerate(sources.plan(job.source)) if i in wanted]
    if _digest(numbered) != digest:
        raise UserError(
            f"{job.source.pattern or job.source.format} has changed, or differs on "
            "Beam's workers; give an --input that all machines share"
        )
    return numbered


def _build_split(
    numbered: tuple[int, sources.InputSplit], job: splits.Job, versions: dict[str, str]
) -> None:
    """Build a split, in a worker. The output folder keeps the result."""
    index, split = numbered
    folder = storage.path(job.output)
    if not build_state.settings_path(folder).exists():
        raise UserError(
            f"Beam's workers do not see the build in {folder}; give an --output that "
            "all machines share"
        )
    build_state.check_versions(folder, versions)
    # If one split of a bundle fails, Beam repeats the whole bundle.
    if not build_state.result_path(folder, index).exists():
        build_state.build_and_save(job, index, split)
