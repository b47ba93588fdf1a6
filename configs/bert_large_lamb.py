r"""BERT-Large with LAMB and batches that fill a pod.

Variants: 64k (batches of 65,536 and 32,768), 32k (32,768 and 8,192).

Source: You et al. 2019. Nine tenths of the sequences have length 128. The rest have
        512, with smaller batches and a new warmup. 64k: the paper's 8,599 steps, with
        phases, rates and warmups of NVIDIA (DeepLearningExamples, BERT for PyTorch:
        6e-3 and 4e-3, 2,000 and 200 steps), but the rate falls linearly, not like a
        square root. 32k: as many sequences as the paper's 15,625 steps of 32,768. Rates
        follow the square root of the batch and warmups the batch, the paper's rule for
        untuned rates: 5e-3 and a fifth for 32,768, 2.5e-3 and a twentieth for 8,192.
        Moments are corrected for bias, as in the paper's algorithm. Biases and layer
        norms are not decayed, and their updates not rescaled, as in ALBERT's and
        NVIDIA's code.
Published: SQuAD v1.1 F1 90.6 with 64k in 76 minutes on 1,024 TPU v3 chips, and 90.4
        with AdamW and batches of 512 (table 1); NVIDIA reports 90.7.
Run:    python -m bert_jax.run.pretrain --config=configs/bert_large_lamb.py:64k \
            --config.data.corpus=DIR --workdir=DIR
        Set phases[0].micro_batches and phases[1].micro_batches to the two numbers of
        the slice ('--config.phases[0].micro_batches=2'):

        slice      v4:4x4x4  v4:8x8x8  v5e:16x16
        64k        16, 32    2, 4      8, 16
        32k        8, 8      1, 1      4, 4

        That is 64 sequences of 128, or 16 of 512, at a time on a v4 chip, and half as
        many on v5e. The model is replicated on all chips. On v4:8x8x8,
        --config.mesh.fsdp=8 has 10 % (64k) and 19 % (32k) fewer estimated cycles
        with unrolled layers, without collectives (docs/sharding.md).
Cost:   not run yet.
"""

from bert_jax import config as config_lib
from bert_jax import recipe_variants

# Of the two phases: steps, batch, learning rate, share of warmup.
VARIANTS = {
    "64k": ((7_038, 65_536, 6e-3, 2_000 / 7_038), (1_561, 32_768, 4e-3, 200 / 1_561)),
    "32k": ((14_063, 32_768, 5e-3, 1 / 5), (6_250, 8_192, 2.5e-3, 1 / 20)),
}


def get_config(arg: str = ""):
    """Return the recipe; `arg` is a variant, with ",smoke" for a run of seconds."""
    variant, smoke = recipe_variants.parse(arg, tuple(VARIANTS))
    cfg = config_lib.to_configdict(config_lib.PretrainConfig())
    recipe_variants.set_size(cfg, num_layers=24, hidden_size=1024, num_heads=16)
    cfg.optimizer.update(name="lamb", schedule="linear", bias_correction=True)
    for phase, length, (steps, batch_size, rate, warmup) in zip(
        cfg.phases, (128, 512), VARIANTS[variant], strict=True
    ):
        phase.update(steps=steps, length=length, batch_size=batch_size)
        phase.update(learning_rate=rate, warmup_fraction=warmup)
    if smoke:
        recipe_variants.shrink_pretraining(cfg)
    return cfg
