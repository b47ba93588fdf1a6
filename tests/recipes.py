"""The recipes that ship, and what they resolve to.

    python tests/recipes.py

writes the files that `test_recipes.py` compares with.
"""

import functools
import importlib.util
import json
import pathlib

from bert_jax import config, knobs
from bert_jax.demo import recipe
from bert_jax.demo.config import DemoConfig

ROOT = pathlib.Path(__file__).parents[1]
GOLDEN = pathlib.Path(__file__).parent / "fixtures/recipes"
FILES = {path.stem: path for path in (ROOT / "configs").glob("*.py")}
FILES["demo"] = pathlib.Path(recipe.__file__)
MINIATURES = ("tiny", "mini", "small", "medium")
ROBERTA = ("base", "large")
ABLATIONS = (
    "no_nsp",
    "left_to_right",
    "whole_words",
    "ngrams",
    "sentence_order",
    "full_sentences",
    "doc_sentences",
    "fairseq",
    "mask_40",
    "mask_falling",
    "packed",
)
ALBERTS = ("base", "large", "xlarge", "xxlarge")
ELECTRAS = ("small", "base", "large")
XLNETS = ("base", "large")
COMPARED = (
    "bert",
    "no_nsp",
    "whole_words",
    "ngrams",
    "full_sentences",
    "left_to_right",
    "electra",
    "albert",
    "xlnet",
)
# As in --config=configs/NAME.py:VARIANT.
PRETRAINING = (
    *(f"bert_miniature:{size}" for size in MINIATURES),
    "bert_base",
    "bert_large",
    "continued",
    "multilingual",
    "bert_large_lamb:64k",
    "bert_large_lamb:32k",
    *(f"bert_ablations:{variant}" for variant in ABLATIONS),
    *(f"albert:{size}" for size in ALBERTS),
    *(f"electra:{size}" for size in ELECTRAS),
    *(f"roberta:{size}" for size in ROBERTA),
    *(f"xlnet:{size}" for size in XLNETS),
    *(f"comparison:{name}" for name in COMPARED),
)
GLUE = tuple(f"glue:{task}" for task in config.GLUE)
FINETUNING = ("classifier", *GLUE, "squad:v1", "squad:v2", "tagger", "choice")
NAMES = (*PRETRAINING, *FINETUNING, "demo")


@functools.cache
def module(file):
    """The module of a recipe."""
    spec = importlib.util.spec_from_file_location(file, FILES[file])
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


def load(name, *more):
    """The ConfigDict of a recipe; `more` may be "smoke"."""
    file, _, variant = name.partition(":")
    return module(file).get_config(",".join(filter(None, (variant, *more))))


def build(name, *more):
    """The frozen config of a recipe for pretraining."""
    return knobs.from_configdict(config.PretrainConfig, load(name, *more))


def resolved(name: str) -> str:
    """All fields of a recipe, one `path: value` a line."""
    cfg = load(name)
    classes = config.PretrainConfig, config.FinetuneConfig, DemoConfig
    cls = {knobs.kind_of(cls): cls for cls in classes}[cfg.kind]
    rebuilt = knobs.from_dict(cls, json.loads(cfg.to_json_best_effort()))
    return "\n".join(_flat(knobs.to_dict(rebuilt))) + "\n"


def golden(name: str) -> pathlib.Path:
    """The file with what a recipe should resolve to."""
    return GOLDEN / f"{name.replace(':', '-')}.txt"


def _flat(values, prefix=""):
    """`path: value` lines of nested dicts and lists."""
    items = values.items() if isinstance(values, dict) else enumerate(values)
    for name, value in items:
        path = f"{prefix}[{name}]" if isinstance(name, int) else f"{prefix}.{name}"
        if isinstance(value, (dict, list)):
            yield from _flat(value, path)
        else:
            yield f"{path.lstrip('.')}: {value!r}"


if __name__ == "__main__":
    for name in NAMES:
        golden(name).write_text(resolved(name))
