"""Notebooks run from top to bottom, and what they show is what a run does."""

import json
import pathlib

import jax
import numpy as np
import pytest
from recipes import load

from bert_jax import config, knobs, pretraining
from bert_jax.errors import UserError
from bert_jax.training import sharding

pytestmark = pytest.mark.runs

NOTEBOOKS = pathlib.Path(__file__).parents[1] / "notebooks"


@pytest.mark.parametrize("name", sorted(path.name for path in NOTEBOOKS.iterdir()))
def test_notebooks_run(name, tmp_path, monkeypatch, capsys):
    """From any folder, with nothing at hand."""
    notebook = json.loads((NOTEBOOKS / name).read_text())
    monkeypatch.chdir(tmp_path)
    assert all(cell.get("outputs", []) == [] for cell in notebook["cells"])
    cells = [c["source"] for c in notebook["cells"] if c["cell_type"] == "code"]
    source = "\n".join("".join(cell) for cell in cells)
    got = {}
    exec(source, got)
    assert got["logits"].mlm.shape == (
        8,
        20,
        got["config"].encoder.padded_vocab_size,
    )
    expected = np.log(2 * got["corpus"].tokenizer.vocab_size)
    assert float(got["value"]) == pytest.approx(expected, abs=0.3)
    assert "[CLS]" in capsys.readouterr().out


@pytest.mark.slow
def test_the_batch_of_a_step_is_what_the_run_sees(corpus, tmp_path, monkeypatch):
    cfg = load("bert_base", "smoke")
    cfg.data.corpus = str(corpus.folder)
    cfg.loop.eval_every = 0
    built = knobs.from_configdict(config.PretrainConfig, cfg)
    seen = []
    to_devices = sharding.to_devices

    def record(mesh, batch, rows, batch_size):
        seen.append(batch)
        return to_devices(mesh, batch, rows, batch_size)

    monkeypatch.setattr(sharding, "to_devices", record)
    pretraining.pretrain(built, str(tmp_path))
    assert same(pretraining.batch_of_step(built, 1), seen[1])
    # In the second phase; evaluations are between.
    assert any(same(pretraining.batch_of_step(built, 5), other) for other in seen)
    for step in (-1, 6):
        with pytest.raises(UserError, match=f"step {step} is not one of the 6"):
            pretraining.batch_of_step(built, step)


def same(a, b):
    equal = jax.tree.map(np.array_equal, a, b)
    return all(jax.tree.leaves(equal))
