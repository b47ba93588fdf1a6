"""Rules about the code itself that are easy to break and hard to see."""

import ast
import pathlib
import subprocess
import sys

import pytest

PACKAGE = pathlib.Path(__file__).parents[1] / "bert_jax"
MODULES = sorted(PACKAGE.rglob("*.py"))
# What may import what: only from a lower layer, or from the same package.
LAYERS = [
    {"errors"},
    {"knobs"},
    {"config", "storage", "terminal", "recipe_variants"},
    {"tokenizer", "model"},
    {"objectives", "corpus"},
    {"data"},
    {"training", "tasks"},
    {"interop"},
    {"planning"},
    {"warm_start"},
    {"pretraining", "finetuning", "prediction", "extension"},
    {"demo"},
    {"run"},
]


def part(module: str) -> str:
    """`bert_jax.model.heads` to `model`."""
    return module.split(".")[1]


def imports(path: pathlib.Path):
    """Every import in a file, those inside functions too, with whether it is inside."""
    tree = ast.parse(path.read_text())
    top = set(map(id, tree.body))
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        for name in names:
            yield name, id(node) in top


def layer(name: str) -> int:
    return next(i for i, names in enumerate(LAYERS) if name in names)


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_imports_point_down(path):
    relative = path.relative_to(PACKAGE)
    if relative.name == "__init__.py" and len(relative.parts) == 1:
        return
    own = relative.parts[0].removesuffix(".py")
    for name, _ in imports(path):
        if name.startswith("bert_jax.") and part(name) != own:
            assert layer(part(name)) < layer(own), f"{relative} imports {name}"


def test_what_is_installed_is_complete():
    """setuptools finds packages, and nothing outside of them."""
    for path in MODULES:
        assert (path.parent / "__init__.py").exists(), path
    # The demo works from a wheel, which has no configs/.
    assert PACKAGE / "demo" / "recipe.py" in MODULES


def test_libraries_are_known_where_they_belong():
    for path in MODULES:
        relative = path.relative_to(PACKAGE).as_posix()
        for name, at_top in imports(path):
            library = name.split(".")[0]
            if library == "tensorflow":
                # The original's checkpoints are TensorFlow's; it is imported when one
                # is read or written, and not before.
                is_format = relative == "interop/tensorflow.py" and not at_top
                assert relative.startswith("data/") or is_format, relative
            if library == "tensorflow_datasets":
                # It imports TensorFlow, which only those wait for who ask for it.
                readers = ("corpus/sources.py", "tasks/glue_tfds.py")
                assert relative in readers and not at_top, relative
            if library == "orbax":
                readers = ("training/checkpoint.py", "training/restore.py")
                has_barrier = relative == "training/processes.py" and not at_top
                assert relative in readers or has_barrier, relative
            if library == "fsspec":
                assert relative == "storage.py", relative
            if library == "apache_beam":
                assert relative == "corpus/beam.py", relative
            if library in ("torch", "transformers"):
                raise AssertionError(f"{relative} imports {name}")


def test_mesh_axes_are_known_to_sharding_alone():
    for path in MODULES:
        if path.relative_to(PACKAGE).as_posix() in (
            "training/sharding.py",
            "config/training.py",
        ):
            continue
        strings = {
            node.value
            for node in ast.walk(ast.parse(path.read_text()))
            if isinstance(node, ast.Constant) and isinstance(node.value, str)
        }
        assert strings.isdisjoint({"fsdp", "tensor"}), path


def test_no_defaults_besides_those_declared():
    """`config.get(name, default)` would be a second place for a default."""
    for path in MODULES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                owner = node.func.value
                is_config = isinstance(owner, ast.Name) and owner.id in (
                    "cfg",
                    "config",
                )
                assert not (is_config and node.func.attr == "get"), path


@pytest.mark.parametrize(
    "modules",
    [
        "model.heads, objectives.masked_lm, training.loop, training.optimizer",
        "pretraining, finetuning, prediction, planning.plan",
        "corpus.build, tokenizer",
    ],
)
def test_training_needs_no_tensorflow(modules):
    names = ", ".join(f"bert_jax.{name.strip()}" for name in modules.split(","))
    script = f"import sys, {names}; assert 'tensorflow' not in sys.modules"
    subprocess.run([sys.executable, "-c", script], check=True)


def test_tensorflow_brings_no_keras():
    """With what Keras imports, a start would take seconds longer."""
    names = {"keras", "tf_keras", "sklearn", "matplotlib"}
    script = (
        "import sys, bert_jax.pretraining, bert_jax.data.batches;"
        f"assert sys.modules.keys().isdisjoint({names}), sys.modules.keys()"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


def test_building_a_corpus_needs_no_jax():
    """Each of its processes would pay for the import."""
    names = {"jax", "apache_beam", "gcsfs"}
    script = (
        "import sys, bert_jax.corpus.build;"
        f"assert sys.modules.keys().isdisjoint({names}), sys.modules.keys()"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


def test_tests_import_no_tests():
    """What two of them need has a module that is no test."""
    for path in sorted(pathlib.Path(__file__).parent.glob("*.py")):
        modules = {part for name, _ in imports(path) for part in name.split(".")[:1]}
        assert not any(name.startswith("test_") for name in modules), path
