"""Special tokens around one text and a pair, and the segments of a pair."""

import json

import tokenizers

from bert_jax import tokenizer as tokenizer_lib
from bert_jax.errors import UserError
from bert_jax.tokenizer import PIPELINE_FILE, Tokenizer, pipelines


def check(
    source: str, tokenizer: Tokenizer, *, cls_is_last: bool, has_segments: bool
) -> None:
    """Check that a pipeline joins texts as bert_jax does, if it adds special tokens."""
    given, native = _joined_texts(tokenizer, cls_is_last, "a", "b")
    if not any(given.special_tokens_mask):
        return
    single, native_single = _joined_texts(tokenizer, cls_is_last, "a")
    for what, got, expected in (
        ("joins text pairs", given, native),
        ("surrounds a text", single, native_single),
    ):
        if got.ids != expected.ids:
            raise UserError(
                f"{source}: {PIPELINE_FILE} {what} as {_template(got)}; "
                f"bert_jax supports {_template(expected)} only"
            )
    if has_segments and given.type_ids != native.type_ids:
        raise UserError(
            f"{source}: {PIPELINE_FILE} gives the segments {given.type_ids} to the "
            f"pair {_template(given)}; bert_jax supports {native.type_ids} only"
        )


def apply(tokenizer: Tokenizer, *, cls_is_last: bool, has_segments: bool) -> Tokenizer:
    """Return the tokenizer with a pipeline that joins texts as bert_jax does."""
    pair, native = _joined_texts(tokenizer, cls_is_last, "a", "b")
    single, native_single = _joined_texts(tokenizer, cls_is_last, "a")
    is_same = (single.ids, pair.ids) == (native_single.ids, native.ids)
    if is_same and (not has_segments or pair.type_ids == native.type_ids):
        return tokenizer
    values = json.loads(tokenizer.pipeline)
    step = _post_processor(tokenizer, cls_is_last)
    values["post_processor"] = json.loads(step.__getstate__())
    return tokenizer_lib.make(values, tokenizer.settings())


def _joined_texts(
    tokenizer: Tokenizer, cls_is_last: bool, *texts: str
) -> tuple[tokenizers.Encoding, tokenizers.Encoding]:
    """Add special tokens to one text or two as the pipeline does, and as bert_jax."""
    pipeline = tokenizers.Tokenizer.from_str(tokenizer.pipeline)
    given = pipeline.encode(*texts)
    pipeline.post_processor = _post_processor(tokenizer, cls_is_last)
    return given, pipeline.encode(*texts)


def _post_processor(
    tokenizer: Tokenizer, cls_is_last: bool
) -> tokenizers.processors.PostProcessor:
    return pipelines.join_texts(
        tokenizer.special_tokens,
        {token: i for i, token in enumerate(tokenizer.tokens)},
        separators=[tokenizer.tokens[i] for i in tokenizer.pair_separators],
        cls_is_last=cls_is_last,
    )


def _template(pair: tokenizers.Encoding) -> str:
    """Return the special tokens of a pair, and letters for its texts."""
    shown: list[str] = []
    for source, token in zip(pair.sequence_ids, pair.tokens, strict=True):
        part = token if source is None else "AB"[source]
        if part not in "AB" or shown[-1:] != [part]:
            shown.append(part)
    return " ".join(shown)
