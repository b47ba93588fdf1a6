"""Error reports and exit statuses of all programs."""

import contextlib
import errno
import os
import select
import signal
import sys
import traceback
from collections.abc import Iterable, Iterator
from typing import TextIO

from absl import flags

from bert_jax import io_errors, terminal
from bert_jax.errors import EXIT_RESUMABLE, Interrupted, Unavailable, UserError

EXIT_CRASH = 1
EXIT_USER_ERROR = 2


@contextlib.contextmanager
def reported_errors() -> Iterator[None]:
    """Context of a program. It reports errors, and exits with their status.

    Exit status: 2 after an error that a restart would repeat, with one line: a
    `UserError`, an invalid flag, a device with too little memory, a store that refuses
    access, a full disk. 75 if the run was interrupted; 1 after an outage, a crash, or a
    closed output pipe.
    """
    # SIGTERM, sent before a machine is preempted, stops a program like Ctrl-C.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by the shell, with >&-
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115
    streams = sys.stdout, sys.stderr
    for stream in streams:
        # Escape characters that the terminal's encoding lacks.
        stream.reconfigure(errors="backslashreplace")
    try:
        try:
            with _exit_statuses():
                yield
        finally:
            for stream in streams:
                stream.flush()  # at exit, a failure would print a traceback
    except BrokenPipeError as error:
        closed = [stream for stream in streams if _is_closed_pipe(stream)]
        if not closed:  # a socket, say
            _crash(error)
        _discard(closed)
        _exit(EXIT_CRASH, error)
    except OSError as error:
        if not _is_full_disk(error):
            _crash(error)
        _discard([sys.stdout])
        with contextlib.suppress(OSError):  # stderr may be on the same disk
            place = f" {error.filename}" if error.filename else ""
            _report(f"error: cannot write{place}: {error.strerror}")
        _discard([sys.stderr])
        _exit(EXIT_USER_ERROR, error)


@contextlib.contextmanager
def _exit_statuses() -> Iterator[None]:
    try:
        yield
    except (UserError, flags.CantOpenFlagFileError) as error:
        _report(f"error: {str(error).removeprefix('ERROR:: ')}")
        _exit(EXIT_USER_ERROR, error)
    except Unavailable as error:
        _report(f"error: {error}")
        _exit(EXIT_CRASH, error)
    except Interrupted as stop:
        _report(f"{stop}; the same command continues")
        sys.exit(EXIT_RESUMABLE)
    except KeyboardInterrupt as stop:
        _report("stopped")
        _exit(EXIT_RESUMABLE, stop)
    except Exception as error:
        if isinstance(error, BrokenPipeError) or _is_full_disk(error):
            raise
        if not (line := _explain(error)):
            _crash(error)
        _report(f"error: {line}")
        _exit(EXIT_USER_ERROR, error)


def _explain(error: Exception) -> str:
    """Return a line for an error of a library that the user can correct, or ""."""
    if reason := io_errors.refusal(error):
        return f"access is refused; check your credentials: {reason}"
    line = str(error).partition("\n")[0].rstrip(".")
    is_jax = type(error).__name__ == "JaxRuntimeError"  # JAX is slow to import
    if is_jax and line.startswith("RESOURCE_EXHAUSTED"):
        if io_errors.disk_message(error):
            return f"cannot write: {line}"  # a profile, for instance
        return (
            f"{line}; use a smaller batch_size or length, or in training more "
            "micro_batches or devices, or remat=layer"
        )
    if _is_missing_platform(error):
        platforms = os.environ.get("JAX_PLATFORMS")
        return (
            f"JAX_PLATFORMS={platforms} is not installed here; unset it, or install "
            "the extra for that platform (README.md)"
        )
    return ""


def _is_missing_platform(error: Exception) -> bool:
    """Return whether JAX was asked for a platform that it does not know."""
    if not os.environ.get("JAX_PLATFORMS"):
        return False
    frames = traceback.extract_tb(error.__traceback__)
    in_jax = frames[-1].filename.endswith("xla_bridge.py")
    unknown = "not in the list of known backends" in str(error)
    return in_jax and (unknown or isinstance(error, AssertionError))


def _crash(error: BaseException) -> None:
    if "jax" not in sys.modules:
        raise error
    traceback.print_exc()
    _exit(EXIT_CRASH, error)


def _is_closed_pipe(stream: TextIO) -> bool:
    """Return whether a stream is a pipe whose reader is gone, as after `| head`."""
    poll = select.poll()
    poll.register(stream, 0)
    return any(event & select.POLLERR for _, event in poll.poll(0))


def _is_full_disk(error: Exception) -> bool:
    return isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)


def _discard(streams: Iterable[TextIO]) -> None:
    """Discard what the streams still hold, and what follows."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in streams:
        os.dup2(nowhere, stream.fileno())


def _report(line: str) -> None:
    print(terminal.printable(line), file=sys.stderr)


def _exit(status: int, error: BaseException) -> None:
    if "jax" in sys.modules:  # not every program has it, and it takes a second
        from bert_jax.training import processes

        processes.exit_process(status, error)
    sys.exit(status)
