"""The span objective, compared with NumPy, and fine-tuning on spans."""

import dataclasses

import jax
import numpy as np
import pytest
import saved
from toy import TINY, batch_of, metadata, params_of, state_of, sums_of

from bert_jax.model.inputs import Inputs
from bert_jax.objectives import metric_sums, spans
from bert_jax.training import checkpoint


def test_loss_and_accuracies_in_numpy():
    objective = spans.Spans(TINY)
    params, batch = params_of(objective.init), batch_of(objective, 6, 16)
    batch["weights"] = np.array([1, 1, 0, 1, 1, 1], np.float32)

    def measure(batch):
        sums = sums_of(objective, params, batch)
        return {name: metric_sums.ratio(value) for name, value in sums.items()}

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


def test_runs_resume_from_checkpoints_of_earlier_versions(tmp_path, monkeypatch):
    """There, span_accuracy is called exact."""
    with monkeypatch.context() as earlier:
        names = ("start_accuracy", "end_accuracy", "exact")
        earlier.setattr(spans.Spans, "metric_names", names)
        state = state_of(saved.state_shapes(spans.Spans(TINY)))
    zero = state.metric_sums["exact"].sum
    values = jax.device_put((3.0, 4.0), zero.sharding)
    sums = {**state.metric_sums, "exact": metric_sums.MetricSum(*values)}
    checkpoints = checkpoint.Checkpoints(tmp_path / "checkpoints", 1)
    checkpoints.save(1, dataclasses.replace(state, metric_sums=sums), metadata())
    checkpoints.wait()
    got = checkpoints.restore(saved.state_shapes(spans.Spans(TINY))).metric_sums
    checkpoints.close()
    assert got["span_accuracy"] == (3, 4)
    assert "exact" not in got
