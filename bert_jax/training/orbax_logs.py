"""Filters for what Orbax and asyncio log about errors that Orbax also raises."""

import logging
import os
import traceback
import warnings

from absl import logging as absl_logging


def install() -> None:
    """Drop the log records and warnings that follow a failed read or write."""
    absl_logging.get_absl_logger().addFilter(_is_news)
    # When one of many reads fails, asyncio reports each of the cancelled ones.
    logging.getLogger("asyncio").addFilter(_is_news)
    warnings.filterwarnings("ignore", "coroutine .* was never awaited", RuntimeWarning)


def _is_news(record: logging.LogRecord) -> bool:
    """Return False for errors that Orbax raises, and for damaged metadata."""
    if record.name == "asyncio":  # its tasks are Orbax's reads, which also raise
        return not record.getMessage().startswith("Task exception was never retrieved")
    if os.path.basename(record.pathname) == "orbax_layout.py":
        return not str(record.msg).startswith("Failed to get metadata")
    error = record.exc_info[1] if record.exc_info else None
    frames = traceback.extract_tb(error.__traceback__) if error else []
    return not any(f"{os.sep}orbax{os.sep}" in frame.filename for frame in frames)
