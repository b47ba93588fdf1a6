r"""NomicBERT: BERT with rotary positions and gated layers, in rows of 2,048.

Source: Nussbaum et al. 2024 (4.1 and table 2, nomic-bert-2048): 12 layers, hidden size
        768, 12 heads, BERT's uncased vocabulary, Wikipedia and books, rows packed to
        2,048 tokens, 30 % masked, no next sentence, no dropout; 100,000 steps of 4,096
        rows; AdamW with betas of 0.9 and 0.98 and weight decay 1e-5, rate 5e-4 with a
        linear rise over 6 % of the steps and a linear fall, no clipping.
        nomic-ai/contrastors: an epsilon of 1e-6 and, in evaluation, 15 % masked
        (configs/train/mlm.yaml); rotary base 1,000 (configuration_nomic_bert.py until
        May 2024, then 10,000; the published config). The versions of mlm.yaml differ:
        rates of 1e-3 and 5e-4, epochs from 5 to 160, and in the last one a rotary base
        of 500,000. In spite of the paper, trainers/mlm.py and encoder/bert.py leave
        BERT's dropout of 0.1 everywhere but in attention.
Differences: the authors' prediction head has no biases. Initial values are truncated at
        two standard deviations.
Run:    python -m bert_jax.run.pretrain --config=configs/nomicbert.py \
            --config.data.corpus=DIR --workdir=DIR
        with a corpus that is built with BERT's uncased vocabulary:
        run.build_corpus --tokenizer=vocab.txt --lower_case.
Cost:   the compiler's estimate for all steps on 64 chips of TPU v4 is 34 hours
        (docs/results.md). Not run yet.
"""

from bert_jax import config as config_lib
from bert_jax import recipe_variants


def get_config(arg: str = ""):
    """Return the recipe; `arg` is "" or "smoke"."""
    _, smoke = recipe_variants.parse(arg)
    objective = config_lib.MaskedLmConfig(
        segments="full_sentences",
        short_sequence_rate=0.0,
        masking=config_lib.MaskingConfig(rate=0.3),
    )
    phase = config_lib.PhaseConfig(
        steps=100_000, length=2048, batch_size=4096, micro_batches=16
    )
    config = config_lib.PretrainConfig(objective=objective, phases=(phase,))
    cfg = config_lib.to_configdict(config)
    recipe_variants.set_size(cfg, num_layers=12, hidden_size=768, num_heads=12)
    cfg.encoder.update(positions="rotary", rotary_base=1_000.0)
    cfg.encoder.update(feed_forward="gated", activation="silu", linear_bias=False)
    cfg.encoder.max_position_embeddings = 2048
    cfg.encoder.update(dropout_rate=0.0, attention_dropout_rate=0.0)
    cfg.optimizer.update(learning_rate=5e-4, warmup_fraction=0.06, schedule="linear")
    cfg.optimizer.update(beta2=0.98, weight_decay=1e-5, clip_norm=0.0)
    cfg.optimizer.bias_correction = True
    if smoke:
        recipe_variants.shrink_pretraining(cfg)
    return cfg
