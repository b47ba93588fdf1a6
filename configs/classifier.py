r"""Fine-tune a pretrained encoder to classify texts or pairs of texts.

Source: google-research/bert, run_classifier.py: batch 32, learning rate 5e-5, 3 epochs,
        a tenth of the steps warmup. The paper (A.3) tries batches of 16 and 32,
        learning rates of 5e-5, 3e-5 and 2e-5, and 2 to 4 epochs, and takes the best;
        for the miniatures, google-research/bert tries rates of up to 3e-4.
Run:    python -m bert_jax.run.finetune_classifier --config=configs/classifier.py \
            --config.task.train=TRAIN.tsv --config.task.eval=EVAL.tsv \
            --config.init_from=PRETRAIN_WORKDIR --workdir=DIR
Cost:   not measured on a task of the usual size. docs/results.md has the demo, which
        fine-tunes six times.
"""

from bert_jax import config as config_lib
from bert_jax import recipe_variants


def get_config(arg: str = ""):
    """Return the recipe; `arg` is "" or "smoke"."""
    _, smoke = recipe_variants.parse(arg)
    cfg = config_lib.to_configdict(config_lib.FinetuneConfig())
    cfg.update(batch_size=32, epochs=3.0)
    cfg.optimizer.update(learning_rate=5e-5, warmup_fraction=0.1)
    if smoke:
        recipe_variants.shrink_finetuning(cfg)
    return cfg
