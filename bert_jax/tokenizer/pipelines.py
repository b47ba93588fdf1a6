"""Pipelines of the library `tokenizers` for the vocabularies of BERT and its relatives.

A WordPiece or unigram vocabulary has BERT's special tokens, a byte-level one has
RoBERTa's.
"""

import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

from bert_jax.errors import UserError
from bert_jax.tokenizer import special_tokens
from bert_jax.tokenizer.special_tokens import UNK, SpecialTokens

# Longest word in characters; a longer one is unknown. It is 200 in google-research/
# bert, tokenization.py, and 100 in `transformers`.
LONGEST_WORD = 200


def bert_steps(
    model: models.WordPiece, lower_case: bool, strip_accents: bool
) -> tokenizers.Tokenizer:
    """Return a pipeline of BERT's normaliser, its split into words, and a model.

    Accents are stripped apart from lower-casing. Google's code ties the two, which
    breaks languages in which accents carry meaning.
    """
    pipeline = tokenizers.Tokenizer(model)
    pipeline.normalizer = normalizers.BertNormalizer(
        lowercase=lower_case, strip_accents=strip_accents
    )
    pipeline.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    pipeline.decoder = decoders.WordPiece(prefix="##", cleanup=False)
    return pipeline


def has_accents(text: str) -> bool:
    """Return whether `bert_steps` would change a text that it strips of accents."""
    strip = normalizers.BertNormalizer(False, False, True, False)
    return strip.normalize_str(text) != text


def parse_wordpiece(text: bytes) -> list[str]:
    """Parse a `vocab.txt` of BERT: a token per line, perhaps with spaces around it.

    Raises:
      UserError: It is not UTF-8, or a line is empty.
    """
    try:
        # Not `splitlines`, which also splits at characters that tokens may contain.
        lines = text.decode("utf-8-sig").replace("\r\n", "\n").rstrip("\n").split("\n")
    except UnicodeDecodeError as error:
        raise UserError(f"vocab.txt is damaged: {error}") from error
    lines = [line.strip(" \t") for line in lines]
    if "" in lines:
        raise UserError(
            f"vocabulary, line {lines.index('') + 1}: no token on this line"
        )
    return lines


def wordpiece(
    tokens: Sequence[str],
    lower_case: bool,
    strip_accents: bool,
    longest_word: int = LONGEST_WORD,
    settings: Mapping[str, Any] | None = None,
) -> tokenizers.Tokenizer:
    """Return BERT's pipeline (BERT paper, section 3): longest match first inside words.

    A token that is repeated has its last id, as in google-research/bert. For
    `settings`, see `special_tokens.find`.
    """
    ids = {token: i for i, token in enumerate(tokens)}
    unk = special_tokens.text((settings or {}).get("unk_token", UNK))
    model = models.WordPiece(ids, unk_token=unk, max_input_chars_per_word=longest_word)
    pipeline = bert_steps(model, lower_case, strip_accents)
    add_special_tokens(pipeline, unk, settings)
    return pipeline


def byte_bpe_steps(model: models.BPE, add_prefix_space: bool) -> tokenizers.Tokenizer:
    """Return a pipeline of GPT-2's split into words and a BPE model over bytes.

    Text is split into words, numbers and other characters, each with the space before
    it. No character is unknown, and ids give the text back exactly. In tokens, each
    byte is a visible character: a space is `Ġ`.

    Source: Radford et al. 2019 (GPT-2), 2.2, and encoder.py of openai/gpt-2.

    With `add_prefix_space`, the first word of a text has the same ids as elsewhere.
    RoBERTa was trained without it.
    """
    pipeline = tokenizers.Tokenizer(model)
    pipeline.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=add_prefix_space)
    pipeline.decoder = decoders.ByteLevel()
    return pipeline


def parse_byte_bpe(vocabulary: bytes, merges: bytes) -> tuple[dict, list[tuple]]:
    """Parse the ids in a `vocab.json` of GPT-2, and the pairs in its `merges.txt`.

    Raises:
      ValueError: A file is damaged.
    """
    try:
        ids = json.loads(vocabulary)
        lines = merges.decode("utf-8").replace("\r\n", "\n").split("\n")
    except ValueError as error:
        raise ValueError(f"vocab.json or merges.txt is damaged: {error}") from error
    if lines[0].startswith("#version"):
        del lines[0]
    pairs = [tuple(line.split(" ")) for line in lines if line]
    tokens = {*ids}
    for pair in pairs:
        if len(pair) != 2 or not {*pair, "".join(pair)} <= tokens:
            raise ValueError(
                f"merges.txt: {pair} is not a pair of tokens in vocab.json"
            )
    return ids, pairs


def byte_bpe(
    ids: Mapping[str, int],
    merges: Sequence[tuple[str, str]],
    add_prefix_space: bool,
    settings: Mapping[str, Any] | None = None,
) -> tokenizers.Tokenizer:
    """Return the pipeline of RoBERTa (Liu et al. 2019, 4.4): merged pairs of bytes.

    For `settings`, see `special_tokens.find`.

    Raises:
      ValueError: The library cannot use the vocabulary.
    """
    try:
        unk = "<unk>" if "<unk>" in ids else None
        model = models.BPE(dict(ids), list(merges), unk_token=unk)
    except Exception as error:  # the library has no class of errors
        reason = str(error).partition("\n")[0]
        raise ValueError(f"vocab.json is damaged: {reason}") from error
    pipeline = byte_bpe_steps(model, add_prefix_space)
    add_special_tokens(pipeline, unk, settings, separators=2)
    return pipeline


def add_special_tokens(
    pipeline: tokenizers.Tokenizer,
    unk: str | None,
    settings: Mapping[str, Any] | None = None,
    *,
    separators: int = 1,
) -> None:
    """Let a pipeline find special tokens in texts, and put them around texts.

    bert_jax does neither with it: this is for `transformers`, which reads the pipeline.

    RoBERTa has two separators between texts (facebookresearch/fairseq,
    models/roberta/hub_interface.py, encode).

    Raises:
      UserError: A special token is missing in the vocabulary.
    """
    add_listed_tokens(pipeline, settings or {}, pipeline.get_vocab())
    special = special_tokens.find(pipeline.get_vocab(), unk, settings or {})
    # With bytes, [MASK] stands for a token with the space in front of it.
    is_byte_level = isinstance(pipeline.model, models.BPE)
    mask = tokenizers.AddedToken(special.mask, lstrip=is_byte_level)
    pipeline.add_special_tokens([*special[:-1], mask])
    pipeline.post_processor = join_texts(
        special, pipeline.get_vocab(), separators=[special.sep] * separators
    )


def add_listed_tokens(
    pipeline: tokenizers.Tokenizer, settings: Mapping[str, Any], known: Collection[str]
) -> None:
    """Add the tokens that settings list and `known` lacks, as `transformers` does.

    The settings list them in `added_tokens_decoder`, and before `transformers` 4.34 in
    `added_tokens`.

    Raises:
      UserError: The settings are damaged, or the vocabulary has another id for a token.
    """
    try:
        older = settings.get("added_tokens", {})
        listed = {int(i): {"content": token} for token, i in older.items()}
        for i, token in settings.get("added_tokens_decoder", {}).items():
            listed[int(i)] = token
        new = {
            i: tokenizers.AddedToken(**listed[i])
            for i in sorted(listed)
            if listed[i]["content"] not in known
        }
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise UserError(f"the added tokens cannot be used: {error!r}") from error
    for i, token in new.items():
        pipeline.add_tokens([token])
        if (got := pipeline.token_to_id(token.content)) != i:
            raise UserError(
                f"the added token {token.content!r} has the id {i}; the vocabulary "
                f"gives it {got}"
            )


def join_texts(
    special: SpecialTokens,
    ids: Mapping[str, int],
    *,
    separators: Sequence[str],
    cls_is_last: bool = False,
) -> processors.PostProcessor:
    """Return a step that adds special tokens to one text or two.

    `separators` are the tokens between two texts. In XLNet [CLS] is last, in a third
    segment.
    """
    cls, sep = special.cls, special.sep
    between = " ".join(f"{token}:0" for token in separators)
    used = dict.fromkeys([cls, sep, *separators])
    texts = f"$A:0 {sep}:0", f"$A:0 {between} $B:1 {sep}:1"
    single, pair = (f"{t} {cls}:2" if cls_is_last else f"{cls}:0 {t}" for t in texts)
    return processors.TemplateProcessing(
        single=single, pair=pair, special_tokens=[(t, ids[t]) for t in used]
    )


def post_process(count: int, post_processor: Any) -> tokenizers.Encoding:
    """Return one text or two, of one token each, after a pipeline's last step.

    `post_processor` is this step as JSON values, or None. The texts are encoded with a
    vocabulary made for this: with the pipeline's own, a text may have no tokens.
    """
    empty = tokenizers.Tokenizer(models.WordLevel({"a": 0}, unk_token="a"))
    values = {**json.loads(empty.to_str()), "post_processor": post_processor}
    return tokenizers.Tokenizer.from_str(json.dumps(values)).encode(*["a"] * count)
