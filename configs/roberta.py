r"""RoBERTa: BERT without next sentences, with large batches and byte-level BPE.

        variant  layers  hidden  heads  parameters  steps    rate  warmup
        base     12      768     12     125 M       500,000  6e-4  24,000
        large    24      1024    16     355 M       500,000  4e-4  30,000

Source: Liu et al. 2019, table 9: batches of 8,192 sequences of 512 tokens, Adam with
        betas of 0.9 and 0.98 and an epsilon of 1e-6, weight decay 0.01, a linear rise
        and fall of the rate, dropout 0.1, no clipping. Full sentences (4.2), new masks
        in each epoch (4.1), counted as in fairseq. From fairseq's code: moments
        corrected for bias, exact GELU, layer norms with an epsilon of 1e-5, no
        segments. (fairseq's example of pretraining Base is a smaller run: 125,000
        updates with batches of 2,048, 5e-4, 10,000 of warmup.) Differences: biases and
        layer norms are not decayed, and initial values are truncated at two standard
        deviations.
Published: development set (fairseq, examples/roberta), base and large: MNLI 87.6 and
        90.2, QNLI 92.8 and 94.7, QQP 91.9 and 92.2, RTE 78.7 and 86.6, SST-2 94.8 and
        96.4, MRPC 90.2 and 90.9, CoLA 63.6 and 68.0, STS-B 91.2 and 92.4; with 160 GB
        of text.
Run:    python -m bert_jax.run.train_tokenizer --input='FILES' --kind=byte_bpe \
            --vocab_size=50265 --output=tokenizer
        python -m bert_jax.run.build_corpus --input='FILES' --tokenizer=tokenizer \
            --output=DIR
        python -m bert_jax.run.pretrain --config=configs/roberta.py:base \
            --config.data.corpus=DIR --workdir=DIR
        A folder with the published vocab.json and merges.txt is a tokenizer, too. A
        batch is accumulated from 8 micro-batches. Where these do not fit, `run.plan
        --search` tries more: '--config.phases[0].micro_batches=N'.
Cost:   the authors' run of Large with less text, 100,000 steps, took a day on 1,024
        V100 GPUs (section 5). Not run yet.
"""

from bert_jax import config as config_lib
from bert_jax import recipe_variants

# Layers, hidden size, heads; peak of the learning rate, steps of warmup.
VARIANTS = {"base": (12, 768, 12, 6e-4, 24_000), "large": (24, 1024, 16, 4e-4, 30_000)}
_STEPS = 500_000


def get_config(arg: str = ""):
    """Return the recipe; `arg` is a variant, with ",smoke" for a run of seconds."""
    variant, smoke = recipe_variants.parse(arg, tuple(VARIANTS))
    *size, rate, warmup = VARIANTS[variant]
    objective = config_lib.MaskedLmConfig(
        segments="full_sentences",
        short_sequence_rate=0.0,
        masking=config_lib.MaskingConfig(convention="fairseq"),
    )
    phase = config_lib.PhaseConfig(
        steps=_STEPS, length=512, batch_size=8_192, micro_batches=8
    )
    config = config_lib.PretrainConfig(objective=objective, phases=(phase,))
    cfg = config_lib.to_configdict(config)
    recipe_variants.set_size(cfg, *size)
    cfg.encoder.update(type_vocab_size=0, activation="gelu_erf")
    cfg.encoder.layer_norm_epsilon = 1e-5
    cfg.optimizer.update(schedule="linear", bias_correction=True, clip_norm=0.0)
    cfg.optimizer.update(learning_rate=rate, warmup_fraction=warmup / _STEPS)
    cfg.optimizer.beta2 = 0.98
    if smoke:
        recipe_variants.shrink_pretraining(cfg)
        cfg.phases[0].update(batch_size=16, micro_batches=2)
    return cfg
