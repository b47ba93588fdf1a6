r"""Fine-tune a pretrained encoder to classify texts or pairs, or to predict numbers.

  python -m bert_jax.run.finetune_classifier --config=configs/glue.py:mrpc \
      --config.task.folder=GLUE --config.init_from=PRETRAIN_WORKDIR --workdir=DIR
  python -m bert_jax.run.finetune_classifier --config=configs/classifier.py \
      --config.task.train=TRAIN.tsv --config.task.eval=EVAL.tsv \
      --config.init_from=PRETRAIN_WORKDIR --workdir=DIR

GLUE's files are read as its download has them, or, with task.folder=tfds:DIR, as
TensorFlow Datasets prepared them. Other files are TSV, CSV or JSON lines with columns
`text`, or `text_a` and `text_b`, and `label`, or others that task.text_a, task.text_b
and task.label name. With task.target=number, labels are numbers to predict. Shape and
tokenizer come from the checkpoint. Leaves results.json, predictions.tsv and, for
classes, confusion.png in the workdir; and predictions for test files, those of GLUE in
the format for submission. The same command again continues a run that was stopped.
"""

from bert_jax.run import command_line, finetune_command

main, define_flags = finetune_command.program("classification", "configs/classifier.py")

if __name__ == "__main__":
    command_line.main(main, define_flags)
