"""Folders that transformers saved, and what its models said, from two fixtures."""

import functools
import json
import pathlib

import numpy as np

FIXTURES = pathlib.Path(__file__).parent / "fixtures"
CASES = (
    "pretraining",
    "masked_lm",
    "causal_lm",
    "bare",
    "classification",
    "regression",
    "tagging",
    "answering",
    "choice",
)
# Of other architectures, with vocabularies of WordPiece and of byte-level BPE.
WITH_WORDPIECE = (
    "albert_pretraining",
    "albert_classification",
    "albert_bare",
    "electra_discriminator",
    "electra_generator",
    "electra_tagging",
    "electra_answering",
)
WITH_BYTES = ("roberta_masked_lm", "roberta_classification", "roberta_bare")


@functools.cache
def _all():
    stored = {}
    for name in ("published.npz", "relatives.npz"):
        with np.load(FIXTURES / name) as file:
            stored |= dict(file)
    return stored


def arrays(case, part):
    """What is stored of a case in a part, by name: "in", "labels" or "out"."""
    prefix = f"{case}/{part}/"
    return {
        name.removeprefix(prefix): value
        for name, value in _all().items()
        if name.startswith(prefix)
    }


def write(case, folder):
    """Write the folder that transformers saved."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in arrays(case, "files").items():
        (folder / name).write_bytes(content.tobytes())
    return folder


def texts():
    return json.loads(str(_all()["texts"]))


def ids(case):
    """The ids that transformers gives to the texts."""
    return json.loads(str(_all()[f"{case}/ids"]))
