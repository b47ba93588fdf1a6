r"""Fine-tune a pretrained encoder to choose among several answers to a question.

  python -m bert_jax.run.finetune_choice --config=configs/choice.py \
      --config.task.train=TRAIN.csv --config.task.eval=EVAL.csv \
      --config.init_from=PRETRAIN_WORKDIR --workdir=DIR

The files are SWAG's CSV, ARC's CSV (a question, its answers, and the letter of the true
one), or JSON lines (`{"question": TEXT, "choices": [TEXT, ...], "answer": NUMBER}`).
Shape and tokenizer come from the checkpoint. Writes results.json and predictions.jsonl
to the workdir. The same command resumes a run that was stopped.
"""

from bert_jax.run import command_line, finetune_command

main, define_flags = finetune_command.program("choice", "configs/choice.py")

if __name__ == "__main__":
    command_line.main(main, define_flags)
