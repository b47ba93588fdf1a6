r"""Fine-tune an encoder to give similar vectors to texts that belong together.

Source: SimCSE (Gao et al. 2021), supervised: pairs with entailment from SNLI and MNLI,
        and a contradiction as the negative; batch 512, learning rate 5e-5, 3 epochs,
        temperature 0.05.
Differences: vectors are means over tokens (task.pool). Texts have up to 128 tokens. A
        tenth of the steps is warmup.
Run:    python -m bert_jax.run.finetune_embedder --config=configs/embedder.py \
            --config.task.train=TRAIN.tsv --config.task.eval=EVAL.tsv \
            --config.init_from=PRETRAIN_WORKDIR --workdir=DIR
        with columns text_a, text_b and perhaps negative. Other names:
        --config.task.text_a=anchor --config.task.text_b=positive. All texts of a batch
        go through the model at once: there are no micro-batches, since each pair is
        compared with all others of its batch. A smaller batch suits less memory, and
        some thousands of pairs.
Cost:   not measured for a model of this size. A pair costs as much as two sequences.
"""

from bert_jax import config as config_lib
from bert_jax import recipe_variants


def get_config(arg: str = ""):
    """Return the recipe; `arg` is "" or "smoke"."""
    _, smoke = recipe_variants.parse(arg)
    task = config_lib.EmbeddingConfig()
    cfg = config_lib.to_configdict(config_lib.FinetuneConfig(task=task))
    cfg.update(batch_size=512, epochs=3.0)
    cfg.optimizer.update(learning_rate=5e-5, warmup_fraction=0.1)
    if smoke:
        recipe_variants.shrink_finetuning(cfg)
    return cfg
