"""TPU slices by name, with devices that programs can be compiled for without a TPU.

A name is a generation and the chips along each side, `v4:4x4x8`, as in the pages of
Google's documentation. The compiler is libtpu's; it comes with `pip install
'bert_jax[tpu]'` and runs on any x86 Linux machine.
"""

import dataclasses
import importlib.util
import math
import os
import re

import jax
from jax.experimental import topologies

from bert_jax.errors import UserError
from bert_jax.planning.cost import Rates
from bert_jax.training import hardware


@dataclasses.dataclass(frozen=True)
class Generation:
    """Properties of a TPU generation."""

    sides: int  # numbers in the name of a slice
    largest: int  # chips of the largest slice
    examples: str  # shapes of slices that exist
    hbm: int  # bytes of memory of a JAX device that a program can use
    bandwidth: float  # bytes per second between a JAX device and its memory
    clock: float  # cycles per second; 0 if unknown
    # Option of the compiler that gives the devices of a real slice; "" for the default.
    chip_config: str = ""


def _gib(size: float) -> int:
    return int(size * 2**30)


# All slices of v5e and v6e.
_SQUARES = "1x1, 2x2, 2x4, 4x4, 4x8, 8x8, 8x16, 16x16"
# Slices of three sides. Larger ones consist of cubes of 4x4x4 chips, too.
_CUBES = "2x2x1, 2x2x2, 2x2x4, 2x4x4, 4x4x4, 4x4x8, 4x8x8, 8x8x8, 8x8x16, 8x16x16"

# `hbm`: the limit that libtpu 0.0.42 names for a program that is too large, "exceeds
# available HBM (15.75G)": x @ x + x with x float32 [2**18, 2**18].
# `largest` and `examples`: cloud.google.com/tpu/docs, the page of each generation.
# `clock`: v2 and v3, Norrie et al. 2021, "The design process for Google's training
# chips"; v4, Jouppi et al. 2023, table 4. For v5e and v5p it is the data sheet's peak
# divided by the operations that the matrix units do per cycle (v5e: 4 units of 128 x
# 128, 2 operations each; v5p: 8 units). The same formula gives the published clocks of
# v2 to v4. For v6e it assumes four units of 256 x 256; versions of its page say four or
# two. The schedule of a large product has 415,000 operations per cycle, and two units
# could do 262,144. For TPU7x it is unknown: no number of units gives a plausible clock.
# `bandwidth`: the same sources; of v2, v3 and TPU7x half of a chip's.
GENERATIONS = {
    "v2": Generation(2, 256, "2x2, 4x4, 8x8, 16x16", _gib(7.48), 350e9, 0.70e9),
    "v3": Generation(
        2, 1024, "2x2, 4x4, 8x8, 16x16, 32x32", _gib(15.48), 450e9, 0.94e9
    ),
    # "megacore": both cores of a chip as one device, as on the real machine.
    "v4": Generation(3, 4096, _CUBES, _gib(30.75), 1200e9, 1.05e9, "megacore"),
    "v5e": Generation(2, 256, _SQUARES, _gib(15.75), 819e9, 1.5e9),
    "v5p": Generation(3, 6144, _CUBES, _gib(95.74), 2765e9, 1.75e9),
    "v6e": Generation(2, 256, _SQUARES, _gib(31.25), 1640e9, 1.75e9),
    "tpu7x": Generation(3, 9216, _CUBES, _gib(94.75), 3690e9, 0),
}


# Far above any cluster. The compiler accepts any number.
_MAX_SLICES = 256


@dataclasses.dataclass(frozen=True)
class Topology:
    """One or several slices."""

    name: str  # name of one slice
    slices: int  # number of slices
    generation: Generation
    shape: tuple[int, ...]  # chips along each side
    # Devices of all slices, as JAX would list them there.
    devices: tuple[jax.Device, ...]

    @property
    def chips(self) -> int:
        return self.slices * math.prod(self.shape)

    @property
    def hosts(self) -> int:
        return len({device.process_index for device in self.devices})

    @property
    def devices_per_chip(self) -> int:
        return len(self.devices) // self.chips

    @property
    def device_kind(self) -> str:
        return self.devices[0].device_kind

    @property
    def peak_flops(self) -> float:
        """Peak FLOP/s of a device."""
        return hardware.peak_flops(self.device_kind)

    @property
    def rates(self) -> Rates:
        """Peak rates of a device per cycle."""
        if not (clock := self.generation.clock):
            return Rates()
        return Rates(self.peak_flops / clock, self.generation.bandwidth / clock)


def open_topology(name: str, slices: int = 1) -> Topology:
    """Return the devices of one slice or several, for the compiler.

    Raises:
      UserError: The slice does not exist, or the compiler is missing.
    """
    generation, shape = _parse(name)
    if not 1 <= slices <= _MAX_SLICES:
        raise UserError(f"--slices={slices} must be from 1 to {_MAX_SLICES}")
    _prepare()
    options = {}
    if generation.chip_config:
        options["chip_config_name"] = generation.chip_config
    if math.prod(shape) == 1:
        options["chips_per_host_bounds"] = (1, 1, 1)
    elif shape == (2, 4) and name.startswith(("v5e:", "v6e:")):
        # The only slice with a single host of eight chips.
        options["chips_per_host_bounds"] = (2, 4, 1)
    if slices > 1:
        options["num_slices"] = slices
    try:
        devices = topologies.get_topology_desc(
            platform="tpu", topology_name=name, **options
        ).devices
    except Exception as error:
        if importlib.util.find_spec("libtpu") is None:
            raise UserError(
                "run.plan needs the TPU compiler; pip install -e '.[tpu]'"
            ) from error
        # The first line, without the error code; the rest is a trace.
        reason = str(error).split(": ", 1)[-1].splitlines()[0]
        raise UserError(
            f"--topology={name}: {reason}; sizes are {generation.examples}"
        ) from error
    return Topology(name, slices, generation, shape, tuple(devices))


def _parse(name: str) -> tuple[Generation, tuple[int, ...]]:
    kind, _, sides = name.partition(":")
    if kind not in GENERATIONS:
        known = ", ".join(GENERATIONS)
        raise UserError(
            f"--topology={name}: unknown TPU {kind!r}; expected one of {known}, with "
            "a colon and the chips along each side, such as v4:4x4x8 or v5e:16x16"
        )
    generation = GENERATIONS[kind]
    if not re.fullmatch(r"[1-9]\d*(x[1-9]\d*)*", sides) or (
        sides.count("x") + 1 != generation.sides
    ):
        wanted = "x".join("ABC"[: generation.sides])
        raise UserError(
            f"--topology={name}: expected the form {kind}:{wanted}, such as "
            f"{generation.examples}"
        )
    shape = tuple(int(side) for side in sides.split("x"))
    if math.prod(shape) > generation.largest:
        raise UserError(
            f"--topology={name}: the largest {kind} slice has {generation.largest} "
            f"chips; use --slices=N for more; sizes are {generation.examples}"
        )
    is_listed = sides in generation.examples.split(", ") or math.prod(shape) == 1
    is_whole = len(shape) == 3 and not any(side % 4 for side in shape)
    if kind not in ("v2", "v3") and not (is_listed or is_whole):  # these have no rule
        raise UserError(
            f"--topology={name}: no slice has this shape; sizes are "
            f"{generation.examples}"
        )
    return generation, shape


def _prepare() -> None:
    """Set the environment for absent devices, before libtpu is loaded."""
    # As a platform, libtpu would look for chips.
    jax.config.update("jax_platforms", "cpu")
    # There is no metadata server to query.
    os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")
    # No compilation uses these; they avoid a page of warnings.
    os.environ.setdefault("TPU_WORKER_HOSTNAMES", "localhost")
    os.environ.setdefault("TPU_ACCELERATOR_TYPE", "v4-8")
    # The lock is for chips. Without any, compilers can run concurrently.
    os.environ.setdefault("ALLOW_MULTIPLE_LIBTPU_LOAD", "1")
