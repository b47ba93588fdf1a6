"""Files of tasks: which must be given, how they are read, and what they hold."""

import gzip
import hashlib
import os
import zlib
from collections.abc import Iterable
from typing import Any

from bert_jax import storage
from bert_jax.errors import UserError


def check_given(config: Any, advice: str) -> None:
    """Refuse a task without files to train and to evaluate on.

    Args:
      config: Config of a task, with fields `train` and `eval`.
      advice: What to write behind "--config.task.train=", such as "FILE.tsv".

    Raises:
      UserError: One of them is empty.
    """
    for name in ("train", "eval"):
        if not getattr(config, name):
            raise UserError(f"task.{name} is empty; pass --config.task.{name}={advice}")


def fingerprint(*sets: Iterable[Any]) -> str:
    """A hash of examples, by which a continuation knows them again.

    Args:
      sets: Sets of examples, of types whose `repr` tells all there is to them.
    """
    digest = hashlib.sha256()
    for examples in sets:
        digest.update(b"a set\n")
        for example in examples:
            digest.update(repr(example).encode("utf-8", "surrogatepass") + b"\n")
    return digest.hexdigest()[:16]


def read(path: str | os.PathLike) -> str:
    """The text of a file, without a byte-order mark. Ends of lines stay as they are.

    Args:
      path: Path or URL of a file in UTF-8, plain or ending in .gz.

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
