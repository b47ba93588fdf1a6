"""Build the splits of a corpus with Apache Beam, on a cluster or on this machine.

`runner` gives a runner for `build.build`. Its workers call the same function for the
same splits as local processes do, and it writes the same files to the same folder. Beam
itself only handles numbers and locations of splits, so that it does not matter how it
bundles them, or whether it repeats one.

Only `run.build_corpus` imports this module. It needs the extra `beam`.
"""

import contextlib
import io
import re
import shlex
import traceback
from collections.abc import Generator, Sequence

import apache_beam
from apache_beam.options import pipeline_options
from apache_beam.runners.runner import PipelineState

from bert_jax.corpus import build, build_state, sources, splits
from bert_jax.errors import Unavailable, UserError

# These runners ask their job server which options exist.
_PORTABLE_RUNNERS = ("PortableRunner", "FlinkRunner", "SparkRunner", "PrismRunner")


def runner(options: str) -> build.Runner:
    """A runner for `build.build`.

    Args:
      options: Beam's pipeline options, as on a command line.

    Raises:
      UserError: An option does not exist, is missing, or has a wrong value.
    """
    pipeline = _pipeline(options)

    def run(
        job: build_state.Job, todo: Sequence[tuple[int, sources.Split]]
    ) -> Generator[tuple[int, splits.SplitResult], None, None]:
        if not todo:
            return
        splits = pipeline | "Splits" >> apache_beam.Create(todo)
        # Without a shuffle, all splits would stay on one worker.
        spread = splits | "Spread" >> apache_beam.Reshuffle()
        _ = spread | "Build" >> apache_beam.ParDo(_Build(job))
        _wait(pipeline)
        yield from build_state.read_kept(job.output, [index for index, _ in todo])

    return run


def _wait(pipeline: apache_beam.Pipeline) -> None:
    try:
        state = pipeline.run().wait_until_finish()
    except Exception as error:
        # Errors of other processes arrive as a RuntimeError with a traceback as text.
        text = "".join(traceback.format_exception_only(error))
        line = re.search(
            r"(UserError|Unavailable): (.*?)(?: \[while running .*)?$",
            text,
            re.MULTILINE,
        )
        if line:
            kind = {"UserError": UserError, "Unavailable": Unavailable}[line[1]]
            raise kind(line[2]) from error
        raise
    if state != PipelineState.DONE:
        raise UserError(f"Beam's job ended as {state}; the same command continues")


class _Build(apache_beam.DoFn):
    """Builds splits. The results are kept in the output folder."""

    def __init__(self, job: build_state.Job):
        self._job = job

    def process(self, numbered: tuple[int, sources.Split]) -> None:
        index, split = numbered
        if not build_state.is_begun(self._job):
            raise UserError(
                f"{self._job.output} is another place on Beam's workers; give an "
                "--output that all machines share"
            )
        # If one split of a bundle fails, Beam repeats the whole bundle.
        if not build_state.is_kept(self._job, index):
            build_state.build_and_keep(self._job, index, split)


def _pipeline(text: str) -> apache_beam.Pipeline:
    """An empty pipeline with checked options."""
    where = f"--beam_options={text!r}"
    complaint = io.StringIO()
    try:
        arguments = shlex.split(text)
        if arguments and not arguments[0].startswith("--"):
            raise ValueError("options are given as --name=value")
        options = pipeline_options.PipelineOptions(arguments)
        with contextlib.redirect_stderr(complaint):
            _check_known(options)
        return apache_beam.Pipeline(options=options)
    except ValueError as error:
        raise UserError(f"{where}: {_one_line(error)}") from error
    except SystemExit as error:  # argparse's
        reason = complaint.getvalue().rpartition("error: ")[2]
        raise UserError(f"{where}: {_one_line(reason)}") from error


def _check_known(options: pipeline_options.PipelineOptions) -> None:
    given = options.get_all_options(retain_unknown_options=True)
    unknown = given.keys() - options.get_all_options().keys()
    engine = options.view_as(pipeline_options.StandardOptions).runner
    if unknown and engine not in _PORTABLE_RUNNERS:
        raise ValueError(f"Beam knows no option --{min(unknown)}")


def _one_line(message: object) -> str:
    return " ".join(str(message).split())
