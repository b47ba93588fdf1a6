"""Huge pages for programs that train on a CPU.

A training step allocates and frees large buffers, and with pages of 4 KiB the page
faults take a part of its time (docs/results.md, "Huge pages"). glibc asks for huge
pages if its environment variable says so when a program starts.
"""

import glob
import os
import sys

VARIABLE = "GLIBC_TUNABLES"
VALUE = "glibc.malloc.hugetlb=1"
_ACCELERATORS = (
    "/dev/accel[0-9]*",
    "/dev/vfio/[0-9]*",
    "/dev/nvidia[0-9]*",
    "/dev/kfd",
)


def restart() -> None:
    """Restart this program with huge pages, as the same process, once.

    Does nothing if the user has set the variable, or on anything but a Linux CPU.
    """
    if sys.platform != "linux" or VARIABLE in os.environ or not _trains_on_cpu():
        return
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    environment = {**os.environ, VARIABLE: VALUE}
    os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], environment)


def _trains_on_cpu() -> bool:
    if platforms := os.environ.get("JAX_PLATFORMS"):
        return platforms.split(",")[0] == "cpu"
    return not any(map(glob.glob, _ACCELERATORS))
