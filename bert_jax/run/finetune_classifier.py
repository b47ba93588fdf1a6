r"""Fine-tune a pretrained encoder to classify texts or pairs of texts.

  python -m bert_jax.run.finetune_classifier --config=configs/classifier.py \
      --config.task.train=TRAIN.tsv --config.task.eval=EVAL.tsv \
      --config.init_from=PRETRAIN_WORKDIR --workdir=DIR

The files are TSV with a header: `text`, or `text_a` and `text_b`, and `label`. Shape
and tokenizer come from the checkpoint. Leaves results.json and predictions.tsv in the
workdir. The same command again continues a run that was stopped.
"""

from bert_jax.run import command_line, finetune_command


def define_flags() -> None:
    """Define the flags of this entrypoint."""
    finetune_command.define_flags("configs/classifier.py")


def main() -> int:
    """The entrypoint."""
    return finetune_command.main("classification")


if __name__ == "__main__":
    command_line.main(main, define_flags)
