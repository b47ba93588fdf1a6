r"""Seconds from the command to the first step of a pretraining run, by part.

    python benchmarks/start_up.py --corpus=DIR

BERT-Base on this host: a start in a new folder with an empty compilation cache, and a
restart from the checkpoint that it saved, with the cache that it left. Both are the
command that users give, stopped by SIGTERM after their first step. A part lasts from
one line that the program prints to the next. Unknown arguments are passed on to the
program.
"""

import os
import pathlib
import subprocess
import sys
import tempfile
import time

import program_flags

ROOT = pathlib.Path(__file__).parents[1]


def start(command):
    """Run one start. Print the seconds that followed each line of the program."""
    line, begun = "the command", time.monotonic()
    first = begun
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        for following in process.stderr:
            now = time.monotonic()
            print(f"{now - begun:6.1f}  {line.strip()[:70]}", flush=True)
            line, begun = following, now
            if line.startswith("train step"):
                break
        process.terminate()
        rest = process.communicate()[1]
    if process.returncode != 75:
        print(line + rest, end="", file=sys.stderr)
        sys.exit(process.returncode)
    print(f"{begun - first:6.1f}  in all, up to the first step", flush=True)


def main():
    parser = program_flags.make_parser(__doc__)
    parser.add_argument("--corpus", required=True, help="from run.build_corpus")
    values, more = parser.parse_known_args()
    with tempfile.TemporaryDirectory() as folder:
        command = [
            *(sys.executable, "-m", "bert_jax.run.pretrain"),
            f"--config={ROOT / 'configs/bert_base.py'}",
            f"--config.data.corpus={os.path.abspath(values.corpus)}",
            "--config.phases[0].batch_size=8",
            "--config.loop.log_every=1",
            f"--config.loop.compilation_cache={folder}/compiled",
            f"--workdir={folder}/run",
            *more,
        ]
        for name in ("first start", "restart"):
            print(f"{name}: seconds after each line of output")
            start(command)


if __name__ == "__main__":
    main()
