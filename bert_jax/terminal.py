"""Lines and progress bars for people, on standard error."""

import sys
from typing import Any

import tqdm


def progress_bar(**options: Any) -> tqdm.tqdm:
    """A bar on a terminal; elsewhere nothing, with `disable` set."""
    return tqdm.tqdm(
        file=sys.stderr, disable=not sys.stderr.isatty(), dynamic_ncols=True, **options
    )


def say(line: str) -> None:
    """Print a line, above a progress bar if there is one."""
    tqdm.tqdm.write(line, file=sys.stderr)
    sys.stderr.flush()


def warn(count: int, lines: list[str]) -> None:
    """Print the first of `count` warnings, and how many there are beside them."""
    for line in lines:
        say(f"warning: {line}")
    if count > len(lines):
        say(f"warning: and {count - len(lines)} more like these")
