r"""BERT-Base with one thing changed: the ablations of four papers.

Source: everything but the change is configs/bert_base.py.

        variant         change                                        source
        no_nsp          consecutive segments, no next sentence        BERT, Table 5
        left_to_right   no_nsp, each token from the tokens before it  BERT, Table 5
        whole_words     words are masked as a whole                   BERT, release of
                                                                      May 2019
        ngrams          1 to 3 words are masked as a whole            ALBERT, 4.1
        sentence_order  segments in order or swapped                  ALBERT, 3.1
        full_sentences  text of several documents, one segment        RoBERTa, 4.2
        doc_sentences   text of one document, one segment             RoBERTa, 4.2
        fairseq         full_sentences, masks counted as fairseq does RoBERTa's code
        mask_40         40 % of the tokens are predicted              Wettig et al. 2022
        mask_falling    30, 25, 20 %, and 15 % of long sequences      Ankner et al. 2023
        packed          rows are filled with up to eight examples     Krell et al. 2021

        All variants that mask tokens mask 15 % of held-out text, to compare losses.
Run:    python -m bert_jax.run.pretrain --config=configs/bert_ablations.py:no_nsp \
            --config.data.corpus=DIR --workdir=DIR
Cost:   not run yet.
"""

from bert_jax import config as config_lib
from bert_jax import recipe_variants

_MASKED = config_lib.MaskedLmConfig
_MASKING = config_lib.MaskingConfig
VARIANTS = {
    "no_nsp": _MASKED(segments="consecutive"),
    "left_to_right": config_lib.CausalLmConfig(segments="consecutive"),
    "whole_words": _MASKED(masking=_MASKING(unit="word")),
    "ngrams": _MASKED(masking=_MASKING(unit="ngram")),
    "sentence_order": _MASKED(segments="sentence_order"),
    "full_sentences": _MASKED(segments="full_sentences", short_sequence_rate=0.0),
    "doc_sentences": _MASKED(segments="doc_sentences", short_sequence_rate=0.0),
    "fairseq": _MASKED(
        segments="full_sentences",
        short_sequence_rate=0.0,
        masking=_MASKING(convention="fairseq"),
    ),
    "mask_40": _MASKED(masking=_MASKING(rate=0.4)),
    "mask_falling": _MASKED(),
    "packed": _MASKED(examples_per_row=8),
}
_SHORT = config_lib.PhaseConfig(steps=900_000, length=128, batch_size=256)
_LONG = config_lib.PhaseConfig(steps=100_000, length=512, batch_size=256)
# Phases of one length continue the order of chunks.
_FALLING = tuple(
    config_lib.PhaseConfig(steps=300_000, length=128, batch_size=256, masking_rate=rate)
    for rate in (0.3, 0.25, 0.2)
)


def get_config(arg: str = ""):
    """Return the recipe; `arg` is a variant, with ",smoke" for a run of seconds."""
    variant, smoke = recipe_variants.parse(arg, tuple(VARIANTS))
    objective = VARIANTS[variant]
    short = _FALLING if variant == "mask_falling" else (_SHORT,)
    config = config_lib.PretrainConfig(objective=objective, phases=(*short, _LONG))
    cfg = config_lib.to_configdict(config)
    cfg.encoder.vocab_size = 0  # the corpus's
    cfg.encoder.causal = objective.causal
    if objective.segments in config_lib.SINGLE_SEGMENTS:
        cfg.encoder.type_vocab_size = 0
    cfg.optimizer.update(learning_rate=1e-4, warmup_fraction=0.01)
    if smoke:
        recipe_variants.shrink_pretraining(cfg)
    return cfg
