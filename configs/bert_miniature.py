r"""BERT's miniatures: Tiny, Mini, Small and Medium.

Source: the shapes are four of google-research/bert's miniatures (Turc et al. 2019);
        batch, steps, warmup and learning rate are BERT-Base's.

        variant  layers  hidden  heads  parameters  published GLUE test score
        tiny     2       128     2      4.4 M       64.2
        mini     4       256     4      11.3 M      65.8
        small    4       512     8      29.1 M      71.2
        medium   8       512     8      41.7 M      73.5

Run:    python -m bert_jax.run.pretrain --config=configs/bert_miniature.py:mini \
            --config.data.corpus=DIR --workdir=DIR
Cost:   not run yet in full. docs/results.md has a short run of Tiny on two CPU cores,
        with the overrides for it.
"""

from bert_jax import config as config_lib
from bert_jax import recipe_variants

# Layers, hidden size, heads.
VARIANTS = {
    "tiny": (2, 128, 2),
    "mini": (4, 256, 4),
    "small": (4, 512, 8),
    "medium": (8, 512, 8),
}


def get_config(arg: str = ""):
    """Return the recipe; `arg` is a size, with ",smoke" for a run of seconds."""
    size, smoke = recipe_variants.parse(arg, tuple(VARIANTS))
    cfg = config_lib.to_configdict(config_lib.PretrainConfig())
    recipe_variants.set_size(cfg, *VARIANTS[size])
    cfg.optimizer.update(learning_rate=1e-4, warmup_fraction=0.01)
    cfg.phases[0].update(steps=900_000, length=128, batch_size=256)
    cfg.phases[1].update(steps=100_000, length=512, batch_size=256)
    if smoke:
        recipe_variants.shrink_pretraining(cfg)
    return cfg
