"""The tasks of GLUE, read from the folders of its download (Wang et al. 2019).

CoLA has no header, MRPC has a byte-order mark, quotation marks are unpaired, and a line
break inside a question splits some rows of QQP. Such incomplete rows are skipped and
counted.

Columns and names of files: the GLUE download and its submission format
(gluebenchmark.com/faq).
"""

import dataclasses
from typing import Any

from bert_jax import config as config_lib
from bert_jax import storage
from bert_jax.corpus import file_kinds
from bert_jax.errors import UserError
from bert_jax.tasks import task_files
from bert_jax.tasks.labelled_texts import Example, ExampleSets


@dataclasses.dataclass(frozen=True)
class GlueTask:
    """Columns, metrics and files of a task."""

    text_a: str  # column of the text, or of the first of a pair
    text_b: str = ""  # column of the second of a pair; "" for single texts
    label: str = "label"  # column of the label
    labels: tuple[str, ...] = ("0", "1")  # sorted; () for numbers from 0 to 5
    # Metrics that GLUE reports, by the names of `classification_scores`.
    metrics: tuple[str, ...] = ("accuracy",)
    header: tuple[str, ...] = ()  # columns of labelled files without a header
    # Labelled held-out sets and their files.
    held_out: tuple[tuple[str, str], ...] = (("eval", "dev"),)
    # Unlabelled sets and their files.
    tests: tuple[tuple[str, str], ...] = (("test", "test"),)


_ENTAILMENT = ("entailment", "not_entailment")
# By the names of `config.GLUE`.
TASKS = {
    "cola": GlueTask(
        "sentence",
        metrics=("matthews",),
        header=("source", "label", "mark", "sentence"),
    ),
    "sst2": GlueTask("sentence"),
    "mrpc": GlueTask(
        "#1 String", "#2 String", label="Quality", metrics=("f1", "accuracy")
    ),
    "stsb": GlueTask(
        "sentence1",
        "sentence2",
        label="score",
        labels=(),
        metrics=("pearson", "spearman"),
    ),
    "qqp": GlueTask(
        "question1", "question2", label="is_duplicate", metrics=("f1", "accuracy")
    ),
    "mnli": GlueTask(
        "sentence1",
        "sentence2",
        label="gold_label",
        labels=("contradiction", "entailment", "neutral"),
        held_out=(("eval", "dev_matched"), ("mismatched", "dev_mismatched")),
        tests=(
            ("test", "test_matched"),
            ("test_mismatched", "test_mismatched"),
            ("ax", "diagnostic"),
        ),
    ),
    "qnli": GlueTask("question", "sentence", labels=_ENTAILMENT),
    "rte": GlueTask("sentence1", "sentence2", labels=_ENTAILMENT),
    "wnli": GlueTask("sentence1", "sentence2"),
}
# Share of the rows of a file that may be incomplete. In QQP, it is less than 1/10,000.
_MAX_INCOMPLETE = 0.01


def submission(name: str, test: str) -> str:
    """Return the name of the file to submit for a test set of a task."""
    mnli = {"test": "MNLI-m", "test_mismatched": "MNLI-mm", "ax": "AX"}
    return f"{mnli[test] if name == 'mnli' else config_lib.GLUE[name]}.tsv"


def read(name: str, folder: str) -> tuple[ExampleSets, dict[str, Any]]:
    """Read the examples of a task, such as "mrpc".

    Returns:
      The examples, and facts about the files, for results.json.

    Raises:
      UserError: A file is missing or does not belong to the task.
    """
    task, title = TASKS[name], config_lib.GLUE[name]
    advice = f"the folder {title} of GLUE's download or its parent folder"
    if not folder:
        raise UserError(
            f"task.folder is empty; pass --config.task.folder=DIR, {advice}"
        )
    above = storage.path(folder)
    folders = above / title, above
    # The diagnostic set, which models for MNLI predict, lies beside the tasks.
    beside = above / "diagnostic", above.parent / "diagnostic"
    sets: ExampleSets = {}
    about: dict[str, dict] = {"files": {}, "incomplete": {}}
    for set_name, file in (("train", "train"), *task.held_out, *task.tests):
        labelled = (set_name, file) not in task.tests
        paths = (
            folder / f"{file}.tsv{compression}"
            for folder in (*folders, *beside)
            for compression in ("", *file_kinds.COMPRESSIONS)
        )
        if path := next((path for path in paths if path.exists()), None):
            sets[set_name], incomplete = _examples(task, title, path, labelled=labelled)
            about["files"][set_name] = path.name
            if labelled:
                about["incomplete"][set_name] = incomplete
        elif labelled:
            raise UserError(
                f"neither {folders[0]} nor {above} has {file}.tsv, plain or "
                f"compressed; task.folder must be {advice}"
            )
    return sets, about


def _examples(
    task: GlueTask, title: str, path: storage.Path, *, labelled: bool
) -> tuple[list[Example], int]:
    """Return the examples of a file, and the number of incomplete rows.

    Files without labels must be complete, because the leaderboard wants a prediction
    for each of their rows.
    """
    text = task_files.read(path)
    header = task.header if labelled else ()
    if header:
        text = "\t".join(header) + "\n" + text
    names, rows = task_files.parse_tsv(text)
    if not rows:
        raise UserError(f"{path} has no examples")
    rows = [(line - bool(header), row) for line, row in rows]  # lines of the file
    where = f"{path} is not a file of {title}"
    columns = [
        task_files.find_column(where, names, name) if name else None
        for name in (task.text_a, task.text_b, task.label if labelled else "")
    ]
    size = len(names)
    broken = [line for line, row in rows if len(row) != size]
    if len(broken) > (_MAX_INCOMPLETE * len(rows) if labelled else 0):
        raise UserError(
            f"{path}: {len(broken)} of {len(rows)} rows do not have {size} "
            f"fields, line {broken[0]} first; is this a file of {title}?"
        )
    examples = []
    for line, row in rows:
        if len(row) == size:
            fields = ["" if column is None else row[column] for column in columns]
            examples.append(Example(*fields, f"{path}, line {line}"))
    return examples, len(broken)
