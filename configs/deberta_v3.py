r"""DeBERTa-v3: replaced tokens, disentangled attention and disentangled embeddings.

        variant  layers  generator  hidden  heads  rate
        small    6       3          768     12     6e-4
        base     12      6          768     12     6e-4
        large    24      12         1,024   16     3e-4

Source: He et al. 2021 (DeBERTaV3), 3 and appendix; rtd.sh, rtd_*.json and rtd_task.py
        of microsoft/DeBERTa: a generator as wide as the discriminator and half as deep,
        15 % of the tokens masked, each by [MASK], the discriminator's loss times 50
        (3.1; 10 by default in rtd_task.py), moments not corrected for bias, and a rate
        that jumps at the end of the warmup (xadam.py, lr_schedulers.py). 500,000 steps
        of 8,192 rows of 512 tokens, 10,000 of them warmup, and AdamW with betas of 0.9
        and 0.98. A SentencePiece vocabulary of 128,000 tokens, 160 GB of text.
Differences: one update for both halves, where the authors have an optimizer for each,
        with its own clipping. The generator has no enhanced mask decoder: theirs adds
        absolute positions to the states before its last layer, and applies this layer
        to them twice (masked_language_model.py). The discriminator's head is ELECTRA's;
        theirs adds the vector of [CLS] to each token's, and normalises the sum. Masked
        tokens are anywhere; theirs are one of every six tokens from the beginning of a
        row until there are enough. The norm of the embeddings is shared, too. The
        embeddings of distances have no dropout. Initial values are truncated at two
        standard deviations. Rows are full of sentences, also of several documents with
        a [SEP] between them; the authors' prepare_data.py cuts within sentences, and
        puts nothing between documents.
Not known to us: the text of the appendix. Steps, batch, rates and the second beta were
        not checked against it again; the authors' scripts, for 64 or 256 rows, have
        other rates.
Run:    python -m bert_jax.run.pretrain --config=configs/deberta_v3.py:base \
            --config.data.corpus=DIR --workdir=DIR
        with a corpus whose tokenizer is SentencePiece and cased (run.train_tokenizer
        --kind=sentencepiece --nolower_case --vocab_size=128000).
        run.convert writes the discriminator as a DebertaV2Model, and the generator as a
        DebertaV2ForMaskedLM in a folder within.
Cost:   the compiler's estimate for base on 64 chips of TPU v4 is 5.5 days, with a loop
        over layers (docs/results.md). Not run yet.
"""

from bert_jax import config as config_lib
from bert_jax import recipe_variants

# Layers, hidden size, heads; learning rate.
VARIANTS = {
    "small": (6, 768, 12, 6e-4),
    "base": (12, 768, 12, 6e-4),
    "large": (24, 1024, 16, 3e-4),
}


def get_config(arg: str = ""):
    """Return the recipe; `arg` is a variant, with ",smoke" for a run of seconds."""
    variant, smoke = recipe_variants.parse(arg, tuple(VARIANTS))
    *size, rate = VARIANTS[variant]
    objective = config_lib.ReplacedTokensConfig(
        segments="full_sentences",
        short_sequence_rate=0.0,
        masking=config_lib.MaskingConfig(mask_token_rate=1.0, random_token_rate=0.0),
        generator_size=1.0,
        generator_layers=0.5,
        embedding_sharing="gradient_disentangled",
    )
    phase = config_lib.PhaseConfig(
        steps=500_000, length=512, batch_size=8192, micro_batches=8
    )
    config = config_lib.PretrainConfig(objective=objective, phases=(phase,))
    cfg = config_lib.to_configdict(config)
    recipe_variants.set_size(cfg, *size)
    cfg.encoder.update(positions="disentangled", type_vocab_size=0)
    cfg.encoder.update(activation="gelu_erf", layer_norm_epsilon=1e-7)
    cfg.encoder.pooler.activation = "gelu_erf"
    cfg.optimizer.update(learning_rate=rate, warmup_fraction=0.02, beta2=0.98)
    if smoke:
        recipe_variants.shrink_pretraining(cfg)
    return cfg
