"""Chunks of a corpus, from which rows are made.

NumPy only. A token table holds the documents of one group of shards end to end. For a
sequence length, sentences are cut into pieces, and pieces are joined to chunks. Each
chunk makes one row, and each token is in exactly one chunk.
"""

import dataclasses

import numpy as np

from bert_jax.corpus import shards
from bert_jax.errors import UserError

# Below so many parts, a loop in Python is faster than NumPy.
_FEW_PARTS = 16


@dataclasses.dataclass(frozen=True)
class TokenTable:
    """Documents of some shards, end to end.

    Attributes:
      tokens: uint16 or int32 [tokens].
      sentence_starts: int64 [sentences + 1], index of each sentence's first token, and
        the number of tokens.
      document_sentences: int64 [documents + 1], index of each document's first
        sentence, and the number of sentences.
    """

    tokens: np.ndarray
    sentence_starts: np.ndarray
    document_sentences: np.ndarray


def group_shards(
    corpus: shards.Corpus, split: str, group: int, num_groups: int
) -> list[shards.Shard]:
    """Return the shards of one of `num_groups` contiguous groups of similar size.

    Raises:
      UserError: There are fewer shards than groups.
    """
    split_shards = corpus.shards[split]
    count = len(split_shards)
    if count < num_groups:
        raise UserError(
            f"data.shard_groups={num_groups}, but {corpus.folder} has {count} "
            f"{split} shards; build the corpus with a smaller --shard_megabytes"
        )
    return [s for i, s in enumerate(split_shards) if i * num_groups // count == group]


def load_tokens(
    corpus: shards.Corpus, split: str, group: int = 0, num_groups: int = 1
) -> TokenTable:
    """Read one group of shards into memory, and verify their checksums.

    Raises:
      UserError: A shard is missing or damaged.
    """
    chosen = group_shards(corpus, split, group, num_groups)
    dtype = np.uint16 if corpus.tokenizer.vocab_size <= 2**16 else np.int32
    tokens = np.empty(sum(shard.tokens for shard in chosen), dtype)
    starts = np.empty(sum(shard.sentences for shard in chosen) + 1, np.int64)
    documents = np.empty(sum(shard.documents for shard in chosen) + 1, np.int64)
    t = s = d = 0
    for shard in chosen:
        for rows in shards.read_shard(corpus.folder, shard):
            starts[s : s + len(rows.sentence_starts)] = t + rows.sentence_starts
            documents[d : d + len(rows.sources)] = s + rows.sentences_before[:-1]
            tokens[t : t + len(rows.tokens)] = rows.tokens
            t += len(rows.tokens)
            s += len(rows.sentence_starts)
            d += len(rows.sources)
    starts[s], documents[d] = t, s
    return TokenTable(tokens, starts, documents)


def count_tokens(table: TokenTable, vocab_size: int) -> np.ndarray:
    """Count the occurrences of each token: int64 [vocab_size]."""
    # `np.bincount` copies its argument to int64, so it gets a part at a time.
    parts = np.array_split(table.tokens, len(table.tokens) // 2**22 + 1)
    return sum(np.bincount(part, minlength=vocab_size) for part in parts)


@dataclasses.dataclass(frozen=True)
class Pieces:
    """Sentences, or parts of sentences that are too long for a row.

    A chunk is a run of pieces. Chunks are given by the index of the first piece of
    each, and the number of pieces: int64 [chunks + 1].

    Attributes:
      starts: int64 [pieces + 1], index of each piece's first token, and the number of
        tokens.
      of_document: int64 [documents + 1], index of each document's first piece, and the
        number of pieces.
    """

    starts: np.ndarray
    of_document: np.ndarray

    def documents(self, pieces: np.ndarray) -> np.ndarray:
        """Return the document of each of some pieces."""
        return np.searchsorted(self.of_document, pieces, side="right") - 1


def cut_into_pieces(table: TokenTable, target: int) -> Pieces:
    """Cut sentences longer than `target` tokens into equal parts."""
    lengths = np.diff(table.sentence_starts)
    parts = -(-lengths // target)
    before = np.concatenate([[0], np.cumsum(parts)])
    sentence = np.repeat(np.arange(len(lengths)), parts)
    part = np.arange(before[-1]) - before[sentence]
    starts = (
        table.sentence_starts[sentence] + lengths[sentence] * part // parts[sentence]
    )
    starts = np.concatenate([starts, table.sentence_starts[-1:]])
    return Pieces(starts, before[table.document_sentences])


def reach(pieces: Pieces, target: int | np.ndarray, min_pieces: int) -> np.ndarray:
    """Join pieces of one document to chunks that reach `target` tokens.

    As in the original, a chunk takes pieces until it has `target` tokens or the
    document ends, so it may be longer by most of a piece; and it takes two if it can,
    for two segments. One difference: sentences longer than `target` are cut into equal
    parts first. The original would truncate them.

    Args:
      pieces: The documents.
      target: Tokens to reach, or int64 [pieces], the target of a chunk that begins at
        each piece.
      min_pieces: Pieces of a chunk, at least, if the document has so many left.

    Returns:
      The chunks, int64 [chunks + 1]; see `Pieces`.

    Source: google-research/bert, create_pretraining_data.py,
    create_instances_from_document.
    """
    starts = pieces.starts
    ends = np.searchsorted(starts, starts[:-1] + target)
    ends = np.maximum(ends, np.arange(len(ends)) + min_pieces)
    return _walk(ends, pieces.of_document)


def fill(pieces: Pieces, target: int, separator: int | None) -> np.ndarray:
    """Join pieces to chunks of at most `target` tokens.

    Args:
      pieces: Pieces of at most `target` tokens each.
      target: Tokens in a chunk, at most.
      separator: Tokens between two documents in a chunk; None: chunks do not cross
        documents.

    Returns:
      The chunks, int64 [chunks + 1]; see `Pieces`.
    """
    document = pieces.documents(np.arange(pieces.of_document[-1]))
    gaps = document * (separator or 0)
    starts, stops = pieces.starts[:-1] + gaps, pieces.starts[1:] + gaps
    ends = np.searchsorted(stops, starts + target, side="right")
    parts = pieces.of_document if separator is None else pieces.of_document[[0, -1]]
    return _walk(ends, parts)


def _walk(ends: np.ndarray, boundaries: np.ndarray) -> np.ndarray:
    """Cut each part of the pieces into chunks, one after the other.

    Args:
      ends: int64 [pieces], the end of a chunk that would begin at each piece.
      boundaries: int64 [parts + 1], first piece of each part, and the number of pieces;
        no chunk crosses them.
    """
    # Vectorised over parts: the first chunk of each part, then the second, and so on.
    firsts = [boundaries[-1:]]
    first, limit = boundaries[:-1], boundaries[1:]
    while len(first) > _FEW_PARTS:
        firsts.append(first)
        first = ends[first]
        goes_on = first < limit
        first, limit = first[goes_on], limit[goes_on]
    # The last few parts one by one: a part may be the whole corpus.
    for begin, stop in zip(first.tolist(), limit.tolist(), strict=True):
        rest = []
        while begin < stop:
            rest.append(begin)
            begin = int(ends[begin])
        firsts.append(np.array(rest, np.int64))
    return np.sort(np.concatenate(firsts))
