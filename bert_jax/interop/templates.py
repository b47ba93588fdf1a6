"""Which special tokens stand around texts and pairs, in a `tokenizer.json`."""

import pathlib
from typing import Any

import tokenizers

from bert_jax.errors import UserError
from bert_jax.tokenizer import Tokenizer

# Texts of a pair in a template.
_FIRST, _SECOND = "A", "B"


def processor(tokenizer: Tokenizer, *, cls_is_last: bool) -> Any:
    """What puts special tokens around texts and pairs, as in the rows of tasks.

    Args:
      tokenizer: Tokenizer.
      cls_is_last: Whether [CLS] is behind all of it, in a segment of its own, as in
        XLNet. Here the encoder moves it (`model/cls_last.py`).
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
    """Refuse a pipeline whose pairs are not those of our tokenizer.

    Args:
      path: File with the pipeline.
      pipeline: What is in it.
      tokenizer: Tokenizer that was made of it.
      cls_is_last: See `processor`.

    Raises:
      UserError: They are others.
    """
    try:
        theirs = _pair(pipeline.get("post_processor"))
    except (AttributeError, KeyError, TypeError, IndexError) as error:
        raise UserError(f"{path}: its post_processor is damaged") from error
    cls, sep = tokenizer.special_tokens.cls, tokenizer.special_tokens.sep
    between = [sep] * len(tokenizer.pair_separators)
    ours = [_FIRST, *between, _SECOND, sep]
    ours = [*ours, cls] if cls_is_last else [cls, *ours]
    if theirs and theirs != ours:
        raise UserError(
            f"{path}: its pairs are {' '.join(theirs)}, and those of this project's "
            f"{tokenizer.kind} are {' '.join(ours)}"
        )


def _pair(processor: Any) -> list[str]:
    """Special tokens and texts of a pair, in their order; [] if nothing is said."""
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
