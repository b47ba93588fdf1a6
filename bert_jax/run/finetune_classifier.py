r"""Fine-tune a pretrained encoder to classify texts or pairs, or to predict numbers.

  python -m bert_jax.run.finetune_classifier --config=configs/glue.py:mrpc \
      --config.task.folder=GLUE --config.init_from=PRETRAIN_WORKDIR --workdir=DIR
  python -m bert_jax.run.finetune_classifier --config=configs/classifier.py \
      --config.task.train=TRAIN.tsv --config.task.eval=EVAL.tsv \
      --config.init_from=PRETRAIN_WORKDIR --workdir=DIR

GLUE's files are read as its download has them, or, with task.folder=tfds:DIR, as
TensorFlow Datasets prepared them. Other files are TSV, CSV or JSON lines with the
columns `text`, or `text_a` and `text_b`, and `label`; task.text_a, task.text_b and
task.label set other names. With task.target=number, labels are numbers to predict.
Shape and tokenizer come from the checkpoint. Writes results.json, predictions.tsv and,
for classes, confusion.png to the workdir; and predictions for test files, for GLUE in
the format for submission. task.test is such a file, and is scored if it has labels. The
same command resumes a run that was stopped.
"""

from bert_jax.run import command_line, finetune_command

main, define_flags = finetune_command.program("classification", "configs/classifier.py")

if __name__ == "__main__":
    command_line.main(main, define_flags)
