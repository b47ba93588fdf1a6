r"""From nothing but this package to a fine-tuned classifier, in minutes on two cores.

Source: sizes and rates are our own, found by trying (docs/log.md): with so little time,
a small encoder that takes many small steps learns most. Shape: BERT-Tiny (google-
research/bert's miniatures) with a vocabulary of 8,192.
Run:    python -m bert_jax.run.demo --workdir=DIR
Cost:   ten to thirty minutes on two cores; see docs/results.md.
Smoke:  --config=bert_jax/demo/recipe.py:smoke takes a minute or two, most of it to
        read text.
"""

from bert_jax import knobs, recipe_variants
from bert_jax.demo import config as demo_config


def get_config(arg: str = ""):
    """The recipe; `arg` is "" or "smoke"."""
    _, smoke = recipe_variants.parse(arg)
    cfg = knobs.to_configdict(demo_config.DemoConfig())

    pretrain = cfg.pretrain
    pretrain.encoder.vocab_size = 0  # that of the corpus
    pretrain.encoder.num_layers = 2
    pretrain.encoder.hidden_size = 128
    pretrain.encoder.num_heads = 2
    pretrain.encoder.intermediate_size = 512
    pretrain.encoder.max_position_embeddings = 128
    # BERT's 0.02, times the root of 768 / 128: the plateau ends sooner (docs/log.md).
    pretrain.encoder.initializer_range = 0.05
    # The text is seen once or twice; there is nothing to regularise yet.
    pretrain.encoder.dropout_rate = 0.0
    pretrain.encoder.attention_dropout_rate = 0.0
    pretrain.encoder.dtype = "float32"  # products this small gain nothing from less
    pretrain.phases = pretrain.phases[:1]
    pretrain.phases[0].update(steps=12_000, length=64, batch_size=16)
    pretrain.optimizer.update(learning_rate=1e-3, warmup_fraction=0.05)
    pretrain.optimizer.update(schedule="linear", bias_correction=True)
    pretrain.loop.update(log_every=100, eval_every=1000, eval_batches=200)
    pretrain.loop.checkpoint_every = 1000

    finetune = cfg.finetune
    finetune.task.length = 64
    finetune.epochs = 2.0
    finetune.lengths = 1  # one program, which compiles for as long as it trains
    finetune.optimizer.update(learning_rate=5e-4, warmup_fraction=0.1)
    finetune.optimizer.update(schedule="linear", bias_correction=True)
    finetune.loop.eval_every = 50

    if smoke:
        demo_config.shrink(cfg)
    return cfg
