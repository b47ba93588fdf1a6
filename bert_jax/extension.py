"""A checkpoint whose vocabulary has the words of a new text, to go on training with."""

import dataclasses
from collections.abc import Sequence

import numpy as np

from bert_jax import terminal
from bert_jax.corpus import new_words, sources, vocabulary
from bert_jax.errors import UserError
from bert_jax.interop import convert, lazy_checkpoint
from bert_jax.interop import output as output_lib
from bert_jax.interop.safetensors import Stored
from bert_jax.model import parameters


@dataclasses.dataclass(frozen=True)
class Extended:
    """What became of a checkpoint.

    Attributes:
      words: Words that were added, the most useful first.
      replaced: Number of those that took the place of an unused token.
      vocab_size: Number of tokens now.
      share_saved: Share of the tokens of the text that they save.
    """

    words: list[new_words.NewWord]
    replaced: int
    vocab_size: int
    share_saved: float


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

    What is learned of a new word begins with the mean of what the checkpoint knows of
    its pieces (Gee et al. 2022, Fast vocabulary transfer): a row of the embedding, and
    a bias of the head. The output is a checkpoint of ours, with a folder `tokenizer`
    to build a corpus with; pretraining goes on from it with `init_from`.

    Args:
      checkpoint: Checkpoint of ours or of another project, with a WordPiece vocabulary.
      source: Source of the text.
      output: Folder to write; new or empty.
      words: Number of words to add, at most.
      min_count: How often the text has a word, at least.
      sample_bytes: Amount of text to look at.

    Raises:
      UserError: The checkpoint or the text cannot be used, there are no such words, or
        the folder cannot be written.
      Unavailable: Checkpoint or text cannot be read now.
    """
    output_lib.check(output, local=True)
    model = lazy_checkpoint.read(checkpoint)
    tokenizer = model.metadata.tokenizer
    new_words.check(tokenizer)
    texts = vocabulary.sample(source, sample_bytes)
    terminal.say(f"{checkpoint}: {tokenizer.vocab_size:,} tokens")
    found = new_words.find(tokenizer, texts, min_count)[:words]
    if not found:
        raise UserError(
            f"the text has no word {min_count} times or more that the vocabulary of "
            f"{checkpoint} lacks; give more text or a smaller min_count"
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
    convert.write_ours(model, output)
    after = sum(map(len, extended.encode_batch(texts)))
    return Extended(
        words=found,
        replaced=sum(i < tokenizer.vocab_size for i in ids),
        vocab_size=extended.vocab_size,
        share_saved=1 - after / before,
    )


def _with_rows(
    array: Stored, words: Sequence[new_words.NewWord], ids: list[int], rows: int
) -> Stored:
    """A parameter with a row for each token, with those of new words in it."""
    shape = (max(rows, array.shape[0]), *array.shape[1:])

    def read():
        value = array.read()
        grown = np.zeros(shape, value.dtype)
        grown[: len(value)] = value
        for new, i in zip(words, ids, strict=True):
            grown[i] = value[list(new.pieces)].mean(axis=0)
        return grown

    return Stored(shape, read)
