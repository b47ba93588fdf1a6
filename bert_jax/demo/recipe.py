r"""From an installed package to a fine-tuned classifier, in minutes on two cores.

Source: sizes and rates were found by experiments: in so little time, a
        small encoder with many small steps learns most. Both variants have the size of
        BERT-Tiny (google-research/bert's miniatures), a vocabulary of 8,192, and about
        the same CPU time. The modern one reads short rows first, and has heads of
        32 columns.

        variant    what it trains
        modern     the default: rotary positions, pre-norm, gated feed-forward networks
                   without biases (ModernBERT), and Muon
        bert       BERT's layers, positions and Adam
Run:    python -m bert_jax.run.demo --workdir=DIR
        python -m bert_jax.run.demo --config=bert_jax/demo/recipe.py:bert --workdir=DIR
Cost:   ten to thirty minutes on two cores; see docs/results.md.
Smoke:  --config=bert_jax/demo/recipe.py:smoke takes a minute or two, mostly to
        read text.
"""

from bert_jax import config as config_lib
from bert_jax import recipe_variants
from bert_jax.demo.config import DemoConfig

VARIANTS = ("modern", "bert")


def get_config(arg: str = ""):
    """Return the recipe; `arg` is a variant or "", with "smoke" for a small run."""
    variant, smoke = recipe_variants.parse(arg or VARIANTS[0], VARIANTS)
    cfg = config_lib.to_configdict(DemoConfig())

    pretrain = cfg.pretrain
    recipe_variants.set_size(pretrain, num_layers=2, hidden_size=128, num_heads=2)
    pretrain.encoder.max_position_embeddings = 128
    # BERT's 0.02, times the root of 768 / 128: the plateau ends sooner.
    pretrain.encoder.initializer_range = 0.05
    # The text is seen once or twice, too little to overfit.
    pretrain.encoder.update(dropout_rate=0.0, attention_dropout_rate=0.0)
    pretrain.encoder.dtype = "float32"  # bfloat16 is no faster at this size
    pretrain.optimizer.update(learning_rate=1e-3, warmup_fraction=0.05)
    pretrain.optimizer.update(schedule="linear", bias_correction=True)
    if variant == "modern":
        pretrain.encoder.update(positions="rotary", norm_placement="pre")
        # Three matrices with two thirds of the columns: as many operations.
        pretrain.encoder.update(feed_forward="gated", intermediate_size=344)
        pretrain.encoder.update(linear_bias=False, norm_bias=False)
        pretrain.optimizer.update(name="muon", learning_rate=3e-3)
        pretrain.encoder.num_heads = 4  # takes no longer than 2
        # Rows of 32 tokens in two fifths of the time. Both phases together take a
        # little less CPU time than BERT's 12,000 steps (docs/results.md).
        pretrain.phases[0].update(steps=3_630, length=32, batch_size=32)
        pretrain.phases[1].update(steps=5_370, length=64, batch_size=16)
    else:
        pretrain.phases = pretrain.phases[:1]
        pretrain.phases[0].update(steps=12_000, length=64, batch_size=16)
    pretrain.loop.update(
        log_every=100, eval_every=1000, eval_batches=200, checkpoint_every=1000
    )

    finetune = cfg.finetune
    finetune.task.length = 64
    finetune.epochs = 2.0
    finetune.lengths = 1  # to compile one program only
    finetune.optimizer.update(learning_rate=5e-4, warmup_fraction=0.1)
    finetune.optimizer.update(schedule="linear", bias_correction=True)
    finetune.loop.eval_every = 50

    if smoke:
        cfg.update(vocab_size=500, sample_megabytes=1, train_examples=64, repeats=2)
        recipe_variants.shrink_pretraining(pretrain)
        recipe_variants.shrink_finetuning(finetune)
        finetune.loop.update(eval_every=4, checkpoint_every=0)
    return cfg
