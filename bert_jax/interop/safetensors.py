"""The safetensors format: a header that lists arrays, and their bytes.

A file is the length of the header (64 bits, little-endian), the header as JSON, and the
arrays in C order. Arrays are memory-mapped: only pages that are accessed are read.
"""

import json
import math
import pathlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from bert_jax.errors import UserError

_DTYPES = {
    "F64": np.dtype("<f8"),
    "F32": np.dtype("<f4"),
    "F16": np.dtype("<f2"),
    "BF16": jnp.dtype("bfloat16"),
    "I64": np.dtype("<i8"),
    "I32": np.dtype("<i4"),
    "I16": np.dtype("<i2"),
    "I8": np.dtype("i1"),
    "U8": np.dtype("u1"),
    "BOOL": np.dtype(bool),
}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}


class LazyArray(NamedTuple):
    """The shape of an array in a file, and a function that reads it."""

    shape: tuple[int, ...]
    read: Callable[[], np.ndarray]


def read(path: pathlib.Path) -> dict[str, LazyArray]:
    """Return the arrays of a file, by name.

    Raises:
      UserError: The file is damaged, or holds arrays of an unknown type.
    """
    try:
        size = path.stat().st_size
        with open(path, "rb") as stream:
            length = int.from_bytes(stream.read(8), "little")
            if size < 8 or length > size - 8:
                raise ValueError("it ends inside its header")
            header = json.loads(stream.read(length))
        header.pop("__metadata__", None)
        return {
            name: _array(path, 8 + length, size, name, about)
            for name, about in header.items()
        }
    except (OSError, ValueError, RecursionError, AttributeError) as error:
        raise UserError(
            f"{path} cannot be used: {error}; fetch the file again"
        ) from error


def _array(
    path: pathlib.Path, start: int, size: int, name: str, about: Any
) -> LazyArray:
    """Return an array of a file of `size` bytes. Arrays begin at `start`."""
    try:
        code, shape = about["dtype"], tuple(map(int, about["shape"]))
        begin, end = map(int, about["data_offsets"])
    except (TypeError, KeyError, ValueError) as error:
        raise ValueError(f"its header is damaged at {name}") from error
    if code not in _DTYPES:
        raise UserError(
            f"{path}: {name} is of type {code}; bert_jax reads {', '.join(_DTYPES)}"
        )
    dtype = _DTYPES[code]
    if min((begin, *shape)) < 0 or end - begin != math.prod(shape) * dtype.itemsize:
        raise ValueError(f"{name} of shape {shape} is said to have {end - begin} bytes")
    if start + end > size:
        raise ValueError(
            f"it is truncated: the arrays have {size - start} bytes, and {name} ends "
            f"at {end}"
        )

    def map_array():
        if begin == end:  # an empty range cannot be mapped
            return np.zeros(shape, dtype)
        content = np.memmap(path, np.uint8, "r", start + begin, (end - begin,))
        return content.view(dtype).reshape(shape)

    return LazyArray(shape, map_array)


def write(
    path: pathlib.Path,
    types: Mapping[str, Any],
    arrays: Iterable[tuple[str, np.ndarray]],
) -> None:
    """Write a file. At most one array is copied at a time.

    `types` has an object with shape and dtype for each array, by name, in the order of
    the file. The arrays come in any order.
    """
    # `transformers` requires the name of the library whose layout the arrays have.
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    begins, end = {}, 0
    for name, about in types.items():
        dtype = np.dtype(about.dtype)
        begins[name] = begin = end
        end += math.prod(about.shape) * dtype.itemsize
        header[name] = {
            "dtype": _NAMES[dtype],
            "shape": list(about.shape),
            "data_offsets": [begin, end],
        }
    text = json.dumps(header).encode("ascii")
    text += b" " * (-len(text) % 8)  # so that the arrays are aligned
    with open(path, "wb") as stream:
        stream.write(len(text).to_bytes(8, "little") + text)
        for name, array in arrays:
            stream.seek(8 + len(text) + begins[name])
            flat = np.ascontiguousarray(array).reshape(-1)
            stream.write(flat.view(np.uint8).data)
