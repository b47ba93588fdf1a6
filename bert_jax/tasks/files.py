"""Reading the files of tasks: UTF-8, here or in an object store, plain or .gz."""

import gzip
import os
import zlib

from bert_jax import storage


def read(path: str | os.PathLike) -> str:
    """The text of a file, without a byte-order mark. Ends of lines stay as they are.

    Raises:
      UserError: The file is not there, is damaged, or is not UTF-8.
      Unavailable: The store does not answer now.
    """
    path = storage.path(path)
    storage.check(path)
    try:
        data = path.read_bytes()
        if path.name.endswith(".gz"):
            data = gzip.decompress(data)
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise storage.failure(error)(
            f"{path}, line {line}: not UTF-8 ({error.reason} at byte {error.start} of "
            f"the file); iconv -f LATIN1 -t UTF-8 converts a file"
        ) from error
    except (OSError, EOFError, zlib.error) as error:
        raise storage.failure(error)(f"cannot read {path}: {error}") from error
