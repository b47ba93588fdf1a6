r"""A small encoder in ten minutes of two CPU cores.

Source: the row "+ two segments" of docs/speedrun.md: BERT-Tiny's size (Turc et al.
        2019) with rotary positions, pre-norm, gated feed-forward networks without
        biases (ModernBERT) and Muon; short rows first; two segments, but no next
        sentence; vocabulary of the corpus, 8,192 there. No class of transformers has
        all of these parts: run.convert refuses the result.
Run:    python -m bert_jax.run.pretrain --config=configs/speedrun.py \
            --config.data.corpus=DIR --workdir=DIR
Cost:   as much as 18,000 steps of 16 rows of BERT-Tiny: ten minutes of two cores that
        train 480 of these rows a second.
Smoke:  --config=configs/speedrun.py:smoke takes seconds.
Result: on novels and some of Wikipedia, 3.38 nats on held-out text, 38.3 % of masked
        tokens, and 59.0 +- 0.6 % of BLiMP's pairs; BERT's recipe, for as long, 3.89,
        33.0 and 55.0. An eighth of the steps end at 4.43 and 4.48, two seeds.
"""

from bert_jax import config as config_lib
from bert_jax import recipe_variants


def get_config(arg: str = ""):
    """Return the recipe; `arg` is "" or "smoke"."""
    _, smoke = recipe_variants.parse(arg)
    cfg = config_lib.to_configdict(config_lib.PretrainConfig())
    recipe_variants.set_size(cfg, num_layers=2, hidden_size=128, num_heads=2)
    cfg.encoder.update(max_position_embeddings=128, positions="rotary")
    cfg.encoder.update(norm_placement="pre", linear_bias=False, norm_bias=False)
    # Three matrices with two thirds of the columns: as many operations.
    cfg.encoder.update(feed_forward="gated", intermediate_size=344)
    # The text is seen less than once.
    cfg.encoder.update(dropout_rate=0.0, attention_dropout_rate=0.0)
    cfg.encoder.update(initializer_range=0.05, dtype="float32")
    # Unlike rows of full sentences, a quarter of which is padding, these are cut to
    # length.
    cfg.objective.update(segments="consecutive", short_sequence_rate=0.0)
    cfg.phases[0].update(steps=6_930, length=32, batch_size=32)
    cfg.phases[1].update(steps=6_830, length=64, batch_size=16)
    cfg.optimizer.update(name="muon", learning_rate=3e-3, warmup_fraction=0.05)
    cfg.optimizer.update(schedule="linear", bias_correction=True)
    cfg.loop.update(
        log_every=100, eval_every=1000, eval_batches=100, checkpoint_every=1000
    )
    if smoke:
        recipe_variants.shrink_pretraining(cfg)
    return cfg
