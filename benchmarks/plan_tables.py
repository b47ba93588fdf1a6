r"""Tables of plans, compiled without a TPU.

  python benchmarks/plan_tables.py recipes    # recipes on slices that suit them
  python benchmarks/plan_tables.py recipes bert_base v4:2x2x4    # one of these recipes
  python benchmarks/plan_tables.py sharding   # mesh layouts of BERT-Large on 64 chips
  python benchmarks/plan_tables.py limits     # memory that programs can use
  python benchmarks/plan_tables.py products   # both gauges on single matrix products

Needs `pip install -e '.[tpu]'`, and no TPU. Each row of Large, unrolled, takes some
minutes. Every other table of docs/plan.md and docs/sharding.md comes from `run.plan`
with the flags that stand above it.
"""

import dataclasses
import functools
import pathlib
import re
import runpy
import sys
from collections.abc import Iterator

import jax
import jax.numpy as jnp

from bert_jax import config as config_lib
from bert_jax import knobs, pretraining
from bert_jax.planning import hlo
from bert_jax.planning import phase as phase_lib
from bert_jax.planning import topology as topology_lib
from bert_jax.planning.plan import Planner
from bert_jax.planning.schedule import Dump
from bert_jax.training import hardware

CONFIGS = pathlib.Path(__file__).parents[1] / "configs"

# Recipe, slice, and micro-batches of each phase; () keeps those of the recipe.
RECIPES = (
    ("bert_base", "v4:2x2x4", ()),
    ("bert_large", "v4:4x4x4", ()),
    ("albert:xxlarge", "v4:8x8x8", (2,)),
    ("electra:base", "v4:2x2x4", ()),
    ("electra:large", "v4:4x4x4", (2,)),
    ("roberta:base", "v4:4x4x4", ()),
    ("roberta:large", "v4:8x8x8", (1,)),
    ("xlnet:large", "v4:8x8x8", (2,)),
)
# Compiled with scanned layers, which is five to seven times as fast.
_SCANNED = ("albert", "electra", "roberta", "xlnet")

# Name, slice, number of slices, and the mesh.
LAYOUTS = (
    ("data 64", "v4:4x4x4", 1, {}),
    ("data 64, optimizer split", "v4:4x4x4", 1, {"shard_optimizer": True}),
    ("data 8, fsdp 8", "v4:4x4x4", 1, {"fsdp": 8}),
    ("fsdp 64", "v4:4x4x4", 1, {"data": 1, "fsdp": 64}),
    ("data 16, tensor 4", "v4:4x4x4", 1, {"tensor": 4}),
    ("data 64 in two slices", "v4:2x4x4", 2, {}),
)
# Rows, columns and the dimension that is summed over: a large product, and the first
# product of BERT-Base's feed-forward part with 64 sequences of 128.
_PRODUCTS = ((16_384, 16_384, 16_384), (8192, 3072, 768))
_GIB, _MIB = 2**30, 2**20


def load(recipe: str, **changes: dict) -> config_lib.PretrainConfig:
    """Return the config of a recipe with fields of its groups changed.

    Args:
      recipe: Name and variant, such as "albert:base".
      **changes: Fields by group, such as `encoder={"scan_layers": True}`.
    """
    name, _, variant = recipe.partition(":")
    cfg = runpy.run_path(str(CONFIGS / f"{name}.py"))["get_config"](variant)
    for group, values in changes.items():
        cfg[group].update(values)
    config = knobs.from_configdict(config_lib.PretrainConfig, cfg)
    return pretraining.resolve(config, ())


def planner(slice_name: str, slices: int = 1, dump: Dump | None = None) -> Planner:
    """Return the planner of pretraining runs on slices."""
    make_run = functools.partial(pretraining.make_run, corpora=())
    return Planner(topology_lib.open_topology(slice_name, slices), make_run, dump)


def recipes(*chosen: str) -> Iterator[tuple[str, ...]]:
    """Plan each phase of the recipes, or of the chosen recipe and slice."""
    dump = Dump()
    yield (
        *("recipe", "slice", "length", "sequences of a chip", "micro-batches"),
        *("state, GiB", "activations etc., GiB", "left, GiB", "step at peak, ms"),
        *("step estimated, ms", "step scheduled, ms"),
        "chip-hours of the recipe at 40 %",
    )
    for recipe, slice_name, micro_batches in RECIPES:
        if chosen and chosen != (recipe, slice_name):
            continue
        scanned = {"scan_layers": True} if recipe.startswith(_SCANNED) else {}
        config = load(recipe, encoder=scanned)
        phases = [
            dataclasses.replace(phase, micro_batches=number)
            for phase, number in zip(config.phases, micro_batches, strict=False)
        ]
        config = dataclasses.replace(config, phases=tuple(phases) or config.phases)
        plan = planner(slice_name, dump=dump).plan(config, recipe)
        hours = plan.seconds_at_peak / 0.4 / 3600
        for phase in plan.phases:
            memory = phase.memory
            yield (
                f"`{recipe}`",
                f"`{slice_name}`",
                str(phase.length),
                f"{phase.batch_per_chip:g}",
                str(phase.micro_batches),
                f"{(memory.parameters + memory.optimizer) / _GIB:.2f}",
                f"{memory.temporaries / _GIB:.2f}",
                f"{memory.left / _GIB:.2f}",
                f"{1e3 * phase.seconds_at_peak:.2f}",
                f"{1e3 * phase.estimated_seconds:.2f}",
                f"{1e3 * phase.scheduled_seconds:.2f}",
                f"{hours * plan.topology.chips:,.0f}",
            )


def sharding() -> Iterator[tuple[str, ...]]:
    """Plan the first phase of BERT-Large in each mesh layout, with scanned layers."""
    yield (
        *("layout", "parameters, GiB", "optimizer, GiB", "activations etc., GiB"),
        *("sent inside a slice, MiB", "sent between slices, MiB"),
        *("estimated, Mcycle", "arrays, MiB"),
    )
    for name, slice_name, slices, mesh in LAYOUTS:
        config = load("bert_large", mesh=mesh, encoder={"scan_layers": True})
        phase = planner(slice_name, slices).plan_phase(config, 0)
        memory = phase.memory
        sizes: dict[str, int] = {}
        for traffic in phase.traffic:
            sizes[traffic.kind] = sizes.get(traffic.kind, 0) + traffic.size
        within, between = (
            sum(t.sent for t in phase.traffic if (t.network == phase_lib.DCN) == is_dcn)
            for is_dcn in (False, True)
        )
        yield (
            name,
            f"{memory.parameters / _GIB:.2f}",
            f"{memory.optimizer / _GIB:.2f}",
            f"{memory.temporaries / _GIB:.2f}",
            f"{within / _MIB:,.0f}",
            f"{between / _MIB:,.0f}",
            f"{phase.cycles / 1e6:.1f}",
            ", ".join(
                f"{kind} {size / _MIB:,.0f}"
                for kind, size in sizes.items()
                if size > 8 * _MIB
            ),
        )


def limits() -> Iterator[tuple[str, ...]]:
    """Compile a program that is too large for any chip, and read the limit."""
    yield "chip", "HBM for programs of a device"
    for kind, generation in topology_lib.GENERATIONS.items():
        shape = "2x2x1" if generation.sides == 3 else "2x2"
        device = topology_lib.open_topology(f"{kind}:{shape}").devices[0]
        place = jax.sharding.SingleDeviceSharding(device)
        x = jax.ShapeDtypeStruct((2**18, 2**18), jnp.float32, sharding=place)
        try:
            jax.jit(lambda x: x @ x + x).lower(x).compile()
        except jax.errors.JaxRuntimeError as error:
            yield kind, re.search(r"available HBM \(([^)]*)\)", str(error))[1]


def products() -> Iterator[tuple[str, ...]]:
    """Compile single products, and compare both gauges with the peak of a chip."""
    dump = Dump()
    yield "chip", "product", "of the peak by the estimate, %", "by schedule, %"
    for name in ("v4:2x2x1", "v5e:1x1", "v6e:1x1"):
        topology = topology_lib.open_topology(name)
        device = topology.devices[0]
        place = jax.sharding.SingleDeviceSharding(device)
        peak = hardware.peak_flops(device.device_kind)
        for m, n, k in _PRODUCTS:
            factors = (
                jax.ShapeDtypeStruct(shape, jnp.bfloat16, sharding=place)
                for shape in ((m, k), (k, n))
            )
            compiled = jax.jit(jnp.matmul).lower(*factors).compile()
            least = 2 * m * n * k * topology.generation.clock / peak
            estimated = hlo.Program(compiled.as_text()).estimated_cycles()
            scheduled = max(dump.take().values())
            shares = (f"{100 * least / x:.1f}" for x in (estimated, scheduled))
            yield name, f"[{m}, {k}] x [{k}, {n}]", *shares


TABLES = {table.__name__: table for table in (recipes, sharding, limits, products)}


def main(table: str = "", *chosen: str) -> None:
    """Print a table in Markdown, each row as soon as it is known."""
    if table not in TABLES:
        sys.exit(f"unknown table {table!r}; choose one of: {', '.join(TABLES)}")
    jax.config.update("jax_enable_compilation_cache", False)
    for i, row in enumerate(TABLES[table](*chosen)):
        print(f"| {' | '.join(row)} |", flush=True)
        if i == 0:
            print(f"|---|{'---:|' * (len(row) - 1)}")


if __name__ == "__main__":
    main(*sys.argv[1:])
