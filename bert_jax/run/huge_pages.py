"""Huge pages for programs that train on a processor.

A step allocates large buffers and frees them again, and the kernel hands them out in
pages of 4 KiB, which is a part of the step's time (docs/results.md, "Huge pages").
glibc asks for larger pages if its environment says so when a program starts.
"""

import glob
import os
import pathlib
import platform
import sys
from collections.abc import Mapping

VARIABLE = "GLIBC_TUNABLES"
VALUE = "glibc.malloc.hugetlb=1"
_KERNEL = pathlib.Path("/sys/kernel/mm/transparent_hugepage/enabled")
_ACCELERATORS = (
    "/dev/accel[0-9]*",
    "/dev/vfio/[0-9]*",
    "/dev/nvidia[0-9]*",
    "/dev/kfd",
)


def restart() -> None:
    """Start this program again, as the same process, with huge pages.

    Does nothing where they would not help, or where the user has set the variable. The
    program that was started again finds it set.
    """
    if sys.executable and are_wanted(os.environ) and _are_offered():
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        environment = {**os.environ, VARIABLE: VALUE}
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], environment)


def are_wanted(environment: Mapping[str, str]) -> bool:
    """Whether a processor will train, and nothing was said of glibc's memory.

    Args:
      environment: Environment of the program.
    """
    if VARIABLE in environment:
        return False
    if platforms := environment.get("JAX_PLATFORMS"):
        return platforms.split(",")[0] == "cpu"
    return not any(map(glob.glob, _ACCELERATORS))


def _are_offered() -> bool:
    """Whether glibc and the kernel have huge pages for those who ask."""
    name, version = platform.libc_ver()
    if name != "glibc" or tuple(map(int, version.split(".")[:2])) < (2, 35):
        return False
    try:
        return "[madvise]" in _KERNEL.read_text()
    except OSError:
        return False
