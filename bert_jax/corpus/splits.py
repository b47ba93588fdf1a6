"""Build of one input split: from text to sentences to the token ids of two shards.

`build_split` is a pure function of its arguments: it writes the same shards on every
machine and under every runner.

A hash of its text decides whether a document is held out. Copies of a document are
therefore never in both shards, and neither order nor splits matter.
"""

import dataclasses
import hashlib
import itertools
import re
from collections.abc import Iterator, Sequence

import sentencex

from bert_jax import storage
from bert_jax import tokenizer as tokenizer_lib
from bert_jax.corpus import shards, sources
from bert_jax.corpus.document_files import Problems
from bert_jax.errors import UserError

# Date of the newest change to where sentences begin, for builds that continue.
VERSION = "2026-11-30"
_BATCH_SENTENCES = 2000  # sentences that are tokenised together
# Marks of list items. After a mark, `sentencex` would return the rest of the paragraph
# as one sentence.
_ITEM = re.compile(
    r"^[ \t]*(?:(?:[•\u2043⁌⁍■□▪▫▶▸►◆◇○●◦★☆➢➣➤]|\(\w{1,6}\))[ \t]+)+", re.MULTILINE
)
# White space outside ASCII before a period. After an initial, as in "Plan B\u00a0.", it
# makes `sentencex` 1.0.32 panic.
_WIDE_SPACE = re.compile(r"[^\S\x00-\x7f](?=\.)")
# Longer sentences, in characters, are split again with other quotation marks.
# `sentencex` does not split between two marks, and takes apostrophes for marks. It
# splits after U+2019 and before U+2033, and does not pair them.
_LONG_SENTENCE = 1000
_OPENING_QUOTE = re.compile(
    r"""
    [「《]
    | (?<=[\u3001\u3002\uff01-\uff1f])[\u2018\u201c]  # Chinese has no spaces
    | (?<![^\s(\[\u2014-])(?:[«\u2039]|['"\u2018\u201c»\u203a](?=\S))
    """,
    re.VERBOSE,
)
_QUOTES = str.maketrans(
    dict.fromkeys("'\"\u2018\u201c\u201d«»\u2039\u203a」》", "\u2019")
)
_SPACES = " \t\r\n"
# A match starts at the first space only; else a run of spaces takes quadratic time.
_LINE_BREAK = re.compile(r"(?<![ \t])[ \t]*[\r\n][ \t\r\n]*")
# The codes of ISO 639-1. `sentencex` takes any code, and silently falls back to a
# related language or to English.
_ISO_639_1 = """
aa ab ae af ak am an ar as av ay az ba be bg bi bm bn bo br bs ca ce ch co cr cs
cu cv cy da de dv dz ee el en eo es et eu fa ff fi fj fo fr fy ga gd gl gn gu gv
ha he hi ho hr ht hu hy hz ia id ie ig ii ik io is it iu ja jv ka kg ki kj kk kl
km kn ko kr ks ku kv kw ky la lb lg li ln lo lt lu lv mg mh mi mk ml mn mr ms mt
my na nb nd ne ng nl nn no nr nv ny oc oj om or os pa pi pl ps pt qu rm rn ro ru
rw sa sc sd se sg si sk sl sm sn so sq sr ss st su sv sw ta te tg th ti tk tl tn
to tr ts tt tw ty ug uk ur uz ve vi vo wa wo xh yi yo za zh zu
"""
LANGUAGES = frozenset(_ISO_639_1.split())


@dataclasses.dataclass(frozen=True)
class Settings:
    """Settings for the text of a build. A build continues only with the same settings.

    A fraction of the documents is held out. The language of the sentence splitter is a
    code of ISO 639-1.

    Raises:
      UserError: A value is invalid.
    """

    held_out: float = 0.01
    language: str = "en"

    def __post_init__(self):
        if not 0 <= self.held_out < 1:  # false for NaN
            raise UserError(
                f"held_out={self.held_out} must be a fraction, at least 0 and below 1"
            )
        if self.language not in LANGUAGES:
            raise UserError(
                f"unknown language {self.language!r}; give an ISO 639-1 code such as "
                "en, de or zh"
            )


@dataclasses.dataclass(frozen=True)
class Job:
    """Arguments that all splits of a build have in common."""

    source: sources.Source
    settings: Settings
    tokenizer: tokenizer_lib.Tokenizer
    output: str


@dataclasses.dataclass(frozen=True)
class SplitResult:
    """Result of building one split."""

    train: shards.Shard
    held_out: shards.Shard
    problems: Problems


def is_held_out(text: str, fraction: float) -> bool:
    """Return whether a document is held out."""
    text = text.strip().replace("\r\n", "\n").replace("\r", "\n")
    digest = hashlib.blake2b(text.encode("utf-8"), digest_size=8).digest()
    return int.from_bytes(digest, "big") < fraction * 2**64


def build_split(job: Job, index: int, split: sources.InputSplit) -> SplitResult:
    """Write the two shards of one split. `index` is part of the names of the shards."""
    folder = storage.path(job.output)
    problems = Problems()
    documents = sources.read(split, job.source, problems)
    train, held_out = (
        shards.ShardWriter(folder / f"{name}-{index:05d}.arrow", job.tokenizer)
        for name in shards.SPLITS
    )
    with train, held_out:
        for document, sentences in _tokenised(documents, job.settings, job.tokenizer):
            if sentences:
                for_eval = is_held_out(document.text, job.settings.held_out)
                (held_out if for_eval else train).add(sentences, document.source)
        return SplitResult(train.close(), held_out.close(), problems)


def split_sentences(language: str, text: str) -> list[str]:
    """Split a text into sentences, which concatenate to the text.

    The mark of a list item, such as "(1)", is a part of the sentence after it. A
    sentence of more than 1,000 characters is split again, as if its quotation marks
    were letters.
    """
    marks = [match.span() for match in _ITEM.finditer(text)]
    begins = [(0, 0), *marks]
    ends = [begin for begin, _ in marks] + [len(text)]
    segments = []
    for (begin, after), end in zip(begins, ends, strict=True):
        first = len(segments)
        for segment in _split(language, text[after:end]):
            if len(segment) > _LONG_SENTENCE:
                segments += _split(language, segment, without_quotes=True)
            else:
                segments.append(segment)
        segments[first] = text[begin:after] + segments[first]
    return segments


def _split(language: str, text: str, without_quotes: bool = False) -> list[str]:
    """Split a text without list marks."""
    plain = text  # of the same length
    if without_quotes:
        plain = _OPENING_QUOTE.sub("\u2033", plain).translate(_QUOTES)
    plain = _WIDE_SPACE.sub(" ", plain)
    cuts, place = [0], 0
    for i, sentence in enumerate(sentencex.segment(language, plain)):
        # In long texts, `segment` leaves out some of the blank lines between
        # paragraphs. They belong to the sentence before.
        place = plain.index(sentence, place)
        if i:
            cuts.append(place)
        place += len(sentence)
    cuts.append(len(text))
    return [text[start:stop] for start, stop in itertools.pairwise(cuts)]


def normalise_spaces(segments: Sequence[str]) -> list[str]:
    """Normalise white space: return sentences that concatenate to one line.

    Line breaks become spaces. White space between two sentences becomes a space before
    the second, where vocabularies such as byte-level BPE have it. Between sentences of
    Chinese, for example, there is none. Wide and other spaces stay as they are, before
    the sentence that they precede.
    """
    sentences: list[str] = []
    rest = ""  # wide spaces after the last sentence
    spaced = False  # whether there is other white space after them
    for segment in segments:
        text = segment.strip(_SPACES)
        spaced |= segment.lstrip(_SPACES) != segment
        if text:
            space = " " if spaced and (sentences or rest) else ""
            spaced = segment.rstrip(_SPACES) != segment
            rest += space + _LINE_BREAK.sub(" ", text)
            if text.strip():
                sentences.append(rest.rstrip())
                rest = rest[len(sentences[-1]) :]
    return [*sentences[:-1], "".join(sentences[-1:]) + rest]


def _tokenised(
    documents: Iterator[sources.Document],
    settings: Settings,
    tokenizer: tokenizer_lib.Tokenizer,
) -> Iterator[tuple[sources.Document, list[list[int]]]]:
    """Yield documents with the ids of their non-empty sentences."""
    waiting: list[tuple[sources.Document, list[str]]] = []
    count = 0
    for document in itertools.chain(documents, [None]):
        if document is not None:
            segments = split_sentences(settings.language, document.text)
            waiting.append((document, normalise_spaces(segments)))
            # A long document may have few sentences, so count its characters, too.
            count += len(segments) + len(document.text) // 500
        if document is None or count >= _BATCH_SENTENCES:
            firsts = [sentences[0] for _, sentences in waiting]
            others = [text for _, sentences in waiting for text in sentences[1:]]
            begins = iter(tokenizer.encode_batch(firsts))
            continuations = iter(tokenizer.encode_continuations(others))
            for encoded_document, sentences in waiting:
                rest = itertools.islice(continuations, len(sentences) - 1)
                yield encoded_document, [ids for ids in (next(begins), *rest) if ids]
            waiting, count = [], 0
