"""Configs of fine-tuning tasks, one for each module of `tasks/`."""

import dataclasses

from bert_jax.config.fields import field, require
from bert_jax.errors import UserError

# The tasks of GLUE (Wang et al. 2019), with their folders in its download.
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
    """Classification or regression of texts or pairs (`tasks/classification.py`)."""

    kind: str = "classification"
    # A task of GLUE, such as "glue/mrpc", read from `folder`; "": the files below.
    name: str = field("", choices=("", *(f"glue/{name}" for name in GLUE)))
    # Folder of the task in GLUE's download, or its parent folder. "tfds:DIR": data that
    # TensorFlow Datasets prepared in DIR; "tfds:": data in its default folder.
    folder: str = field("", free=True)
    # TSV, CSV or JSON lines with named columns; may be compressed, as all files.
    train: str = field("", free=True)
    eval: str = field("", free=True)
    # Texts to predict for, with or without labels to score; "": none.
    test: str = field("", free=True)
    # Names of the columns; "": text_a or text, text_b if there is one, and label.
    text_a: str = ""
    text_b: str = ""
    label: str = ""
    # Type of the labels: "class", or "number" for regression.
    target: str = field("class", choices=("class", "number"))
    # Weights of classes in the loss: "none", or "balanced" for inverse frequencies.
    class_weights: str = field("none", choices=("none", "balanced"))
    # Share of the target probability that is spread evenly over all classes.
    label_smoothing: float = field(0.0, at_least=0, less_than=1)
    fingerprint: str = ""  # of all labelled examples but `test`; "": unchecked
    # Tokens in a sequence. Longer examples are truncated.
    length: int = field(128, at_least=8)

    @property
    def predicts_numbers(self) -> bool:
        """True for regression, False for classes."""
        return self.target == "number" or self.name == "glue/stsb"

    def check(self, where: str) -> None:
        """Check that examples have one source, and that regression sets no classes."""
        if self.folder and not self.name:
            raise UserError(
                f"{where}folder={self.folder!r} is for a task of GLUE; pass "
                f"--config.{where}name=glue/..., too"
            )
        if self.name:  # GLUE has files and columns of its own
            names = "train", "eval", "test", "text_a", "text_b", "label"
            require(self, where, [(name, "", "name") for name in names])
        if self.predicts_numbers and self.name not in ("", "glue/stsb"):
            raise UserError(f"{self.name} has classes; set {where}target='class'")
        if self.predicts_numbers:
            cause = "name" if self.name else "target"
            for_classes = ("class_weights", "none"), ("label_smoothing", 0.0)
            require(self, where, [(*each, cause) for each in for_classes])


@dataclasses.dataclass(frozen=True, kw_only=True)
class SquadConfig:
    """Extractive question answering with files of SQuAD (`tasks/squad/`).

    Defaults: google-research/bert, run_squad.py.
    """

    kind: str = "squad"
    # Files of version 1.1 or 2.0.
    train: str = field("", free=True)
    eval: str = field("", free=True)
    # Whether questions may have no answer, as in version 2.0.
    no_answers: bool = False
    # Tokens in a window of question and context.
    length: int = field(384, at_least=16)
    # Tokens from the start of a window of the context to the start of the next.
    stride: int = field(128, at_least=1)
    # Tokens of a question. Longer questions are truncated.
    max_question: int = field(64, at_least=1)
    # Maximum number of tokens in an answer.
    max_answer: int = field(30, at_least=1, free=True)
    # Number of answers in nbest_predictions.json; "" comes in addition (2.0).
    nbest: int = field(20, at_least=1, free=True)
    # With no_answers: a question has no answer if its null odds exceed this.
    null_threshold: float = field(0.0, free=True)
    fingerprint: str = ""  # of all examples; "": unchecked

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
    """A tag for each word, with files in CoNLL columns (`tasks/tagging.py`)."""

    kind: str = "tagging"
    # Files with a word and its tag in each line, and blank lines between sentences.
    train: str = field("", free=True)
    eval: str = field("", free=True)
    # Words to tag, with or without tags to score; "": none.
    test: str = field("", free=True)
    # Columns of words and of tags, from 0; -1 is the last.
    word_column: int = field(0, at_least=0)
    tag_column: int = field(-1, at_least=-1)
    # How tags name entities; "none": not at all, as parts of speech; "": inferred.
    scheme: str = field("", choices=("", "none", "IOB1", "IOB2", "BIOES"))
    # Tokens in a window of a sentence.
    length: int = field(128, at_least=8)
    fingerprint: str = ""  # of `train` and `eval`; "": unchecked


@dataclasses.dataclass(frozen=True, kw_only=True)
class ChoiceConfig:
    """Multiple choice (`tasks/choice.py`)."""

    kind: str = "choice"
    # SWAG's CSV, ARC's CSV, or JSON lines.
    train: str = field("", free=True)
    eval: str = field("", free=True)
    # Questions to answer, with or without correct answers to score; "": none.
    test: str = field("", free=True)
    # Tokens in a sequence of question and choice. Longer sequences are truncated.
    length: int = field(128, at_least=8)
    fingerprint: str = ""  # of `train` and `eval`; "": unchecked


@dataclasses.dataclass(frozen=True, kw_only=True)
class EmbeddingConfig:
    """Vectors of texts, from pairs that belong together (`tasks/embedding.py`)."""

    kind: str = "embedding"
    # TSV, CSV or JSON lines with named columns; may be compressed, as all files.
    train: str = field("", free=True)
    eval: str = field("", free=True)
    # Further pairs to score; "": none.
    test: str = field("", free=True)
    # Names of the columns of two texts that belong together, and of a text that does
    # not belong to the first one; "": negative, if there is such a column.
    text_a: str = "text_a"
    text_b: str = "text_b"
    negative: str = ""
    # "mean" averages the vectors of all tokens; "cls" takes the vector of [CLS], or of
    # the last token if the encoder is causal.
    pool: str = field("mean", choices=("mean", "cls"))
    # Divisor of cosine similarities. A lower one gives more weight to the most similar
    # wrong texts.
    temperature: float = field(0.05, more_than=0)
    # Tokens of a text. Longer texts are truncated.
    length: int = field(128, at_least=8)
    fingerprint: str = ""  # of `train` and `eval`; "": unchecked


# Fine-tuning command of each kind of task.
FINETUNE_COMMANDS = {
    "classification": "run.finetune_classifier",
    "squad": "run.finetune_squad",
    "tagging": "run.finetune_tagger",
    "choice": "run.finetune_choice",
    "embedding": "run.finetune_embedder",
}

TaskConfig = (
    ClassificationConfig | SquadConfig | TaggingConfig | ChoiceConfig | EmbeddingConfig
)
