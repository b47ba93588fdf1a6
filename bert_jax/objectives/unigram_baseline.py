"""What a model scores that knows how often each token occurs, and no context.

Every language model is there at first: frequencies need no more than the bias of the
last layer. A model whose attention does not work stays there. So these values say
whether a loss is good, which the loss alone does not: it depends on the vocabulary and
on the text.

Frequencies are those of the held-out text itself, so that `entropy` is its plain
unigram entropy and not its cross entropy under the frequencies of the training text.
- It is a bound: of all models without context none scores less on that text, however it
  came by its frequencies. There is no smoothing to choose, and no training text to read
  or to sample, which may be large and on other hosts.
- A model that learned its frequencies from the training text scores more: by 0.07 and
  0.11 nats on 170,000 held-out tokens of novels, and by 0.65 on five articles, whose
  words are not those of the others (docs/what_to_expect.md).

Tokens are those of the text, each counted once, [UNK] among them. What batches make of
the text differs a little, and these values know nothing of it: [CLS] and [SEP] are
predicted where `masking.convention` is "fairseq", and [SEP] from left to right, at one
to three positions of a row; and second segments of "next_sentence" are drawn from
documents, so that text of short documents comes more often.
"""

import numpy as np

from bert_jax import config as config_lib


def entropy(frequencies: np.ndarray) -> float:
    """-sum p log p, in nats.

    Args:
      frequencies: float64 [V], which add up to 1.
    """
    return -_sum_x_log_x(frequencies)


def next_token(frequencies: np.ndarray) -> tuple[float, float]:
    """Loss (nats) and accuracy of predicting always the same frequencies."""
    return entropy(frequencies), float(frequencies.max())


def masked_token(
    frequencies: np.ndarray, config: config_lib.MaskingConfig
) -> tuple[float, float]:
    """Loss (nats) and accuracy of a model that sees only what stands at the position.

    What stands there is [MASK], or the label itself, or a random token. With the usual
    80, 10 and 10 % this tells much: a token that is frequent in text but one of many in
    a random draw is most likely the label. Loss and accuracy are those of the best such
    model, the conditional entropy of label y given the visible token w, with

        P(w, y) = p(y) (r / V + k [w = y])

    for rates r of random tokens and k of kept ones. Special tokens among the random
    ones, at most one in thousands, count as any other.

    Args:
      frequencies: float64 [V], which add up to 1.
      config: What becomes of predicted tokens.
    """
    p, size = frequencies, len(frequencies)
    masked, random = config.mask_token_rate, config.random_token_rate / size
    kept = 1.0 - config.mask_token_rate - config.random_token_rate
    kept = max(kept, 0.0)  # 1 - 0.9 - 0.1 is a little less
    visible = p * (random + kept)
    joint = (size - 1) * _sum_x_log_x(random * p) + _sum_x_log_x(visible)
    loss = masked * entropy(p) + _sum_x_log_x(random + kept * p) - joint
    guesses = np.maximum(visible, random * p.max())
    return float(loss), float(masked * p.max() + guesses.sum())


def _sum_x_log_x(values: np.ndarray) -> float:
    positive = values[values > 0]
    return float((positive * np.log(positive)).sum())
