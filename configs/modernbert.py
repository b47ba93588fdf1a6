r"""ModernBERT and Ettin: rotary positions, local attention, and three stages of text.

        variant     layers  hidden  feed-forward  heads  rate  decay   growth
        base        22      768     1,152         12     8e-4  0.0125  50 B
        large       28      1,024   2,624         16     5e-4  0.02    10 B
        ettin_17m   7       256     384           4      3e-3  0.1     125 B
        ettin_32m   10      384     576           6      3e-3  0.1     100 B
        ettin_68m   19      512     768           8      3e-3  0.1     75 B
        ettin_150m  22      768     1,152         12     8e-4  0.0125  50 B
        ettin_400m  28      1,024   2,624         16     5e-4  0.02    10 B
        ettin_1b    28      1,792   3,840         28     5e-4  0.1     3 B

Source: Warner et al. 2024 (2.2), and yamls/modernbert/ of AnswerDotAI/ModernBERT;
        the configs of JHU-CLSP/ettin-encoder-vs-decoder (Weller et al. 2025). Stage 1:
        1,719 B tokens (Ettin: 1,700 B) in rows of 1,024, in batches that grow to 4,608
        over the first tokens (`growth`), at a constant rate; in large, after 900 B, at
        a tenth of it, since the authors' loss had stopped falling. Stage 2: 250 B
        (ettin_1b: 83 B) in rows of 8,192, with a rotary base of 160,000 in global
        layers (Ettin: in all layers; ettin_17m: in all in stage 3 only). Stage 3: 50 B
        (ettin_1b: 17 B), while the rate falls as 1 - sqrt. 30 % of the tokens are
        masked; in evaluation, and in Ettin's stage 3, 15 %. StableAdamW. `decay` is the
        authors' weight decay divided by the rate (docs/architecture.md).
Differences: batches grow in three steps, from a quarter; the authors' begin with 768
        rows (large: 448). The rate falls to 0; theirs to a thousandth of that of stage
        3 (Ettin: to a 25th). There is no dropout; the authors drop 0.1 of what
        attention adds. Special tokens are not masked, and 30 % of each text are; the
        authors mask each token with a probability of 30 % (sequence_packer.py). The
        authors' large begins with the layers of base, has 4,928, 616 and 624 rows in
        the three stages, and its authors advise a lower rate than 5e-4. Weight decay is
        multiplied by the rate of each stage. Ettin's rate falls to half in stage 2;
        here it is the mean of that fall. Ettin's rows are not packed, and have up to
        7,999 tokens in stages 2 and 3, so its steps have fewer tokens, and there are
        more of them.
Run:    python -m bert_jax.run.pretrain --config=configs/modernbert.py:base \
            --config.data.corpus=DIR --workdir=DIR
        with a corpus whose tokenizer is byte-level BPE (run.train_tokenizer
        --kind=byte_bpe); the authors' has 50,368 tokens, 83 of them unused. They change
        the corpus at each stage: '--config.phases[4].corpus_weights=0.001,1' (large:
        phases[5]). The micro-batches make base fit 64 chips of v5e, and large 64 of v4,
        v5p and v6e; on v5e, large needs `--config.mesh.fsdp=8
        --config.encoder.scan_layers=False`. A program without a loop over layers takes
        8 to 20 minutes of a CPU to compile, each phase. With the loop, which sizes from
        large on have, seven layers of base were estimated 15 % longer (docs/log.md).
Cost:   Ettin's authors had four H100s for 6, 9, 13, 20 and 40 days, and stopped 1b
        after some 40 of 90. Not run yet. docs/results.md has the compiler's estimates.
"""

import dataclasses

from bert_jax import config as config_lib
from bert_jax import recipe_variants

# Layers, hidden size, feed-forward size, heads; rate, weight decay; billions of tokens
# of warmup, and of growing batches; rows of 1,024 in a micro-batch.
VARIANTS = {
    "base": (22, 768, 1152, 12, 8e-4, 0.0125, 3, 50, 1152),
    "large": (28, 1024, 2624, 16, 5e-4, 0.02, 2, 10, 576),
    "ettin_17m": (7, 256, 384, 4, 3e-3, 0.1, 4, 125, 1152),
    "ettin_32m": (10, 384, 576, 6, 3e-3, 0.1, 4, 100, 1152),
    "ettin_68m": (19, 512, 768, 8, 3e-3, 0.1, 3, 75, 1152),
    "ettin_150m": (22, 768, 1152, 12, 8e-4, 0.0125, 3, 50, 1152),
    "ettin_400m": (28, 1024, 2624, 16, 5e-4, 0.02, 2, 10, 576),
    "ettin_1b": (28, 1792, 3840, 28, 5e-4, 0.1, 2, 3, 576),
}
_BATCH = 4608


def get_config(arg: str = ""):
    """Return the recipe; `arg` is a variant, with ",smoke" for a run of seconds."""
    variant, smoke = recipe_variants.parse(arg, tuple(VARIANTS))
    layers, hidden, wide, heads, rate, weight_decay, *first = VARIANTS[variant]
    objective = config_lib.MaskedLmConfig(
        segments="doc_sentences",
        short_sequence_rate=0.0,
        examples_per_row=32,  # 16 short texts do not fill 8,192 positions
        masking=config_lib.MaskingConfig(rate=0.3),
    )
    is_ettin = variant.startswith("ettin")
    if is_ettin:
        share = 1 / 3 if variant == "ettin_1b" else 1  # of the tokens of later stages
        billions = 1700, 250 * share, 50 * share
        middle = {"learning_rate": rate * 2 / 3}
        last = {"learning_rate": rate / 2, "masking_rate": 0.15}
        # In the authors' code, local layers have the base of the global ones unless a
        # config names another, as only that of 17m does.
        last["local_rotary_base"] = 160_000.0
        if variant != "ettin_17m":
            middle["local_rotary_base"] = 160_000.0
    else:
        billions = 1719, 250, 50
        middle = {"learning_rate": rate / 10 if variant == "large" else rate * 3 / 8}
        last = middle
    # Length, rows of a batch, and rows of a micro-batch.
    long_rows = 8192, _BATCH if is_ettin else _BATCH // 8, 64
    phases = (
        *_first_stage(variant, billions[0], rate, *first),
        _phase(billions[1], *long_rows, **middle),
        _phase(billions[2], *long_rows, decay_fraction=1.0, **last),
    )
    config = config_lib.PretrainConfig(objective=objective, phases=phases)
    cfg = config_lib.to_configdict(config)
    recipe_variants.set_size(cfg, layers, hidden, heads)
    cfg.encoder.update(intermediate_size=wide, max_position_embeddings=8192)
    cfg.encoder.update(positions="rotary", rotary_base=160_000.0, type_vocab_size=0)
    cfg.encoder.update(attention_window=64, global_layer_every=3)
    cfg.encoder.update(local_rotary_base=10_000.0)
    cfg.encoder.update(feed_forward="gated", activation="gelu_erf")
    cfg.encoder.update(norm_placement="pre", first_attention_norm=False)
    cfg.encoder.update(norm_bias=False, linear_bias=False, layer_norm_epsilon=1e-5)
    cfg.encoder.prediction_head.bias = False
    cfg.encoder.pooler.update(activation="gelu_erf", bias=False)
    cfg.encoder.pooler.update(norm=True, per_token=True)
    cfg.encoder.update(dropout_rate=0.0, attention_dropout_rate=0.0)
    cfg.encoder.update(depth_scaled_init=True, remat="attention")
    # Without the loop, the large sizes take long to compile.
    cfg.encoder.scan_layers = hidden >= 1024
    cfg.optimizer.update(name="stable_adamw", schedule="wsd", bias_correction=True)
    cfg.optimizer.update(beta2=0.98, clip_norm=0.0, weight_decay=weight_decay)
    if is_ettin:
        cfg.loop.checkpoint_every = 250  # a step has up to 37.7 M tokens
    if smoke:
        recipe_variants.shrink_pretraining(cfg)
    return cfg


def _first_stage(
    variant: str,
    billions: float,
    rate: float,
    warmup: float,
    growth: float,
    micro_batch: int,
):
    """Return phases of rows of 1,024 tokens, the first three with growing batches."""
    sizes = [_BATCH * (i + 1) // 4 for i in range(4)]
    tokens = [*[growth / 3] * 3, billions - growth]
    if variant == "large":
        sizes.append(_BATCH)
        tokens[3:] = 900 - growth, billions - 900
    phases, warmup_steps = [], 0.0
    for size, each in zip(sizes, tokens, strict=True):
        phases.append(_phase(each, 1024, size, micro_batch, rotary_base=10_000.0))
        warmup_steps += phases[-1].steps * min(1, warmup / each)
        warmup = max(0, warmup - each)
    share = warmup_steps / sum(phase.steps for phase in phases[:4])
    phases[0] = dataclasses.replace(
        phases[0], learning_rate=rate, warmup_fraction=round(share, 6)
    )
    if variant == "large":
        phases[4] = dataclasses.replace(phases[4], learning_rate=rate / 10)
    return phases


def _phase(
    billions: float, length: int, batch_size: int, micro_batch: int, **settings: float
):
    """Return a phase of some billions of tokens."""
    return config_lib.PhaseConfig(
        steps=round(billions * 1e9 / (length * batch_size)),
        length=length,
        batch_size=batch_size,
        micro_batches=batch_size // micro_batch,
        **settings,
    )
