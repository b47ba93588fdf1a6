r"""Objectives on one small encoder, compared in docs/comparison.md.

Source: the encoder is BERT-Tiny (Turc et al. 2019) for 64 positions, without dropout.
        All variants have one batch size, learning rate and schedule; the comparison
        sets the number of steps. No row aims at a shorter length, so that all see about
        the same tokens. Initial weights have a deviation of 0.05, BERT's 0.02 scaled
        from 768 to 128 columns.

        variant         objective
        bert            masked tokens, next sentence
        absolute        as bert, with absolute positions
        no_nsp          masked tokens of two segments, no question
        whole_words     as bert, words are masked as a whole
        ngrams          as bert, 1 to 3 words are masked as a whole, sentence order
        full_sentences  masked tokens of text across documents, one segment
        left_to_right   each token from the tokens before it
        electra         which tokens a generator of half the size has replaced
        albert          as ngrams, with embeddings of 32 columns, one layer for both
        xlnet           tokens in any order, relative positions

        All but absolute and xlnet are rotary: a small encoder spends two of the twenty
        minutes on learning absolute positions (docs/comparison.md).

        Segments keep their embedding where there is one: fine-tuning needs it.
Run:    python -m bert_jax.run.pretrain --config=configs/comparison.py:electra \
            --config.data.corpus=DIR --workdir=DIR
        `python benchmarks/compare_objectives.py --help` describes the comparison.
Cost:   8,000 steps of BERT take six minutes of one CPU core. docs/comparison.md has
        the results.
"""

from bert_jax import config as config_lib
from bert_jax import recipe_variants

_WORDS = config_lib.MaskingConfig(unit="word")
_NGRAMS = config_lib.MaskedLmConfig(
    segments="sentence_order", masking=config_lib.MaskingConfig(unit="ngram")
)
VARIANTS = {
    "bert": config_lib.MaskedLmConfig(),
    "absolute": config_lib.MaskedLmConfig(),
    "no_nsp": config_lib.MaskedLmConfig(segments="consecutive"),
    "whole_words": config_lib.MaskedLmConfig(masking=_WORDS),
    "ngrams": _NGRAMS,
    "full_sentences": config_lib.MaskedLmConfig(segments="full_sentences"),
    "left_to_right": config_lib.CausalLmConfig(),
    # Heads of the generator have the encoder's size: half of it is one head.
    "electra": config_lib.ReplacedTokensConfig(generator_size=0.5),
    "albert": _NGRAMS,
    "xlnet": config_lib.PermutationLmConfig(),
}
_POSITIONS = {"absolute": "absolute", "xlnet": "relative"}


def get_config(arg: str = ""):
    """Return the recipe; `arg` is a variant, with ",smoke" for a run of seconds."""
    variant, smoke = recipe_variants.parse(arg, tuple(VARIANTS))
    objective = VARIANTS[variant]
    phase = config_lib.PhaseConfig(steps=8000, length=64, batch_size=16)
    cfg = config_lib.to_configdict(
        config_lib.PretrainConfig(
            encoder=config_lib.EncoderConfig(
                causal=objective.causal, positions=_POSITIONS.get(variant, "rotary")
            ),
            objective=objective,
            phases=(phase,),
        )
    )
    cfg.objective.short_sequence_rate = 0.0
    recipe_variants.set_size(cfg, num_layers=2, hidden_size=128, num_heads=2)
    cfg.encoder.max_position_embeddings = phase.length
    cfg.encoder.update(dtype="float32", initializer_range=0.05)
    cfg.encoder.update(dropout_rate=0.0, attention_dropout_rate=0.0)
    if variant == "albert":
        cfg.encoder.update(embedding_size=32, num_layer_groups=1)
    cfg.optimizer.update(learning_rate=1e-3, warmup_fraction=0.05)
    cfg.optimizer.update(schedule="linear", bias_correction=True)
    cfg.loop.update(
        log_every=100, eval_every=250, eval_batches=40, checkpoint_every=500
    )
    if smoke:
        recipe_variants.shrink_pretraining(cfg)
        if variant == "albert":
            cfg.encoder.embedding_size = 16
    return cfg
