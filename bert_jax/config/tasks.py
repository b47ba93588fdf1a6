"""Configs of fine-tuning tasks: a dataclass for each module of `tasks/`."""

import dataclasses

from bert_jax.errors import UserError
from bert_jax.knobs import knob

# The tasks of GLUE (Wang et al. 2019), with the folders that its download creates.
GLUE = {
    "cola": "CoLA",
    "sst2": "SST-2",
    "mrpc": "MRPC",
    "stsb": "STS-B",
    "qqp": "QQP",
    "mnli": "MNLI",
    "qnli": "QNLI",
    "rte": "RTE",
    "wnli": "WNLI",
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class ClassificationConfig:
    """Classification or regression of texts or text pairs (tasks/classification.py)."""

    kind: str = "classification"
    # A task of GLUE, such as "glue/mrpc", read from `folder`; "": the files below.
    name: str = knob("", choices=("", *(f"glue/{name}" for name in GLUE)))
    # Folder of the task from GLUE's download, or its parent. "tfds:DIR": data that
    # TensorFlow Datasets prepared in DIR; "tfds:": in its default folder.
    folder: str = knob("", free=True)
    # Files with named columns: TSV, CSV or JSON lines, plain or ending in .gz.
    train: str = knob("", free=True)
    eval: str = knob("", free=True)
    # Texts to predict for, without labels; "": none.
    test: str = knob("", free=True)
    # Names of columns; "": text_a or text, text_b if it exists, and label.
    text_a: str = ""
    text_b: str = ""
    label: str = ""
    # Type of the labels: "class", or "number" for regression.
    target: str = knob("class", choices=("class", "number"))
    # Weights of classes in the loss: "none", or "balanced", inversely to frequency.
    class_weights: str = knob("none", choices=("none", "balanced"))
    # Share of the probability that is spread over all classes.
    label_smoothing: float = knob(0.0, at_least=0, less_than=1)
    fingerprint: str = ""  # of all examples with labels; "": not checked
    # Tokens in a sequence; longer examples are truncated.
    length: int = knob(128, at_least=8)

    @property
    def predicts_numbers(self) -> bool:
        """Whether this is regression."""
        return self.target == "number" or self.name == "glue/stsb"

    def check(self, where: str) -> None:
        """Check that examples have one source, and that numbers have no classes."""
        if self.folder and not self.name:
            raise UserError(
                f"{where}folder={self.folder!r} is for a task of GLUE; pass "
                f"--config.{where}name=glue/... too"
            )
        for field in ("train", "eval", "test", "text_a", "text_b", "label"):
            if self.name and getattr(self, field):
                raise UserError(
                    f"{where}{field}={getattr(self, field)!r}, but {where}name="
                    f"{self.name!r} has files and columns of its own; leave one empty"
                )
        if self.predicts_numbers and self.name not in ("", "glue/stsb"):
            raise UserError(f"{where}target='number', but {self.name} has classes")
        for field, off in (("class_weights", "none"), ("label_smoothing", 0.0)):
            if self.predicts_numbers and getattr(self, field) != off:
                raise UserError(
                    f"{where}{field}={getattr(self, field)!r} is for classes, but "
                    "this task predicts numbers"
                )


@dataclasses.dataclass(frozen=True, kw_only=True)
class SquadConfig:
    """Question answering with SQuAD's files (`tasks/squad/`).

    Defaults: google-research/bert, run_squad.py.
    """

    kind: str = "squad"
    # Files of version 1.1 or 2.0, plain or ending in .gz.
    train: str = knob("", free=True)
    eval: str = knob("", free=True)
    # Whether a question may have no answer: version 2.0.
    no_answers: bool = False
    # Tokens in a window of question and context.
    length: int = knob(384, at_least=16)
    # Tokens between the beginnings of two windows of the context.
    stride: int = knob(128, at_least=1)
    # Tokens of a question; longer ones are truncated.
    max_question: int = knob(64, at_least=1)
    # Tokens of an answer.
    max_answer: int = knob(30, at_least=1, free=True)
    # Answers in nbest_predictions.json.
    nbest: int = knob(20, at_least=1, free=True)
    # With no_answers: a question has no answer if its null odds exceed this.
    null_threshold: float = knob(0.0, free=True)
    fingerprint: str = ""  # of all examples; "": not checked

    def check(self, where: str) -> None:
        """Check that a window has room for a part of the context."""
        longest = self.length - 5  # [CLS], up to three [SEP], one token of the context
        if self.max_question > longest:
            raise UserError(
                f"{where}max_question={self.max_question} must be at most {longest}, "
                f"as a window has {where}length={self.length} tokens"
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class TaggingConfig:
    """Tagging of words, with files in CoNLL columns (`tasks/tagging.py`)."""

    kind: str = "tagging"
    # Files with a word and its tag in each line, and blank lines between sentences;
    # plain or ending in .gz.
    train: str = knob("", free=True)
    eval: str = knob("", free=True)
    # Words to tag, scored if they have tags; "": none.
    test: str = knob("", free=True)
    # Columns of words and of tags, from 0; -1 is the last.
    word_column: int = knob(0, at_least=0)
    tag_column: int = knob(-1, at_least=-1)
    # Scheme of entity tags; "none": tags are not entities; "": detect it.
    scheme: str = knob("", choices=("", "none", "IOB1", "IOB2", "BIOES"))
    # Tokens in a window of a sentence.
    length: int = knob(128, at_least=8)
    fingerprint: str = ""  # of `train` and `eval`; "": not checked


@dataclasses.dataclass(frozen=True, kw_only=True)
class ChoiceConfig:
    """Choice among several answers to a question (`tasks/choice.py`)."""

    kind: str = "choice"
    # SWAG's CSV, ARC's CSV, or JSON lines, plain or ending in .gz.
    train: str = knob("", free=True)
    eval: str = knob("", free=True)
    # Questions to answer, scored if they have answers; "": none.
    test: str = knob("", free=True)
    # Tokens in a sequence of question and choice; longer ones are truncated.
    length: int = knob(128, at_least=8)
    fingerprint: str = ""  # of `train` and `eval`; "": not checked


TaskConfig = ClassificationConfig | SquadConfig | TaggingConfig | ChoiceConfig
