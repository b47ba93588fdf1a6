"""Files of safetensors, read and written one array at a time.

A file is the length of the header (64 bits, little-endian), the header as JSON, and the
arrays in C order. The library reads single arrays, but writes all of them at once.
"""

import contextlib
import functools
import json
import math
import pathlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
import safetensors

from bert_jax.errors import UserError

# Types of weights that this project reads.
_FLOATS = "F64", "F32", "F16", "BF16"


class LazyArray(NamedTuple):
    """The shape of an array in a file, and a function that reads it."""

    shape: tuple[int, ...]
    read: Callable[[], np.ndarray]


def zeros(shape: tuple[int, ...]) -> LazyArray:
    """Return an array of zeros, which takes no memory."""
    return LazyArray(shape, lambda: np.broadcast_to(np.float32(0), shape))


def read(path: pathlib.Path) -> dict[str, LazyArray]:
    """Return the arrays of a file, by name.

    Raises:
      UserError: The file is damaged. Reading an array raises it, too, if its elements
        are no floating-point numbers.
    """
    with _refusing(path):
        # Not mapped: pages of a mapped file would stay in the memory of the process.
        file = safetensors.safe_open(path, "np", backend="pread")
    arrays = {}
    for name in file.keys():  # noqa: SIM118
        shape = tuple(file.get_slice(name).get_shape())
        arrays[name] = LazyArray(shape, functools.partial(_get, path, file, name))
    return arrays


def _get(path, file, name):
    dtype = file.get_slice(name).get_dtype()
    if dtype not in _FLOATS:
        raise UserError(
            f"{path}: {name} is of type {dtype}; weights must be {', '.join(_FLOATS)}"
        )
    with _refusing(path):
        return file.get_tensor(name)


@contextlib.contextmanager
def _refusing(path):
    try:
        yield
    except (OSError, safetensors.SafetensorError) as error:
        raise UserError(
            f"{path} cannot be used: {error}; fetch the file again"
        ) from error


def write(
    path: pathlib.Path,
    shapes: Mapping[str, tuple[int, ...]],
    arrays: Iterable[tuple[str, np.ndarray]],
) -> None:
    """Write arrays of float32. At most one of them is copied at a time.

    `shapes` has the order of the file. The arrays come in any order.
    """
    # `transformers` requires the name of the library whose layout the arrays have.
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    begins, end = {}, 0
    for name, shape in shapes.items():
        begins[name] = begin = end
        end += 4 * math.prod(shape)
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [begin, end]}
    text = json.dumps(header).encode("ascii")
    text += b" " * (-len(text) % 8)  # so that the arrays are aligned
    with open(path, "wb") as stream:
        stream.write(len(text).to_bytes(8, "little") + text)
        for name, array in arrays:
            stream.seek(8 + len(text) + begins[name])
            stream.write(np.ascontiguousarray(array, "<f4").data)
