r"""NeoBERT: 28 narrow layers with rotary positions, RMS norms and gated layers.

Source: Le Breton et al. 2025, and conf/ and jobs/ of chandar-lab/NeoBERT: hidden size
        768, 12 heads, a gated network of width 2,048, rotary base 10,000, norms with an
        epsilon of 1e-5, an untied table of logits. A million steps of 2,048 rows of
        1,024 tokens, then 50,000 in rows of 4,096. AdamW with betas of 0.9 and 0.95, an
        epsilon of 1e-8 and weight decay 0.01, rate 1e-4 after 2,000 steps, clipping at
        1. 20 % of the tokens are masked and always become [MASK]. Text: RefinedWeb;
        BERT's uncased vocabulary.
        The paper (3.3) has another rate, 6e-4, and weight decay 0.1.
Differences: the authors' rate falls to a tenth as a cosine over 900,000 steps, and is
        constant from there, also in the second stage; here it falls to 0 in the first
        stage, and from a tenth to 0 in the second. The authors draw 80 % of the second
        stage from texts of more than 1,024 tokens, and initial values from uniform
        distributions in +-0.02. They decay all parameters. Their rows have the
        beginning of one text each, and the rest is left out (tokenizer.py); here texts
        are cut into rows, and short ones packed.
Run:    python -m bert_jax.run.pretrain --config=configs/neobert.py \
            --config.data.corpus=DIR --workdir=DIR
        with a corpus that is built with BERT's uncased vocabulary:
        run.build_corpus --tokenizer=vocab.txt --lower_case. `transformers` has no class
        for it: run.convert writes a EuroBERT only if tokens have no biases
        (--config.encoder.prediction_head.output_bias=False).
Cost:   the compiler's estimate for the first stage on 64 chips of TPU v4 is 6 days
        (docs/results.md). Not run yet.
"""

from bert_jax import config as config_lib
from bert_jax import recipe_variants


def get_config(arg: str = ""):
    """Return the recipe; `arg` is "" or "smoke"."""
    _, smoke = recipe_variants.parse(arg)
    objective = config_lib.MaskedLmConfig(
        segments="doc_sentences",
        short_sequence_rate=0.0,
        examples_per_row=16,  # 8 short texts do not fill 4,096 positions
        masking=config_lib.MaskingConfig(
            rate=0.2, mask_token_rate=1.0, random_token_rate=0.0
        ),
    )
    first, second = (
        config_lib.PhaseConfig(
            steps=steps,
            length=length,
            batch_size=2**21 // length,
            micro_batches=micro_batches,
            learning_rate=rate,
            warmup_fraction=warmup / steps,
        )
        for steps, length, micro_batches, rate, warmup in (
            (1_000_000, 1024, 4, 1e-4, 2_000),
            (50_000, 4096, 8, 1e-5, 0),
        )
    )
    config = config_lib.PretrainConfig(objective=objective, phases=(first, second))
    cfg = config_lib.to_configdict(config)
    recipe_variants.set_size(cfg, num_layers=28, hidden_size=768, num_heads=12)
    cfg.encoder.update(intermediate_size=2048, max_position_embeddings=4096)
    cfg.encoder.update(positions="rotary", type_vocab_size=0)
    cfg.encoder.update(feed_forward="gated", activation="silu", linear_bias=False)
    cfg.encoder.update(norm="rms", norm_placement="pre", embedding_norm=False)
    cfg.encoder.update(layer_norm_epsilon=1e-5, scan_layers=True, remat="attention")
    cfg.encoder.update(dropout_rate=0.0, attention_dropout_rate=0.0)
    cfg.encoder.prediction_head.update(num_layers=0, norm=False, tied=False)
    cfg.optimizer.update(schedule="cosine", bias_correction=True)
    cfg.optimizer.update(beta2=0.95, epsilon=1e-8)
    if smoke:
        recipe_variants.shrink_pretraining(cfg)
    return cfg
