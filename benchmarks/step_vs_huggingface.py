r"""Time a training step on a processor, ours and Hugging Face's, eager and compiled.

    pip install -e '.[bench]' -c constraints.txt
    python benchmarks/step_vs_huggingface.py --output=FILE.json

Batches of 8 sequences of 128 tokens, 20 of them masked; dropout 0.1; `steps.py` has the
step. The sides take turns (`turns.py`), all on the same cores and with huge pages, and
all of it ends after `--minutes`. A side that is not ready in its share of them is left
out of the comparison, and the report says so; more minutes, or fewer `--cases`, give
each more turns.
"""

import argparse
import json
import os
import time

import steps
import turns

from bert_jax.run import huge_pages

# Compared by default: the least ratio that the project promises, and the part of the
# time, which is what it takes to compile and to do a step.
CASES = {
    "mini_float32": (2.6, 1.0),
    "mini_bfloat16": (1.9, 1.0),
    "base_bfloat16": (1.3, 1.5),
    "base_float32": (1.1, 2.5),
}


def case_of(name):
    size, dtype = name.split("_")
    return steps.Case(size, dtype, batch=8, length=128)


def summary(seconds, count, wanted):
    """The report of a case."""
    others = [seconds[side] for side in ("eager", "compiled") if side in seconds]
    report = {
        "milliseconds": {side: round(1e3 * s, 1) for side, s in seconds.items()},
        "turns": count,
        "wanted": wanted,
    }
    if others and "bert_jax" in seconds:
        report["ratio"] = round(min(others) / seconds["bert_jax"], 2)
    if missing := [side for side in steps.SIDES if side not in seconds]:
        report["not_ready_in_time"] = missing
    return report


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", default=",".join(CASES))
    parser.add_argument("--minutes", type=float, default=5.0, help="for all of it")
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--output", help="file for the report")
    parser.add_argument("--side", help="for the script's own use")
    values = parser.parse_args()
    if values.side:
        turns.serve(lambda: steps.SIDES[values.side](case_of(values.cases)))
        return
    end = time.monotonic() + 60 * values.minutes
    # Processes inherit this, so that all of them run on the same cores.
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: values.cores])
    environment = {
        **os.environ,
        "JAX_PLATFORMS": "cpu",
        huge_pages.VARIABLE: huge_pages.VALUE,
    }
    report = {}
    names = values.cases.split(",")
    for i, name in enumerate(names):
        begin = time.monotonic()
        commands = {
            side: [__file__, f"--side={side}", f"--cases={name}"]
            for side in steps.SIDES
        }
        weights = [CASES.get(left, (None, 1.0))[1] for left in names[i:]]
        deadline = turns.share(end, weights)
        measured = turns.medians(commands, environment, deadline)
        report[name] = summary(*measured, CASES.get(name, (None,))[0])
        took = round(time.monotonic() - begin)
        print(f"{name}, {took} s: {json.dumps(report[name])}", flush=True)
    turns.save(report, values.output)


if __name__ == "__main__":
    main()
