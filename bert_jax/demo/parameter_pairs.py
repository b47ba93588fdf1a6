"""A classification task from the documentation of installed Python packages.

Scientific Python packages describe each parameter of a function (numpydoc). The task:
given the summary of a function and the description of a parameter, does the parameter
belong to this function, or to a function of another module? Half of the pairs are of
each kind.

The task is related to next sentence prediction: both ask whether two texts belong
together. But the two texts are not consecutive, and evaluation pairs come from modules
that the corpus of the same documentation holds out.
"""

import hashlib
import itertools
from collections.abc import Iterable, Sequence

from bert_jax.corpus import python_docs, splits
from bert_jax.errors import UserError
from bert_jax.tasks.labelled_texts import Example

SAME, OTHER = "same function", "another function"
_MIN_SUMMARY_WORDS, _MIN_DESCRIPTION_WORDS = 4, 6


def collect(
    paths: Iterable[str], held_out: float
) -> tuple[list[Example], list[Example]]:
    """Collect examples for training and for evaluation from Python source files.

    `held_out` is the share of the documents that the corpus holds out.

    Returns:
      Examples for training and for evaluation: `text_a` is a function's summary,
      `text_b` a description. They are ordered by a hash of the description, so that
      any prefix is a random sample. No description comes twice. No text of the
      evaluation examples is also a summary or a description in a training module, as
      packages copy from each other.
    """
    train: dict[str, python_docs.Parameter] = {}  # by description
    evaluation: dict[str, python_docs.Parameter] = {}
    seen: set[str] = set()
    for path in paths:
        parameters = [p for p in python_docs.parameters(path) if _is_long_enough(p)]
        if not parameters:
            continue
        texts = list(python_docs.read_module(path, lambda line: None))
        # A module with too little text is in no corpus, and is used for training.
        is_held_out = bool(texts) and splits.is_held_out(texts[0], held_out)
        for parameter in parameters:
            found = evaluation if is_held_out else train
            found.setdefault(parameter.description, parameter)
            if not is_held_out:
                seen |= {parameter.description, parameter.summary}
    unseen = (
        p for p in evaluation.values() if seen.isdisjoint({p.description, p.summary})
    )
    return _pairs(train.values()), _pairs(unseen)


def _is_long_enough(parameter: python_docs.Parameter) -> bool:
    return (
        len(parameter.summary.split()) >= _MIN_SUMMARY_WORDS
        and len(parameter.description.split()) >= _MIN_DESCRIPTION_WORDS
    )


def _pairs(parameters: Iterable[python_docs.Parameter]) -> list[Example]:
    """Pair every other parameter with its function, and the rest with random ones."""
    ordered = sorted(parameters, key=lambda p: _hash(p.description))
    if len({p.module for p in ordered}) < 2:
        raise UserError(
            "too few of the Python packages installed here document parameters in "
            "numpydoc's format; install numpy and matplotlib"
        )
    return [
        Example(p.summary, p.description, SAME)
        if i % 2 == 0
        else Example(_from_elsewhere(p, ordered), p.description, OTHER)
        for i, p in enumerate(ordered)
    ]


def _from_elsewhere(
    parameter: python_docs.Parameter, ordered: Sequence[python_docs.Parameter]
) -> str:
    """Return the summary of a function of another module, chosen by a hash."""
    start = _hash("pair " + parameter.description) % len(ordered)
    candidates = itertools.chain(ordered[start:], ordered[:start])
    return next(p.summary for p in candidates if p.module != parameter.module)


def _hash(text: str) -> int:
    digest = hashlib.blake2b(text.encode("utf-8"), digest_size=8).digest()
    return int.from_bytes(digest, "big")
