r"""BERT-Large with LAMB and batches that fill a pod.

Variants: 64k (batches of 65,536 and 32,768), 32k (32,768 and 8,192).

Source: You et al. 2019. Nine tenths of the sequences at length 128, the others at 512
        with smaller batches, the rate rising from 0 again. 64k: their 8,599 steps,
        divided as NVIDIA does, whose rates and warmups these are
        (DeepLearningExamples, BERT for PyTorch: 6e-3 and 4e-3, 2,000 and 200 steps).
        Ours falls linearly from the peak, not like a square root as NVIDIA's.
        32k: as many sequences as their 15,625 steps of 32,768; rates as the square root
        of the batch and warmups in proportion to it, which is their rule for rates that
        are not tuned: 5e-3 and a fifth for 32,768, 2.5e-3 and a twentieth for 8,192.
        Moments are corrected for bias, as in the paper's algorithm; weights of biases
        and layer norms are not decayed, and their updates not rescaled, as in ALBERT's
        and NVIDIA's code.
Published: SQuAD v1.1 F1 90.6 with 64k in 76 minutes on 1,024 TPU v3 chips, and 90.4
        with AdamW and batches of 512 (table 1); NVIDIA reports 90.7.
Run:    python -m bert_jax.run.pretrain --config=configs/bert_large_lamb.py:64k \
            --config.data.corpus=DIR --workdir=DIR
        Set phases[0].micro_batches and phases[1].micro_batches to the two numbers of
        the slice ('--config.phases[0].micro_batches=2'):

        slice      v4:4x4x4  v4:8x8x8  v5e:16x16
        64k        16, 32    2, 4      8, 16
        32k        8, 8      1, 1      4, 4

        That is 64 sequences of 128, or 16 of 512, on a chip of v4 at a time, and half
        as many on one of v5e. The mesh has copies of everything, which is best but for
        32k on v4:8x8x8: there, in one piece, take --config.mesh.fsdp=8
        (docs/sharding.md).
Cost:   we have not run it.
Smoke:  --config=configs/bert_large_lamb.py:smoke takes seconds on a processor.
"""

from bert_jax import config as config_lib
from bert_jax import knobs, recipe_variants

# Of the two phases: steps, batch, learning rate, share of warmup.
_PHASES = {
    "64k": ((7_038, 65_536, 6e-3, 2_000 / 7_038), (1_561, 32_768, 4e-3, 200 / 1_561)),
    "32k": ((14_063, 32_768, 5e-3, 1 / 5), (6_250, 8_192, 2.5e-3, 1 / 20)),
}


def get_config(arg: str = ""):
    """The recipe; `arg` is a variant, with ",smoke" for seconds."""
    variant, smoke = recipe_variants.parse(arg, tuple(_PHASES))
    cfg = knobs.to_configdict(config_lib.PretrainConfig())
    cfg.encoder.vocab_size = 0  # that of the corpus
    cfg.encoder.num_layers = 24
    cfg.encoder.hidden_size = 1024
    cfg.encoder.num_heads = 16
    cfg.encoder.intermediate_size = 4096
    cfg.optimizer.update(name="lamb", schedule="linear", bias_correction=True)
    for phase, length, (steps, batch_size, rate, warmup) in zip(
        cfg.phases, (128, 512), _PHASES[variant], strict=True
    ):
        phase.update(steps=steps, length=length, batch_size=batch_size)
        phase.update(learning_rate=rate, warmup_fraction=warmup)
    if smoke:
        recipe_variants.shrink_pretraining(cfg)
    return cfg
