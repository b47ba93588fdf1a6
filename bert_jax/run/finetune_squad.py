r"""Fine-tune a pretrained encoder to answer questions with a part of their context.

  python -m bert_jax.run.finetune_squad --config=configs/squad.py:v1 \
      --config.task.train=train-v1.1.json --config.task.eval=dev-v1.1.json \
      --config.init_from=PRETRAIN_WORKDIR --workdir=DIR

The files are SQuAD's, plain or compressed; for version 2.0, in which a question may
have no answer, the recipe is configs/squad.py:v2. Shape and tokenizer come from the
checkpoint. Writes results.json, predictions.json, nbest_predictions.json and,
for 2.0, null_odds.json to the workdir. The same command resumes a run that was stopped.
"""

from bert_jax.run import command_line, finetune_command

main, define_flags = finetune_command.program("squad", "configs/squad.py:v1")

if __name__ == "__main__":
    command_line.main(main, define_flags)
