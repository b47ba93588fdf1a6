"""The tasks of GLUE, from the folders that its download makes (Wang et al. 2019).

The files are read as they are: CoLA's without a header, MRPC's with a byte-order mark,
quotation marks that stand alone, and in QQP rows that a line break inside a question
has cut in two. Such incomplete rows are left out, as elsewhere, and counted.

Columns and names of files: the GLUE download and its submission format
(gluebenchmark.com/faq).
"""

import dataclasses
from collections.abc import Iterator, Sequence

from bert_jax import config as config_lib
from bert_jax import storage
from bert_jax.errors import UserError
from bert_jax.tasks import tables, task_files
from bert_jax.tasks.texts import Example, ExampleSets


@dataclasses.dataclass(frozen=True)
class GlueTask:
    """What is particular to a task.

    Attributes:
      text_a: Column of the text, or of the first of a pair.
      text_b: Column of the second; "": there is one text.
      label: Column of the label.
      labels: All labels, sorted; (): they are numbers from 0 to 5.
      metrics: What GLUE reports of it, by the names of `classification_scores`.
      header: Columns of the labelled files where these do not name them.
      held_out: Names of sets with labels, and of their files.
      tests: Names of sets without labels, and of their files.
      submissions: Names of sets without labels, and of the files to submit.
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
# Share of the rows of a file that may be incomplete; in QQP it is below 1 in 10,000.
_MAX_INCOMPLETE = 0.01
# MRPC as Microsoft gives it, and which of its pairs are GLUE's evaluation set.
_MSR_TRAIN, _MSR_TEST = "msr_paraphrase_train.txt", "msr_paraphrase_test.txt"
_MSR_DEV_IDS = "dev_ids.tsv"


def submission(name: str, test: str) -> str:
    """The name of the file to submit for a set without labels.

    Args:
      name: Name of the task, such as "mrpc".
      test: Name of the set.
    """
    return dict(TASKS[name].submissions).get(test, f"{config_lib.GLUE[name]}.tsv")


def read(name: str, folder: str) -> ExampleSets:
    """The examples of a task.

    Args:
      name: Name of the task, such as "mrpc".
      folder: Folder of the task, or the one above it.

    Raises:
      UserError: A file is missing or is no file of the task.
      Unavailable: The store does not answer now.
    """
    folders = _Folders(name, folder)
    task = TASKS[name]
    is_msr = name == "mrpc" and not folders.find("train")
    if is_msr and folders.find_exactly(_MSR_TRAIN):
        return _read_msr(folders)
    train = folders.labelled(folders.get("train"), "train")
    labelled = {
        held_out: folders.labelled(folders.get(file), held_out)
        for held_out, file in task.held_out
    }
    unlabelled = {
        test: folders.unlabelled(path, test)
        for test, file in task.tests
        if (path := folders.find(file))
    }
    return ExampleSets(train, labelled, unlabelled, folders.about)


def recognise(header: Sequence[str]) -> list[str]:
    """Names of the tasks that a labelled file with such a first line may be of."""
    if len(header) == 4 and header[1] in TASKS["cola"].labels:
        return ["cola"]
    pairs, single = [], []
    for name, task in TASKS.items():
        columns = {task.text_a, task.text_b or task.text_a, task.label}
        if not task.header and columns <= set(header):
            (pairs if task.text_b else single).append(name)
    return pairs or single


class _Folders:
    """The files of one task, with an account of what was read."""

    def __init__(self, name: str, folder: str):
        if not folder:
            raise UserError(
                f"task.folder is empty; pass --config.task.folder=DIR, the folder "
                f"{config_lib.GLUE[name]} of GLUE's download or the one above it"
            )
        above = storage.path(folder)
        storage.check(above)
        self._name = name
        self._task = TASKS[name]
        self._folders = (above / config_lib.GLUE[name], above)
        self.about: dict[str, dict] = {"files": {}, "incomplete": {}}

    def find_exactly(self, file: str) -> storage.Path | None:
        """A file, if it is there, plain or compressed."""
        for folder in self._folders:
            for path in (folder / file, folder / f"{file}.gz"):
                if path.exists():
                    return path
        return None

    def find(self, stem: str) -> storage.Path | None:
        """A TSV file, if it is there."""
        return self.find_exactly(f"{stem}.tsv")

    def get(self, stem: str) -> storage.Path:
        """A TSV file that has to be there."""
        path = self.find(stem)
        if path is None:
            task, above = self._folders
            raise UserError(
                f"neither {task} nor {above} has {stem}.tsv or {stem}.tsv.gz; "
                f"task.folder must be the folder {config_lib.GLUE[self._name]} of "
                "GLUE's download or the one above it"
            )
        return path

    def labelled(self, path: storage.Path, name: str) -> list[Example]:
        """Examples with labels; incomplete rows are counted under the set's name."""
        table = self._table(path, name, self._task.header)
        needed = (self._task.text_a, self._task.text_b, self._task.label)
        examples = [
            Example(a, b, label, f"{path}, line {line}")
            for line, (a, b, label) in _columns(self._name, table, needed)
        ]
        broken = [line for line, row in table.rows if len(row) != len(table.header)]
        self.about["incomplete"][name] = len(broken)
        if len(broken) > _MAX_INCOMPLETE * len(table.rows):
            raise UserError(
                f"{path}: {len(broken)} of {len(table.rows)} rows do not have "
                f"{len(table.header)} fields, line {broken[0]} first; is this a file "
                f"of {config_lib.GLUE[self._name]}?"
            )
        return examples

    def unlabelled(self, path: storage.Path, name: str) -> list[Example]:
        """Examples to predict for, each of which the leaderboard asks for."""
        table = self._table(path, name, ())
        needed = (self._task.text_a, self._task.text_b)
        for line, row in table.rows:
            if len(row) != len(table.header):
                raise UserError(
                    f"{path}, line {line}: {len(row)} fields, not {len(table.header)} "
                    "as in the header"
                )
        return [
            Example(a, b, "", f"{path}, line {line}")
            for line, (a, b) in _columns(self._name, table, needed)
        ]

    def _table(
        self, path: storage.Path, name: str, header: tuple[str, ...]
    ) -> tables.Table:
        self.about["files"][name] = path.name
        text = task_files.read(path)
        if header:
            table = tables.parse_tsv(path, "\t".join(header) + "\n" + text)
            rows = [(line - 1, row) for line, row in table.rows]
            table = dataclasses.replace(table, rows=rows)
        else:
            table = tables.parse_tsv(path, text)
        if not table.rows:
            raise UserError(f"{path} has no examples")
        return table


def _columns(
    task: str, table: tables.Table, needed: Sequence[str]
) -> Iterator[tuple[int, list[str]]]:
    """Some columns of the complete rows of a table; "" for a column without name."""
    missing = [name for name in needed if name and name not in table.header]
    if missing:
        raise UserError(
            f"{table.path} has no column {' or '.join(map(repr, missing))} as "
            f"{config_lib.GLUE[task]} has; it has {named(table.header)}"
        )
    indices = [table.header.index(name) if name else None for name in needed]
    for line, row in table.rows:
        if len(row) == len(table.header):
            yield line, ["" if i is None else row[i] for i in indices]


def named(header: Sequence[str]) -> str:
    """The names of columns, which may be sentences if there is no header."""
    return ", ".join(
        repr(name if len(name) <= 24 else f"{name[:20]} ...") for name in header
    )


def _read_msr(folders: _Folders) -> ExampleSets:
    """MRPC from Microsoft's folders.

    Without the list of GLUE's evaluation pairs, all that is not for testing is for
    training, and the pairs for testing, whose labels are known, are for evaluation.
    """
    path = folders.find_exactly(_MSR_TRAIN)
    train = folders.labelled(path, "train")
    ids_path, test_path = map(folders.find_exactly, (_MSR_DEV_IDS, _MSR_TEST))
    if ids_path is None and test_path is None:
        raise UserError(
            f"beside {path} there is neither {_MSR_DEV_IDS} nor {_MSR_TEST}: no pairs "
            "to evaluate on"
        )
    if ids_path is None:
        labelled = {"eval": folders.labelled(test_path, "eval")}
    else:
        folders.about["files"]["eval"] = ids_path.name
        chosen = set(task_files.read(ids_path).split("\n"))
        chosen = {line.strip() for line in chosen}
        table = tables.parse_tsv(path, task_files.read(path))
        ids = [
            "\t".join(pair) for _, pair in _columns("mrpc", table, ("#1 ID", "#2 ID"))
        ]
        is_held_out = [pair in chosen for pair in ids]
        both = list(zip(train, is_held_out, strict=True))
        train = [example for example, held_out in both if not held_out]
        labelled = {"eval": [example for example, held_out in both if held_out]}
        if not train or not labelled["eval"]:
            raise UserError(f"{ids_path} does not divide the pairs of {path}")
    unlabelled = {"test": folders.unlabelled(test_path, "test")} if test_path else {}
    return ExampleSets(train, labelled, unlabelled, folders.about)
