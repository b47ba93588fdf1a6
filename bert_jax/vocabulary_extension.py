"""Checkpoints with words of a new text in their vocabulary, for further pretraining."""

import collections
import dataclasses
import json
import re
from collections.abc import Iterable, Sequence

import numpy as np
import tokenizers

from bert_jax import terminal
from bert_jax import tokenizer as tokenizer_lib
from bert_jax.corpus import sources, text_sample
from bert_jax.errors import UserError
from bert_jax.interop import convert, lazy_checkpoint, output_folder
from bert_jax.interop.safetensors import LazyArray
from bert_jax.model import parameters
from bert_jax.tokenizer import Tokenizer

# Placeholders in the vocabularies of google-research/bert, about a thousand.
_UNUSED = re.compile(r"\[unused\d+\]")


@dataclasses.dataclass(frozen=True)
class NewWord:
    """Word that is not in a vocabulary."""

    word: str  # normalised
    count: int  # occurrences in the text
    pieces: tuple[int, ...]  # ids in the current vocabulary

    @property
    def tokens_saved(self) -> int:
        """Number of tokens that the word saves; [UNK] counts as two pieces."""
        return self.count * max(1, len(self.pieces) - 1)


@dataclasses.dataclass(frozen=True)
class ExtensionResult:
    """Result of extending a vocabulary."""

    words: list[NewWord]  # added words, the most useful first
    replaced: int  # number of added words that replaced an unused token
    vocab_size: int  # new number of tokens
    share_saved: float  # fraction by which the text has fewer tokens


def extend(
    checkpoint: str,
    source: sources.Source,
    output: str,
    *,
    words: int,
    min_count: int,
    sample_bytes: int,
) -> ExtensionResult:
    """Add words of a text to the vocabulary of a checkpoint.

    The embedding and the output bias of a new word are initialised with the mean over
    its pieces (Gee et al. 2022, Fast vocabulary transfer). The output is a native
    checkpoint, with a folder `tokenizer` for building a corpus; pretraining continues
    from it with `init_from`.

    Args:
      checkpoint: Native or published checkpoint with a WordPiece vocabulary.
      source: Source of the text.
      output: Folder to write; new or empty.
      words: Largest number of words to add.
      min_count: Smallest number of occurrences of a word.
      sample_bytes: Amount of text to read.

    Raises:
      UserError: The checkpoint or the text cannot be used, there are no such words, or
        the folder cannot be written.
    """
    output_folder.check(output, local=True)
    original = lazy_checkpoint.read(checkpoint)
    tokenizer = original.metadata.tokenizer
    has_words = bool(tokenizer.steps()["pre_tokenizer"])
    if tokenizer.model_type != "WordPiece" or not has_words:
        raise UserError(
            "words can be added to a WordPiece vocabulary with a pre-tokenizer only; "
            f"{checkpoint} has a {tokenizer.model_type} vocabulary"
            + ("" if has_words else " and no pre-tokenizer")
        )
    texts = text_sample.read(source, sample_bytes)
    terminal.say(f"{checkpoint}: {tokenizer.vocab_size:,} tokens")
    if not (found := find_words(tokenizer, texts, min_count)[:words]):
        raise UserError(
            f"no word that occurs {min_count} times or more is missing in the "
            f"vocabulary of {checkpoint}; give more text or a smaller min_count"
        )
    before = sum(map(len, tokenizer.encode_batch(texts)))
    extended, ids = extend_tokenizer(tokenizer, [new.word for new in found])
    convert.write_native(_with_tokenizer(original, extended, found, ids), output)
    after = sum(map(len, extended.encode_batch(texts)))
    return ExtensionResult(
        words=found,
        replaced=sum(i < tokenizer.vocab_size for i in ids),
        vocab_size=extended.vocab_size,
        share_saved=1 - after / before,
    )


def _with_tokenizer(
    original: lazy_checkpoint.LazyCheckpoint,
    tokenizer: Tokenizer,
    words: Sequence[NewWord],
    ids: list[int],
) -> lazy_checkpoint.LazyCheckpoint:
    """Return the checkpoint with an extended tokenizer and rows for the new words."""
    metadata = original.metadata
    # A published encoder may have more rows than its vocabulary has tokens.
    size = max(metadata.encoder.vocab_size, tokenizer.vocab_size)
    encoder = dataclasses.replace(metadata.encoder, vocab_size=size)
    config = dict(metadata.config)
    if "encoder" in config:
        config["encoder"] = config["encoder"] | {"vocab_size": size}
    metadata = dataclasses.replace(
        metadata, encoder=encoder, tokenizer=tokenizer, config=config
    )
    params = {
        path: _with_rows(array, words, ids, encoder.padded_vocab_size)
        if parameters.is_vocabulary_table(path)
        else array
        for path, array in original.params.items()
    }
    return dataclasses.replace(original, params=params, metadata=metadata)


def _with_rows(
    array: LazyArray, words: Sequence[NewWord], ids: list[int], rows: int
) -> LazyArray:
    """Extend a parameter with one row per token by rows for new words."""
    shape = (max(rows, array.shape[0]), *array.shape[1:])

    def read():
        value = array.read()
        grown = np.zeros(shape, value.dtype)
        grown[: len(value)] = value
        for new, i in zip(words, ids, strict=True):
            grown[i] = value[list(new.pieces)].mean(axis=0)
        return grown

    return LazyArray(shape, read)


# ---- words


def find_words(
    tokenizer: Tokenizer, texts: Iterable[str], min_count: int
) -> list[NewWord]:
    """Find words that consist of several pieces or are unknown, the most useful first.

    The most useful words save the most tokens: count times saved tokens per occurrence.
    Numbers and words that are too long for the tokenizer are left out. So are words
    with an added token inside, which the tokenizer cuts out before it splits text, and
    words that begin with `##`, the mark of a continuation.
    """
    pipeline = tokenizers.Tokenizer.from_str(tokenizer.pipeline)
    between_spaces: collections.Counter[str] = collections.Counter()
    for text in texts:
        between_spaces.update(text.split())
    counts: collections.Counter[str] = collections.Counter()
    for text, count in between_spaces.items():
        normal = text
        if pipeline.normalizer:
            normal = pipeline.normalizer.normalize_str(text)
        for word, _ in pipeline.pre_tokenizer.pre_tokenize_str(normal):
            counts[word] += count
    known = frozenset(tokenizer.tokens)
    candidates = [
        word
        for word, count in counts.items()
        if count >= min_count
        and not word.isdigit()
        and len(word) <= pipeline.model.max_input_chars_per_word
        and word not in known
        and not word.startswith(pipeline.model.continuing_subword_prefix)
    ]
    added = pipeline.get_added_tokens_decoder().keys() - {tokenizer.unk_id}
    found = []
    for word, ids in zip(candidates, tokenizer.encode_batch(candidates), strict=True):
        if added.isdisjoint(ids):
            # Not `ids`: a normalizer may change a normalised word again.
            pieces = tuple(token.id for token in pipeline.model.tokenize(word))
            found.append(NewWord(word, counts[word], pieces))
    return sorted(found, key=lambda new: (-new.tokens_saved, new.word))


def extend_tokenizer(
    tokenizer: Tokenizer, words: Sequence[str]
) -> tuple[Tokenizer, list[int]]:
    """Return the tokenizer with words added, and the id of each word.

    Words replace `[unused...]` tokens first, except those that the pipeline declares as
    added tokens, and then extend the vocabulary. All other tokens keep their ids.
    Longer words that begin with a new word may be split differently than before:
    WordPiece takes the longest piece first.
    """
    values = json.loads(tokenizer.pipeline)
    declared = {token["content"] for token in values["added_tokens"]}
    tokens = list(tokenizer.tokens)
    free = [
        i
        for i, token in enumerate(tokens)
        if _UNUSED.fullmatch(token) and token not in declared
    ]
    ids = [*free, *range(len(tokens), len(tokens) + len(words))][: len(words)]
    tokens += [""] * (len(words) - len(free))
    for i, word in zip(ids, words, strict=True):
        tokens[i] = word
    values["model"]["vocab"] = {t: i for i, t in enumerate(tokens) if t}
    return tokenizer_lib.make(values, tokenizer.settings()), ids
