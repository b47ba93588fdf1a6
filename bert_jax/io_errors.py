"""Failures of disks and object stores: which are transient, and their messages.

Stores raise errors of aiohttp, google.auth and gcsfs, and TensorStore errors of its
own. They have no common base class, and the reason is often an error's cause.
"""

import errno
import os
from collections.abc import Iterator

from bert_jax.errors import Unavailable, UserError

# Parts of libraries' messages about transient failures. TensorStore also says
# RESOURCE_EXHAUSTED of a full disk.
_TRANSIENT = ("DEADLINE_EXCEEDED", "UNAVAILABLE", "RESOURCE_EXHAUSTED", "timed out")
# Classes of aiohttp, requests, gcsfs and TensorFlow, which are not always installed.
# gcsfs raises these after several attempts (gcsfs/retry.py), as TensorFlow does.
_TRANSIENT_CLASSES = {
    *("UnavailableError", "AbortedError", "DeadlineExceededError"),
    *("ClientConnectionError", "ClientPayloadError", "ConnectionError"),
    *("ChunkedEncodingError", "ContentDecodingError", "ChecksumError"),
}
# Parts of the messages of gcsfs, TensorStore and TensorFlow when a store refuses access
# (HTTP 401 and 403). Some errors of gcsfs have only this text, others have a `code`.
_REFUSED = (
    *("Forbidden: ", "PERMISSION_DENIED", "UNAUTHENTICATED"),
    *("HTTP response code 401", "HTTP response code 403"),
)


def is_transient(error: BaseException) -> bool:
    """Return whether an error is transient, such as a timeout."""
    if disk_message(error):
        return False
    for seen in _causes(error):
        code = getattr(seen, "code", 0)  # of gcsfs: HTTP status
        if isinstance(code, int) and (code in (408, 429) or 500 <= code < 600):
            return True
        if isinstance(seen, TimeoutError | ConnectionError | MemoryError):
            return True
        if _TRANSIENT_CLASSES & {c.__name__ for c in type(seen).__mro__}:
            return True
        if getattr(seen, "errno", 0) in (errno.ESTALE, errno.EMFILE, errno.ENFILE):
            return True
        if any(text in str(seen) for text in _TRANSIENT):
            return True
    return False


def wrap_error(error: BaseException, text: str) -> UserError | Unavailable:
    """Return the exception to raise for an I/O error, with a message for the user."""
    return Unavailable(text) if is_transient(error) else UserError(text)


def message(error: BaseException) -> str:
    """Return the message of an I/O error on one line, without its number and path."""
    if isinstance(error, FileNotFoundError):  # a store's error has only the path
        return os.strerror(errno.ENOENT)
    return " ".join((getattr(error, "strerror", None) or str(error)).split())


def refusal(error: BaseException) -> str:
    """Return a store's message, on one line, if it refuses access; "" otherwise."""
    if is_transient(error):  # for example, no answer while credentials are renewed
        return ""
    for seen in _causes(error):
        is_refused = getattr(seen, "code", 0) in (401, 403)
        if is_refused or any(text in str(seen) for text in _REFUSED):
            return " ".join(str(seen).split())
    return ""


_DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES)


def disk_message(error: BaseException) -> str:
    """Return the system's message if an error or its cause is about the disk, or "".

    TensorStore has no error types for this, but its messages end with the system's.
    """
    for seen in _causes(error):
        for number in _DISK_ERRORS:
            if os.strerror(number) in str(seen) or (
                isinstance(seen, OSError) and seen.errno == number
            ):
                return os.strerror(number)
    return ""


def is_refused(error: BaseException) -> bool:
    """Return whether a disk or a store refuses access to files."""
    return bool(refusal(error)) or disk_message(error) == os.strerror(errno.EACCES)


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__
