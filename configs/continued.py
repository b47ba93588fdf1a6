r"""Pretraining that continues from a checkpoint, on your own text.

Source: google-research/bert, README: a learning rate of 2e-5 for continued pretraining;
        the rest is the paper's (A.2). Gururangan et al. 2020, Don't stop pretraining,
        find that 12,500 steps of 2,048 sequences help tasks of a domain; this recipe
        has as many tokens in smaller batches of shorter sequences.
Run:    python -m bert_jax.run.pretrain --config=configs/continued.py \
            --config.init_from=CHECKPOINT --config.data.corpus=DIR --workdir=DIR
        The checkpoint is a workdir, a checkpoint in it, or a published model's folder.
        The architecture is the checkpoint's. Set no field of it: a value that
        contradicts the checkpoint, or the default of another field, is refused. Some
        fields may change: the sizes of the tables of positions and segments (with
        --config.encoder.max_position_embeddings=1024, positions that the checkpoint
        lacks begin with initial values), and the bases of rotary positions
        (--config.encoder.rotary_base=160000).
        The corpus must be built with the checkpoint's tokenizer: that of a published
        folder, or tokenizer/ in the corpus of a workdir. There may be several corpora:
        --config.data.corpus=NEW,OLD with --config.data.weights=3,1 keeps a quarter of
        the rows for the former kind of text. If the checkpoint's run had the same
        corpus, set another --config.seed, or the same rows come again. Use
        `run.extend_vocabulary` first to add the words of a domain. Moments and schedule
        start from scratch. The objective may differ from the checkpoint's: left to
        right first, then masked tokens (arXiv 2507.00994), which have the same head.
        Other heads start from random values. To train for anything but masked tokens,
        copy this file and replace `objective`.
        By default, rows have one segment, which every encoder takes; a BERT goes on
        with next sentence by --config.objective.segments=next_sentence.
Cost:   not run yet.
"""

from bert_jax import config as config_lib
from bert_jax import recipe_variants


def get_config(arg: str = ""):
    """Return the recipe; `arg` is "" or "smoke"."""
    _, smoke = recipe_variants.parse(arg)
    phases = (config_lib.PhaseConfig(steps=400_000, length=128, batch_size=256),)
    objective = config_lib.MaskedLmConfig(
        segments="full_sentences", short_sequence_rate=0.0
    )
    config = config_lib.PretrainConfig(objective=objective, phases=phases)
    cfg = config_lib.to_configdict(config)
    cfg.init_from = "CHECKPOINT"  # a placeholder that must be set
    cfg.encoder.vocab_size = 0  # the checkpoint's
    cfg.optimizer.update(learning_rate=2e-5, warmup_fraction=0.01, schedule="linear")
    cfg.optimizer.bias_correction = True  # few steps, and moments from zero
    if smoke:
        recipe_variants.shrink_pretraining(cfg)
    return cfg
