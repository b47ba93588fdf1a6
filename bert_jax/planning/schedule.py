"""What the TPU compiler scheduled, read from its dump.

For each fusion and each kernel of a program the compiler can write the bundles of
instructions that a core issues, one a cycle, and how often each loop of them turns.
That is its last word on arithmetic, and says nothing of waiting for memory. For kernels
there is nothing else: the compiler has no estimate of their cycles.

The form of these files is nowhere documented; it was seen with libtpu 0.0.42.1.
"""

import atexit
import dataclasses
import os
import pathlib
import re
import shutil
import tempfile

_FLAGS = (
    "--xla_jf_dump_to={} --xla_jf_dump_llo_text=true "
    "--xla_jf_dump_llo_pass_label_regex=^final_bundles$"
)
# The files are TIME-NAME-NN-final_bundles.txt, beside TIME-NAME-NN-schedule-analysis...
_FILE = re.compile(r"\d+-(.+)-\d+-final_bundles\.txt")
# `0x1f LB: > > { ... }`: address, what begins here, depth in loops, instructions.
_BUNDLE = re.compile(r"\s*(?:0x[0-9a-f]+|0)\s+([A-Z]{2})?\s*:((?:\s*>)*)\s*\{")
_TURNS = re.compile(r"totalorder %\w+, (\d+) /\* loop exit test")
_LOOP_BODY = "LB"


@dataclasses.dataclass
class _Loop:
    """Bundles of the body of a loop, without those of loops inside of it."""

    parent: "_Loop | None"
    bundles: int = 0
    turns: int = 1  # where the compiler's text has no number

    def cycles(self) -> int:
        """Of all turns, also those of the loops around it."""
        cycles, loop = self.bundles, self
        while loop is not None:
            cycles, loop = cycles * loop.turns, loop.parent
        return cycles


def scheduled_cycles(text: str) -> int:
    """Bundles that a fusion or kernel issues, each as often as its loops turn.

    A loop whose number of turns is not in the text counts once; such are short loops
    that wait or move registers. Of the sides of a branch, all are counted.

    Args:
      text: A file of the dump.
    """
    outside, loops = 0, []
    current: dict[int, _Loop] = {}  # by depth
    for line in text.splitlines():
        bundle = _BUNDLE.match(line)
        if not bundle:
            continue
        depth = bundle[2].count(">")
        if not depth:
            outside += 1
            continue
        # The branch back to a loop's begin is written outside of it, and its last
        # bundles behind that: only a body's begin makes a new one.
        if bundle[1] == _LOOP_BODY or depth not in current:
            current[depth] = _Loop(current.get(depth - 1))
            loops.append(current[depth])
            current = {d: loop for d, loop in current.items() if d <= depth}
        current[depth].bundles += 1
        turns = _TURNS.search(line)
        if turns:
            current[depth].turns = int(turns[1])
    return outside + sum(loop.cycles() for loop in loops)


class Dump:
    """A folder that the compiler writes its schedules to."""

    def __init__(self) -> None:
        """Ask for it; before the compiler is loaded, which reads its flags once."""
        self._folder = pathlib.Path(tempfile.mkdtemp(prefix="schedules_"))
        # The compiler may write until the end.
        atexit.register(shutil.rmtree, self._folder, ignore_errors=True)
        flags = os.environ.get("LIBTPU_INIT_ARGS", "").split()
        flags.append(_FLAGS.format(self._folder))
        os.environ["LIBTPU_INIT_ARGS"] = " ".join(flags)

    def take(self) -> dict[str, int]:
        """Cycles of what was compiled since the last call, by names in the program.

        Of operations that are the same but for their names, one has a file.

        Raises:
          RuntimeError: There is nothing: the compiler was loaded before.
        """
        cycles = {}
        for path in self._folder.iterdir():
            file = _FILE.fullmatch(path.name)
            if file and "schedule-analysis" not in path.name:
                cycles[file[1]] = scheduled_cycles(path.read_text(errors="replace"))
            path.unlink()
        if not cycles:
            raise RuntimeError(
                "the TPU compiler wrote no schedules: it was loaded before it was asked"
            )
        return cycles
