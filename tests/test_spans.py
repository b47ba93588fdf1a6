"""The span objective, compared with NumPy, and fine-tuning on spans."""

import functools
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import questions
from commands import ROOT, assert_refused, call, run
from toy import TINY, batch_of, params_of

from bert_jax import prediction
from bert_jax.model.inputs import Inputs
from bert_jax.objectives import metric_sums, spans


def test_loss_and_accuracies_in_numpy():
    objective = spans.Spans(TINY)
    params, batch = params_of(objective.init), batch_of(objective, 6, 16)
    batch["weights"] = np.array([1, 1, 0, 1, 1, 1], np.float32)
    terms = jax.jit(functools.partial(objective.sums, dropout_keys=None))

    def measure(batch):
        got = terms(params, batch, sampling_keys=jnp.zeros(6, jnp.uint32))
        return {name: metric_sums.ratio(term) for name, term in got.items()}

    logits = jax.jit(objective.model.apply)({"params": params}, Inputs.of(batch))
    logits = np.asarray(logits, np.float64)
    losses, hits = [], []
    for row in np.flatnonzero(batch["weights"]):
        valid = logits[row, : batch["attention_mask"][row].sum()]
        labels = batch["start_positions"][row], batch["end_positions"][row]
        losses += [
            np.log(np.exp(valid[:, i]).sum()) - valid[label, i]
            for i, label in enumerate(labels)
        ]
        hits.append([valid[:, i].argmax() == label for i, label in enumerate(labels)])
    got = measure(batch)
    assert got["span_loss"] == pytest.approx(np.mean(losses), rel=1e-5)
    outputs = jax.jit(objective.outputs)(params, batch)
    for i, name in enumerate(("start", "end")):
        values = np.asarray(outputs[f"{name}_logits"])
        assert got[f"{name}_accuracy"] == pytest.approx(np.mean(hits, axis=0)[i])
        assert values.dtype == np.float32
        mask = np.asarray(batch["attention_mask"])
        assert np.allclose(values[mask], logits[..., i][mask], atol=1e-6)
        assert (values[~mask] < -1e8).all()
    assert got["span_accuracy"] == pytest.approx(np.mean(np.all(hits, axis=1)))
    predicted = {
        f"{name}_positions": np.asarray(outputs[f"{name}_logits"]).argmax(-1)
        for name in ("start", "end")
    }
    predicted["end_positions"][0] = (predicted["end_positions"][0] + 1) % 8
    some = measure(batch | jax.tree.map(np.int32, predicted))
    assert some["start_accuracy"] == 1.0
    assert some["span_accuracy"] == some["end_accuracy"] == pytest.approx(4 / 5)


@pytest.mark.slow
@pytest.mark.runs
def test_fine_tuning_from_the_command_line(pretrained, tmp_path):
    made = questions.write_pair(tmp_path, no_answers=True)
    flags = [
        f"--config={ROOT}/configs/squad.py:v2,smoke",
        f"--config.task.train={made['train']}",
        f"--config.task.eval={made['eval']}",
        f"--config.init_from={pretrained}",
        f"--workdir={tmp_path / 'run'}",
    ]
    done = run("finetune_squad", *flags)
    assert done.returncode == 0, done.stderr
    results = json.loads(done.stdout)
    assert (results["examples"], results["NoAns_total"]) == (8, 2)
    predictions = json.loads((tmp_path / "run/predictions.json").read_text())
    assert len(predictions) == 8
    model = prediction.load(str(tmp_path / "run"))
    asked = [
        (question, context)
        for context in (questions.CONTEXT, " ".join([questions.CONTEXT] * 3))
        for question, _ in questions.QUESTIONS
    ]
    answered = model.answer(*zip(*asked, strict=True))
    assert [answer.text for answer in answered] == list(predictions.values())
    # With another threshold, the same checkpoint answers nothing.
    again = run("finetune_squad", *flags, "--config.task.null_threshold=-1e6")
    assert again.returncode == 0, again.stderr
    predictions = json.loads((tmp_path / "run/predictions.json").read_text())
    assert list(predictions.values()) == [""] * 8
    assert json.loads(again.stdout)["best_f1"] == results["best_f1"]
    flags[:1] = [f"--config={ROOT}/configs/squad.py:v1,smoke"]
    refused = call("finetune_squad", *flags[:-1], f"--workdir={tmp_path / 'other'}")
    assert_refused(refused, "pass --config.task.no_answers=True")
