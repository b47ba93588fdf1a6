r"""BERT-Base: 12 layers, hidden size 768, 12 heads, 110 M parameters.

Source: Devlin et al. 2018, A.2: batch 256, a million steps, 10,000 of them warmup,
        learning rate 1e-4, 90 % of the steps at length 128 and the rest at 512; here in
        one run of two phases.
Run:    python -m bert_jax.run.pretrain --config=configs/bert_base.py \
            --config.data.corpus=DIR --workdir=DIR
Cost:   the authors' run took four days on 16 TPU chips (A.2). Not run yet;
        docs/results.md has the time of a step on a CPU.
"""

from bert_jax import config as config_lib
from bert_jax import recipe_variants


def get_config(arg: str = ""):
    """Return the recipe; `arg` is "" or "smoke"."""
    _, smoke = recipe_variants.parse(arg)
    cfg = config_lib.to_configdict(config_lib.PretrainConfig())
    recipe_variants.set_size(cfg, num_layers=12, hidden_size=768, num_heads=12)
    cfg.optimizer.update(learning_rate=1e-4, warmup_fraction=0.01)
    cfg.phases[0].update(steps=900_000, length=128, batch_size=256)
    cfg.phases[1].update(steps=100_000, length=512, batch_size=256)
    if smoke:
        recipe_variants.shrink_pretraining(cfg)
    return cfg
