"""The tasks of GLUE as TensorFlow Datasets prepares them; nothing is downloaded.

What is prepared is shuffled: the order of the files, which a submission has, is that of
`idx`. Names of splits, of columns and of labels are not always those of the files; the
examples that come from here have the files' labels.

Source: tensorflow_datasets, text/glue.py.
"""

import contextlib
import os
from collections.abc import Iterator
from typing import Any

import numpy as np

from bert_jax import storage
from bert_jax.errors import UserError
from bert_jax.tasks import glue
from bert_jax.tasks.texts import Example, ExampleSets

# What `task.folder` begins with.
PREFIX = "tfds:"
# Columns of the texts where those of the files have other names.
_TEXTS = {"mrpc": ("sentence1", "sentence2"), "mnli": ("premise", "hypothesis")}


def read(name: str, folder: str) -> ExampleSets:
    """The examples of a task.

    Args:
      name: Name of the task, such as "mrpc".
      folder: TFDS' data folder in which `glue/NAME` was prepared; "": its default one.

    Raises:
      UserError: It is not prepared there, or damaged.
      Unavailable: The store does not answer now.
    """
    builder = _builder(name, os.path.expanduser(folder))
    task = glue.TASKS[name]
    return ExampleSets(
        _examples(builder, name, "train"),
        {
            held_out: _examples(builder, name, file.replace("dev", "validation"))
            for held_out, file in task.held_out
        },
        {
            test: _examples(builder, name, split, labelled=False)
            for test, split in task.tests
        },
        {"dataset": builder.info.full_name},
    )


def _builder(name: str, folder: str) -> Any:
    """TFDS' builder of what is prepared; the newest version that is there."""
    import tensorflow_datasets as tfds  # slow to import

    with _reading(f"glue/{name} in {folder or 'the data folder of TFDS'}"):
        builder = tfds.builder(f"glue/{name}", version="*.*.*", data_dir=folder or None)
    if not builder.is_prepared():
        option = f" --data_dir={folder}" if folder else ""
        raise UserError(
            f"glue/{name} is not prepared in {builder.data_dir}; "
            f"`tfds build glue/{name}{option}` downloads and prepares it"
        )
    return builder


def _examples(
    builder: Any, name: str, split: str, *, labelled: bool = True
) -> list[Example]:
    """Examples of a split, in the order of the file."""
    columns = _columns(builder, split)
    where = f"{builder.info.full_name}, {split}"
    numbers = columns["idx"]
    if labelled:
        labels = _labels(columns["label"], name, builder.info.features["label"])
    else:
        labels = [""] * len(numbers)
        missing = np.flatnonzero(numbers != np.arange(len(numbers)))
        if len(missing):
            raise UserError(
                f"{where}: there is no example {missing[0]}, and the leaderboard asks "
                "for each; use the files of GLUE's download"
            )
    task = glue.TASKS[name]
    text_a, text_b = _TEXTS.get(name, (task.text_a, task.text_b))
    firsts = columns[text_a]
    seconds = columns[text_b] if text_b else [b""] * len(firsts)
    return [
        Example(a.decode(), b.decode(), label, f"{where}, example {i}")
        for a, b, label, i in zip(firsts, seconds, labels, numbers, strict=True)
    ]


def _labels(values: np.ndarray, name: str, feature: Any) -> list[str]:
    """Labels as the files have them: numbers, names of classes, or their indices."""
    names = glue.TASKS[name].labels
    if names and set(names) == set(feature.names):
        return [feature.int2str(int(value)) for value in values]
    return [str(value) for value in values]


def _columns(builder: Any, split: str) -> dict[str, np.ndarray]:
    """The columns of a split, in the order of the file."""
    import tensorflow_datasets as tfds

    with _reading(builder.data_dir):
        columns = tfds.as_numpy(builder.as_dataset(split=split, batch_size=-1))
    order = np.argsort(columns["idx"])
    return {name: values[order] for name, values in columns.items()}


@contextlib.contextmanager
def _reading(where: Any) -> Iterator[None]:
    """Turn a failure to read into an error of one line."""
    try:
        yield
    # TFDS and what it stands on have many kinds of errors for files that are damaged.
    except Exception as error:
        reason = " ".join(str(error).split())
        raise storage.failure(error)(
            f"{where} cannot be read ({reason}); remove the folder and prepare it again"
        ) from error
