r"""Time a training step on a GPU or TPU, ours and Hugging Face's with `torch.compile`.

    pip install -e '.[bench,cuda13]' -c constraints.txt
    python benchmarks/step_on_accelerator.py --output=FILE.md

BERT-Base and Large in bfloat16 with batches of `--tokens`; `steps.py` has the step.
Hugging Face's side has PyTorch's fused attention; where torch is missing or does not
know the device there is ours alone. The sides take turns (`turns.py`) on one device, of
whose memory each gets a half, and all of it ends after `--minutes`.

Attention probabilities are not dropped out unless `--attention_dropout` says so: cuDNN
computes attention only without (`model/kernels/cudnn_attention.py`). Utilisation is of
the operations that the model needs, the same for both sides: logits and the last layer
count where they are read.

On a processor, `--cases=tiny_32 --tokens=256 --minutes=2` shows that all of it works.
"""

import argparse
import importlib.util
import os
import subprocess
import sys
import time

import steps
import turns

SIDES = {"bert_jax": "bert_jax", "compiled": "Hugging Face, compiled"}
CASES = "base_128,base_512,large_128,large_512"
# A half each, less what the runtimes themselves take.
MEMORY = {"XLA_PYTHON_CLIENT_MEM_FRACTION": "0.45"}


def case_of(name, tokens, attention_dropout):
    size, length = name.split("_")
    length = int(length)
    return steps.Case(size, "bfloat16", tokens // length, length, attention_dropout)


def device_kind():
    """What JAX calls the device, asked in a process that then gives it back."""
    command = "import jax; print(jax.devices()[0].device_kind)"
    done = subprocess.run(
        [sys.executable, "-c", command], stdout=subprocess.PIPE, text=True, check=True
    )
    return done.stdout.splitlines()[-1]


def torch_runs_on(kind):
    """Whether torch is there, and has the device that JAX has."""
    if not importlib.util.find_spec("torch"):
        return False
    import torch

    return kind == "cpu" or torch.cuda.is_available()


def row(name, case, measured, peak):
    """A line of the table: rates, utilisations, and how many times the other's."""
    seconds, count = measured
    flops = steps.bert_jax_objective(case).sequence_flops(case.length)
    cells = [name.replace("_", ", length "), str(case.batch)]
    for side in SIDES:
        if side not in seconds:
            cells += ["", ""]
            continue
        rate = case.batch / seconds[side]
        cells += [f"{rate:,.1f}", f"{rate * flops / peak:.1%}" if peak else ""]
    is_complete = len(seconds) == len(SIDES)
    ratio = f"{seconds['compiled'] / seconds['bert_jax']:.2f}" if is_complete else ""
    return [*cells, ratio, str(count)]


def header(kind, attention_dropout):
    names = ["", "batch"]
    for label in SIDES.values():
        names += [f"{label}: sequences a second", "utilisation"]
    names += ["ratio", "turns"]
    title = f"{kind}, bfloat16, attention dropout {attention_dropout:g}:\n"
    return [title, line(names), line(["---"] + ["---:"] * (len(names) - 1))]


def line(cells):
    return f"| {' | '.join(cells)} |"


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", default=CASES)
    parser.add_argument("--tokens", type=int, default=16_384, help="of a batch")
    parser.add_argument("--attention_dropout", type=float, default=0.0)
    parser.add_argument("--minutes", type=float, default=9.5, help="for all of it")
    parser.add_argument("--output", help="file for the table, in Markdown")
    parser.add_argument("--side", help="for the script's own use")
    values = parser.parse_args()
    end = time.monotonic() + 60 * values.minutes
    names = values.cases.split(",")
    cases = [case_of(n, values.tokens, values.attention_dropout) for n in names]
    if values.side:
        if values.side != "bert_jax":
            limit_memory()
        turns.serve(lambda: steps.SIDES[values.side](cases[0]))
        return
    from bert_jax.training import hardware

    kind = device_kind()
    environment = {**os.environ, **MEMORY}
    os.environ["JAX_PLATFORMS"] = "cpu"  # of this process, which only counts operations
    sides = [side for side in SIDES if side == "bert_jax" or torch_runs_on(kind)]
    table = header(kind, values.attention_dropout)
    print("\n".join(table), flush=True)
    for i, (name, case) in enumerate(zip(names, cases, strict=True)):
        shared = [f"--cases={name}", f"--tokens={values.tokens}"]
        shared.append(f"--attention_dropout={values.attention_dropout}")
        commands = {side: [__file__, f"--side={side}", *shared] for side in sides}
        deadline = turns.share(end, [1] * (len(names) - i))
        measured = turns.medians(commands, environment, deadline)
        table.append(line(row(name, case, measured, hardware.peak_flops(kind))))
        print(table[-1], flush=True)
    if values.output:
        with open(values.output, "w") as stream:
            stream.write("\n".join(table) + "\n")


def limit_memory():
    import torch

    if torch.cuda.is_available():
        torch.cuda.set_per_process_memory_fraction(0.45)


if __name__ == "__main__":
    main()
