"""Files of feature vectors, written in a stream: JSON lines, NumPy, Parquet.

`.jsonl`: an object for each text. Without pooling, the format is the original's
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
import collections
import functools
import itertools
import json
import pathlib
import tempfile
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from bert_jax import storage
from bert_jax.errors import UserError
from bert_jax.prediction.features import Features

_GROUP_TEXTS = 16  # texts in a row group of Parquet, if not pooled
_WRITTEN_TOKENS = 1 << 16  # tokens written at once to an .npz file


def check_name(name: str) -> None:
    """Check that the name ends in a known format, and does not name a folder."""
    where = storage.path(name)
    if where.name.rpartition(".")[2] not in _FORMATS:
        endings = ", ".join(f".{ending}" for ending in _FORMATS)
        raise UserError(f"{name} must end in one of {endings}")
    if where.is_dir():
        raise UserError(f"{name} is a folder; give the path of a file")


def write(
    name: str, features: Iterable[Features], layers: Sequence[int], *, pooled: bool
) -> tuple[int, int]:
    """Write features. Return the number of texts written, and of texts truncated.

    The suffix of the path or URL selects the format. The file appears when it is
    complete.

    Raises:
      UserError: The file cannot be written.
    """
    check_name(name)
    where = storage.path(name)
    counts: collections.Counter[bool] = collections.Counter()

    def counted() -> Iterator[Features]:
        for each in features:
            counts[each.truncated] += 1
            yield each

    temporary = storage.temporary_file(where)
    try:
        # Errors of the computation are no errors of a store.
        with storage.writing(temporary if storage.is_remote(where) else where):
            write_format = _FORMATS[where.name.rpartition(".")[2]]
            write_format(temporary, counted(), layers, pooled)
        with storage.writing(where):
            storage.move_into_place(temporary, where)
    finally:
        temporary.unlink(missing_ok=True)
    return counts.total(), counts[True]


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
    starts, ids, vocabulary = array.array("q", [0]), array.array("i"), {}
    shape: tuple[int, ...] = ()
    make_file = functools.partial(tempfile.TemporaryFile, dir=path.parent)
    with make_file() as values, make_file() as tokens:
        for each in features:
            values.write(np.ascontiguousarray(each.values, np.float32))
            shape = each.values.shape[-2:]
            starts.append(starts[-1] + (1 if pooled else len(each.tokens)))
            if not pooled:
                ids.extend(
                    vocabulary.setdefault(t, len(vocabulary)) for t in each.tokens
                )
        values.flush()
        shape = starts[-1], *shape
        arrays = {
            "layers": np.array(layers),
            "values": np.memmap(values, np.float32, "r", shape=shape),
        }
        if not pooled:
            words = np.array(list(vocabulary))
            for first in range(0, len(ids), _WRITTEN_TOKENS):
                tokens.write(words[ids[first : first + _WRITTEN_TOKENS]])
            tokens.flush()
            written = np.memmap(tokens, words.dtype, "r", shape=len(ids))
            arrays |= {"starts": np.array(starts), "tokens": written}
        with open(path, "wb") as stream:
            np.savez(stream, **arrays)


def _write_parquet(
    path: pathlib.Path,
    features: Iterable[Features],
    layers: Sequence[int],
    pooled: bool,
) -> None:
    import pyarrow as pa
    from pyarrow import parquet

    def table_of(features, first):
        """Return a table of texts, whose indices begin with `first`."""
        counts = [1 if pooled else len(each.tokens) for each in features]
        columns = {"line": np.repeat(first + np.arange(len(counts)), counts)}
        if not pooled:
            positions = [np.arange(count, dtype=np.int32) for count in counts]
            columns["position"] = np.concatenate(positions)
            columns["token"] = [token for each in features for token in each.tokens]
        size = features[0].values.shape[-1]
        shape = sum(counts), len(layers), size
        values = np.concatenate([each.values for each in features]).reshape(shape)
        for i, layer in enumerate(layers):
            flat = pa.array(values[:, i].ravel(), pa.float32())
            columns[f"layer_{layer}"] = pa.FixedSizeListArray.from_arrays(flat, size)
        return pa.table(columns)

    features, size = iter(features), _GROUP_TEXTS * (64 if pooled else 1)
    groups = iter(lambda: list(itertools.islice(features, size)), [])
    tables = (table_of(group, i * size) for i, group in enumerate(groups))
    first_table = next(tables)
    with parquet.ParquetWriter(path, first_table.schema) as writer:
        for table in itertools.chain([first_table], tables):
            writer.write_table(table)


_FORMATS = {"jsonl": _write_jsonl, "npz": _write_npz, "parquet": _write_parquet}
