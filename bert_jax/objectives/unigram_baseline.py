"""Baseline of a model that knows token frequencies and no context.

Every language model starts at this level: frequencies need only the bias of the last
layer. A model whose attention is broken stays there. The frequencies are counted in the
held-out text itself, so no model without context has a lower loss on that text
(docs/what_to_expect.md has measurements).

The tokens of the text are counted, [UNK] included. Batches differ a little: some also
predict [CLS] and [SEP], and "next_sentence" samples short documents more often.
"""

from collections.abc import Collection

import numpy as np

from bert_jax import config as config_lib


def by_metric(
    losses: Collection[str],
    frequencies: np.ndarray,
    masking: config_lib.MaskingConfig | None,
) -> dict[str, float]:
    """Return the baseline of each metric that has one, such as "mlm_loss"."""
    unigram = entropy(frequencies), float(frequencies.max())
    values = {}
    for name in ("mlm", "lm", "plm"):
        if f"{name}_loss" in losses:
            both = masked_token(frequencies, masking) if name == "mlm" else unigram
            values |= zip((f"{name}_loss", f"{name}_accuracy"), both, strict=True)
    return values


def entropy(frequencies: np.ndarray) -> float:
    """Return -sum p log p, in nats, of float64 shares [V]. Their sum need not be 1."""
    from scipy import special  # slow to import

    return float(special.entr(frequencies).sum())


def masked_token(
    frequencies: np.ndarray, config: config_lib.MaskingConfig
) -> tuple[float, float]:
    """Return loss (nats) and accuracy of a model that sees only the masked position.

    The frequencies are float64 [V].

    The position holds [MASK], the label itself, or a random token. With the usual 80,
    10 and 10 % this is informative: a visible token that is frequent in text is most
    likely the label. The loss is the conditional entropy of label y given the visible
    token w, with

        P(w, y) = p(y) (r / V + k [w = y])

    for rates r of random tokens and k of kept tokens. Special tokens among the random
    ones are not excluded.
    """
    p, size = frequencies, len(frequencies)
    masked, random = config.mask_token_rate, config.random_token_rate / size
    kept = 1.0 - config.mask_token_rate - config.random_token_rate
    kept = max(kept, 0.0)  # 1 - 0.9 - 0.1 is a little less
    visible = p * (random + kept)
    joint = (size - 1) * entropy(random * p) + entropy(visible)
    loss = masked * entropy(p) - entropy(random + kept * p) + joint
    guesses = np.maximum(visible, random * p.max())
    return float(loss), float(masked * p.max() + guesses.sum())
