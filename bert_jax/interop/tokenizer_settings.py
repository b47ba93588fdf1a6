"""Settings of `transformers` beside a tokenizer, which may contradict its pipeline.

Some classes of `transformers` build the pipeline anew, by their settings and defaults.
"""

from collections.abc import Mapping
from typing import Any

from bert_jax import storage
from bert_jax.errors import UserError
from bert_jax.interop import json_files
from bert_jax.tokenizer import (
    PIPELINE_FILE,
    SETTINGS_FILE,
    SPECIAL_TOKENS_FILE,
    Tokenizer,
    special_tokens,
    token_texts,
)

# Settings of `transformers`, and the settings of a pipeline that they would replace.
_REPLACED = {
    "do_lower_case": "lowercase",
    "strip_accents": "strip_accents",
    "tokenize_chinese_chars": "handle_chinese_chars",
    "add_prefix_space": "add_prefix_space",
}
# Their defaults, for the classes that build a pipeline from settings and vocabulary.
_BERT_DEFAULTS = {
    "do_lower_case": True,
    "strip_accents": None,  # as lower-casing
    "tokenize_chinese_chars": True,
}
_BYTE_BPE_DEFAULTS = {"add_prefix_space": False}
_DEFAULTS = {
    "BertTokenizer": _BERT_DEFAULTS,
    "DistilBertTokenizer": _BERT_DEFAULTS,
    "ElectraTokenizer": _BERT_DEFAULTS,
    "GPT2Tokenizer": _BYTE_BPE_DEFAULTS,
    "RobertaTokenizer": _BYTE_BPE_DEFAULTS,
}
# These classes by the `model_type`s that have them, where no class is named.
_CLASS_OF_MODEL = {
    "bert": "BertTokenizer",
    "distilbert": "BertTokenizer",
    "electra": "BertTokenizer",
    "nomic_bert": "BertTokenizer",
    "roberta": "RobertaTokenizer",
}
# Settings that are true or false.
_SWITCHES = (*_REPLACED, "do_basic_tokenize", "keep_accents", "split_by_punct")


def read(folder: storage.Path) -> dict[str, Any]:
    """Return the settings of `transformers` that are not null.

    `added_tokens` has the content of `added_tokens.json`, a file of folders from before
    `transformers` 4.34.
    """
    older = json_files.read_or_empty(folder / "added_tokens.json")
    settings: dict[str, Any] = {"added_tokens": older}
    settings |= special_tokens.merge_files(
        json_files.read_or_empty(folder / SETTINGS_FILE),
        json_files.read_or_empty(folder / SPECIAL_TOKENS_FILE),
    )
    for name in _SWITCHES:
        json_files.JsonFile(folder / SETTINGS_FILE, settings).value(name, bool, False)
    return settings


def check(
    folder: storage.Path, tokenizer: Tokenizer, settings: Mapping[str, Any]
) -> None:
    """Check that settings and defaults of `transformers` agree with the pipeline.

    Raises:
      UserError: One of them contradicts a step.
    """
    values = tokenizer.steps()
    kinds = {step["type"] for step in token_texts.all_steps(values["normalizer"])}
    for name, kind, refused in (
        ("do_lower_case", "Lowercase", False),
        ("keep_accents", "StripAccents", True),
    ):
        if kind in kinds and settings.get(name) is refused:
            raise UserError(
                f"{folder}: {name} is {refused} in {SETTINGS_FILE}, and "
                f"{PIPELINE_FILE} has the step {kind}; make them agree"
            )
    model = json_files.read_or_empty(folder / "config.json")
    of_model = _CLASS_OF_MODEL.get(str(model.get("model_type")))
    name = settings.get("tokenizer_class") or model.get("tokenizer_class") or of_model
    used = _DEFAULTS.get(str(name).removesuffix("Fast"), {}) | settings
    for step in token_texts.all_steps([values["normalizer"], values["pre_tokenizer"]]):
        for setting, in_step in _REPLACED.items():
            if setting not in used or in_step not in step:
                continue
            wanted, value = used[setting], step[in_step]
            if in_step == "strip_accents":
                wanted = used["do_lower_case"] if wanted is None else wanted
                value = step["lowercase"] if value is None else value
            if wanted == value:
                continue
            origin, remedy = f"in {SETTINGS_FILE}", ""
            if setting not in settings:
                origin = f"by default in the {name} of transformers"
                remedy = (
                    f" in {SETTINGS_FILE}, or set tokenizer_class to "
                    "PreTrainedTokenizerFast, which uses the file as it is"
                )
            raise UserError(
                f"{folder}: {setting} is {wanted} {origin}, and {in_step} is "
                f"{value} in {PIPELINE_FILE}; make them equal{remedy}"
            )
