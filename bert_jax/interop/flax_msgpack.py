"""Old Flax checkpoints of `transformers`: `flax_model.msgpack`.

They have the names of the PyTorch checkpoints, but for the last part, and kernels with
the input dimension first. Releases of `transformers` from 5.0 do not read them.

Source: `rename_key_and_reshape_tensor` in modeling_flax_pytorch_utils.py of
`transformers` 4.
"""

import pathlib

import flax.serialization
import flax.traverse_util
import numpy as np

from bert_jax.errors import UserError
from bert_jax.interop.safetensors import LazyArray

_LEAVES = {"kernel": "weight", "scale": "weight", "embedding": "weight"}


def read(path: pathlib.Path) -> dict[str, LazyArray]:
    """Return the arrays of a file, by the names of the PyTorch checkpoint.

    The whole file is read.

    Raises:
      UserError: The file is damaged.
    """
    try:
        tree = flax.serialization.msgpack_restore(path.read_bytes())
        by_path = flax.traverse_util.flatten_dict(tree)
        return dict(_array(keys, np.asarray(value)) for keys, value in by_path.items())
    except Exception as error:  # the library has no class of errors
        raise UserError(
            f"{path} cannot be used: {error}; fetch the file again"
        ) from error


def _array(keys: tuple[str, ...], value: np.ndarray) -> tuple[str, LazyArray]:
    *parents, leaf = keys
    if leaf == "kernel":
        value = value.T
    name = ".".join([*parents, _LEAVES.get(leaf, leaf)])
    return name, LazyArray(value.shape, lambda: value)
