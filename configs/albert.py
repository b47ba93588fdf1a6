r"""ALBERT: factorised embeddings, one layer for all, n-grams, and sentence order.

Source: Lan et al. 2019 (4.1) and google-research/albert: LAMB at learning rate 1.76e-3,
        batch 4,096, 125,000 steps with 3,125 of warmup, length 512, spans of up to
        three words, vocabulary of 30,000 SentencePiece tokens. The code's command asks
        for 20 predictions a sequence, for which the paper gives no reason; here they
        are 15 % of the tokens. Dropout is 0.1, and none at xxlarge (4.8).

        variant  layers  hidden size  heads  parameters, with the pooler
        base     12      768          12     11.7 M
        large    24      1,024        16     17.7 M
        xlarge   24      2,048        16     58.7 M
        xxlarge  12      4,096        64     222.6 M
Run:    python -m bert_jax.run.pretrain --config=configs/albert.py:base \
            --config.data.corpus=DIR --workdir=DIR
        with a corpus whose tokenizer has 30,000 SentencePiece tokens:
        run.train_tokenizer --kind=sentencepiece --vocab_size=30000. Where it does not
        fit, `run.plan --search` tries '--config.phases[0].micro_batches=N'.
Cost:   not run yet.
"""

from bert_jax import config as config_lib
from bert_jax import recipe_variants

# Layers, hidden size, heads.
VARIANTS = {
    "base": (12, 768, 12),
    "large": (24, 1024, 16),
    "xlarge": (24, 2048, 16),
    "xxlarge": (12, 4096, 64),
}


def get_config(arg: str = ""):
    """Return the recipe; `arg` is a variant, with ",smoke" for a run of seconds."""
    variant, smoke = recipe_variants.parse(arg, tuple(VARIANTS))
    phases = (config_lib.PhaseConfig(steps=125_000, length=512, batch_size=4096),)
    cfg = config_lib.to_configdict(config_lib.PretrainConfig(phases=phases))
    recipe_variants.set_size(cfg, *VARIANTS[variant])
    cfg.encoder.update(embedding_size=128, num_layer_groups=1)
    if variant == "xxlarge":
        cfg.encoder.update(dropout_rate=0.0, attention_dropout_rate=0.0)
    cfg.objective.segments = "sentence_order"
    cfg.objective.masking.update(unit="ngram", max_ngram=3)
    cfg.optimizer.update(name="lamb", learning_rate=1.76e-3)
    cfg.optimizer.warmup_fraction = 3_125 / 125_000
    if smoke:
        recipe_variants.shrink_pretraining(cfg)
        cfg.encoder.embedding_size = 16
    return cfg
