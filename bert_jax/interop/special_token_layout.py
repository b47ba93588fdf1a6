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
    (single, pair), (native_single, native_pair) = _layouts(tokenizer, cls_is_last)
    if not any(pair.special_tokens_mask):
        return
    for what, got, expected in (
        ("joins text pairs", pair, native_pair),
        ("surrounds a text", single, native_single),
    ):
        if got.ids != expected.ids:
            raise UserError(
                f"{source}: {PIPELINE_FILE} {what} as {_template(got)}; "
                f"bert_jax supports {_template(expected)} only"
            )
    if has_segments and pair.type_ids != native_pair.type_ids:
        raise UserError(
            f"{source}: {PIPELINE_FILE} gives the segments {pair.type_ids} to the "
            f"pair {_template(pair)}; bert_jax supports {native_pair.type_ids} only"
        )


def apply(tokenizer: Tokenizer, *, cls_is_last: bool, has_segments: bool) -> Tokenizer:
    """Return the tokenizer with a pipeline that joins texts as bert_jax does."""
    (single, pair), (native_single, native_pair) = _layouts(tokenizer, cls_is_last)
    is_same = (single.ids, pair.ids) == (native_single.ids, native_pair.ids)
    if is_same and (not has_segments or pair.type_ids == native_pair.type_ids):
        return tokenizer
    values = json.loads(tokenizer.pipeline)
    values["post_processor"] = _post_processor(tokenizer, cls_is_last)
    return tokenizer_lib.make(values, tokenizer.settings())


def _layouts(
    tokenizer: Tokenizer, cls_is_last: bool
) -> list[list[tokenizers.Encoding]]:
    """Return a text and a pair with the pipeline's special tokens, and bert_jax's."""
    given = json.loads(tokenizer.pipeline)["post_processor"]
    native = _post_processor(tokenizer, cls_is_last)
    return [
        [pipelines.post_process(n, step) for n in (1, 2)] for step in (given, native)
    ]


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
