"""Chunks of a corpus, from which rows are made.

NumPy only. A token table holds the documents of one group of shards end to end. For a
sequence length, its sentences are cut into pieces, which gives a table with shorter
sentences, and pieces are joined to chunks. Each chunk makes one row, and each token is
in exactly one chunk.

A chunk is a run of pieces. Chunks are given by the index of the first piece of each,
and the number of pieces: int64 [chunks + 1].
"""

import itertools
from collections.abc import Iterator

import numpy as np

from bert_jax import storage
from bert_jax.corpus import shards


def load_tokens(
    corpus: shards.Corpus, split: str, group: int = 0, num_groups: int = 1
) -> shards.TokenTable:
    """Read one group of the tokens of a split into memory, and verify checksums.

    Groups have equal numbers of tokens, so that every token comes equally often. With G
    groups, the shards are concatenated, 0, G, 2 G, ... first, then 1, G + 1, ..., and
    cut into equal parts, so that groups are alike where text changes from shard to
    shard. A document or a sentence that is cut counts as two.

    Only the shards that have tokens of the group are read.

    Raises:
      UserError: A shard is missing or damaged.
    """
    shard_list = corpus.shards[split]
    in_order = [s for i in range(num_groups) for s in shard_list[i::num_groups]]
    total = sum(shard.tokens for shard in in_order)
    begin, end = (total * g // num_groups for g in (group, group + 1))
    chosen, offset = [], 0  # shards of the group, each with its offset in this order
    for shard in in_order:
        if begin < offset + shard.tokens and offset < end:
            chosen.append((shard, offset))
        offset += shard.tokens
    count = sum(shard.tokens for shard, _ in chosen)
    tokens = np.empty(count, shards.token_dtype(corpus.tokenizer))
    starts = np.empty(sum(shard.sentences for shard, _ in chosen) + 1, np.int64)
    documents = np.empty(sum(shard.documents for shard, _ in chosen) + 1, np.int64)
    t = s = d = 0  # tokens, sentences and documents so far
    read = storage.map_in_threads(
        lambda each: list(shards.read_shard(corpus.folder, each[0])), chosen
    )
    for (_, offset), parts in zip(chosen, read, strict=True):
        for part in parts:
            lo, hi = np.clip((begin - offset, end - offset), 0, len(part.tokens))
            offset += len(part.tokens)
            if lo == hi:
                continue
            own_starts, own_documents = _starts_between(part, lo, hi)
            tokens[t : t + hi - lo] = part.tokens[lo:hi]
            starts[s : s + len(own_starts)] = t + own_starts
            documents[d : d + len(own_documents)] = s + own_documents
            t += hi - lo
            s += len(own_starts)
            d += len(own_documents)
    starts[s], documents[d] = t, s
    return shards.TokenTable(tokens[:t], starts[: s + 1], documents[: d + 1])


def _starts_between(
    table: shards.TokenTable, lo: int, hi: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return where sentences and documents start among the tokens `lo` to `hi` - 1.

    Sentences start at a token, counted from `lo`. Documents start at a sentence,
    counted from the first that is returned. A sentence or document that begins before
    `lo` starts at 0.
    """
    first = np.searchsorted(table.sentence_starts, lo, side="right") - 1
    last = np.searchsorted(table.sentence_starts, hi)
    starts = np.maximum(table.sentence_starts[first:last], lo) - lo
    before, after = table.document_sentences[:-1], table.document_sentences[1:]
    documents = before[(after > first) & (before < last)]
    return starts, np.maximum(documents, first) - first


def count_tokens(table: shards.TokenTable, vocab_size: int) -> np.ndarray:
    """Count the occurrences of each token: int64 [vocab_size]."""
    # `np.bincount` copies its argument to int64, so it gets a part at a time.
    parts = np.array_split(table.tokens, len(table.tokens) // 2**22 + 1)
    return sum(np.bincount(part, minlength=vocab_size) for part in parts)


def cut_into_pieces(
    table: shards.TokenTable, max_tokens: int, min_pieces: int
) -> shards.TokenTable:
    """Cut sentences longer than `max_tokens`.

    Parts have `max_tokens` tokens if a chunk needs one piece, and half as many if it
    needs two (`min_pieces`). The last part of a sentence may be shorter. Packed rows
    and pairs drop the tokens of a chunk beyond `max_tokens`. With parts of other sizes,
    they would drop more of long sentences.
    """
    lengths = np.diff(table.sentence_starts)
    size = -(-max_tokens // min_pieces)
    parts = np.where(lengths > max_tokens, -(-lengths // size), 1)
    before = np.concatenate([[0], np.cumsum(parts)])
    sentence = np.repeat(np.arange(len(lengths)), parts)
    part = np.arange(before[-1]) - before[sentence]
    starts = table.sentence_starts[sentence] + part * size
    starts = np.concatenate([starts, table.sentence_starts[-1:]])
    return shards.TokenTable(table.tokens, starts, before[table.document_sentences])


def join_to_reach(
    pieces: shards.TokenTable, target: int | np.ndarray, min_pieces: int
) -> np.ndarray:
    """Join pieces of one document to chunks that reach `target` tokens.

    As in the original, a chunk takes pieces until it has `target` tokens or the
    document ends. It takes at least `min_pieces` if the document has that many left,
    since two segments need two; the original takes at least one. Another difference:
    sentences longer than a row are cut first (`cut_into_pieces`). The original would
    truncate them.

    `target` may also be int64 [pieces], the target of a chunk that begins at each
    piece.

    Source: google-research/bert, create_pretraining_data.py,
    create_instances_from_document.
    """
    starts = pieces.sentence_starts
    ends = np.searchsorted(starts, starts[:-1] + target)
    ends = np.maximum(ends, np.arange(len(ends)) + min_pieces)
    return _chunk_starts(ends, pieces.document_sentences)


def join_to_fit(
    pieces: shards.TokenTable, max_tokens: int, *, across_documents: bool
) -> np.ndarray:
    """Join pieces of at most `max_tokens` to chunks of at most `max_tokens`.

    With `across_documents`, a chunk may go on in the next document, and has one more
    token, a separator, between the two.
    """
    starts, stops = pieces.sentence_starts[:-1], pieces.sentence_starts[1:]
    boundaries = pieces.document_sentences
    if across_documents:
        gaps = pieces.documents(np.arange(len(starts)))
        starts, stops, boundaries = starts + gaps, stops + gaps, boundaries[[0, -1]]
    ends = np.searchsorted(stops, starts + max_tokens, side="right")
    return _chunk_starts(ends, boundaries)


def _chunk_starts(ends: np.ndarray, boundaries: np.ndarray) -> np.ndarray:
    """Cut each part of the pieces into chunks, one after the other.

    Args:
      ends: int64 [pieces], the end of a chunk that would begin at each piece.
      boundaries: int64 [parts + 1], first piece of each part, and the number of pieces;
        no chunk crosses them.
    """

    def firsts() -> Iterator[int]:
        for first, stop in itertools.pairwise(boundaries.tolist()):
            while first < stop:
                yield first
                first = int(ends[first])
        yield boundaries[-1]

    return np.fromiter(firsts(), np.int64)
