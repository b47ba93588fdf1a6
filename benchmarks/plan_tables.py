r"""The table of recipes in docs/plan.md, compiled without a TPU.

  python benchmarks/plan_tables.py    # all rows: half an hour or more
  python benchmarks/plan_tables.py bert_base    # the rows of one recipe

Needs `pip install -e '.[tpu]'`, and no TPU.
"""

import json
import pathlib
import subprocess
import sys

import program_flags

CONFIGS = pathlib.Path(__file__).parents[1] / "configs"
SCANNED = "--config.encoder.scan_layers=True"  # compiles five to seven times as fast
# Recipe, slice, and further flags of `run.plan`.
ROWS = (
    ("bert_base", "v4:2x2x4"),
    ("bert_large", "v4:4x4x4"),
    ("albert:xxlarge", "v4:8x8x8", SCANNED, "--config.phases[0].micro_batches=2"),
    ("electra:base", "v4:2x2x4", SCANNED),
    ("electra:large", "v4:4x4x4", SCANNED, "--config.phases[0].micro_batches=2"),
    ("roberta:base", "v4:4x4x4", SCANNED),
    ("roberta:large", "v4:8x8x8", SCANNED, "--config.phases[0].micro_batches=1"),
    ("xlnet:large", "v4:8x8x8", SCANNED, "--config.phases[0].micro_batches=2"),
)
COLUMNS = (
    *("recipe", "slice", "length", "sequences of a chip", "micro-batches"),
    *("state, GiB", "activations etc., GiB", "left, GiB", "step at peak, ms"),
    *("step estimated, ms", "step scheduled, ms"),
    "chip-hours of the recipe at 40 %",
)


def rows(recipe: str, topology: str, *flags: str) -> list[list[str]]:
    """Plan a recipe, and return the cells of each of its phases."""
    name, _, variant = recipe.partition(":")
    config = f"--config={CONFIGS / name}.py:{variant}".removesuffix(":")
    command = [sys.executable, "-m", "bert_jax.run.plan", config, *flags]
    command += [f"--topology={topology}", "--schedule", "--json"]
    done = subprocess.run(command, stdout=subprocess.PIPE)
    # Status 3: the recipe does not fit. Otherwise run.plan has said why.
    if done.returncode not in (0, 3):
        sys.exit(done.returncode)
    plan = json.loads(done.stdout)
    chip_hours = plan["seconds_at_peak"] / 0.4 / 3600 * plan["chips"]
    cells = []
    for phase in plan["phases"]:
        memory = phase["memory"]
        sizes = (
            memory["parameters"] + memory["optimizer"],
            memory["temporaries"],
            phase["memory_left"],
        )
        seconds = (
            phase["seconds_at_peak"],
            phase["estimated_seconds_without_collectives"],
            phase["scheduled_seconds_without_collectives"],
        )
        cells.append(
            [
                *(f"`{recipe}`", f"`{topology}`", str(phase["length"])),
                *(f"{phase['batch_per_chip']:g}", str(phase["micro_batches"])),
                *(f"{size / 2**30:.2f}" for size in sizes),
                *(f"{1e3 * (value or 0):.2f}" for value in seconds),
                f"{chip_hours:,.0f}",
            ]
        )
    return cells


def main() -> None:
    """Print the table in Markdown, each row as soon as it is known."""
    parser = program_flags.make_parser(__doc__)
    names = [row[0] for row in ROWS]
    parser.add_argument("recipes", nargs="*", choices=["all", *names], default="all")
    recipes = parser.parse_args().recipes
    print(f"| {' | '.join(COLUMNS)} |\n|---|{'---:|' * (len(COLUMNS) - 1)}")
    for recipe, topology, *flags in ROWS:
        if recipe in recipes or "all" in recipes:
            for cells in rows(recipe, topology, *flags):
                print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
