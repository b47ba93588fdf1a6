"""Schedules of the TPU compiler, read from its dump.

For each fusion and kernel the compiler can write the bundles of instructions that a
core issues, one a cycle, and the trip counts of their loops. Waiting for memory is not
included. Kernels have no other estimate of their cycles.

The form of these files is undocumented; this is the form of libtpu 0.0.42.1.
"""

import atexit
import dataclasses
import os
import pathlib
import re
import shutil
import tempfile

from bert_jax.errors import UserError

_FLAGS = (
    "--xla_jf_dump_to={} --xla_jf_dump_llo_text=true "
    "--xla_jf_dump_llo_pass_label_regex=^final_bundles$"
)
# The files are TIME-NAME-NN-final_bundles.txt, beside TIME-NAME-NN-schedule-analysis...
_FILE = re.compile(r"\d+-(.+)-\d+-final_bundles\.txt")
# `0x1f LB: > > { ... }`: address, what begins here, depth in loops, instructions.
_BUNDLE = re.compile(r"\s*(?:0x[0-9a-f]+|0)\s+([A-Z]{2})?\s*:((?:\s*>)*)\s*\{")
_TRIP_COUNT = re.compile(r"totalorder %\w+, (\d+) /\* loop exit test")


@dataclasses.dataclass
class _Loop:
    """Loop in a schedule."""

    parent: "_Loop | None"  # enclosing loop
    bundles: int = 0  # in the body, inner loops excluded
    trip_count: int = 1  # if the text has none

    def cycles(self) -> int:
        """Return the bundles times the trip counts, enclosing loops included."""
        cycles, loop = self.bundles, self
        while loop is not None:
            cycles, loop = cycles * loop.trip_count, loop.parent
        return cycles


def scheduled_cycles(text: str) -> int:
    """Return the cycles in a file of the dump: bundles times their trip counts.

    Loops without a trip count are short and count once. All sides of a branch count.
    """
    outside, loops = 0, []
    current: dict[int, _Loop] = {}  # by depth
    for line in text.splitlines():
        if not (bundle := _BUNDLE.match(line)):
            continue
        depth = bundle[2].count(">")
        if not depth:
            outside += 1
            continue
        # The branch back to the start of a loop is written outside of it, before its
        # last bundles: only the start of a body, LB, opens a new loop.
        if bundle[1] == "LB" or depth not in current:
            current[depth] = _Loop(current.get(depth - 1))
            loops.append(current[depth])
            current = {d: loop for d, loop in current.items() if d <= depth}
        current[depth].bundles += 1
        if trip_count := _TRIP_COUNT.search(line):
            current[depth].trip_count = int(trip_count[1])
    return outside + sum(loop.cycles() for loop in loops)


class ScheduleFolder:
    """Temporary folder that the compiler writes its schedules to."""

    def __init__(self) -> None:
        """Set the compiler's flags. The compiler must not be loaded yet.

        Raises:
          UserError: The path of temporary files has a space, which separates flags.
        """
        if len(tempfile.gettempdir().split()) > 1:
            raise UserError(
                f"the path {tempfile.gettempdir()!r} contains a space, and --schedule "
                "writes there; set TMPDIR to another folder"
            )
        self._folder = pathlib.Path(tempfile.mkdtemp(prefix="schedules_"))
        # The compiler may write until the end.
        atexit.register(shutil.rmtree, self._folder, ignore_errors=True)
        flags = os.environ.get("LIBTPU_INIT_ARGS", "").split()
        flags.append(_FLAGS.format(self._folder))
        os.environ["LIBTPU_INIT_ARGS"] = " ".join(flags)

    def read_cycles(self) -> dict[str, int]:
        """Return the cycles of instructions compiled since the last call, by name.

        If several instructions differ in names only, one of them is included.

        Raises:
          RuntimeError: The compiler wrote nothing, because it was loaded before.
        """
        cycles = {}
        for path in self._folder.iterdir():
            file = _FILE.fullmatch(path.name)
            if file and "schedule-analysis" not in path.name:
                cycles[file[1]] = scheduled_cycles(path.read_text(errors="replace"))
        self.clear()
        if not cycles:
            raise RuntimeError(
                "the TPU compiler wrote no schedules, because it was already loaded; "
                "create the ScheduleFolder before open_topology"
            )
        return cycles

    def clear(self) -> None:
        """Delete what the compiler has written since the last call."""
        for path in self._folder.iterdir():
            path.unlink()
