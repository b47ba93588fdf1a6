r"""Fine-tune a pretrained encoder to choose among several answers to a question.

Source: BERT paper, 4.4, for SWAG: batch 16, learning rate 2e-5, 3 epochs. A tenth of
        the steps warmup, as google-research/bert has for its tasks.
Expect: SWAG (paper, table 4): BERT-Base accuracy 81.6 on the evaluation set, BERT-Large
        86.6, and 86.3 on the test set.
Run:    python -m bert_jax.run.finetune_choice --config=configs/choice.py \
            --config.task.train=TRAIN.csv --config.task.eval=EVAL.csv \
            --config.init_from=PRETRAIN_WORKDIR --workdir=DIR
Cost:   not measured for a model of this size. A question costs as much as a sequence
        for each answer, four for SWAG.
"""

from bert_jax import config as config_lib
from bert_jax import recipe_variants


def get_config(arg: str = ""):
    """Return the recipe; `arg` is "" or "smoke"."""
    _, smoke = recipe_variants.parse(arg)
    task = config_lib.ChoiceConfig(length=128)
    cfg = config_lib.to_configdict(config_lib.FinetuneConfig(task=task))
    cfg.update(batch_size=16, epochs=3.0)
    cfg.optimizer.update(learning_rate=2e-5, warmup_fraction=0.1)
    if smoke:
        recipe_variants.shrink_finetuning(cfg)
    return cfg
