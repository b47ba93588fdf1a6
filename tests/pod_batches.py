"""One of several processes that read their rows of batches, for test_pods.py.

python tests/pod_batches.py OUTPUT CORPUS [flags of processes]: writes, for each case,
the rows of this process, and its batches of some steps.
"""

import dataclasses
import sys

import numpy as np
import pod_recipe

from bert_jax import config as config_lib
from bert_jax import pretraining
from bert_jax.corpus import shards
from bert_jax.training import processes, sharding

STEPS = (0, 7)
CASES = [({"data": 1, "tensor": 8}, 1), ({"data": 8}, 4)]


def case_config(folder: str, axes: dict, groups: int) -> config_lib.PretrainConfig:
    """The recipe on one mesh, with a number of groups."""
    config = config_lib.from_configdict(
        config_lib.PretrainConfig, pod_recipe.get_config()
    )
    data = dataclasses.replace(config.data, corpus=folder, shard_groups=groups)
    mesh = config_lib.MeshConfig(**axes)
    return dataclasses.replace(config, data=data, mesh=mesh)


def main() -> None:
    """Read as this process would."""
    output, folder, *arguments = sys.argv[1:]
    given = dict(a.removeprefix("--").split("=") for a in arguments)
    process = int(given["process_id"])
    processes.start(given["coordinator_address"], int(given["num_processes"]), process)
    for index, (axes, groups) in enumerate(CASES):
        config = case_config(folder, axes, groups)
        corpus = shards.open_corpus(folder)
        config = pretraining.fill_in_from_corpora(config, [corpus])
        mesh = sharding.make_mesh(config.mesh)
        rows = sharding.local_rows(mesh, config.phases[0].batch_size)
        data = pretraining.open_data(config, [corpus], 0, rows)
        arrays = {"rows": rows}
        for step in STEPS:
            batch = next(data.batches(step, step + 1))
            arrays |= {f"{step}/{name}": values for name, values in batch.items()}
        np.savez(f"{output}/case{index}-process{process}.npz", **arrays)


if __name__ == "__main__":
    main()
