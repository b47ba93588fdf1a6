"""A corpus split as flat arrays, cut into the chunks that examples are made from.

NumPy only. A token table holds the documents of one group of shards end to end. For a
sequence length, `Chunks` says which runs of sentences make one example each; every
token is in exactly one chunk.
"""

import dataclasses

import numpy as np

from bert_jax.corpus import shards
from bert_jax.errors import UserError


@dataclasses.dataclass(frozen=True)
class TokenTable:
    """Documents of some shards, end to end.

    Attributes:
      tokens: uint16 or int32 [tokens].
      sentence_starts: int64 [sentences + 1], into `tokens`; the last is their number.
      document_sentences: int64 [documents + 1], each document's first sentence, and
        the number of sentences.
    """

    tokens: np.ndarray
    sentence_starts: np.ndarray
    document_sentences: np.ndarray


def group_shards(
    corpus: shards.Corpus, split: str, group: int, num_groups: int
) -> list[shards.Shard]:
    """The shards of one of `num_groups` groups: contiguous, similar in number.

    Raises:
      UserError: there are fewer shards than groups.
    """
    found = corpus.shards[split]
    if len(found) < num_groups:
        raise UserError(
            f"data.shard_groups={num_groups}, but {corpus.folder} has {len(found)} "
            f"{split} shards; build it with a smaller --shard_megabytes"
        )
    return [s for i, s in enumerate(found) if i * num_groups // len(found) == group]


def load_tokens(
    corpus: shards.Corpus, split: str, group: int = 0, num_groups: int = 1
) -> TokenTable:
    """Read one group of shards into memory, checking their checksums.

    Raises:
      UserError: a shard is missing or damaged.
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


@dataclasses.dataclass(frozen=True)
class Chunks:
    """Where the chunks of one sequence length are.

    A piece is a sentence, or a part of one that is longer than a chunk should be.

    Attributes:
      piece_starts: int64 [pieces + 1], into the tokens; the last is their number.
      document_pieces: int64 [documents + 1], each document's first piece.
      first_piece: int64 [chunks], the chunk's first piece.
      end_piece: int64 [chunks], one past its last.
      document: int64 [chunks], the document it is part of.
    """

    piece_starts: np.ndarray
    document_pieces: np.ndarray
    first_piece: np.ndarray
    end_piece: np.ndarray
    document: np.ndarray


def cut_into_chunks(table: TokenTable, target: int) -> Chunks:
    """Cut documents into runs of pieces that reach `target` tokens.

    As in the original, a chunk takes pieces until it has `target` tokens or the
    document ends, so that it may be longer by most of a piece; and it takes two if it
    can, for two segments. Differs: sentences longer than `target` are cut into equal
    parts first, where the original would truncate them, and lose the rest.

    Source: google-research/bert, create_pretraining_data.py,
    create_instances_from_document.
    """
    piece_starts, document_pieces = _pieces(table, target)
    # The end of a chunk that would begin at each piece, documents aside.
    ends = np.searchsorted(piece_starts, piece_starts[:-1] + target)
    ends = np.maximum(ends, np.arange(len(ends)) + 2)
    # Walk all documents in step: first all first chunks, then all second ones.
    firsts, lasts, owners = [], [], []
    owner = np.arange(len(document_pieces) - 1)
    first, limit = document_pieces[:-1], document_pieces[1:]
    while len(owner):
        last = np.minimum(ends[first], limit)
        firsts.append(first)
        lasts.append(last)
        owners.append(owner)
        goes_on = last < limit
        first, limit, owner = last[goes_on], limit[goes_on], owner[goes_on]
    order = np.argsort(np.concatenate(firsts))
    return Chunks(
        piece_starts,
        document_pieces,
        np.concatenate(firsts)[order],
        np.concatenate(lasts)[order],
        np.concatenate(owners)[order],
    )


def _pieces(table: TokenTable, target: int) -> tuple[np.ndarray, np.ndarray]:
    lengths = np.diff(table.sentence_starts)
    parts = -(-lengths // target)
    before = np.concatenate([[0], np.cumsum(parts)])
    sentence = np.repeat(np.arange(len(lengths)), parts)
    part = np.arange(before[-1]) - before[sentence]
    starts = (
        table.sentence_starts[sentence] + lengths[sentence] * part // parts[sentence]
    )
    starts = np.concatenate([starts, table.sentence_starts[-1:]])
    return starts, before[table.document_sentences]
