r"""Fine-tune an encoder to give similar vectors to texts that belong together.

  python -m bert_jax.run.finetune_embedder --config=configs/embedder.py \
      --config.task.train=TRAIN.tsv --config.task.eval=EVAL.tsv \
      --config.init_from=PRETRAIN_WORKDIR --workdir=DIR

The files have two columns of texts that belong together, text_a and text_b, such as
questions and passages that answer them. A third column, negative, may have texts that
do not belong to the first. Shape and tokenizer come from the checkpoint. Writes
results.json and predictions.jsonl to the workdir. The same command resumes a run that
was stopped.
"""

from bert_jax.run import command_line, finetune_command

main, define_flags = finetune_command.program("embedding", "configs/embedder.py")

if __name__ == "__main__":
    command_line.main(main, define_flags)
