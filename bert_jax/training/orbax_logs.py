"""Filters for log messages that repeat an exception of Orbax."""

import functools
import inspect
import logging
import os
import sys
import traceback
import warnings
from collections.abc import Callable
from typing import Any

from absl import logging as absl_logging


def install() -> None:
    """Drop the log records and warnings that follow a failed read or write."""
    absl_logging.get_absl_logger().addFilter(_is_worth_logging)
    # When one of many reads fails, asyncio reports each of the cancelled ones: in its
    # log, as warnings, and while their coroutines are destroyed.
    logging.getLogger("asyncio").setLevel(logging.CRITICAL)
    warnings.filterwarnings("ignore", "coroutine .* was never awaited", RuntimeWarning)
    sys.unraisablehook = functools.partial(_report_unraisable, sys.unraisablehook)


def _is_worth_logging(record: logging.LogRecord) -> bool:
    """Return False for records that repeat an exception, or report damaged metadata."""
    if os.path.basename(record.pathname) == "orbax_layout.py":
        return not str(record.msg).startswith("Failed to get metadata")
    error = record.exc_info[1] if record.exc_info else None
    frames = traceback.extract_tb(error.__traceback__) if error else []
    return not any(f"{os.sep}orbax{os.sep}" in frame.filename for frame in frames)


def _report_unraisable(report: Callable[[Any], None], problem: Any) -> None:
    """Report an error in a destructor, unless it is of a cancelled read."""
    is_closed_loop = str(problem.exc_value) == "Event loop is closed"
    if not is_closed_loop and not inspect.iscoroutine(problem.object):
        report(problem)
