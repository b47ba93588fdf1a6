"""Special tokens around texts and pairs, in a `tokenizer.json`."""

import pathlib
from typing import Any

import tokenizers

from bert_jax.errors import UserError
from bert_jax.tokenizer import Tokenizer

# Texts of a pair in a template.
_FIRST, _SECOND = "A", "B"


def processor(tokenizer: Tokenizer, *, cls_is_last: bool) -> Any:
    """Return a post-processor that adds special tokens as bert_jax does in its tasks.

    Args:
      tokenizer: Tokenizer.
      cls_is_last: Whether [CLS] follows the text, in a third segment, as in XLNet.
    """
    cls, sep = tokenizer.special_tokens.cls, tokenizer.special_tokens.sep
    between = " ".join([f"{sep}:0"] * len(tokenizer.pair_separators))
    single = f"${_FIRST}:0 {sep}:0"
    pair = f"${_FIRST}:0 {between} ${_SECOND}:1 {sep}:1"
    return tokenizers.processors.TemplateProcessing(
        single=f"{single} {cls}:2" if cls_is_last else f"{cls}:0 {single}",
        pair=f"{pair} {cls}:2" if cls_is_last else f"{cls}:0 {pair}",
        special_tokens=[(cls, tokenizer.cls_id), (sep, tokenizer.sep_id)],
    )


def check(
    path: pathlib.Path,
    pipeline: dict[str, Any],
    tokenizer: Tokenizer,
    *,
    cls_is_last: bool,
) -> None:
    """Check that a pipeline joins pairs of texts as bert_jax does.

    Args:
      path: File with the pipeline, for messages.
      pipeline: Values of that file.
      tokenizer: Tokenizer made from it.
      cls_is_last: See `processor`.

    Raises:
      UserError: The pipeline joins them with other special tokens.
    """
    try:
        published = _pair(pipeline.get("post_processor"))
    except (AttributeError, KeyError, TypeError, IndexError) as error:
        raise UserError(f"{path}: its post_processor is damaged") from error
    cls, sep = tokenizer.special_tokens.cls, tokenizer.special_tokens.sep
    between = [sep] * len(tokenizer.pair_separators)
    native = [_FIRST, *between, _SECOND, sep]
    native = [*native, cls] if cls_is_last else [cls, *native]
    if published and published != native:
        raise UserError(
            f"{path} joins text pairs as {' '.join(published)}; with {tokenizer.kind}, "
            f"bert_jax supports {' '.join(native)} only"
        )


def _pair(processor: Any) -> list[str]:
    """Return the special tokens and texts of a pair, in order; [] if unspecified."""
    if processor is None:
        return []
    kind = processor.get("type")
    if kind == "Sequence":
        found = [_pair(each) for each in processor["processors"]]
        return next(filter(None, found), [])
    if kind in ("BertProcessing", "RobertaProcessing"):
        cls, sep = processor["cls"][0], processor["sep"][0]
        between = [sep] * (2 if kind == "RobertaProcessing" else 1)
        return [cls, _FIRST, *between, _SECOND, sep]
    if kind == "TemplateProcessing":
        return [next(iter(part.values()))["id"] for part in processor["pair"]]
    return []
