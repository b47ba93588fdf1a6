"""Interleaved timing of the sides of a comparison.

`rounds` times functions of this process. `medians` times sides that have a process
each. They prepare together. Then one at a time works while the rest wait for input, so
that all see the machine in the same state. The first step of a turn does not count: it
takes longer, because memory that was free meanwhile has gone back to the system.
"""

import select
import statistics
import subprocess
import sys
import time

# A turn has as many steps as fit into this, and one at least.
TURN_SECONDS = 3.0
MAX_TURNS = 8


def rounds(functions, count):
    """Call functions in turns. Return their results after a first, uncounted round."""
    made = [
        {n: measure() for n, measure in functions.items()} for _ in range(1 + count)
    ]
    return {name: [results[name] for results in made[1:]] for name in functions}


def serve(prepare):
    """Prepare a function that runs steps. Time it for each count on standard input."""
    run = prepare()

    def report(count):
        run(1)
        start = time.perf_counter()
        run(count)
        print((time.perf_counter() - start) / count, flush=True)

    report(1)
    for line in sys.stdin:
        report(int(line))


class Side:
    """A process that runs steps on request."""

    def __init__(self, arguments, environment):
        self._process = subprocess.Popen(
            [sys.executable, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )

    def wait(self, deadline):
        """Return the next reported seconds of a step, or None at the deadline.

        The first report says that the process is ready.

        Raises:
          SystemExit: The process ended.
        """
        left = max(deadline - time.monotonic(), 0)
        if not select.select([self._process.stdout], [], [], left)[0]:
            return None
        if not (line := self._process.stdout.readline()):
            raise SystemExit(f"a side ended with status {self._process.wait()}")
        return float(line)

    def seconds_per_step(self, count, deadline):
        """Run one step and then `count` timed ones. Return None at the deadline."""
        self._process.stdin.write(f"{count}\n")
        self._process.stdin.flush()
        return self.wait(deadline)

    def end(self):
        self._process.kill()
        self._process.communicate()


def medians(commands, environment, deadline):
    """Return the median seconds per step of each side, and the number of turns.

    Args:
      commands: Arguments of Python for each side, by name.
      environment: Environment of all of them.
      deadline: On the clock `time.monotonic`. A side that is not ready when two thirds
        of the time are over has no median.
    """
    now = time.monotonic()
    ready_by = now + (deadline - now) * 2 / 3
    sides = {name: Side(command, environment) for name, command in commands.items()}
    turns = {name: [] for name in sides}
    try:
        expected = {}
        for name, side in sides.items():
            if seconds := side.wait(ready_by):
                expected[name] = seconds
            else:
                side.end()
        _take_turns(turns, sides, expected, deadline)
    finally:
        for side in sides.values():
            side.end()
    turns = {name: seconds for name, seconds in turns.items() if seconds}
    middle = {name: statistics.median(seconds) for name, seconds in turns.items()}
    return middle, min(map(len, turns.values()), default=0)


def _take_turns(turns, sides, expected, deadline):
    """Time all ready sides in turns until the deadline, and append to `turns`."""
    longest = 0.0
    for _ in range(MAX_TURNS):
        begin = time.monotonic()
        if begin + longest > deadline:
            return
        for name, seconds in expected.items():
            count = max(1, int(TURN_SECONDS / seconds))
            done = sides[name].seconds_per_step(count, deadline)
            if done is None:
                return
            turns[name].append(done)
        longest = max(longest, time.monotonic() - begin)
