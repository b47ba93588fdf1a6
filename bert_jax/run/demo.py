r"""Pretrain and fine-tune a small encoder on the documentation of Python packages.

  python -m bert_jax.run.demo --workdir=DIR

Needs no download, and ten to thirty minutes on two cores. Learns a vocabulary, builds a
corpus with a held-out part, pretrains with masked tokens and next sentences, then
fine-tunes a classifier from the checkpoint and from random weights. Ends with a table,
a picture with the curves, and sentences with a blank. The same command resumes a
stopped demo, or reports again.
"""

from bert_jax.demo import recipe
from bert_jax.demo.config import DemoConfig
from bert_jax.run import command_line


def define_flags() -> None:
    command_line.define_training_flags(recipe.__file__, recipe.__file__)


def main() -> None:
    config = command_line.read_config(DemoConfig)
    folder = command_line.start_training()
    from bert_jax.demo import demo

    report = demo.demo(config, folder)
    print(f"\n{report}\nAlso in {folder}: report.txt, results.json, curves.png")


if __name__ == "__main__":
    command_line.main(main, define_flags)
