"""Special tokens around one text and a pair, and the segments of a pair."""

import json
from typing import Any

import tokenizers

from bert_jax import tokenizer as tokenizer_lib
from bert_jax.errors import UserError
from bert_jax.tokenizer import PIPELINE_FILE, Tokenizer, pipelines


def check(
    source: str, tokenizer: Tokenizer, *, cls_is_last: bool, has_segments: bool
) -> None:
    """Check that a pipeline joins texts as bert_jax does, if it adds special tokens."""
    given, native = _join(2, tokenizer, cls_is_last)
    if not any(given.special_tokens_mask):
        return
    single, native_single = _join(1, tokenizer, cls_is_last)
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
    pair, native = _join(2, tokenizer, cls_is_last)
    single, native_single = _join(1, tokenizer, cls_is_last)
    is_same = (single.ids, pair.ids) == (native_single.ids, native.ids)
    if is_same and (not has_segments or pair.type_ids == native.type_ids):
        return tokenizer
    values = json.loads(tokenizer.pipeline)
    values["post_processor"] = _post_processor(tokenizer, cls_is_last)
    return tokenizer_lib.make(values, tokenizer.settings())


def _join(
    count: int, tokenizer: Tokenizer, cls_is_last: bool
) -> tuple[tokenizers.Encoding, tokenizers.Encoding]:
    """Add special tokens to texts as the pipeline does, and as bert_jax."""
    given = json.loads(tokenizer.pipeline)["post_processor"]
    own = _post_processor(tokenizer, cls_is_last)
    return pipelines.post_process(count, given), pipelines.post_process(count, own)


def _post_processor(tokenizer: Tokenizer, cls_is_last: bool) -> dict[str, Any]:
    step = pipelines.join_texts(
        tokenizer.special_tokens,
        {token: i for i, token in enumerate(tokenizer.tokens)},
        separators=[tokenizer.tokens[i] for i in tokenizer.pair_separators],
        cls_is_last=cls_is_last,
    )
    return json.loads(step.__getstate__())


def _template(pair: tokenizers.Encoding) -> str:
    """Return the special tokens around one text or two, with letters for texts."""
    shown: list[str] = []
    for source, token in zip(pair.sequence_ids, pair.tokens, strict=True):
        part = token if source is None else "AB"[source]
        if part not in "AB" or shown[-1:] != [part]:
            shown.append(part)
    return " ".join(shown)
