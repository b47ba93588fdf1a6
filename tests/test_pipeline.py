import tensorflow as tf

from bert_jax.data import pipeline


def test_a_stream_is_not_tuned_while_it_runs(monkeypatch):
    """So that it ends at once: the last thing that a run waits for when it stops.

    The thread of tf.data's autotuning ended only when its own clock next came round,
    after up to a minute, in one case of ten on processors that are busy.
    """
    monkeypatch.setattr(tf.data.Dataset, "as_numpy_iterator", lambda dataset: dataset)
    made = pipeline.Pipeline(lambda step: {"step": step})
    assert made.batches(0, 10**9).options().autotune.enabled is False


def test_a_stream_is_a_range_of_steps():
    made = pipeline.Pipeline(lambda step: {"square": tf.square(step)})
    batches = list(made.batches(3, 6))
    assert [batch["square"] for batch in batches] == [9, 16, 25]
    assert made.batch(5)["square"] == 25
