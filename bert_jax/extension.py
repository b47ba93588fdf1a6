"""Checkpoints with words of a new text in their vocabulary, for further pretraining."""

import dataclasses
from collections.abc import Sequence

import numpy as np

from bert_jax import terminal
from bert_jax.corpus import new_words, sources, vocabulary
from bert_jax.errors import UserError
from bert_jax.interop import convert, lazy_checkpoint
from bert_jax.interop import output as output_lib
from bert_jax.interop.safetensors import LazyArray
from bert_jax.model import parameters


@dataclasses.dataclass(frozen=True)
class Extended:
    """Result of extending a vocabulary."""

    words: list[new_words.NewWord]  # added words, the most useful first
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
) -> Extended:
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
    output_lib.check(output, local=True)
    model = lazy_checkpoint.read(checkpoint)
    tokenizer = model.metadata.tokenizer
    texts = vocabulary.sample(source, sample_bytes)
    terminal.say(f"{checkpoint}: {tokenizer.vocab_size:,} tokens")
    found = new_words.find(tokenizer, texts, min_count)[:words]
    if not found:
        raise UserError(
            f"no word that occurs {min_count} times or more is missing in the "
            f"vocabulary of {checkpoint}; give more text or a smaller min_count"
        )
    before = sum(map(len, tokenizer.encode_batch(texts)))
    extended, ids = new_words.extend(tokenizer, [new.word for new in found])
    # A published encoder may have more rows than its vocabulary has tokens.
    size = max(model.metadata.encoder.vocab_size, extended.vocab_size)
    encoder = dataclasses.replace(model.metadata.encoder, vocab_size=size)
    saved = dict(model.metadata.config)
    if "encoder" in saved:
        saved["encoder"] = saved["encoder"] | {"vocab_size": size}
    rows = encoder.padded_vocab_size
    params = {
        path: _with_rows(array, found, ids, rows)
        if parameters.has_row_for_each_token(path)
        else array
        for path, array in model.params.items()
    }
    metadata = dataclasses.replace(
        model.metadata, encoder=encoder, tokenizer=extended, config=saved
    )
    model = dataclasses.replace(model, params=params, metadata=metadata)
    convert.write_native(model, output)
    after = sum(map(len, extended.encode_batch(texts)))
    return Extended(
        words=found,
        replaced=sum(i < tokenizer.vocab_size for i in ids),
        vocab_size=extended.vocab_size,
        share_saved=1 - after / before,
    )


def _with_rows(
    array: LazyArray, words: Sequence[new_words.NewWord], ids: list[int], rows: int
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
