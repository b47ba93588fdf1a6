"""Processes of a run: how they connect, agree, and exit.

A pod runs the same program on each host. Processes do the same things in the same
order, because collectives wait for all of them. An error of one process, such as a file
that is missing on its host, must be raised in all of them: see `raise_in_all`.
"""

import contextlib
import glob
import importlib.util
import itertools
import json
import os
import re
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils

from bert_jax import terminal
from bert_jax.errors import UserError

# Time limit for all processes to start. JAX's five minutes are too short for slices
# that GKE creates one after the other.
_START_SECONDS = 1800


def start(
    coordinator_address: str = "", num_processes: int = 0, process_id: int = -1
) -> None:
    """Connect to the other processes of this run, if there are any.

    On TPU hosts, under Slurm and under Open MPI, up to its version 4, no arguments are
    needed. Must be called before JAX initialises its devices.
    """
    given = bool(coordinator_address), num_processes > 0, process_id >= 0
    if any(given) and not all(given):
        raise UserError(
            "--coordinator_address, --num_processes and --process_id belong together; "
            "give all three, or none on TPU hosts and under Slurm"
        )
    if coordinator_address and not re.fullmatch(r".+:\d+", coordinator_address):
        raise UserError(
            f"--coordinator_address={coordinator_address}: expected HOST:PORT"
        )
    if all(given) and process_id >= num_processes:
        raise UserError(
            f"--process_id={process_id} must be less than --num_processes="
            f"{num_processes}"
        )
    if not all(given) and not _has_peers():
        return
    # The loop stops all processes at the same step itself (`programs.HostSignals`).
    jax.config.update("jax_enable_preemption_service", False)
    address = (coordinator_address, num_processes, process_id) if all(given) else ()
    terminal.say("connecting to the other processes, if there are any")
    # If another process is late, the traceback and exit status 1 say "restart".
    try:
        jax.distributed.initialize(*address, initialization_timeout=_START_SECONDS)
    except ValueError as error:  # such as Open MPI 5, which JAX does not recognise
        raise UserError(
            f"JAX cannot find the other processes ({error}); give "
            "--coordinator_address, --num_processes and --process_id"
        ) from error


def _has_peers() -> bool:
    """Return whether this process was started as one of several, or on a TPU host.

    A TPU host may be part of a pod. `jax.distributed.initialize` asks the metadata
    server, and works for a single host, too.
    """
    environment = os.environ
    counts = ("SLURM_STEP_NUM_TASKS", "OMPI_COMM_WORLD_SIZE")
    if (
        "," in environment.get("TPU_WORKER_HOSTNAMES", "")
        or "MEGASCALE_COORDINATOR_ADDRESS" in environment
        or any(int(environment.get(count, "1")) > 1 for count in counts)
    ):
        return True
    has_chips = glob.glob("/dev/accel[0-9]*") or glob.glob("/dev/vfio/[0-9]*")
    wanted = (environment.get("JAX_PLATFORMS") or "tpu").startswith("tpu")
    return bool(has_chips and wanted and importlib.util.find_spec("libtpu"))


def is_main() -> bool:
    """Return whether this is process 0, which alone writes logs and metrics."""
    return jax.process_index() == 0


def say(line: str) -> None:
    """Print a line if this is process 0."""
    if is_main():
        terminal.say(line)


@contextlib.contextmanager
def raise_in_all() -> Iterator[None]:
    """Raise an error of one process in all processes, at the end of the block.

    Nothing inside may wait for other processes.

    Raises:
      UserError: In all processes, if one raised it.
      RuntimeError: In the other processes, if one raised anything else.
    """
    if jax.process_count() == 1:
        yield
        return
    mistake, crash, raised = "", "", None
    try:
        yield
    except UserError as error:
        mistake, raised = str(error), error
    except Exception as error:
        crash, raised = f"{type(error).__name__}: {error}", error
    # A mistake may be the reason for the crash of another process, such as a timeout.
    mistake = first_text(mistake)
    if mistake:
        raise UserError(mistake, in_all_processes=True) from raised
    crashes = gather_text(crash)
    if raised:
        raise raised
    for process, crash in enumerate(crashes):
        if crash:
            raise RuntimeError(f"process {process} failed: {crash}")


def call_on_main(function: Callable[[], Any]) -> Any:
    """Call a function in process 0, and return its JSON result in all processes."""
    value = None
    with raise_in_all():
        if is_main():
            value = function()
    if jax.process_count() == 1:
        return value
    return json.loads(gather_text(json.dumps(value) if is_main() else "")[0])


def first_text(text: str) -> str:
    """All-gather a text: return the first that is not empty, or ""."""
    return next(filter(None, gather_text(text)), "")


def gather_text(text: str) -> list[str]:
    """All-gather a text: return the texts of all processes, in order."""
    if jax.process_count() == 1:
        return [text]
    # The text may contain a file name that is not UTF-8.
    encoded = text.encode("utf-8", "backslashreplace")
    sizes = np.asarray(multihost_utils.process_allgather(np.int32(len(encoded))))
    padded = np.zeros(max(sizes.max(), 1), np.uint8)
    padded[: len(encoded)] = np.frombuffer(encoded, np.uint8)
    rows = np.asarray(multihost_utils.process_allgather(padded))
    return [
        bytes(row[:size]).decode("utf-8") for row, size in zip(rows, sizes, strict=True)
    ]


_BARRIERS = itertools.count()
_DAY_MS = 24 * 3600 * 1000  # the watchdog ends a process that hangs


def wait_for_all() -> None:
    """Wait for the other processes, which may still be compiling.

    To be called before compiled programs run for the first time. On CPUs, collectives
    use Gloo, and the first one of a group of devices fails if a device is 30 seconds
    late.
    """
    if jax.process_count() == 1:
        return
    from orbax.checkpoint import multihost  # JAX has a barrier, but not in public

    barrier = multihost.get_barrier_sync_fn()
    barrier(key=f"bert_jax {next(_BARRIERS)}", timeout_ms=_DAY_MS)


def exit_process(status: int, error: BaseException) -> None:
    """Exit at once if this is one of several processes, so that the others notice.

    An orderly exit waits for all processes, and processes that wait for this one in a
    collective would never reach it. Errors that all processes raise exit in order.
    """
    # Not `jax.process_count`, which would initialise devices.
    if jax.distributed.is_initialized() and not getattr(
        error, "in_all_processes", False
    ):
        sys.stdout.flush()
        sys.stderr.flush()
        # If the coordinator exits first, the others cannot print their own errors.
        time.sleep(1.0)
        os._exit(status)
