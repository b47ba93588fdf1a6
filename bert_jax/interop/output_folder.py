"""The output folder of a conversion: complete, or absent."""

import contextlib
import os
import pathlib
import shutil
import time
from collections.abc import Iterator

from bert_jax import io_errors, storage
from bert_jax.errors import UserError
from bert_jax.training import restore


def check(output: str, *, local: bool = False) -> storage.Path:
    """Check a folder as `storage.check_new_folder` does, and return its path.

    A native checkpoint needs a `local` folder.

    Raises:
      UserError: It cannot be written, or is remote.
    """
    if local and storage.is_remote(output):
        raise UserError(
            f"--output={output} must be a local folder, because a native checkpoint is "
            "written to it"
        )
    folder = storage.check_new_folder(output)
    if not storage.is_remote(folder):
        folder = pathlib.Path(os.path.abspath(folder))
    restore.check_name(folder)
    return folder


@contextlib.contextmanager
def atomic_folder(folder: storage.Path, last: str) -> Iterator[pathlib.Path]:
    """Write a folder in a temporary place, and publish it when the block succeeds.

    A local folder is renamed. A store cannot rename, so the file that marks a
    checkpoint is uploaded last. After an error nothing is left; a process that is
    killed may leave files in the store.

    Args:
      folder: Result of `check`.
      last: Name of the file that is uploaded last.

    Yields:
      The temporary folder.

    Raises:
      UserError: The folder cannot be written.
    """
    is_remote, temporary = storage.is_remote(folder), storage.temporary_file(folder)
    try:
        with storage.writing(temporary if is_remote else folder, "give another folder"):
            temporary.mkdir(parents=True)
            try:
                yield temporary
            except Exception as error:
                # TensorFlow and Orbax report a full disk with their own exceptions.
                if reason := io_errors.disk_message(error):
                    time.sleep(1)  # until Orbax's other threads have failed, too
                    raise OSError(reason) from error
                raise
            if not is_remote:
                os.replace(temporary, folder)
        if is_remote:
            with storage.writing(folder):
                _upload(temporary, folder, last)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _upload(temporary: pathlib.Path, folder: storage.Path, last: str) -> None:
    files = [path for path in temporary.rglob("*") if path.is_file()]
    try:
        for path in sorted(files, key=lambda path: path == temporary / last):
            name = path.relative_to(temporary).as_posix()
            storage.move_into_place(path, folder / name)
    except BaseException:
        storage.remove_folder(folder)
        raise
