r"""Fine-tune a pretrained encoder to classify texts or pairs of texts.

  python -m bert_jax.run.finetune_classifier --config=configs/classifier.py \
      --config.task.train=TRAIN.tsv --config.task.eval=EVAL.tsv \
      --config.init_from=PRETRAIN_WORKDIR --workdir=DIR

The files are TSV with a header: `text`, or `text_a` and `text_b`, and `label`. Shape
and tokenizer come from the checkpoint. Leaves results.json and predictions.tsv in the
workdir. The same command again continues a run that was stopped.
"""

import json

from absl import flags

from bert_jax import config as config_lib
from bert_jax import knobs, terminal
from bert_jax.run import command_line


def define_flags() -> None:
    """Define the flags of this entrypoint."""
    command_line.define_config(None, "configs/classifier.py")
    command_line.define_workdir()
    command_line.define_processes()
    flags.adopt_module_key_flags(command_line)


def main() -> int:
    """The entrypoint."""
    config = knobs.from_configdict(config_lib.FinetuneConfig, command_line.config())
    folder = command_line.workdir()
    terminal.say("importing JAX")
    from bert_jax import finetuning
    from bert_jax.training import processes

    command_line.start_processes()
    results = finetuning.finetune(config, folder)
    if processes.is_main():
        print(json.dumps(results, indent=2))
    return 0


if __name__ == "__main__":
    command_line.main(main, define_flags)
