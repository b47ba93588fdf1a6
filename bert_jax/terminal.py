"""Lines and progress bars for people, on standard error."""

import re
import sys
from typing import Any

import tqdm


def progress_bar(**options: Any) -> tqdm.tqdm:
    """A progress bar on a terminal; elsewhere a silent one, with `disable` set."""
    return tqdm.tqdm(
        file=sys.stderr, disable=not sys.stderr.isatty(), dynamic_ncols=True, **options
    )


def say(line: str) -> None:
    """Print a line, above a progress bar if there is one."""
    tqdm.tqdm.write(line, file=sys.stderr)
    sys.stderr.flush()


def warn(count: int, lines: list[str]) -> None:
    """Print warnings.

    Args:
      count: Number of all warnings.
      lines: The first of them.
    """
    for line in lines:
        say(f"warning: {line}")
    if count > len(lines):
        say(f"warning: and {count - len(lines)} more like these")


# Characters that break a line or control a terminal.
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029]")
# Surrogates that do not stand for bytes; JSON can have them.
_SURROGATE = re.compile("[\ud800-\udc7f\udd00-\udfff]")


def printable(text: str) -> str:
    """Text, such as a file name, on one line, for any terminal and for UTF-8 files.

    Bytes that are not UTF-8 and control characters become escapes.
    """
    text = _SURROGATE.sub(lambda c: f"\\u{ord(c[0]):04x}", text)
    text = text.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
    return _CONTROL.sub(lambda c: c[0].encode("unicode_escape").decode(), text)
