"""docs/data.md agrees with the code."""

import pathlib
import re

import pytest
import recipes
import show_batches

ROOT = pathlib.Path(__file__).parents[1]
TEXT = (ROOT / "docs/data.md").read_text(encoding="utf-8")


@pytest.mark.slow
def test_the_table_of_batches_equals_the_script_s_output():
    table = TEXT.split("<!-- batches-table -->\n")[1]
    assert table.split("<!-- /batches-table -->")[0] == show_batches.table()


def test_the_table_has_every_kind_of_batch():
    ablations = [f"bert_ablations:{variant}" for variant in recipes.ABLATIONS]
    assert set(show_batches.RECIPES) == {"bert_base", *ablations, "xlnet:base"}


def test_named_files_exist():
    named = set(re.findall(r"`([\w/]+\.(?:py|ipynb))`", TEXT))
    assert "bert_jax/data/batches.py" in named
    folders = ROOT, ROOT / "bert_jax", ROOT / "bert_jax/data"
    for name in named:
        assert any((folder / name).is_file() for folder in folders), name
