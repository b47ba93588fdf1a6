"""Notebooks run from top to bottom, and what they show is what a run does."""

import base64
import re

import jax
import matplotlib.pyplot as plt
import numpy as np
import pytest
import stored_notebooks as notebooks
from recipes import load

from bert_jax import config, knobs, pretraining
from bert_jax.demo import small
from bert_jax.errors import UserError
from bert_jax.training import sharding

NAMES = sorted(path.name for path in notebooks.FOLDER.iterdir())
MAX_PNG_BYTES = 60_000


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    """The model that notebooks train themselves, after a few steps."""
    return small.pretrain(tmp_path_factory.mktemp("small"), steps=4)


@pytest.fixture
def run(checkpoint, tmp_path, monkeypatch):
    """Run a notebook from some folder, with nothing at hand; what it defines."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(small, "pretrain", lambda folder: checkpoint)
    plt.switch_backend("agg")

    def run(name):
        got = {}
        exec(notebooks.source(notebooks.read(name)), got)
        return got

    yield run
    plt.close("all")


@pytest.mark.runs
def test_look_inside(run, capsys):
    got = run("look_inside.ipynb")
    assert got["logits"].mlm.shape == (
        8,
        20,
        got["config"].encoder.padded_vocab_size,
    )
    expected = np.log(2 * got["corpus"].tokenizer.vocab_size)
    assert float(got["value"]) == pytest.approx(expected, abs=0.3)
    assert "[CLS]" in capsys.readouterr().out


@pytest.mark.parametrize("name", NAMES)
def test_stored_outputs_are_small_and_the_same_anywhere(name):
    cells = [c for c in notebooks.read(name)["cells"] if c["cell_type"] == "code"]
    counts = [cell["execution_count"] for cell in cells]
    assert counts == list(range(1, len(cells) + 1))
    outputs = [output for cell in cells for output in cell["outputs"]]
    assert outputs
    for output in outputs:
        assert output["output_type"] in ("stream", "display_data")
        if output["output_type"] == "stream":
            assert output["name"] == "stdout"
            shown = "".join(output["text"])
        else:
            picture = base64.b64decode(output["data"]["image/png"])
            assert picture.startswith(b"\x89PNG")
            assert len(picture) <= MAX_PNG_BYTES
            assert output["data"].keys() == {"image/png", "text/plain"}
            shown = "".join(output["data"]["text/plain"])
        # No path, time or address of an object.
        assert not re.search(r"(?<!\w)/\w+/|\d\d:\d\d|20\d\d-|0x[0-9a-f]{6}", shown)


@pytest.mark.slow
@pytest.mark.runs
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
