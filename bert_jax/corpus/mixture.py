"""Mixtures: the corpora that a run is trained on, and their weights.

A run has one or more corpora. A single corpus has all of the weight.
"""

from collections.abc import Sequence

import numpy as np

from bert_jax import terminal
from bert_jax.config import DataConfig, PretrainConfig
from bert_jax.corpus import shards
from bert_jax.errors import UserError

# Rows in a block. Weights are rounded to whole rows of a block.
BLOCK = 2**16


def open_corpora(folders: Sequence[str]) -> tuple[shards.Corpus, ...]:
    """Open corpora that share a tokenizer.

    Raises:
      UserError: A corpus cannot be opened, lacks a shard, has a different tokenizer,
        or is given twice.
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
        shards.check_sizes(corpus)
    return corpora


def held_out_warning(corpora: Sequence[shards.Corpus]) -> str:
    """Return a warning if a corpus may train on held-out text of another, or ""."""
    fractions = [corpus.settings.get("held_out") for corpus in corpora]
    if len(set(fractions)) == 1:
        return ""
    listed = ", ".join(map("{} {}".format, names(corpora), fractions))
    return (
        f"warning: the corpora were built with different --held_out ({listed}); a "
        "document in two corpora may be held out in one, and trained on in the other"
    )


def check_counts(config: PretrainConfig, corpora: Sequence[shards.Corpus]) -> None:
    """Check that corpora have enough documents, and enough rows in each phase.

    Raises:
      UserError: A corpus has too few documents, or too small a share of the rows.
    """
    for i, phase in enumerate(config.phases):
        try:
            rows_of_block(config.for_phase(i).data, corpora)
        except UserError as error:
            if not phase.corpus_weights:
                raise
            raise UserError(f"phases[{i}].corpus_weights: {error}") from error
    groups, segments = config.data.shard_groups, config.objective.segments
    needed = 2 if segments == "next_sentence" else 1  # a B of another document
    for corpus in corpora:
        count = corpus.count(shards.TRAIN, "documents")
        # A document that is cut where a group ends counts as two.
        if count + groups - 1 < needed * groups:
            documents = terminal.pluralise(count, "document")
            raise UserError(
                f"{corpus.folder} has {documents} for training; objective.segments="
                f"{segments!r} needs at least {needed} in each of "
                f"{terminal.pluralise(groups, 'shard group')}; give more text"
            )


def fingerprint(corpora: Sequence[shards.Corpus]) -> str:
    """Return a fingerprint of the corpora, in their order."""
    return ",".join(corpus.fingerprint for corpus in corpora)


def names(corpora: Sequence[shards.Corpus]) -> list[str]:
    """Return the names of the folders, or their paths if two names are equal."""
    short = [corpus.folder.name for corpus in corpora]
    if len(set(short)) < len(short):
        short = [str(corpus.folder) for corpus in corpora]
    return list(map(terminal.printable, short))


def weights(config: DataConfig, corpora: Sequence[shards.Corpus]) -> list[float]:
    """Return each corpus' share of the rows of a run. The shares add up to 1.

    Without weights in the config, a share is proportional to a power of the number of
    training tokens (google-research/bert, multilingual.md: "exponentially smoothed
    weighting").
    """
    given: Sequence[float] = config.weights
    if not given:
        sizes = [corpus.count(shards.TRAIN, "tokens") for corpus in corpora]
        given = [(size / max(sizes)) ** config.weight_exponent for size in sizes]
    return [weight / sum(given) for weight in given]


def rows_of_block(config: DataConfig, corpora: Sequence[shards.Corpus]) -> np.ndarray:
    """Return the rows of each corpus in a block: int64 [corpora], with sum `BLOCK`.

    Shares are rounded by largest remainder; ties go to the first corpus.

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
            remedy = "increase its weight"
            if not config.weights:
                remedy = "reduce data.weight_exponent"
            raise UserError(
                f"the corpus {name} would have a share of {share:.2g}, less than one "
                f"row in {BLOCK:,}; leave it out, or {remedy}"
            )
    return counts
