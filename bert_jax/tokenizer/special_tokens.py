"""Special tokens of a vocabulary, and the names that they are found by."""

from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

from bert_jax.errors import UserError


class SpecialTokens(NamedTuple):
    """Texts of the special tokens in a vocabulary."""

    pad: str
    unk: str  # unknown text; `mask` in a vocabulary without a token for it
    cls: str  # first token of a row
    sep: str  # last token of a row, and separator of texts
    mask: str


SPECIAL_TOKENS = SpecialTokens("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
PAD, UNK, CLS, SEP, MASK = SPECIAL_TOKENS
BYTE_BPE_SPECIAL_TOKENS = SpecialTokens("<pad>", "<unk>", "<s>", "</s>", "<mask>")

# Where the token of a role is found, in this order: the role, a field of
# `tokenizer_config.json`, and tokens of published vocabularies. A vocabulary without a
# token of its own for [CLS] or [SEP] has one for the beginning or end of a text.
_SOURCES = (
    ("pad", "pad_token", (PAD, "<pad>", "<|pad|>")),
    ("cls", "cls_token", (CLS, "<cls>")),
    ("cls", "bos_token", ("<s>", "<bos>", "<|begin_of_text|>")),
    ("sep", "sep_token", (SEP, "<sep>")),
    ("sep", "eos_token", ("</s>", "<eos>", "<|end_of_text|>")),
    ("mask", "mask_token", (MASK, "<mask>", "<|mask|>")),
    ("unk", "unk_token", (UNK, "<unk>")),
)
# Roles that every vocabulary must have a token for.
ROLES = ("pad", "cls", "sep", "mask")


def merge_files(
    settings: Mapping[str, Any], special_tokens: Mapping[str, Any]
) -> dict[str, Any]:
    """Merge `tokenizer_config.json` and `special_tokens_map.json`, without nulls.

    As in `transformers`, the fields of `special_tokens_map.json` replace the others,
    unless `tokenizer_config.json` has `added_tokens_decoder`, which transformers has
    written since 4.34.
    """
    files = [settings]
    if "added_tokens_decoder" not in settings:
        files.append(special_tokens)
    return {name: x for file in files for name, x in file.items() if x is not None}


def find(
    tokens: Collection[str], unk: str | None, settings: Mapping[str, Any]
) -> SpecialTokens:
    """Return the special tokens of a vocabulary.

    Args:
      tokens: All tokens.
      unk: Token that the model gives to unknown text; None if it has none.
      settings: Fields of a `tokenizer_config.json` or `special_tokens_map.json`.

    Raises:
      UserError: A token is missing, has one character, or has another role, too.
    """
    found: dict[str, str] = {} if unk is None else {"unk": unk}
    for role, field, known in _SOURCES:
        if role in found:
            continue
        candidates = [text(settings[field])] if settings.get(field) else []
        candidates += [token for token in known if token in tokens]
        if candidates:
            found[role] = candidates[0]
    for role in ROLES:
        if role not in found:
            usual = [token for r, _, known in _SOURCES if r == role for token in known]
            raise UserError(
                f"the vocabulary has no {' or '.join(usual)}; name its {role} token as "
                f"{role}_token in tokenizer_config.json"
            )
    for role, token in found.items():
        if token not in tokens:
            raise UserError(f"the vocabulary has no {token}, named as its {role} token")
        if role in ROLES and token == unk:
            raise UserError(
                f"{token} is the {role} token, and the model gives it to unknown text, "
                "too; name another token"
            )
        if role in ROLES and len(token) == 1:  # `plain_text` cannot cut it in a text
            raise UserError(
                f"the {role} token, {token!r}, has one character, which a text may "
                "have, too; name a longer token"
            )
    special = SpecialTokens(**{"unk": found["mask"], **found})
    distinct = special.pad, special.sep, special.mask
    if len({*distinct}) < len(distinct) or special.cls in (special.pad, special.mask):
        raise UserError(
            "padding, separator and mask must be different tokens, and cls neither "
            f"padding nor mask; got pad_token={special.pad}, cls_token={special.cls}, "
            f"sep_token={special.sep}, mask_token={special.mask}; padding may be any "
            "token that no text has"
        )
    return special


def text(token: Any) -> str:
    """Return the text of a token, which may be an object with further settings."""
    content = token.get("content") if isinstance(token, dict) else token
    if not isinstance(content, str):
        raise UserError(f"a special token must be a text, got {token!r}")
    return content
