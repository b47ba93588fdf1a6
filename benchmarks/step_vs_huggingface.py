r"""Time a training step of bert_jax and Hugging Face, eager and with `torch.compile`.

    pip install -e '.[bench]' -c constraints.txt
    python benchmarks/step_vs_huggingface.py --output=FILE.json
    python benchmarks/step_vs_huggingface.py --accelerator    # on a GPU or TPU

`training_steps.py` has the step. A case is SIZE_DTYPE or SIZE_DTYPE_LENGTH. On a CPU, a
batch has 8 sequences of 128 tokens, 20 of them masked, and dropout 0.1; all sides have
the same cores and huge pages. With `--accelerator` a batch has 16,384 tokens, and each
of the two sides, bert_jax and compiled, gets half of the memory of one device.
Attention probabilities are not dropped out there: cuDNN computes attention only without
(`model/kernels/attention.py`). There, without torch, bert_jax is timed alone.

The sides take turns (`interleaved_timing.py`). The script ends after `--minutes`. A
side that is not ready in its share of them is left out of the comparison, and the
report names it. More minutes, or fewer `--cases`, give each side more turns.
Utilisation counts the operations that the model needs, the same for both sides.
"""

import importlib.util
import json
import os
import re
import subprocess
import sys
import time

import interleaved_timing
import program_flags
import training_steps

from bert_jax.run import huge_pages

# Cases on a CPU, and their shares of the time, which are proportional to the time of
# compilation and of a step.
CASES = {
    "mini_float32": 1.0,
    "mini_bfloat16": 1.0,
    "base_bfloat16": 1.5,
    "base_float32": 2.5,
}
ACCELERATOR_CASES = (
    *("base_bfloat16_128", "base_bfloat16_512"),
    *("large_bfloat16_128", "large_bfloat16_512"),
)
# A half of the device for each side, less the memory of the runtimes themselves.
MEMORY_FRACTION = 0.45


def make_case(name, values):
    size, dtype, *length = name.split("_")
    length = int(*length or [128])
    tokens = values.tokens or (16_384 if values.accelerator else 1024)
    dropout = 0.0 if values.accelerator else 0.1
    return training_steps.Case(size, dtype, tokens // length, length, dropout)


def serve(side, case):
    """Be one side of a comparison."""
    if side != "bert_jax":
        import torch

        if torch.cuda.is_available():
            torch.cuda.set_per_process_memory_fraction(MEMORY_FRACTION)
    interleaved_timing.serve(lambda: training_steps.SIDES[side](case))


def prepare(values):
    """Return the sides, the environment of their processes, and the device's kind."""
    if not values.accelerator:
        # Processes inherit the affinity, so all sides have the same cores.
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: values.cores])
        pages = {huge_pages.VARIABLE: huge_pages.VALUE}
        environment = {**os.environ, "JAX_PLATFORMS": "cpu", **pages}
        return [*training_steps.SIDES], environment, "cpu"
    # Asked in a process of its own, which then gives the device back.
    command = "import jax; print(jax.devices()[0].device_kind)"
    done = subprocess.run(
        [sys.executable, "-c", command], stdout=subprocess.PIPE, text=True, check=True
    )
    kind = done.stdout.splitlines()[-1]
    fraction = {"XLA_PYTHON_CLIENT_MEM_FRACTION": str(MEMORY_FRACTION)}
    environment = {**os.environ, **fraction}
    os.environ["JAX_PLATFORMS"] = "cpu"  # of this process, which only counts operations
    sides = ["bert_jax"]
    if importlib.util.find_spec("torch"):
        import torch

        if kind == "cpu" or torch.cuda.is_available():
            sides.append("compiled")
    return sides, environment, kind


def summary(case, seconds, count, sides, kind):
    """Return the report of a case."""
    from bert_jax.training import hardware  # JAX reads JAX_PLATFORMS when imported

    report = {
        "batch": case.batch,
        "milliseconds": {side: round(1e3 * s, 1) for side, s in seconds.items()},
        "sequences_per_sec": {s: round(case.batch / t, 1) for s, t in seconds.items()},
        "turns": count,
    }
    if peak := hardware.peak_flops(kind):
        flops = (
            training_steps.bert_jax_objective(case).sequence_flops(case.length)
            * case.batch
        )
        report["utilisation"] = {
            side: round(flops / s / peak, 3) for side, s in seconds.items()
        }
    others = [s for side, s in seconds.items() if side != "bert_jax"]
    if others and "bert_jax" in seconds:
        report["ratio"] = round(min(others) / seconds["bert_jax"], 2)
    if missing := [side for side in sides if side not in seconds]:
        report["not_ready_in_time"] = missing
    return report


def main():
    parser = program_flags.make_parser(__doc__)
    parser.add_argument("--accelerator", action="store_true", help="not the CPU")
    parser.add_argument("--cases", help="some cases, with commas")
    whole, number = program_flags.positive(int), program_flags.positive(float)
    parser.add_argument("--tokens", type=whole, help="of a batch")
    parser.add_argument("--minutes", type=number, help="for all; default 5, GPU 9.5")
    parser.add_argument("--cores", type=whole, default=2, help="of the CPU")
    parser.add_argument("--output", help="file for the report")
    parser.add_argument("--side", help="for the script's own use")
    values = parser.parse_args()
    if values.side:
        serve(values.side, make_case(values.cases, values))
        return
    names = [*(ACCELERATOR_CASES if values.accelerator else CASES)]
    names = values.cases.split(",") if values.cases else names
    sizes = "|".join(training_steps.SIZES)
    known = re.compile(f"({sizes})_(float32|bfloat16)(_[1-9][0-9]*)?")
    if unknown := [name for name in names if not known.fullmatch(name)]:
        parser.error(
            f"--cases: unknown {', '.join(unknown)}; there are {sizes}, each with "
            "_float32 or _bfloat16, and then _LENGTH or nothing"
        )
    for name in names:
        case = make_case(name, values)
        if case.length < 8:
            parser.error(f"--cases: {name} has rows of fewer than 8 tokens")
        if not case.batch:
            parser.error(f"--tokens={values.tokens} is less than a row of {name}")
    minutes = values.minutes or (9.5 if values.accelerator else 5.0)
    end = time.monotonic() + 60 * minutes
    sides, environment, kind = prepare(values)
    report = {"device": kind}
    for i, name in enumerate(names):
        begin = time.monotonic()
        flags = [f"--cases={name}"]
        flags += ["--accelerator"] if values.accelerator else []
        flags += [f"--tokens={values.tokens}"] if values.tokens else []
        commands = {side: [__file__, f"--side={side}", *flags] for side in sides}
        # The cases that are left share the time by weight.
        weights = [CASES.get(left, 1.0) for left in names[i:]]
        deadline = begin + (end - begin) * weights[0] / sum(weights)
        measured = interleaved_timing.medians(commands, environment, deadline)
        report[name] = summary(make_case(name, values), *measured, sides, kind)
        took = round(time.monotonic() - begin)
        print(f"{name}, {took} s: {json.dumps(report[name])}", flush=True)
    if values.output:
        with open(values.output, "w") as stream:
            json.dump(report, stream, indent=2)


if __name__ == "__main__":
    main()
