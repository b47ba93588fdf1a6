"""A run of seconds for the tests of many processes and of faults."""

from bert_jax import config as config_lib


def get_config(arg: str = ""):
    """Return the recipe."""
    phase = config_lib.PhaseConfig(steps=40, length=16, batch_size=16)
    cfg = config_lib.to_configdict(config_lib.PretrainConfig(phases=(phase,)))
    cfg.encoder.update(vocab_size=0, hidden_size=16, num_layers=2, num_heads=2)
    cfg.encoder.update(intermediate_size=32, max_position_embeddings=16)
    cfg.encoder.update(scan_layers=True, dtype="float32")
    cfg.optimizer.update(learning_rate=1e-3, warmup_fraction=0.1)
    cfg.loop.update(log_every=3, eval_every=12, eval_batches=2, checkpoint_every=7)
    return cfg
