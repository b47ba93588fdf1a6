r"""BERT-Medium: 8 layers, hidden size 512, 8 heads, 41.7 M parameters.

Source: the shape is one of google-research/bert's miniatures (Turc et al. 2019);
batch, steps, warmup and learning rate are BERT-Base's.
Run:    python -m bert_jax.run.pretrain --config=configs/bert_medium.py \
            --config.data.corpus=DIR --workdir=DIR
Cost:   not run by us.
Smoke:  --config=configs/bert_medium.py:smoke takes seconds on a processor.
"""

from bert_jax import config as config_lib
from bert_jax import knobs


def get_config(arg: str = ""):
    """The recipe; `arg` is "" or "smoke"."""
    cfg = knobs.to_configdict(config_lib.PretrainConfig())
    cfg.encoder.vocab_size = 0  # that of the corpus
    cfg.encoder.num_layers = 8
    cfg.encoder.hidden_size = 512
    cfg.encoder.num_heads = 8
    cfg.encoder.intermediate_size = 2048
    cfg.optimizer.learning_rate = 1e-4
    cfg.optimizer.warmup_fraction = 0.01
    cfg.phases[0].update(steps=900_000, length=128, max_predictions=20, batch_size=256)
    cfg.phases[1].update(steps=100_000, length=512, max_predictions=77, batch_size=256)
    if config_lib.is_smoke(arg):
        config_lib.shrink_pretraining(cfg)
    return cfg
