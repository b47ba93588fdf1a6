r"""Print tables of docs/plan.md, sharding.md and results.md, compiled without a TPU.

  python benchmarks/plan_tables.py recipes    # each recipe on slices that it is for
  python benchmarks/plan_tables.py recipes bert_base v4:2x2x4    # one of these rows
  python benchmarks/plan_tables.py write bert_base v4:2x2x4    # into the pages, too
  python benchmarks/plan_tables.py sharding   # mesh layouts on 64 chips
  python benchmarks/plan_tables.py lamb       # those of the LAMB recipes on full pods
  python benchmarks/plan_tables.py layers     # unrolled and scanned layers
  python benchmarks/plan_tables.py limits     # memory that programs can use
  python benchmarks/plan_tables.py products   # what both gauges say of one product

Needs `pip install -e '.[tpu]'`, and no TPU. Each row of Large, unrolled, takes some
minutes.
"""

import dataclasses
import functools
import importlib.util
import pathlib
import re
import subprocess
import sys

import jax
import jax.numpy as jnp

from bert_jax import config as config_lib
from bert_jax import knobs, pretraining
from bert_jax.planning import hlo
from bert_jax.planning import phase as phase_lib
from bert_jax.planning import topology as topology_lib
from bert_jax.planning.plan import Plan, Planner
from bert_jax.planning.schedule import Dump
from bert_jax.training import hardware

ROOT = pathlib.Path(__file__).parents[1]

# Recipe, slice, and micro-batches of its phases where one chip needs more than the
# recipe has. The paper's 16 and 64 chips for BERT-Base and Large, of a later
# generation; for others, what is easy to get, and what they are meant for.
RECIPES = (
    ("bert_miniature:tiny", "v5e:1x1", ()),
    ("bert_miniature:mini", "v5e:1x1", ()),
    ("bert_miniature:small", "v5e:2x2", ()),
    ("bert_miniature:medium", "v5e:2x2", ()),
    ("bert_base", "v4:2x2x4", ()),
    ("bert_large", "v4:4x4x4", ()),
    ("bert_large_lamb:64k", "v4:4x4x4", (16, 32)),
    ("bert_large_lamb:64k", "v4:8x8x8", (2, 4)),
    ("bert_large_lamb:64k", "v5e:16x16", (8, 16)),
    ("bert_large_lamb:32k", "v4:4x4x4", (8, 8)),
    ("bert_large_lamb:32k", "v4:8x8x8", (1, 1)),
    ("bert_large_lamb:32k", "v5e:16x16", (4, 4)),
    ("albert:base", "v5e:1x1", (128,)),
    ("albert:base", "v4:2x2x4", (8,)),
    ("albert:large", "v5e:1x1", (256,)),
    ("albert:large", "v4:4x4x4", (4,)),
    ("albert:xlarge", "v5e:1x1", (512,)),
    ("albert:xlarge", "v4:4x4x4", (8,)),
    ("albert:xxlarge", "v5e:1x1", (1024,)),
    ("albert:xxlarge", "v4:8x8x8", (2,)),
    ("electra:small", "v5e:1x1", ()),
    ("electra:small", "v4:2x2x1", ()),
    ("electra:base", "v5e:1x1", (8,)),
    ("electra:base", "v4:2x2x4", ()),
    ("electra:large", "v5e:1x1", (512,)),
    ("electra:large", "v4:4x4x4", (2,)),
    ("roberta:base", "v5e:1x1", (512,)),
    ("roberta:base", "v4:4x4x4", ()),
    ("roberta:large", "v5e:1x1", (2048,)),
    ("roberta:large", "v4:8x8x8", (1,)),
    ("xlnet:base", "v5e:1x1", (32,)),
    ("xlnet:base", "v4:2x2x4", ()),
    ("xlnet:large", "v5e:1x1", (2048,)),
    ("xlnet:large", "v4:8x8x8", (2,)),
)
# Compiled with scanned layers, which is five to seven times as fast; memory and time
# are those of scanned layers (`layers`).
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

# Layouts of the LAMB recipes: slice, name, and the mesh.
_LAMB_LAYOUTS = tuple(
    (slice_name, name, mesh)
    for slice_name in ("v4:8x8x8", "v5e:16x16")
    for name, mesh in (
        ("copies", {}),
        ("copies, optimizer split", {"shard_optimizer": True}),
        ("fsdp 8", {"fsdp": 8}),
    )
)

# Where the table of recipes is, between two marks.
PAGES = ("docs/plan.md", "launch/README.md")
_MARKS = "<!-- plan-table -->\n", "<!-- /plan-table -->"

_GIB, _MIB = 2**30, 2**20


def load(recipe: str, **changes) -> config_lib.PretrainConfig:
    """A recipe, with fields of groups changed: `encoder={"scan_layers": True}`."""
    name, _, variant = recipe.partition(":")
    spec = importlib.util.spec_from_file_location(name, ROOT / f"configs/{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    cfg = module.get_config(variant)
    for group, values in changes.items():
        cfg[group].update(values)
    config = knobs.from_configdict(config_lib.PretrainConfig, cfg)
    return pretraining.resolve(config, ())


def header(*names: str) -> list[str]:
    """The first two lines of a table: text to the left, numbers to the right."""
    line = "|".join("---" if i < 2 else "---:" for i in range(len(names)))
    return [f"| {' | '.join(names)} |", f"|{line}|"]


def recipe_rows(
    recipe: str, slice_name: str, micro_batches: tuple[int, ...], dump: Dump
):
    """A row for each phase of a recipe, one by one."""
    scanned = recipe.startswith(_SCANNED)
    config = load(recipe, encoder={"scan_layers": True} if scanned else {})
    topology = topology_lib.open_topology(slice_name)
    plan = planner(topology, dump).plan(in_pieces(config, micro_batches), recipe)
    return [format_recipe(recipe, plan, phase) for phase in plan.phases]


def planner(topology: topology_lib.Topology, dump: Dump | None = None) -> Planner:
    """The planner of pretraining runs for a topology."""
    make_run = functools.partial(pretraining.make_run, corpora=())
    return Planner(topology, make_run, dump)


def format_recipe(recipe: str, plan: Plan, phase: phase_lib.PhasePlan) -> str:
    """A row of the table of recipes."""
    memory = phase.memory
    cells = (
        f"`{recipe}`",
        f"`{plan.topology.name}`",
        str(phase.length),
        f"{phase.batch_per_chip:g}",
        str(phase.micro_batches),
        f"{(memory.parameters + memory.optimizer) / _GIB:.2f}",
        f"{memory.temporaries / _GIB:.2f}",
        f"{memory.left / _GIB:.2f}",
        f"{1e3 * phase.seconds_at_peak:.2f}",
        f"{1e3 * phase.estimated_seconds:.2f}",
        f"{100 * phase.estimated_utilisation:.1f}",
        f"{1e3 * phase.scheduled_seconds:.2f}",
        f"{100 * phase.scheduled_utilisation:.1f}",
        f"{plan.seconds_at_peak / 0.4 / 3600 * plan.topology.chips:,.0f}",
        _commit(),
    )
    return f"| {' | '.join(cells)} |"


def _commit() -> str:
    command = ["git", "rev-parse", "--short=7", "HEAD"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    return done.stdout.strip() or "?"


def cells(row: str) -> list[str]:
    """What is in a row of a table."""
    return [cell.strip(" `") for cell in row.strip("| \n").split(" | ")]


def written_rows(page: str) -> list[str]:
    """Rows of the table of recipes on a page."""
    table = (ROOT / page).read_text(encoding="utf-8").split(_MARKS[0])[1]
    return table.split(_MARKS[1])[0].splitlines()[2:]


def write_rows(rows: list[str]) -> None:
    """Put rows into the tables on the pages, in place of those that were there."""

    def place(row):
        recipe, slice_name, length = cells(row)[:3]
        order = [known[:2] for known in RECIPES]
        return order.index((recipe, slice_name)), int(length)

    for page in PAGES:
        path = ROOT / page
        before, rest = path.read_text(encoding="utf-8").split(_MARKS[0])
        after = rest.split(_MARKS[1])[1]
        table = {place(row): row for row in (*written_rows(page), *rows)}
        lines = [*RECIPE_HEADER, *(table[key] for key in sorted(table))]
        text = before + _MARKS[0] + "\n".join(lines) + "\n" + _MARKS[1] + after
        path.write_text(text, encoding="utf-8")


RECIPE_HEADER = header(
    "recipe",
    "slice",
    "length",
    "sequences of a chip",
    "micro-batches",
    "state, GiB",
    "activations etc., GiB",
    "left, GiB",
    "step at peak, ms",
    "step estimated, ms",
    "utilisation if so, %",
    "step scheduled, ms",
    "utilisation if so, %",
    "chip-hours of the recipe at 40 %",
    "commit",
)


def format_layout(name: str, model: str, phase: phase_lib.PhasePlan) -> str:
    """A row of the table of layouts."""
    memory = phase.memory
    kinds: dict[str, int] = {}
    for traffic in phase.traffic:
        kinds[traffic.kind] = kinds.get(traffic.kind, 0) + traffic.size
    arrays = ", ".join(
        f"{kind} {size / _MIB:,.0f}" for kind, size in kinds.items() if size > 8 * _MIB
    )
    sent = [
        sum(t.sent for t in phase.traffic if (t.network == phase_lib.DCN) == between)
        for between in (False, True)
    ]
    cells = (
        model,
        name,
        f"{memory.parameters / _GIB:.2f}",
        f"{memory.optimizer / _GIB:.2f}",
        f"{memory.temporaries / _GIB:.2f}",
        f"{sent[0] / _MIB:,.0f}",
        f"{sent[1] / _MIB:,.0f}",
        f"{phase.cycles / 1e6:.1f}",
        arrays,
    )
    return f"| {' | '.join(cells)} |"


LAYOUT_HEADER = header(
    "model",
    "layout",
    "parameters, GiB",
    "optimizer, GiB",
    "activations etc., GiB",
    "sent inside a slice, MiB",
    "sent between slices, MiB",
    "estimated, Mcycle",
    "arrays, MiB",
)


def layout_phase(model: str, slice_name: str, slices: int, mesh: dict):
    """The first phase of a recipe in a layout, with the layers scanned."""
    config = load(model, mesh=mesh, encoder={"scan_layers": True})
    micro_batches = {row[:2]: row[2] for row in RECIPES}.get((model, slice_name), ())
    topology = topology_lib.open_topology(slice_name, slices)
    return planner(topology).plan_phase(in_pieces(config, micro_batches), 0)


def in_pieces(
    config: config_lib.PretrainConfig, micro_batches: tuple[int, ...]
) -> config_lib.PretrainConfig:
    """A recipe with other numbers of micro-batches in its phases; () for its own."""
    if not micro_batches:
        return config
    phases = [
        dataclasses.replace(phase, micro_batches=number)
        for phase, number in zip(config.phases, micro_batches, strict=True)
    ]
    return dataclasses.replace(config, phases=tuple(phases))


def format_layers(model: str, layers: str, phase: phase_lib.PhasePlan) -> str:
    """A row of the table of unrolled and scanned layers."""
    cells = (
        model,
        layers,
        str(phase.length),
        f"{phase.memory.temporaries / _GIB:.2f}",
        f"{phase.memory.rest / _MIB:,.0f}",
        f"{phase.cycles / 1e6:.1f}",
        f"{1e3 * phase.estimated_seconds:.1f}",
        f"{phase.compile_seconds:.0f}",
    )
    return f"| {' | '.join(cells)} |"


LAYERS_HEADER = header(
    "model",
    "layers",
    "length",
    "activations etc., GiB",
    "program etc., MiB",
    "estimated, Mcycle",
    "estimated, ms",
    "compiled in, s",
)


def limits() -> None:
    """Ask for too much memory on each generation, and print the compiler's limit."""
    for kind, generation in topology_lib.GENERATIONS.items():
        shape = "2x2x1" if generation.sides == 3 else "2x2"
        device = topology_lib.open_topology(f"{kind}:{shape}").devices[0]
        mesh = jax.sharding.Mesh([device], ("x",))
        place = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
        x = jax.ShapeDtypeStruct((2**18, 2**18), jnp.float32, sharding=place)
        try:
            jax.jit(lambda x: x @ x + x, out_shardings=place).lower(x).compile()
        except jax.errors.JaxRuntimeError as error:
            said = re.search(r"available HBM \(([^)]*)\)", str(error))
            print(f"{kind:<8}{said[1]:>8} of a device")


PRODUCTS_HEADER = header(
    "chip", "product", "of the peak by the estimate, %", "by schedule, %"
)
# Rows, columns, and what is summed over: a large product, and BERT-Base's to the middle
# of its feed-forward part, with 64 sequences of 128.
_PRODUCTS = ((16_384, 16_384, 16_384), (8192, 3072, 768))


def products():
    """Rows of the table of products, each for one chip."""
    dump = Dump()
    jax.config.update("jax_enable_compilation_cache", False)
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
            product = f"[{m}, {k}] x [{k}, {n}]"
            yield f"| {name} | {product} | {' | '.join(shares)} |"


def main(table: str = "", *chosen: str) -> None:
    """Print a table."""
    if table in ("recipes", "write"):
        dump = Dump()
        print("\n".join(RECIPE_HEADER))
        for row in RECIPES:
            if not chosen or row[:2] == chosen:
                rows = recipe_rows(*row, dump)
                print("\n".join(rows), flush=True)
                if table == "write":
                    write_rows(rows)
    elif table == "sharding":
        print("\n".join(LAYOUT_HEADER))
        for model in ("bert_base", "bert_large"):
            for name, *layout in LAYOUTS:
                phase = layout_phase(model, *layout)
                print(format_layout(name, model, phase), flush=True)
    elif table == "lamb":
        print("\n".join(LAYOUT_HEADER))
        for model in ("bert_large_lamb:64k", "bert_large_lamb:32k"):
            for slice_name, name, mesh in _LAMB_LAYOUTS:
                phase = layout_phase(model, slice_name, 1, mesh)
                name = f"{slice_name}, {name}"
                print(format_layout(name, model, phase), flush=True)
    elif table == "layers":
        print("\n".join(LAYERS_HEADER))
        for scan in (False, True):
            config = load("bert_large", encoder={"scan_layers": scan})
            topology = topology_lib.open_topology("v4:4x4x4")
            for i in range(len(config.phases)):
                phase = planner(topology).plan_phase(config, i)
                name = "scanned" if scan else "unrolled"
                print(format_layers("bert_large", name, phase), flush=True)
    elif table == "limits":
        limits()
    elif table == "products":
        print("\n".join(PRODUCTS_HEADER))
        for row in products():
            print(row, flush=True)
    else:
        sys.exit(
            "give one of: recipes, write, sharding, lamb, layers, limits, products"
        )


if __name__ == "__main__":
    main(*sys.argv[1:])
