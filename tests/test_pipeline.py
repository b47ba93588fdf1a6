import contextlib
import subprocess
import sys
import threading
import time

import tensorflow as tf

from bert_jax.data import pipeline


@contextlib.contextmanager
def busy_processors(count):
    command = [sys.executable, "-c", "while True: pass"]
    processes = [subprocess.Popen(command) for _ in range(count)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def test_a_stream_that_is_left_ends_at_once():
    """The last thing that a run waits for when it is asked to stop.

    tf.data's autotuning ended only when its own clock next came round, after up to a
    minute, in one case of ten on processors that are busy.
    """
    made = pipeline.Pipeline(lambda step: {"step": step})
    seconds = []

    def read_and_leave():
        stream = made.batches(0, 10**9)
        # The clock came round 0.01 s, 0.03 s, 0.07 s and so on to 2.55 s and 5.11 s
        # after the begin.
        begin = time.monotonic()
        while time.monotonic() - begin < 2.7:
            next(stream)
            time.sleep(0.02)
        begin = time.monotonic()
        del stream
        seconds.append(time.monotonic() - begin)

    with busy_processors(4):
        threads = [threading.Thread(target=read_and_leave) for _ in range(64)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(seconds) == 64
    assert max(seconds) < 1.5, sorted(seconds)[-5:]


def test_a_stream_is_a_range_of_steps():
    made = pipeline.Pipeline(lambda step: {"square": tf.square(step)})
    batches = list(made.batches(3, 6))
    assert [batch["square"] for batch in batches] == [9, 16, 25]
    assert made.batch(5)["square"] == 25
