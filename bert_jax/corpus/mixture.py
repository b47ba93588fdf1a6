"""Several corpora that a run is trained on together, and how much of each.

Wherever a run has corpora, there may be one, and a single one has all of the weight.
"""

from collections.abc import Sequence

import numpy as np

from bert_jax import terminal
from bert_jax.config import DataConfig
from bert_jax.corpus import shards
from bert_jax.errors import UserError

# A run has so many rows in a block, and weights are rounded to one of them.
BLOCK = 2**16


def open_corpora(folders: Sequence[str]) -> tuple[shards.Corpus, ...]:
    """Open corpora of one tokenizer.

    Raises:
      UserError: One cannot be opened, has another tokenizer, or is given twice.
      Unavailable: A store does not answer now.
    """
    corpora = tuple(map(shards.open_corpus, folders))
    seen: dict[str, shards.Corpus] = {}
    for corpus in corpora:
        first = corpora[0]
        if corpus.tokenizer.fingerprint != first.tokenizer.fingerprint:
            raise UserError(
                f"the corpora {first.folder} and {corpus.folder} have different "
                f"tokenizers ({first.tokenizer.fingerprint} and "
                f"{corpus.tokenizer.fingerprint}); build both with one tokenizer"
            )
        if corpus.fingerprint in seen:
            raise UserError(
                f"{seen[corpus.fingerprint].folder} and {corpus.folder} are the same "
                "corpus; give it once, with a larger weight"
            )
        seen[corpus.fingerprint] = corpus
    return corpora


def fingerprint(corpora: Sequence[shards.Corpus]) -> str:
    """What the batches of a run depend on: the corpora, in this order."""
    return ",".join(corpus.fingerprint for corpus in corpora)


def names(corpora: Sequence[shards.Corpus]) -> list[str]:
    """A name for each, for people: that of its folder, or the path where two agree."""
    short = [corpus.folder.name for corpus in corpora]
    if len(set(short)) < len(short):
        short = [str(corpus.folder) for corpus in corpora]
    return list(map(terminal.printable, short))


def weights(config: DataConfig, corpora: Sequence[shards.Corpus]) -> list[float]:
    """Shares of the corpora in the rows of a run; they add up to 1.

    Without weights in the config they go by the tokens that are trained on, to a power
    (google-research/bert, multilingual.md: "exponentially smoothed weighting").
    """
    given: Sequence[float] = config.weights
    if not given:
        sizes = [corpus.count(shards.TRAIN, "tokens") for corpus in corpora]
        given = [(size / max(sizes)) ** config.weight_exponent for size in sizes]
    return [weight / sum(given) for weight in given]


def rows_of_block(config: DataConfig, corpora: Sequence[shards.Corpus]) -> np.ndarray:
    """Rows of each corpus in each block of a run: int64 [corpora], in sum `BLOCK`.

    By largest remainder; of equal ones, the first.

    Raises:
      UserError: A corpus would have no row.
    """
    shares = weights(config, corpora)
    exact = np.array(shares) * BLOCK
    counts = np.floor(exact).astype(np.int64)
    by_remainder = np.argsort(counts - exact, kind="stable")
    counts[by_remainder[: BLOCK - counts.sum()]] += 1
    for name, share, count in zip(names(corpora), shares, counts, strict=True):
        if not count:
            raise UserError(
                f"the corpus {name} would be {share:.2g} of the rows, less than one in "
                f"{BLOCK:,}; leave it out, or give it more weight, or set a smaller "
                "data.weight_exponent"
            )
    return counts


def describe(config: DataConfig, corpora: Sequence[shards.Corpus]) -> str:
    """What the corpora are, and the share of each: a line for each."""
    lines = []
    for name, corpus, count in zip(
        names(corpora), corpora, rows_of_block(config, corpora), strict=True
    ):
        counts = ", ".join(
            f"{corpus.count(shards.TRAIN, what):,} {what}"
            for what in ("documents", "tokens")
        )
        lines.append(f"corpus {name}: {count / BLOCK:.2%} of the rows; {counts}")
    return "\n".join(lines)
