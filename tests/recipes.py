"""The recipes that ship, and what they resolve to.

    python tests/recipes.py

writes the files that `test_recipes.py` compares with.
"""

import importlib.util
import json
import pathlib

from bert_jax import config, knobs
from bert_jax.demo.config import DemoConfig

ROOT = pathlib.Path(__file__).parents[1]
GOLDEN = pathlib.Path(__file__).parent / "fixtures/recipes"
PRETRAINING = ["tiny", "mini", "small", "medium", "base", "large"]
NAMES = sorted(path.stem for path in (ROOT / "configs").glob("*.py"))


def load(name):
    """The module of a recipe."""
    spec = importlib.util.spec_from_file_location(name, ROOT / f"configs/{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def resolved(name: str) -> str:
    """All fields of a recipe, one `path: value` a line."""
    cfg = load(name).get_config()
    classes = config.PretrainConfig, config.ClassifierConfig, DemoConfig
    cls = {knobs.kind_of(cls): cls for cls in classes}[cfg.kind]
    rebuilt = knobs.from_dict(cls, json.loads(cfg.to_json_best_effort()))
    return "\n".join(_flat(knobs.to_dict(rebuilt))) + "\n"


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
    for recipe in NAMES:
        (GOLDEN / f"{recipe}.txt").write_text(resolved(recipe))
