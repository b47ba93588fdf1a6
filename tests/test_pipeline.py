import tensorflow as tf

from bert_jax.data import pipeline


def test_streams_are_not_autotuned(monkeypatch):
    """Without autotuning a stream ends at once.

    Its thread took up to a minute to end, in one of ten cases on busy CPUs.
    """
    monkeypatch.setattr(tf.data.Dataset, "as_numpy_iterator", lambda dataset: dataset)
    made = pipeline.Pipeline(lambda step: {"step": step})
    assert made.batches(0, 10**9).options().autotune.enabled is False


def test_a_stream_is_a_range_of_steps():
    made = pipeline.Pipeline(lambda step: {"square": tf.square(step)})
    batches = list(made.batches(3, 6))
    assert [batch["square"] for batch in batches] == [9, 16, 25]
    assert made.batch(5)["square"] == 25
