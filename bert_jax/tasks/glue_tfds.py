"""The tasks of GLUE as prepared by TensorFlow Datasets. Nothing is downloaded.

TFDS shuffles; this module restores the order of the files, which a submission needs, by
the column `idx`. It also restores the labels of the files.

Source: tensorflow_datasets, text/glue.py.
"""

import contextlib
import os
from collections.abc import Iterator
from typing import Any

import numpy as np

from bert_jax import io_errors
from bert_jax.errors import UserError
from bert_jax.tasks import glue
from bert_jax.tasks.labelled_texts import Example, ExampleSets

# Prefix of `task.folder`.
PREFIX = "tfds:"
# Columns of the texts, where their names differ from the files.
_TEXTS = {"mrpc": ("sentence1", "sentence2"), "mnli": ("premise", "hypothesis")}


def read(name: str, folder: str) -> tuple[ExampleSets, dict[str, Any]]:
    """Read the examples of a task, from the newest prepared version.

    `folder` is TFDS' data folder, which has `glue/NAME`; "" is its default. See
    `glue.read` for the result.

    Raises:
      UserError: The task is not prepared in this folder, or is damaged.
    """
    folder = os.path.expanduser(folder)
    builder = _builder(name, folder)
    if not builder.is_prepared():
        option = f" --data_dir={folder}" if folder else ""
        raise UserError(
            f"glue/{name} is not prepared in {builder.data_dir}; "
            f"`tfds build glue/{name}{option}` downloads and prepares it"
        )
    task = glue.TASKS[name]
    sets = {"train": _examples(builder, name, "train")}
    for held_out, file in task.held_out:
        sets[held_out] = _examples(builder, name, file.replace("dev", "validation"))
    for test, split in task.tests:
        if test != "ax":
            sets[test] = _examples(builder, name, split, labelled=False)
    if name == "mnli" and (diagnostic := _builder("ax", folder)).is_prepared():
        sets["ax"] = _examples(diagnostic, name, "test", labelled=False)
    return sets, {"dataset": builder.info.full_name}


def _builder(name: str, folder: str) -> Any:
    """Return TFDS' builder of a task, for the newest prepared version."""
    import tensorflow_datasets as tfds  # slow to import

    with _reading(f"glue/{name} in {folder or 'the data folder of TFDS'}"):
        return tfds.builder(f"glue/{name}", version="*.*.*", data_dir=folder or None)


def _examples(
    builder: Any, name: str, split: str, *, labelled: bool = True
) -> list[Example]:
    """Return the examples of a split, in the order of the file."""
    import tensorflow_datasets as tfds

    with _reading(builder.data_dir):
        columns = tfds.as_numpy(builder.as_dataset(split=split, batch_size=-1))
    order = np.argsort(columns["idx"])
    columns = {column: values[order] for column, values in columns.items()}
    task, where = glue.TASKS[name], f"{builder.info.full_name}, {split}"
    numbers = columns["idx"]
    missing = np.flatnonzero(numbers != np.arange(len(numbers)))
    if not labelled and len(missing):
        raise UserError(
            f"{where}: there is no example {missing[0]}, and the leaderboard asks "
            "for each; use the files of GLUE's download"
        )
    labels = map(str, columns["label"]) if labelled else [""] * len(numbers)
    feature = builder.info.features["label"]
    # Where files have the names of classes, TFDS has their indices.
    if labelled and task.labels and set(task.labels) == set(feature.names):
        labels = [feature.int2str(int(value)) for value in columns["label"]]
    text_a, text_b = _TEXTS.get(name, (task.text_a, task.text_b))
    seconds = columns[text_b] if text_b else [b""] * len(numbers)
    return [
        Example(a.decode(), b.decode(), label, f"{where}, example {i}")
        for a, b, label, i in zip(
            columns[text_a], seconds, labels, numbers, strict=True
        )
    ]


@contextlib.contextmanager
def _reading(where: Any) -> Iterator[None]:
    """Turn a failure to read into an error of one line."""
    try:
        yield
    # TFDS and its dependencies raise many kinds of errors for damaged files.
    except Exception as error:
        reason = " ".join(str(error).split())
        text = (
            f"{where} cannot be read ({reason}); remove it and prepare it again, with "
            "`tfds build --file_format=tfrecord`"
        )
        raise io_errors.wrap_error(error, text) from error
