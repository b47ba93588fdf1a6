"""One of two processes that save and restore a small state, and say how that went.

  python pod_checkpoints.py FOLDER {save,full,restore} (and the launcher's flags)

"full": the disk of process 1 is full when the second checkpoint is written.
"""

import json
import resource
import signal
import sys

import jax
import jax.numpy as jnp
import toy
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from orbax.checkpoint.experimental.v1._src.synchronization import multihost

from bert_jax import config
from bert_jax.training import checkpoint, processes, sharding, step

# Not minutes: how long one process waits for another that has failed.
checkpoint._SAVE_SECONDS = 10
multihost._DEFAULT_BARRIER_TIMEOUT = 10


def make_state(mesh, number):
    """Return arrays over both processes, and their shapes."""

    def state():
        weights = jax.random.normal(jax.random.key(number), (64, 1024))
        return step.TrainState(
            step=jnp.int32(number),
            params={"w": weights},
            opt_state={"m": weights * weights},
            metric_sums={"a": jnp.zeros(())},
            skipped=jnp.int32(0),
        )

    def place(shape):
        spec = P("fsdp") if shape.ndim else P()
        return jax.ShapeDtypeStruct(
            shape.shape, shape.dtype, sharding=NamedSharding(mesh, spec)
        )

    shapes = jax.tree.map(place, jax.eval_shape(state))
    return jax.jit(state, out_shardings=sharding.shardings_of(shapes))(), shapes


def main(folder, action, *flags):
    """Save or restore the state, and print the result."""
    given = dict(flag.removeprefix("--").split("=") for flag in flags)
    count, process = int(given["num_processes"]), int(given["process_id"])
    processes.start(given["coordinator_address"], count, process)
    # Longer than any buffer that a text may go through, and of two lengths.
    texts = processes.gather_text("é" * 3000 * process)
    assert texts == ["", "é" * 3000]
    many = list(range(10_000))
    assert json.loads(processes.call_on_main(lambda: json.dumps(many))) == many

    mesh = sharding.make_mesh(config.MeshConfig(data=1, fsdp=2))
    first, shapes = make_state(mesh, 1)
    checkpoints = checkpoint.Checkpoints(folder, keep=3)
    if action == "restore":
        state = checkpoints.restore(shapes)
        print("RESTORED", int(state.step), flush=True)
        return
    checkpoints.save(1, first, toy.metadata())
    checkpoints.save(3, first, toy.metadata())
    checkpoints.wait()
    checkpoints.delete_from(2)
    if action == "full" and process == 1:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
    second, _ = make_state(mesh, 2)
    try:
        checkpoints.save(2, second, toy.metadata())
        checkpoints.wait()
    except Exception as error:
        everywhere = getattr(error, "in_all_processes", False)
        print("FAILED", type(error).__name__, error, everywhere, flush=True)
        return
    print("SAVED", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
