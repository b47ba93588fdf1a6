"""Texts of the rows of a Parquet file, or of some of its row groups."""

import io
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pyarrow

from bert_jax.errors import UserError

if TYPE_CHECKING:
    from pyarrow import parquet

_BATCH_ROWS = 1000


def rows(
    name: str, stream: io.BufferedIOBase, start: int, end: int, text_field: str
) -> Iterator[tuple[int, bytes | None]]:
    """Yield the number of each row, from 1, and its text; None where there is none.

    A row group cannot be divided. It is read if it begins in bytes [start, end).

    Raises:
      UserError: The file has no such column, or it holds no text.
    """
    from pyarrow import parquet  # slow to import

    file = parquet.ParquetFile(stream)
    columns = {field.name for field in file.schema_arrow if _is_text(field.type)}
    if text_field not in columns:
        raise UserError(
            f"{name} has no column {text_field!r} of texts; it has "
            f"{', '.join(sorted(columns)) or 'none'}; choose one with --text_field"
        )
    number = 0
    for i in range(file.num_row_groups):
        group = file.metadata.row_group(i)
        if not start <= _begin(group) < end:
            number += group.num_rows
            continue
        for batch in file.iter_batches(_BATCH_ROWS, [i], [text_field]):
            # Not as strings, which need not be UTF-8.
            texts = batch.column(0).cast(pyarrow.large_binary())
            for text in texts.to_pylist():
                number += 1
                yield number, text


def _begin(group: "parquet.RowGroupMetaData") -> int:
    """Return the first byte of a row group."""
    columns = [group.column(i) for i in range(group.num_columns)]
    return min(
        column.dictionary_page_offset or column.data_page_offset for column in columns
    )


def _is_text(kind: pyarrow.DataType) -> bool:
    if pyarrow.types.is_dictionary(kind):
        kind = kind.value_type
    return kind in (pyarrow.string(), pyarrow.large_string(), pyarrow.string_view())
