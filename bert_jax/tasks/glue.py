"""The tasks of GLUE, read from the folders of its download (Wang et al. 2019).

The files have peculiarities: CoLA has no header, MRPC has a byte-order mark, quotation
marks are unpaired, and a line break inside a question splits some rows of QQP. Such
incomplete rows are skipped and counted.

Columns and names of files: the GLUE download and its submission format
(gluebenchmark.com/faq).
"""

import dataclasses
from collections.abc import Sequence

from bert_jax import config as config_lib
from bert_jax import storage
from bert_jax.errors import UserError
from bert_jax.tasks import task_files
from bert_jax.tasks.texts import Example, ExampleSets


@dataclasses.dataclass(frozen=True)
class GlueTask:
    """Files, columns and metrics of a task.

    Attributes:
      text_a: Column of the text, or of the first of a pair.
      text_b: Column of the second of a pair; "" for single texts.
      label: Column of the label.
      labels: All labels, sorted; () for numbers from 0 to 5.
      metrics: Metrics that GLUE reports, by the names of `classification_scores`.
      header: Columns of labelled files without a header.
      held_out: Labelled sets and their files.
      tests: Unlabelled sets and their files.
      submissions: Unlabelled sets and the files to submit, where these are not named
        after the task.
    """

    text_a: str
    text_b: str = ""
    label: str = "label"
    labels: tuple[str, ...] = ("0", "1")
    metrics: tuple[str, ...] = ("accuracy",)
    header: tuple[str, ...] = ()
    held_out: tuple[tuple[str, str], ...] = (("eval", "dev"),)
    tests: tuple[tuple[str, str], ...] = (("test", "test"),)
    submissions: tuple[tuple[str, str], ...] = ()


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
        tests=(("test", "test_matched"), ("test_mismatched", "test_mismatched")),
        submissions=(("test", "MNLI-m.tsv"), ("test_mismatched", "MNLI-mm.tsv")),
    ),
    "qnli": GlueTask("question", "sentence", labels=_ENTAILMENT),
    "rte": GlueTask("sentence1", "sentence2", labels=_ENTAILMENT),
    "wnli": GlueTask("sentence1", "sentence2"),
}
# Share of the rows of a file that may be incomplete. In QQP, it is less than 1/10,000.
_MAX_INCOMPLETE = 0.01


def submission(name: str, test: str) -> str:
    """Return the name of the file to submit for a test set of a task."""
    return dict(TASKS[name].submissions).get(test, f"{config_lib.GLUE[name]}.tsv")


def read(name: str, folder: str) -> ExampleSets:
    """Read the examples of a task.

    Args:
      name: Name of the task, such as "mrpc".
      folder: Folder of the task, or its parent folder.

    Raises:
      UserError: A file is missing or does not belong to the task.
      Unavailable: The store does not answer now.
    """
    task, reader = TASKS[name], _Reader(name, folder)
    if name == "mrpc" and not reader.find("train.tsv"):
        train_path = reader.find("msr_paraphrase_train.txt")
        if train_path:
            return _read_msr(reader, train_path)
    return ExampleSets(
        reader.examples(reader.get("train.tsv"), "train"),
        {
            held_out: reader.examples(reader.get(f"{file}.tsv"), held_out)
            for held_out, file in task.held_out
        },
        {
            test: reader.examples(path, test, labelled=False)
            for test, file in task.tests
            if (path := reader.find(f"{file}.tsv"))
        },
        reader.about,
    )


class _Reader:
    """Reader of the files of one task. `about` records what was read."""

    def __init__(self, name: str, folder: str):
        self._name = config_lib.GLUE[name]
        self._task = TASKS[name]
        if not folder:
            raise UserError(
                "task.folder is empty; pass --config.task.folder=DIR, the folder "
                f"{self._name} of GLUE's download or its parent folder"
            )
        above = storage.path(folder)
        storage.check(above)
        self._folders = (above / self._name, above)
        self.about: dict[str, dict] = {"files": {}, "incomplete": {}}

    def find(self, file: str) -> storage.Path | None:
        """Return the path of a file, plain or compressed, or None."""
        for folder in self._folders:
            for compression in ("", *task_files.COMPRESSIONS):
                if (path := folder / f"{file}{compression}").exists():
                    return path
        return None

    def get(self, file: str) -> storage.Path:
        """Return the path of a required file."""
        path = self.find(file)
        if path is None:
            folders = " nor ".join(map(str, self._folders))
            raise UserError(
                f"neither {folders} has {file} or {file}.gz; task.folder must be the "
                f"folder {self._name} of GLUE's download or its parent folder"
            )
        return path

    def examples(
        self, path: storage.Path, name: str, *, labelled: bool = True
    ) -> list[Example]:
        """Return the examples of a set."""
        task = self._task
        columns = [task.text_a, task.text_b, task.label if labelled else ""]
        return [
            Example(*fields, f"{path}, line {line}")
            for line, fields in self.rows(path, name, columns, labelled=labelled)
        ]

    def rows(
        self, path: storage.Path, name: str, columns: Sequence[str], *, labelled: bool
    ) -> list[tuple[int, list[str]]]:
        """Return some columns of the complete rows of a set, with line numbers.

        A column without a name has "" in each row. Sets without labels must be
        complete, because the leaderboard wants a prediction for each of their rows.
        """
        text = task_files.read(path)
        header = self._task.header if labelled else ()
        if header:
            text = "\t".join(header) + "\n" + text
        names, rows = task_files.parse_tsv(text)
        if not rows:
            raise UserError(f"{path} has no examples")
        where = f"{path} is no file of {self._name}"
        indices = [
            task_files.find_column(where, names, column) if column else None
            for column in columns
        ]
        size = len(names)
        broken = [line for line, row in rows if len(row) != size]
        if len(broken) > (_MAX_INCOMPLETE * len(rows) if labelled else 0):
            raise UserError(
                f"{path}: {len(broken)} of {len(rows)} rows do not have {size} "
                f"fields, line {broken[0]} first; is this a file of {self._name}?"
            )
        self.about["files"][name] = path.name
        if labelled:
            self.about["incomplete"][name] = len(broken)
        return [
            (line - bool(header), ["" if i is None else row[i] for i in indices])
            for line, row in rows
            if len(row) == size
        ]


def _read_msr(reader: _Reader, path: storage.Path) -> ExampleSets:
    """Read MRPC from the files of Microsoft.

    dev_ids.tsv lists the pairs of GLUE's evaluation set. Without it, the model trains
    on all training pairs and is evaluated on the test pairs, whose labels are known.
    """
    train = reader.examples(path, "train")
    ids_path = reader.find("dev_ids.tsv")
    test_path = reader.find("msr_paraphrase_test.txt")
    if ids_path is None and test_path is None:
        raise UserError(
            f"{path.parent} has neither dev_ids.tsv nor msr_paraphrase_test.txt, so "
            "there are no pairs to evaluate on"
        )
    if ids_path is None:
        labelled = {"eval": reader.examples(test_path, "eval")}
    else:
        chosen = set(map(str.strip, task_files.read(ids_path).split("\n")))
        ids = reader.rows(path, "train", ("#1 ID", "#2 ID"), labelled=True)
        is_held_out = ["\t".join(pair) in chosen for _, pair in ids]
        both = list(zip(train, is_held_out, strict=True))
        train = [example for example, held_out in both if not held_out]
        labelled = {"eval": [example for example, held_out in both if held_out]}
        reader.about["files"]["eval"] = ids_path.name
        if not train or not labelled["eval"]:
            raise UserError(f"{ids_path} does not divide the pairs of {path}")
    unlabelled = {}
    if test_path:
        unlabelled["test"] = reader.examples(test_path, "test", labelled=False)
    return ExampleSets(train, labelled, unlabelled, reader.about)
