r"""Fine-tune a pretrained encoder to tag words: named entities, parts of speech.

  python -m bert_jax.run.finetune_tagger --config=configs/tagger.py \
      --config.task.train=TRAIN.conll --config.task.eval=EVAL.conll \
      --config.init_from=PRETRAIN_WORKDIR --workdir=DIR

The files have a word and its tag in each line, with a tab or spaces between them, and a
blank line after each sentence. Shape and tokenizer come from the checkpoint. Writes
results.json and predictions.conll to the workdir. The same command resumes a run
that was stopped.
"""

from bert_jax.run import command_line, finetune_command

main, define_flags = finetune_command.program("tagging", "configs/tagger.py")

if __name__ == "__main__":
    command_line.main(main, define_flags)
