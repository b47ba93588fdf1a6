"""Texts of Parquet files: one document per row, in one of the columns.

A row group belongs to the range of the file's bytes in which it begins.
"""

import io
from collections.abc import Iterator

import pyarrow

from bert_jax import terminal
from bert_jax.corpus import file_kinds
from bert_jax.errors import UserError

_BATCH_ROWS = 1000


def texts(
    stream: io.BufferedIOBase, name: str, start: int, end: float, column: str
) -> Iterator[tuple[int, str | None]]:
    """Yield number, from 1, and text of each row of a range of bytes.

    The text is None where the row has none, or where it is not UTF-8.

    Raises:
      UserError: The file `name` has no such column.
    """
    from pyarrow import parquet  # slow to import

    file = parquet.ParquetFile(stream)
    columns = {field.name for field in file.schema_arrow if _is_text(field.type)}
    if column not in columns:
        raise UserError(
            f"{terminal.printable(name)} has no column {column!r} of texts; it has "
            f"{', '.join(sorted(columns)) or 'none'}; choose one with --text_field"
        )
    row = 0
    for i in range(file.num_row_groups):
        group = file.metadata.row_group(i)
        if not start <= _first_byte(group) < end:
            row += group.num_rows
            continue
        for batch in file.iter_batches(_BATCH_ROWS, [i], [column]):
            # Not as strings, which need not be UTF-8.
            for text in batch.column(0).cast(pyarrow.large_binary()).to_pylist():
                row += 1
                try:
                    yield row, None if text is None else text.decode("utf-8")
                except UnicodeDecodeError:
                    yield row, None


def row_group_sizes(name: str, column: str) -> dict[int, int]:
    """Return the unpacked bytes of text in each row group of a file.

    Keys are the first bytes of the groups. A damaged file has none; it is reported when
    its rows are read.

    Raises:
      Unavailable: The file cannot be read now.
    """
    from pyarrow import parquet  # slow to import

    try:
        with file_kinds.open_decompressed(name) as stream:
            metadata = parquet.ParquetFile(stream).metadata
            groups = list(map(metadata.row_group, range(metadata.num_row_groups)))
    except file_kinds.READ_ERRORS as error:
        file_kinds.raise_if_transient(name, error)
        return {}
    return {
        _first_byte(group): sum(
            chunk.total_uncompressed_size
            for chunk in map(group.column, range(group.num_columns))
            if chunk.path_in_schema == column
        )
        for group in groups
    }


def _first_byte(group: "pyarrow.parquet.RowGroupMetaData") -> int:
    """Return the byte of a file at which a row group begins."""
    pages = (group.column(i) for i in range(group.num_columns))
    return min(
        (p.dictionary_page_offset or p.data_page_offset for p in pages), default=0
    )


def _is_text(kind: pyarrow.DataType) -> bool:
    if pyarrow.types.is_dictionary(kind):
        kind = kind.value_type
    strings = pyarrow.string(), pyarrow.large_string(), pyarrow.string_view()
    # Some writers do not mark strings as such. A column of nulls has a type of its own.
    bare = pyarrow.binary(), pyarrow.large_binary(), pyarrow.binary_view()
    return kind in (*strings, *bare, pyarrow.null())
