r"""ELECTRA: a generator replaces tokens, and the encoder detects them.

Source: Clark et al. 2020 and google-research/electra, configure_pretraining.py: a
        million steps, 10,000 of them warmup (base: 766,000; large: 400,000), the
        discriminator's loss times 50. The paper trains small on sequences of 128 tokens
        and the others on 512. The authors' data have no question about segments. Here
        the rate jumps at the end of the warmup, by at most 2.5 %; theirs does not.

        variant  layers  hidden  heads  embedding  generator  batch  rate  masked
        small    12      256     4      128        1/4        128    5e-4  15 %
        base     12      768     12     768        1/3        256    2e-4  15 %
        large    24      1,024   16     1,024      1/4        2,048  2e-4  25 %
Run:    python -m bert_jax.run.pretrain --config=configs/electra.py:small \
            --config.data.corpus=DIR --workdir=DIR
        Fine-tuning takes the discriminator.
Cost:   the authors' small took four days on one V100 GPU (their Table 1). Not run
        yet.
"""

from bert_jax import config as config_lib
from bert_jax import recipe_variants

# Layers, hidden size, heads, columns of the embeddings.
VARIANTS = {
    "small": (12, 256, 4, 128),
    "base": (12, 768, 12, 768),
    "large": (24, 1024, 16, 1024),
}
# Steps, length, batch, learning rate, generator's size, share that is masked.
_TRAINING = {
    "small": (1_000_000, 128, 128, 5e-4, 1 / 4, 0.15),
    "base": (766_000, 512, 256, 2e-4, 1 / 3, 0.15),
    "large": (400_000, 512, 2048, 2e-4, 1 / 4, 0.25),
}


def get_config(arg: str = ""):
    """Return the recipe; `arg` is a variant, with ",smoke" for a run of seconds."""
    variant, smoke = recipe_variants.parse(arg, tuple(VARIANTS))
    *size, embedding_size = VARIANTS[variant]
    steps, length, batch_size, rate, generator_size, masked = _TRAINING[variant]
    objective = config_lib.ReplacedTokensConfig(generator_size=generator_size)
    phase = config_lib.PhaseConfig(steps=steps, length=length, batch_size=batch_size)
    config = config_lib.PretrainConfig(objective=objective, phases=(phase,))
    cfg = config_lib.to_configdict(config)
    recipe_variants.set_size(cfg, *size)
    cfg.encoder.update(embedding_size=embedding_size, activation="gelu_erf")
    cfg.encoder.pooler.activation = "gelu_erf"  # as in `transformers`
    cfg.objective.masking.rate = masked
    cfg.optimizer.update(learning_rate=rate, warmup_fraction=10_000 / steps)
    if smoke:
        recipe_variants.shrink_pretraining(cfg)
        cfg.encoder.embedding_size = 16
        cfg.objective.generator_size = 0.5
    return cfg
