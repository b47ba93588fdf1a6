"""Rules about the code itself that are easy to break and hard to see."""

import ast
import pathlib
import subprocess
import sys

PACKAGE = pathlib.Path(__file__).parents[1] / "bert_jax"
# Syntax trees by the path in the package, such as "model/heads.py".
TREES = {
    path.relative_to(PACKAGE).as_posix(): ast.parse(path.read_text())
    for path in sorted(PACKAGE.rglob("*.py"))
}
# A module imports from lower layers, or from its own package.
LAYERS = [
    {"errors"},
    {"io_errors"},
    {"object_store"},
    {"config", "storage", "terminal", "recipe_variants"},
    {"tokenizer", "model"},
    {"objectives", "corpus"},
    {"data"},
    {"training", "tasks"},
    {"interop"},
    {"warm_start"},
    {"teacher"},
    {"pretraining", "finetuning", "prediction", "vocabulary_extension"},
    {"demo", "planning"},
    {"run"},
]
# Modules that may import a library; True where they may only do so inside functions.
READERS = {
    # Only the original's checkpoints need TensorFlow outside of data/.
    "tensorflow": {"data/": False, "interop/tensorflow.py": True},
    # It imports TensorFlow.
    "tensorflow_datasets": {"corpus/sources.py": True, "tasks/glue_tfds.py": True},
    "orbax": {
        "training/checkpoint.py": False,
        "training/restore.py": False,
        "training/processes.py": True,  # a barrier
    },
    "fsspec": {"object_store.py": False},
    "apache_beam": {"corpus/beam_runner.py": False},
    "torch": {},
    "transformers": {},
}


def imports(tree):
    """Yield the name of each import, and whether it is inside a function."""
    top = set(map(id, tree.body))
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        for name in names:
            yield name, id(node) not in top


def layer(name: str) -> int:
    return next(i for i, names in enumerate(LAYERS) if name in names)


def test_imports_point_down():
    for path, tree in TREES.items():
        own = path.split("/")[0].removesuffix(".py")
        for name, _ in imports(tree):
            if name.startswith("bert_jax.") and (part := name.split(".")[1]) != own:
                assert layer(part) < layer(own), f"{path} imports {name}"


def test_libraries_are_imported_where_they_belong():
    for path, tree in TREES.items():
        for name, is_inside in imports(tree):
            readers = READERS.get(name.split(".")[0], {"": False})
            allowed = [x for start, x in readers.items() if path.startswith(start)]
            assert allowed and (is_inside or not allowed[0]), f"{path} imports {name}"


def test_every_folder_is_a_package():
    """setuptools leaves out folders without `__init__.py`."""
    for path in TREES:
        assert (PACKAGE / path).with_name("__init__.py").exists(), path
    # The demo works from a wheel, which has no configs/.
    assert "demo/recipe.py" in TREES


def test_only_sharding_names_mesh_axes():
    for path in TREES.keys() - {"training/sharding.py", "config/training.py"}:
        nodes = ast.walk(TREES[path])
        constants = {node.value for node in nodes if isinstance(node, ast.Constant)}
        assert constants.isdisjoint({"fsdp", "tensor"}), path


def test_no_defaults_besides_declared_ones():
    """`config.get(name, default)` would be a second place for a default."""
    for path, tree in TREES.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and node.attr == "get":
                name = node.value.id if isinstance(node.value, ast.Name) else ""
                assert name not in ("cfg", "config"), path


def test_slow_libraries_are_imported_only_when_needed():
    """One process imports more and more."""
    lines = ["import sys"]
    for modules, unwanted in (
        ("corpus.build, tokenizer", "tensorflow, jax, apache_beam, gcsfs"),
        ("pretraining, finetuning, prediction, planning.plan", "tensorflow"),
        ("data.batches", "keras, tf_keras, sklearn, matplotlib"),
    ):
        lines += [f"import bert_jax.{name}" for name in modules.split(", ")]
        lines += [
            f"loaded = sys.modules.keys() & set({unwanted!r}.split(', '))",
            "assert not loaded, loaded",
        ]
    subprocess.run([sys.executable, "-c", "\n".join(lines)], check=True)


def test_tests_do_not_import_tests():
    """Helpers that two tests need have a module of their own."""
    for path in sorted(pathlib.Path(__file__).parent.glob("*.py")):
        for name, _ in imports(ast.parse(path.read_text())):
            assert not name.startswith("test_"), path
