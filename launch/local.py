#!/usr/bin/env python3
r"""Start a run as several processes on this machine, and restart it when one dies.

  python launch/local.py --processes=4 --devices=2 --restarts=3 -- \
      python -m bert_jax.run.pretrain --config=configs/bert_miniature.py:smoke ...

Each process has --devices emulated CPU devices, by default one, and the command with
--coordinator_address, --num_processes and --process_id added if there are several.
This is a small pod, with the restart rules of a pod (launch/README.md): status 0 means
done, 2 means a mistake that a restart would repeat; after anything else, all processes
are restarted.
There are at most --restarts restarts, none by default, and a stop (75) counts as one.
A first Ctrl-C or SIGTERM asks all processes to save and stop; a second Ctrl-C kills
them. Only Python is needed.

Exit status: 0 done, 2 a mistake, 75 stopped and saved, 1 crashed too often.
"""

import argparse
import contextlib
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time

# Time for the other processes to notice that one has died, before they are killed.
_GRACE_SECONDS = 5.0
_MAX_COUNT = 256
_DONE, _CRASHED, _MISTAKE, _STOPPED = 0, 1, 2, 75


def main() -> int:
    """Parse the arguments, and start the command until it is done."""
    # Closed by the shell, with 2>&-. The output of processes needs a reader.
    sys.stderr = sys.stderr or open(os.devnull, "w")  # noqa: SIM115
    options = _parse()
    received: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, _: received.append(number))
    for start in range(options.restarts + 1):
        status = _summary(_start(options, received))
        if status in (_DONE, _MISTAKE) or received:
            return status
        left = options.restarts - start
        _say(f"ended with status {status}, {left} restarts left")
    return status


class _Parser(argparse.ArgumentParser):
    def error(self, message):
        print(f"error: {message}", file=sys.stderr)
        sys.exit(_MISTAKE)


def _parse() -> argparse.Namespace:
    parser = _Parser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--processes", type=int, default=2, help="their number (default: 2)"
    )
    parser.add_argument("--devices", type=int, default=1, help="CPU devices of each")
    parser.add_argument("--restarts", type=int, default=0, help="maximum")
    parser.add_argument("--dry_run", action="store_true", help="print the commands")
    parser.add_argument("command", nargs="+", help="after --")
    options = parser.parse_args()
    sizes = options.processes, options.devices
    if not all(1 <= size <= _MAX_COUNT for size in sizes) or options.restarts < 0:
        parser.error(
            f"--processes and --devices must be from 1 to {_MAX_COUNT}, and --restarts "
            "at least 0"
        )
    if not options.dry_run and not shutil.which(options.command[0]):
        parser.error(f"there is no program {options.command[0]!r}")
    return options


def _start(options: argparse.Namespace, received: list[int]) -> list[int]:
    """Start all processes and wait for them; return their exit statuses.

    The signals that this program receives are appended to `received`.
    """
    port = _free_port()
    settings = {"JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": str(options.devices)}
    running, relays = [], []
    for index in range(options.processes):
        command = [*options.command]
        if options.processes > 1:
            command += [
                f"--coordinator_address=localhost:{port}",
                f"--num_processes={options.processes}",
                f"--process_id={index}",
            ]
        if options.dry_run:
            assignments = " ".join(
                f"{name}={value}" for name, value in settings.items()
            )
            print(assignments, shlex.join(command), "&")
            continue
        process = subprocess.Popen(
            command,
            env={**os.environ, **settings},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # so that what it starts dies with it
        )
        _say(f"process {index} has pid {process.pid}")
        relay = threading.Thread(target=_relay, args=(index, process.stdout))
        relay.start()
        running.append(process)
        relays.append(relay)
    _wait(running, relays, received)
    return [process.returncode for process in running]


def _wait(
    running: list[subprocess.Popen], relays: list[threading.Thread], received: list[int]
) -> None:
    """Wait for all processes, and for what they started and left behind."""
    deadline = None
    expected = {None, _DONE, _STOPPED}
    while any(process.poll() is None for process in running) or any(
        relay.is_alive() for relay in relays
    ):
        time.sleep(0.02)
        if received and -signal.SIGTERM not in expected:
            # A shell around the program ends at once, and the program saves first.
            expected.add(-signal.SIGTERM)
            _signal_groups(running, signal.SIGTERM)
        statuses = [process.poll() for process in running]
        if deadline is None and not expected.issuperset(statuses):
            deadline = time.monotonic() + _GRACE_SECONDS
        is_late = deadline is not None and time.monotonic() > deadline
        if is_late or received.count(signal.SIGINT) > 1:
            _signal_groups(running, signal.SIGKILL)


def _signal_groups(running: list[subprocess.Popen], number: int) -> None:
    for process in running:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)


def _summary(statuses: list[int]) -> int:
    """Return one status for all processes: a mistake before a crash, then a stop."""
    if _MISTAKE in statuses:
        return _MISTAKE
    if any(status not in (_DONE, _STOPPED) for status in statuses):
        return _CRASHED
    return _STOPPED if _STOPPED in statuses else _DONE


def _relay(index: int, stream) -> None:
    # If nobody reads this program's output, the pipe of the process is closed, too.
    with stream, contextlib.suppress(BrokenPipeError):
        for line in stream:
            sys.stderr.buffer.write(b"[%d] %s" % (index, line))
            sys.stderr.buffer.flush()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        return probe.getsockname()[1]


def _say(line: str) -> None:
    print(f"[launcher] {line}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
