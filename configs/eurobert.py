r"""EuroBERT: Llama's layers without a causal mask, half of the tokens masked.

        variant  layers  hidden  feed-forward  heads  heads of keys and values
        210m     12      768     3,072         12     12
        610m     26      1,152   4,096         18     6
        2.1b     32      2,304   6,144         18     6

Source: Boizard et al. 2025 (2.3, and tables 3 and 4): steps of 9.4 M tokens. 4.8 T
        tokens in rows of 2,048, 50 % masked, rotary base 10,000, rate 1e-4 after 2,000
        steps of warmup. Then 0.2 T in rows of 8,192, 10 % masked, base 250,000, while
        the rate falls to 0. AdamW with betas of 0.9 and 0.95, an epsilon of 1e-5 and
        weight decay 0.1, clipping at 1. From Nicolas-BZRD/EuroBERT: a masked token
        always becomes [MASK] (configuration/train.py), initial values of deviation 0.02
        (model.py; table 4 has a variance of 0.2).
Differences: the rate falls as 1 - sqrt, the authors' as a cosine. Each document of a
        row has its own [CLS] and attention; the authors' rows are slices of all text,
        with an end of text after each document and no [CLS], and attention crosses
        documents (tokenize_dataset.py, pack_dataset.py). In the second stage they have
        random lengths from 12 to 8,192. The authors' 2.1b has 4,800 rows of 2,048 a
        step, not 4,608. Norms are not decayed. Initial values are truncated at two
        standard deviations.
Run:    python -m bert_jax.run.pretrain --config=configs/eurobert.py:210m \
            --config.data.corpus=DIR --workdir=DIR
        The authors' tokenizer has 128,256 tokens of byte-level BPE
        (run.train_tokenizer --kind=byte_bpe).
Cost:   the compiler's estimate for the first stage of 210m on 64 chips of TPU v4 is 12
        days (docs/results.md). Not run yet.
"""

from bert_jax import config as config_lib
from bert_jax import recipe_variants

# Layers, hidden size, feed-forward size, heads, heads of keys and values.
VARIANTS = {
    "210m": (12, 768, 3072, 12, 12),
    "610m": (26, 1152, 4096, 18, 6),
    "2.1b": (32, 2304, 6144, 18, 6),
}
_TOKENS = 9_437_184  # in a step


def get_config(arg: str = ""):
    """Return the recipe; `arg` is a variant, with ",smoke" for a run of seconds."""
    variant, smoke = recipe_variants.parse(arg, tuple(VARIANTS))
    layers, hidden, wide, heads, key_value_heads = VARIANTS[variant]
    objective = config_lib.MaskedLmConfig(
        segments="doc_sentences",
        short_sequence_rate=0.0,
        examples_per_row=32,  # 16 short texts do not fill 8,192 positions
        masking=config_lib.MaskingConfig(
            rate=0.5, mask_token_rate=1.0, random_token_rate=0.0
        ),
    )
    first_steps = round(4.8e12 / _TOKENS)
    first = config_lib.PhaseConfig(
        steps=first_steps,
        length=2048,
        batch_size=_TOKENS // 2048,
        micro_batches=72,
        learning_rate=1e-4,
        warmup_fraction=2_000 / first_steps,
        rotary_base=10_000.0,
    )
    second = config_lib.PhaseConfig(
        steps=round(0.2e12 / _TOKENS),
        length=8192,
        batch_size=_TOKENS // 8192,
        micro_batches=18,
        learning_rate=1e-4,
        decay_fraction=1.0,
        masking_rate=0.1,
    )
    config = config_lib.PretrainConfig(objective=objective, phases=(first, second))
    cfg = config_lib.to_configdict(config)
    recipe_variants.set_size(cfg, layers, hidden, heads)
    cfg.encoder.update(intermediate_size=wide, max_position_embeddings=8192)
    cfg.encoder.num_key_value_heads = key_value_heads % heads  # 0: as many as heads
    cfg.encoder.update(positions="rotary", rotary_base=250_000.0, type_vocab_size=0)
    cfg.encoder.update(feed_forward="gated", activation="silu", linear_bias=False)
    cfg.encoder.update(norm="rms", norm_placement="pre", embedding_norm=False)
    cfg.encoder.update(layer_norm_epsilon=1e-5, scan_layers=True, remat="attention")
    cfg.encoder.update(dropout_rate=0.0, attention_dropout_rate=0.0)
    cfg.encoder.prediction_head.update(num_layers=0, norm=False)
    cfg.encoder.prediction_head.update(output_bias=False, tied=False)
    cfg.encoder.pooler.update(pooling="late_mean", activation="gelu_erf")
    cfg.optimizer.update(schedule="wsd", bias_correction=True, weight_decay=0.1)
    cfg.optimizer.update(beta2=0.95, epsilon=1e-5)
    cfg.loop.checkpoint_every = 500
    if smoke:
        recipe_variants.shrink_pretraining(cfg)
        cfg.encoder.num_key_value_heads = 1
    return cfg
