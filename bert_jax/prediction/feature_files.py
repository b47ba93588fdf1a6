"""Files of feature vectors, written in a stream: JSON lines, NumPy, Parquet.

`.jsonl`: an object for each text. Without pooling, the format is that of the original
(google-research/bert, extract_features.py), with values rounded to six decimals:

  {"linex_index": 0, "features": [{"token": "[CLS]", "layers":
      [{"index": -1, "values": [0.1, ...]}, ...]}, ...]}

and with pooling {"linex_index": 0, "layers": [{"index": -1, "values": [...]}, ...]}.

`.npz`: float32 `values` and the layer numbers `layers`. Pooled `values` are [texts,
layers, D]. Otherwise they are [tokens, layers, D] for the tokens of all texts: `tokens`
has their strings, and text i has tokens starts[i] to starts[i + 1].

`.parquet`: a row for each text or token, with the text index `line`; `position` and
`token` if not pooled; and a list of D float32 for each layer, such as `layer_-1`.
"""

import array
import dataclasses
import itertools
import json
import pathlib
import tempfile
import zipfile
from collections.abc import Iterable, Sequence
from typing import BinaryIO

import numpy as np

from bert_jax import storage
from bert_jax.errors import UserError
from bert_jax.prediction.features import Features

_BLOCK = 1 << 24  # bytes per copy
_ROWS = 1024  # per row group


@dataclasses.dataclass(frozen=True)
class Written:
    """Number of texts written and number of texts truncated."""

    texts: int
    truncated: int


def check_name(name: str) -> None:
    """Check that the name ends in a known format."""
    if storage.path(name).name.rpartition(".")[2] not in _FORMATS:
        endings = ", ".join(f".{ending}" for ending in _FORMATS)
        raise UserError(f"{name} must end in one of {endings}")


def write(
    name: str, features: Iterable[Features], layers: Sequence[int], *, pooled: bool
) -> Written:
    """Write features. The file appears when it is complete.

    Args:
      name: Path or URL of the file; its suffix selects the format.
      features: Features of the texts.
      layers: Numbers of the layers.
      pooled: Whether features are one vector for each text.

    Raises:
      UserError: The file cannot be written.
    """
    check_name(name)
    where = storage.path(name)
    write_format = _FORMATS[where.name.rpartition(".")[2]]
    counts = [0, 0]

    def counted():
        for each in features:
            counts[0] += 1
            counts[1] += each.truncated
            yield each

    temporary = storage.temporary_file(where)
    try:
        with storage.writing(where):
            write_format(temporary, counted(), layers, pooled)
            storage.put(temporary, where)
    finally:
        temporary.unlink(missing_ok=True)
    return Written(*counts)


def _write_jsonl(
    path: pathlib.Path,
    features: Iterable[Features],
    layers: Sequence[int],
    pooled: bool,
) -> None:
    def by_layer(values):
        return [
            {"index": layer, "values": vector}
            for layer, vector in zip(layers, values, strict=True)
        ]

    with open(path, "w", encoding="utf-8") as stream:
        for index, each in enumerate(features):
            values = np.round(each.values.astype(np.float64), 6).tolist()
            if pooled:
                content = {"layers": by_layer(values)}
            else:
                tokens = zip(each.tokens, values, strict=True)
                content = {
                    "features": [
                        {"token": token, "layers": by_layer(vectors)}
                        for token, vectors in tokens
                    ]
                }
            line = {"linex_index": index, **content}
            stream.write(json.dumps(line, ensure_ascii=False) + "\n")


def _write_npz(
    path: pathlib.Path,
    features: Iterable[Features],
    layers: Sequence[int],
    pooled: bool,
) -> None:
    """Write arrays via temporary files, because an array begins with its shape."""
    starts, vocabulary = array.array("q", [0]), {}
    shape: tuple[int, ...] = ()
    with (
        tempfile.TemporaryFile(dir=path.parent) as values,
        tempfile.TemporaryFile(dir=path.parent) as tokens,
    ):
        for each in features:
            values.write(np.ascontiguousarray(each.values, "<f4"))
            shape = each.values.shape[-2:]
            starts.append(starts[-1] + (1 if pooled else len(each.tokens)))
            if not pooled:
                ids = [vocabulary.setdefault(t, len(vocabulary)) for t in each.tokens]
                tokens.write(np.array(ids, "<i4"))
        rows = starts[-1]
        with zipfile.ZipFile(path, "w") as archive:
            with _member(archive, "layers", "<i8", (len(layers),)) as member:
                member.write(np.array(layers, "<i8"))
            if not pooled:
                with _member(archive, "starts", "<i8", (len(starts),)) as member:
                    member.write(np.array(starts, "<i8"))
                words = np.array(list(vocabulary))
                kind = words.dtype.newbyteorder("<")
                with _member(archive, "tokens", kind.str, (rows,)) as member:
                    tokens.seek(0)
                    while block := tokens.read(1 << 16):
                        ids = np.frombuffer(block, "<i4")
                        member.write(words[ids].astype(kind).tobytes())
            with _member(archive, "values", "<f4", (rows, *shape)) as member:
                values.seek(0)
                while block := values.read(_BLOCK):
                    member.write(block)


def _member(
    archive: zipfile.ZipFile, name: str, kind: str, shape: tuple[int, ...]
) -> BinaryIO:
    """Begin an array of a `.npz` file: write all but its values."""
    member = archive.open(f"{name}.npy", "w", force_zip64=True)
    about = {"descr": kind, "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(member, about)
    return member


def _write_parquet(
    path: pathlib.Path,
    features: Iterable[Features],
    layers: Sequence[int],
    pooled: bool,
) -> None:
    import pyarrow as pa
    from pyarrow import parquet

    features = iter(features)
    first = next(features)
    vector = pa.list_(pa.float32(), first.values.shape[-1])
    columns = [("line", pa.int64())]
    if not pooled:
        columns += [("position", pa.int32()), ("token", pa.string())]
    schema = pa.schema([*columns, *((f"layer_{layer}", vector) for layer in layers)])

    def rows_of(index, each):
        count = 1 if pooled else len(each.tokens)
        arrays = [np.full(count, index)]
        if not pooled:
            arrays += [np.arange(count, dtype=np.int32), each.tokens]
        values = each.values.reshape(count, len(layers), -1)
        for i in range(len(layers)):
            flat = pa.array(values[:, i].ravel(), pa.float32())
            arrays.append(pa.FixedSizeListArray.from_arrays(flat, type=vector))
        arrays = [x if isinstance(x, pa.Array) else pa.array(x) for x in arrays]
        return pa.record_batch(arrays, schema=schema)

    waiting, count = [], 0
    with parquet.ParquetWriter(path, schema) as writer:
        for index, each in enumerate(itertools.chain([first], features)):
            waiting.append(rows_of(index, each))
            count += waiting[-1].num_rows
            if count >= _ROWS:
                writer.write_table(pa.Table.from_batches(waiting))
                waiting, count = [], 0
        if waiting:
            writer.write_table(pa.Table.from_batches(waiting))


_FORMATS = {"jsonl": _write_jsonl, "npz": _write_npz, "parquet": _write_parquet}
