"""All recipes, and the record of their resolved configs.

    python tests/recipes.py

writes the record, which `test_recipes.py` compares with. It has a section for each
recipe, with the fields that differ from the defaults, and a section for each class of
configs, with these defaults. So a new field adds one line to the section of its class,
and a changed default changes one. A recipe with variants has them in `VARIANTS`.
"""

import dataclasses
import functools
import importlib.util
import pathlib
import types
import typing

from bert_jax import config
from bert_jax.demo import recipe
from bert_jax.demo.config import DemoConfig

ROOT = pathlib.Path(__file__).parents[1]
RECORD = pathlib.Path(__file__).parent / "fixtures/recipes.txt"
FILES = {path.stem: path for path in (ROOT / "configs").glob("*.py")}
FILES["demo"] = pathlib.Path(recipe.__file__)
_PROGRAMS = (config.PretrainConfig, config.FinetuneConfig, DemoConfig)


@functools.cache
def module(file):
    """Load the module of a recipe."""
    spec = importlib.util.spec_from_file_location(file, FILES[file])
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


def names(file: str) -> list[str]:
    """Return a recipe's name, or the names of its variants: FILE:VARIANT."""
    variants = getattr(module(file), "VARIANTS", ())
    return [f"{file}:{variant}" for variant in variants] or [file]


NAMES = tuple(name for file in sorted(FILES) for name in names(file))
ABLATIONS = tuple(module("bert_ablations").VARIANTS)
COMPARED = tuple(module("comparison").VARIANTS)
# The recipe of each family, the kind of its tokenizer, and fields of the encoder that
# its classes in transformers require (docs/interop.md).
FAMILIES = {
    "albert": ("albert:base", "sentencepiece", {}),
    "deberta": ("deberta_v3:base", "sentencepiece", {}),
    "electra": ("electra:small", "wordpiece", {}),
    "roberta": ("roberta:base", "byte_bpe", {}),
    "xlnet": ("xlnet:base", "sentencepiece", {}),
    "bert": ("bert_base", "wordpiece", {}),
    "camembert": ("roberta:base", "camembert", {}),
    "distilbert": (
        "roberta:base",
        "wordpiece",
        {"layer_norm_epsilon": 1e-12, "pooler.activation": "relu"},
    ),
    "eurobert": ("eurobert:210m", "byte_bpe", {}),
    "modernbert": ("modernbert:base", "byte_bpe", {}),
    "neobert": (
        "neobert",
        "wordpiece",
        {
            "prediction_head.output_bias": False,
            "pooler.pooling": "late_mean",
            "pooler.activation": "gelu_erf",
        },
    ),
    "nomicbert": ("nomicbert", "wordpiece", {}),
    "ultrabert": (
        "eurobert:210m",
        "byte_bpe",
        {
            "attention_window": 4,
            "global_layer_every": 2,
            "first_global_layer": 1,
            "prediction_head.num_layers": 2,
            "prediction_head.activation": "gelu_tanh",
            "prediction_head.bias": False,
            "pooler.pooling": "cls",
            "pooler.activation": "",
        },
    ),
    "xlm_r": ("roberta:base", "xlm-roberta", {}),
}


def load(name, *more):
    """Return the ConfigDict of a recipe; `more` may be "smoke"."""
    file, _, variant = name.partition(":")
    return module(file).get_config(",".join(filter(None, (variant, *more))))


def family(name):
    """Return the shrunk recipe of a family, in float32 as what is exported."""
    recipe, _, fields = FAMILIES[name]
    cfg = load(recipe, "smoke")
    cfg.phases = cfg.phases[:1]
    cfg.encoder.dtype = "float32"
    cfg.encoder.update_from_flattened_dict(fields)
    return cfg


def build(name, *more):
    """Return the frozen config of a recipe."""
    cfg = load(name, *more)
    cls = {cls.kind: cls for cls in _PROGRAMS}[cfg.kind]
    return config.from_dict(cls, cfg)


def record() -> dict[str, str]:
    """Return the lines of each section by its header."""
    sections = {f"recipe {name}": differences(build(name)) for name in NAMES}
    for cls in sorted(_classes(_PROGRAMS), key=lambda cls: cls.__name__):
        sections[f"class {cls.__name__}"] = defaults(cls)
    return {
        name: "".join(f"{x}\n" for x in section) for name, section in sections.items()
    }


def read_record() -> dict[str, str]:
    """Read the record."""
    sections = RECORD.read_text().split("\n[")
    parts = (section.partition("]\n") for section in sections[1:])
    return {name: lines for name, _, lines in parts}


def write_record() -> None:
    """Write each section below its header in square brackets."""
    sections = (f"\n[{name}]\n{lines}" for name, lines in record().items())
    RECORD.write_text("".join(sections))


def differences(config: typing.Any) -> list[str]:
    """Return `path: value` for the fields that differ from the defaults."""
    cls = type(config)
    return [f"kind: {cls.kind!r}", *_differences(config, cls(), "")]


def defaults(cls: type) -> list[str]:
    """Return `name: value` for the fields of a class.

    A field that is a config itself has lines only where it differs from the defaults of
    its class, which have a section of their own.
    """
    lines = []
    for field in dataclasses.fields(cls):
        value = field.default
        if dataclasses.is_dataclass(value):
            lines.append(f"{field.name}: {type(value).__name__}")
            lines += _differences(value, type(value)(), field.name)
        elif value and isinstance(value, tuple):
            lines += _differences(value, (), field.name)
        else:
            lines.append(f"{field.name}: {value!r}")
    return lines


def _differences(value, default, path):
    """Yield `path: value` for each leaf of a config that differs from the default's."""
    if value == default:
        return
    if isinstance(value, tuple) and dataclasses.is_dataclass(value[0]):
        for i, item in enumerate(value):
            # The line says that there is such an item, even one without differences.
            yield f"{path}[{i}]: {type(item).__name__}"
            yield from _differences(item, type(item)(), f"{path}[{i}]")
    elif dataclasses.is_dataclass(value):
        if type(value) is not type(default):  # another kind of objective or task
            yield f"{path}: {type(value).__name__}"
            default = type(value)()
        for field in dataclasses.fields(value):
            name = f"{path}.{field.name}".lstrip(".")
            pair = (getattr(x, field.name) for x in (value, default))
            yield from _differences(*pair, name)
    else:
        yield f"{path}: {value!r}"


def _classes(types_of_fields) -> set[type]:
    """Return the config classes among some types and, recursively, their fields."""
    found = set()
    for cls in types_of_fields:
        if dataclasses.is_dataclass(cls):
            found |= {cls} | _classes(field.type for field in dataclasses.fields(cls))
        elif isinstance(cls, (types.UnionType, types.GenericAlias)):
            found |= _classes(typing.get_args(cls))
    return found


if __name__ == "__main__":
    write_record()
