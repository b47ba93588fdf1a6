"""Trainers that learn a vocabulary from the text of a source.

The trainers take texts, the number of tokens, special tokens included, and the settings
`lower_case` and `strip_accents` of `pipelines.bert_steps`. The vocabulary is smaller if
the text gives fewer tokens. They raise a `UserError` if there is no text, or if the
number of tokens is too small for its characters.
"""

import collections
import functools
import io
import itertools
import json
import random
import re
import unicodedata
from collections.abc import Collection, Mapping, Sequence

import sentencepiece
import tokenizers

from bert_jax import terminal
from bert_jax import tokenizer as tokenizer_lib
from bert_jax.corpus import sources, text_sample
from bert_jax.errors import UserError
from bert_jax.tokenizer import Tokenizer, pipelines, sentencepiece_model
from bert_jax.tokenizer.special_tokens import (
    BYTE_BPE_SPECIAL_TOKENS,
    SPECIAL_TOKENS,
    UNK,
)

# More than any published vocabulary has. Trainers crash at far larger sizes.
MAX_VOCAB_SIZE = 1_000_000
_MAX_LINE_BYTES = 1 << 24
# Largest number of lines for SentencePiece; a random sample of this size is enough.
_MAX_LINES = 2_000_000
# Characters of a vocabulary, the most frequent of the text: at least this many, and
# more until they cover this share of the text.
_MIN_ALPHABET = 1000
_COVERAGE = 0.9995
# Scripts whose words can be read without accents.
_EUROPEAN = ("LATIN", "GREEK", "CYRILLIC", "COMBINING")
_VIETNAMESE = {chr(i) for i in range(0x1EA0, 0x1EFA)}  # without them, tones are lost
# Fraction of changed characters of other scripts that causes a warning.
_MANY_LOST = 0.01
# SentencePiece's token for a space, and the character whose lines it leaves out.
_SPACE = "\u2581"
_LEFT_OUT = "\u2585"
_NO_CHARACTERS = "the text has no characters to learn from"


def learn(
    source: sources.Source,
    kind: str,
    vocab_size: int,
    *,
    lower_case: bool,
    strip_accents: bool,
    sample_bytes: int,
) -> Tokenizer:
    """Learn a vocabulary from a sample of a source, and show the progress.

    Raises:
      UserError: The input does not exist or holds no text, or `vocab_size` is too small
        or too large.
    """
    texts = text_sample.read(source, sample_bytes)
    if strip_accents:
        _report_lost_marks(texts)
    megabytes = sum(len(text.encode("utf-8")) for text in texts) / 1e6
    terminal.say(f"learning {vocab_size:,} tokens from {megabytes:,.1f} MB of text")
    tokenizer = TRAINERS[kind](
        texts, vocab_size, lower_case=lower_case, strip_accents=strip_accents
    )
    if tokenizer.vocab_size < vocab_size:
        terminal.say(
            f"warning: the text gives only {tokenizer.vocab_size:,} tokens, fewer than "
            f"vocab_size={vocab_size}; give more text for a larger vocabulary"
        )
    return tokenizer


def _report_lost_marks(texts: list[str]) -> None:
    """Warn if stripping accents changes letters of a script that needs its marks.

    It drops vowel signs of Hindi and Thai, for example, the voicing of Japanese, and
    the tones of Vietnamese.
    """
    beginning = "".join(itertools.islice(texts, 10_000))[:1_000_000]
    counts = collections.Counter(unicodedata.normalize("NFC", beginning))
    strip = sentencepiece_model.normalizer(lower_case=False, strip_accents=True)
    lost = {}
    for character, count in counts.items():
        kept = strip.normalize_str(character)
        script = unicodedata.name(character, "").partition(" ")[0]
        is_european = script in _EUROPEAN and character not in _VIETNAMESE
        if unicodedata.normalize("NFC", kept) != character and not is_european:
            lost[character] = count
    share = sum(lost.values()) / len(beginning)
    if share > _MANY_LOST:
        common = " ".join(sorted(lost, key=lost.get, reverse=True)[:5])
        terminal.say(
            f"warning: stripping accents changes {share:.1%} of the characters, such "
            f"as {common}; use --nostrip_accents to keep this script intact"
        )


# ---- the trainers


def train_wordpiece(
    texts: Collection[str],
    vocab_size: int,
    *,
    lower_case: bool = True,
    strip_accents: bool = True,
) -> Tokenizer:
    """Learn a WordPiece vocabulary by joining frequent pairs of pieces.

    Google never released its trainer; this is the trainer of `tokenizers`.
    By default it numbers the pieces of one character in the order of a randomly seeded
    hash table, and breaks ties between pairs by these numbers, so that the same text
    gives a different vocabulary each time. Here these pieces are numbered beforehand.
    """
    model = tokenizers.models.WordPiece(unk_token=UNK)
    pipeline = pipelines.bert_steps(model, lower_case, strip_accents)
    counts: collections.Counter[str] = collections.Counter()
    for text in texts:
        counts.update(pipeline.normalizer.normalize_str(text))
    chosen, words = _alphabet(counts, pipeline, vocab_size)
    alphabet = sorted(chosen)
    pieces = [*alphabet, *("##" + c for c in alphabet if c not in words)]
    _check_room(len(SPECIAL_TOKENS) + len(pieces), vocab_size)
    trainer = tokenizers.trainers.WordPieceTrainer(
        vocab_size=vocab_size,
        min_frequency=2,
        limit_alphabet=len(alphabet),
        initial_alphabet=alphabet,
        special_tokens=[*SPECIAL_TOKENS, *pieces],
        show_progress=False,
    )
    pipeline.train_from_iterator(texts, trainer)
    _report_rare_characters(counts, chosen)
    vocabulary = pipeline.get_vocab()
    tokens = sorted(vocabulary, key=lambda token: vocabulary[token])
    return tokenizer_lib.make(pipelines.wordpiece(tokens, lower_case, strip_accents))


def _alphabet(
    counts: collections.Counter[str], pipeline: tokenizers.Tokenizer, vocab_size: int
) -> tuple[list[str], set[str]]:
    """Choose the characters of a WordPiece vocabulary.

    Returns:
      The frequent characters; and all characters that the normaliser surrounds
      with spaces, such as Chinese ones. These need no piece that continues a word.
    """
    words = {c for c in counts if " " in pipeline.normalizer.normalize_str(c)}
    pieces = {c: 1 if c in words else 2 for c in counts}
    chosen = _frequent_characters(counts, pieces, vocab_size, _MIN_ALPHABET)
    return chosen, words


def _frequent_characters(
    counts: collections.Counter[str],
    pieces: Mapping[str, int],
    vocab_size: int,
    least: int,
) -> list[str]:
    """Choose the most frequent characters of the text for a vocabulary.

    The result covers `_COVERAGE` of the text, or less if `vocab_size` has no room. It
    has at least `least` characters, or all if the text has fewer. `pieces` has the
    number of tokens that a character needs.
    """
    if not (by_count := _sorted_by_count(counts)):
        raise UserError(_NO_CHARACTERS)
    total = sum(counts[c] for c in by_count)
    covered = itertools.accumulate(counts[c] for c in by_count)
    needed = sum(count < _COVERAGE * total for count in covered) + 1
    sizes = itertools.accumulate(pieces[c] for c in by_count)
    room = sum(count <= vocab_size - len(SPECIAL_TOKENS) for count in sizes)
    return by_count[: max(least, min(needed, room))]


def _sorted_by_count(counts: collections.Counter[str]) -> list[str]:
    characters = [c for c in counts if not c.isspace()]
    return sorted(characters, key=lambda c: (-counts[c], c))


def _report_rare_characters(
    counts: collections.Counter[str], chosen: Sequence[str]
) -> None:
    """Warn of the rare characters of the text that were not chosen."""
    by_count = _sorted_by_count(counts)
    if rare := by_count[len(chosen) :]:
        share = sum(counts[c] for c in rare) / sum(counts[c] for c in by_count)
        hint = "; increase vocab_size to keep more" if share > 1 - _COVERAGE else ""
        number = terminal.pluralise(len(rare), "rare character")
        terminal.say(
            f"warning: {number}, {share:.3%} of the text, such as "
            f"{' '.join(rare[:5])}, will be {UNK}{hint}"
        )


def train_sentencepiece(
    texts: Sequence[str],
    vocab_size: int,
    *,
    lower_case: bool = False,
    strip_accents: bool = False,
) -> Tokenizer:
    """Learn a SentencePiece unigram vocabulary, as ALBERT and XLNet use.

    The special tokens are control symbols: no text can produce them. Characters are
    chosen as for WordPiece, but only a quarter of the vocabulary may be for rare ones.
    SentencePiece's own choice, 99.95 % of the text, leaves out the digits of novels.
    """
    if len(texts) > _MAX_LINES:
        # A sample by SentencePiece itself would differ in each process.
        texts = random.Random(0).sample(texts, _MAX_LINES)
    normalizer = sentencepiece_model.normalizer(lower_case, strip_accents)
    counts = _sentencepiece_characters(texts, normalizer)
    least = min(_MIN_ALPHABET, vocab_size // 4)
    characters = _frequent_characters(
        counts, dict.fromkeys(counts, 1), vocab_size - len(_SPACE), least
    )
    train = functools.partial(
        _sentencepiece_model, texts, normalizer, counts, characters
    )
    try:
        model = train(vocab_size)
    except RuntimeError as error:
        # The error for too large a vocabulary names the largest possible size.
        limit = re.search(r"set it to a value <= (\d+)", str(error))
        if needed := re.search(r"required_chars\. \d+ vs (\d+)", str(error)):
            _check_room(int(needed[1]), vocab_size)
        if "KeyboardInterrupt" in str(error):  # raised while iterating over texts
            raise KeyboardInterrupt from error
        if "sentences_.empty()" in str(error) or "all_chars_count" in str(error):
            raise UserError(_NO_CHARACTERS) from error
        if not limit:
            raise
        model = train(int(limit[1]))
    # With "always", no blank would be followed by a full stop without a space.
    pipeline = sentencepiece_model.pipeline(
        model, lower_case, strip_accents, prepend_scheme="first"
    )
    tokenizer = tokenizer_lib.make(pipeline)
    if set(tokenizer.tokens) <= {*SPECIAL_TOKENS, _SPACE}:
        raise UserError(_NO_CHARACTERS)
    _report_rare_characters(counts, characters)
    return tokenizer


def _sentencepiece_characters(
    texts: Sequence[str], normalizer: tokenizers.normalizers.Normalizer
) -> collections.Counter[str]:
    """Count the characters as SentencePiece does, spaces included."""
    cleaned = sentencepiece.SentencePieceNormalizer(
        rule_name="nmt_nfkc",
        add_dummy_prefix=True,
        escape_whitespaces=True,
        remove_extra_whitespaces=True,
    )
    counts: collections.Counter[str] = collections.Counter()
    for text in map(normalizer.normalize_str, texts):
        if _LEFT_OUT not in text:
            counts.update(cleaned.normalize(text))
    counts[" "] = counts.pop(_SPACE, 0)
    return counts


def _sentencepiece_model(
    texts: Sequence[str],
    normalizer: tokenizers.normalizers.Normalizer,
    counts: collections.Counter[str],
    characters: Sequence[str],
    vocab_size: int,
) -> bytes:
    """Train a model that has tokens for these characters, and return it serialised.

    SentencePiece sorts all characters by their counts, the required ones before the
    others, and takes them until they cover the given share of the text (at least 98 %).
    """
    required = [counts[c] for c in [" ", *characters]]
    # Halfway between the shares without and with the last one, since it rounds them.
    share = (sum(required) - min(required) / 2) / counts.total()
    buffer = io.BytesIO()
    pad, unk, *controls = SPECIAL_TOKENS
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=map(normalizer.normalize_str, texts),
        model_writer=buffer,
        vocab_size=vocab_size,
        required_chars=_SPACE + "".join(characters),
        character_coverage=max(0.98, share),
        model_type="unigram",
        pad_id=0,
        unk_id=1,
        bos_id=-1,
        eos_id=-1,
        pad_piece=pad,
        unk_piece=unk,
        control_symbols=controls,
        # Longer lines are left out. The default would leave out whole paragraphs.
        max_sentence_length=_MAX_LINE_BYTES,
        minloglevel=2,
    )
    return buffer.getvalue()


def train_byte_bpe(
    texts: Collection[str],
    vocab_size: int,
    *,
    lower_case: bool = False,
    strip_accents: bool = False,
) -> Tokenizer:
    """Learn a byte-level BPE vocabulary, as GPT-2 and RoBERTa use.

    The special tokens have the positions of RoBERTa's published vocabulary: `<s>`,
    `<pad>`, `</s>` and `<unk>` first, then bytes and merged tokens, and `<mask>` at the
    end. Unlike RoBERTa's, the tokenizer has `add_prefix_space`, so that a word has the
    same ids everywhere in a text. White space around texts is stripped. `lower_case`
    and `strip_accents` have to be false: ids give the text back unchanged.
    """
    if not any(text.strip() for text in texts):
        raise UserError(_NO_CHARACTERS)
    assert not (lower_case or strip_accents)
    pad, unk, cls, sep, mask = BYTE_BPE_SPECIAL_TOKENS
    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    _check_room(len(BYTE_BPE_SPECIAL_TOKENS) + len(alphabet), vocab_size)
    pipeline = pipelines.byte_bpe_steps(tokenizers.models.BPE(), False)
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=vocab_size - 1,
        min_frequency=2,
        initial_alphabet=alphabet,
        special_tokens=[cls, pad, sep, unk],
        show_progress=False,
    )
    pipeline.train_from_iterator((" " + text.strip() for text in texts), trainer)
    learnt = json.loads(pipeline.to_str())["model"]
    ids = learnt["vocab"] | {mask: len(learnt["vocab"])}
    merges = [(first, second) for first, second in learnt["merges"]]
    return tokenizer_lib.make(pipelines.byte_bpe(ids, merges, add_prefix_space=True))


def _check_room(needed: int, vocab_size: int) -> None:
    if needed > vocab_size:
        raise UserError(
            f"vocab_size={vocab_size} is too small for the characters of the text; "
            f"it must be at least {needed}"
        )


# Trainers by the kind of tokenizer that they learn.
TRAINERS = {
    "wordpiece": train_wordpiece,
    "sentencepiece": train_sentencepiece,
    "byte_bpe": train_byte_bpe,
}
