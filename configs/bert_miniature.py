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
Cost:   we have not run it in full. docs/results.md has half an hour of Mini on two
        processor cores, with the overrides that this takes.
Smoke:  --config=configs/bert_miniature.py:smoke takes seconds on a processor.
"""

from bert_jax import config as config_lib
from bert_jax import knobs, recipe_variants

# Layers, hidden size, heads.
_SHAPES = {
    "tiny": (2, 128, 2),
    "mini": (4, 256, 4),
    "small": (4, 512, 8),
    "medium": (8, 512, 8),
}


def get_config(arg: str = ""):
    """The recipe; `arg` is a size, followed by ",smoke" for a run of seconds."""
    size, smoke = recipe_variants.parse(arg, tuple(_SHAPES))
    cfg = knobs.to_configdict(config_lib.PretrainConfig())
    cfg.encoder.vocab_size = 0  # that of the corpus
    layers, hidden, heads = _SHAPES[size]
    cfg.encoder.update(num_layers=layers, hidden_size=hidden, num_heads=heads)
    cfg.encoder.intermediate_size = 4 * hidden
    cfg.optimizer.learning_rate = 1e-4
    cfg.optimizer.warmup_fraction = 0.01
    cfg.phases[0].update(steps=900_000, length=128, batch_size=256)
    cfg.phases[1].update(steps=100_000, length=512, batch_size=256)
    if smoke:
        recipe_variants.shrink_pretraining(cfg)
    return cfg
