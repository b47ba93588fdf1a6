"""Pipelines for a text that continues a line.

Many pipelines add a space before each text, so that its first word has the same token
as inside a line. Inside a line, the space is there already, or does not belong there.
"""

import copy
from typing import Any

from bert_jax.tokenizer import token_texts

# Fields of steps that add or remove a space at the beginning, and their neutral values.
_NEUTRAL = {"add_prefix_space": False, "prepend_scheme": "never", "strip_left": False}
# Together, white space becomes one space, and none remains at the end.
_ONE_SPACE = (
    {"type": "Replace", "pattern": {"Regex": r"\s+"}, "content": " "},
    {"type": "Replace", "pattern": {"Regex": " $"}, "content": ""},
)


def pipeline(values: dict[str, Any]) -> dict[str, Any]:
    """Return a pipeline that neither adds nor removes a space at the beginning.

    A splitter that follows another one marks each word, and stays as it is. Metaspace
    after a split at white space (XLM-R) is the exception: it becomes Metaspace alone,
    which marks a word by the space before it.
    """
    values = copy.deepcopy(values)
    splitters = token_texts.all_steps(values["pre_tokenizer"])
    splitters = [step for step in splitters if step["type"] != "Sequence"]
    if [step["type"] for step in splitters] == ["WhitespaceSplit", "Metaspace"]:
        splitters = splitters[1:]
        values["pre_tokenizer"] = splitters[0]
        steps = [*filter(None, [values["normalizer"]]), *_ONE_SPACE]
        values["normalizer"] = {"type": "Sequence", "normalizers": steps}
    for step in [*token_texts.all_steps(values["normalizer"]), *splitters[:1]]:
        if step["type"] == "Prepend":  # ByteLevel fails if it prepends ""
            step.clear()
            step.update(type="Sequence", normalizers=[])
        step.update({name: x for name, x in _NEUTRAL.items() if name in step})
    return values
