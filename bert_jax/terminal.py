"""Messages and progress bars on standard error."""

import os
import re
import sys
from typing import Any

import tqdm


def progress_bar(**options: Any) -> tqdm.tqdm:
    """Return a progress bar, which is shown only on a terminal.

    It is disabled on a terminal of 0 lines (`ssh -tt` in a job), where tqdm shows
    nothing.
    """
    has_lines = (
        sys.stderr.isatty() and os.get_terminal_size(sys.stderr.fileno()).lines > 0
    )
    return tqdm.tqdm(
        file=sys.stderr, disable=not has_lines, dynamic_ncols=True, **options
    )


def say(line: str) -> None:
    """Print a line, above any progress bar."""
    tqdm.tqdm.write(line, file=sys.stderr)
    sys.stderr.flush()


def pluralise(number: int, noun: str) -> str:
    """Return a number with a noun, such as "1 document" and "2,000 documents"."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def warn(lines: list[str], total: int = 0) -> None:
    """Print warnings, and the number of further ones if there are `total` in all."""
    for line in lines:
        say(f"warning: {line}")
    if total > len(lines):
        say(f"warning: {pluralise(total - len(lines), 'more warning')} of this kind")


# Characters that break a line or control a terminal.
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029]")
# Surrogates that do not encode bytes; JSON can contain them.
_SURROGATE = re.compile("[\ud800-\udc7f\udd00-\udfff]")


def printable(text: str) -> str:
    """Make a text, such as a file name, fit for one line of UTF-8.

    Control characters and bytes that are not UTF-8 become escapes.
    """
    text = _SURROGATE.sub(lambda c: f"\\u{ord(c[0]):04x}", text)
    text = text.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
    return _CONTROL.sub(lambda c: c[0].encode("unicode_escape").decode(), text)
