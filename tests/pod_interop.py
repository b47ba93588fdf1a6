"""One of several processes that load a published folder and report what they read.

python pod_interop.py FOLDER OUTPUT (and the launcher's flags)
"""

import collections
import json
import pathlib
import sys

import numpy as np

from bert_jax import config
from bert_jax.interop import checkpoints, huggingface_folder, safetensors
from bert_jax.objectives import masked_lm
from bert_jax.training import processes, sharding


def main(folder, output, *flags):
    """Load the folder as a run does."""
    given = dict(flag.removeprefix("--").split("=") for flag in flags)
    process = int(given["process_id"])
    processes.start(given["coordinator_address"], int(given["num_processes"]), process)
    read = collections.Counter()

    def counted(path):
        def of(name, array):
            def get():
                read[name] += 1
                return array.read()

            return safetensors.LazyArray(array.shape, get)

        return {name: of(name, array) for name, array in safetensors.read(path).items()}

    huggingface_folder.safetensors = type(
        "Counted", (), {"read": staticmethod(counted)}
    )
    source, _ = checkpoints.initial_checkpoint(folder, output, config.PretrainConfig)
    encoder = checkpoints.read_metadata(source).encoder
    fingerprint = checkpoints.fingerprint(source)
    mesh = sharding.make_mesh(config.MeshConfig(data=1, fsdp=4))
    shapes = sharding.state_shapes(masked_lm.MaskedLm(encoder).init, mesh)
    loaded = checkpoints.load_params(source, shapes)
    place = pathlib.Path(output)
    parts, bytes_held = {}, 0
    for path, array in loaded.params.items():
        for shard in array.addressable_shards:
            bytes_held += shard.data.nbytes
            begin = ",".join(str(part.start or 0) for part in shard.index)
            parts[f"{path}@{begin}"] = np.asarray(shard.data)
    np.savez(place / f"{process}.npz", **parts)
    about = {
        "fingerprint": fingerprint,
        "read": read,
        "new": loaded.missing,
        "held": bytes_held,
    }
    (place / f"{process}.json").write_text(json.dumps(about))


if __name__ == "__main__":
    main(*sys.argv[1:])
