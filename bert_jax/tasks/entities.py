"""Named entities in tags: tagging schemes, their rules, and scores of entities.

A tag is O, outside of all entities, or a letter, a hyphen and the type of the entity:

- IOB2: B for the first word of each entity, I for the other words.
- IOB1: I for all words; B only for the first word of an entity that directly follows
  another one of its type.
- BIOES: B, I and E for the first, the inner and the last words of an entity, S for an
  entity of one word.

Entities are decoded as in the strict mode of seqeval: invalid sequences of tags, such
as an I after O in IOB2, form no entity. The lenient mode, seqeval's default, follows
conlleval: every I that continues no entity begins one.
"""

import dataclasses
import itertools
import re
from collections.abc import Iterable, Sequence

from bert_jax.errors import UserError
from bert_jax.tasks import conll

_LETTERS = {"IOB1": "BI", "IOB2": "BI", "BIOES": "BIES"}
METRICS = (
    *("f1", "precision", "recall"),
    *("lenient_f1", "lenient_precision", "lenient_recall"),
)
# BILOU has L and U instead of E and S; BMES has M instead of I.
_ENTITY_TAG = re.compile("[BIESLUM]-.+")


def infer_scheme(file: conll.TaggedFile) -> str:
    """Infer the scheme of a file from its tags; "none" if they name no entities.

    IOB1 and IOB2 have the same tags. The scheme that forbids fewer of them wins.
    """
    if not (named := {tag for tag in file.tags if _ENTITY_TAG.fullmatch(tag)}):
        return "none"
    if unnamed := sorted(file.tags - named - {"O"}):
        raise UserError(
            f"{file.where(unnamed[0])}: the tag {unnamed[0]!r} names no entity, but "
            f"other tags do, such as {min(named)!r}; pass --config.task.scheme=none to "
            "predict tags that are not entities"
        )
    letters = {tag[0] for tag in named}
    if letters & {"L", "U", "M"}:
        raise UserError(
            f"{file.path}: the tags are BILOU or BMES, which are BIOES with other "
            "letters; replace L- by E-, U- by S-, and M- by I-"
        )
    if "E" in letters and "B" not in letters:
        raise UserError(
            f"{file.path}: the tags are IOE, which mark the last word of an entity; "
            "convert them to BIOES or IOB2, which mark the first, or pass "
            "--config.task.scheme=none if they name no entities"
        )
    if letters & {"E", "S"}:
        return "BIOES"
    # IOB2 forbids I, and IOB1 forbids B, unless the tag before has the same type.
    starts = [
        tag[0]
        for sentence in file.sentences
        for before, tag in itertools.pairwise(("O", *sentence.tags))
        if tag != "O" and before[2:] != tag[2:]
    ]
    return "IOB1" if starts.count("I") > starts.count("B") else "IOB2"


def check(file: conll.TaggedFile, scheme: str) -> None:
    """Check that a file has tags of a scheme only."""
    if scheme == "none":
        return
    allowed = re.compile(f"O|[{_LETTERS[scheme]}]-.+")
    for tag in sorted(file.tags):
        if not allowed.fullmatch(tag):
            raise UserError(
                f"{file.where(tag)}: {tag!r} is not a tag of {scheme}; its tags are O "
                f"and {' or '.join(f'{x}-TYPE' for x in _LETTERS[scheme])}; "
                "--config.task.scheme=none is for tags that name no entities"
            )


@dataclasses.dataclass(frozen=True)
class Entity:
    """An entity in a sentence: the words from `begin` to `end`, exclusive."""

    kind: str  # its type
    begin: int
    end: int
    text: str  # its words, separated by spaces


def entities(words: Sequence[str], tags: Sequence[str], scheme: str) -> list[Entity]:
    """Decode the entities of a sentence, leniently in the scheme "lenient"."""
    from seqeval import scheme as seqeval_scheme  # imports scikit-learn
    from seqeval.metrics import sequence_labeling

    if scheme == "lenient":
        # seqeval takes any other tag for an entity, such as X of later pieces.
        named = [tag if re.fullmatch("[BIES]-.+", tag) else "O" for tag in tags]
        found = sequence_labeling.get_entities(named)
        spans = [(kind, begin, last + 1) for kind, begin, last in found]
    else:
        tokens = seqeval_scheme.Tokens(list(tags), _seqeval(scheme))
        spans = [(span.tag, span.start, span.end) for span in tokens.entities]
    return [
        Entity(kind, begin, end, " ".join(words[begin:end]))
        for kind, begin, end in spans
    ]


def count_invalid_tags(file: conll.TaggedFile, scheme: str) -> int:
    """Count the words whose tags name a type but form no entity."""
    if scheme == "none":
        return 0
    named = in_entities = 0
    for sentence in file.sentences:
        found = entities(sentence.words, sentence.tags, scheme)
        in_entities += sum(entity.end - entity.begin for entity in found)
        named += len(sentence.tags) - sentence.tags.count("O")
    return named - in_entities


def scores(
    actual: Iterable[Sequence[str]], predicted: Iterable[Sequence[str]], scheme: str
) -> dict:
    """Return F1, precision and recall of entities, in total and for each type.

    A predicted entity counts if its type, begin and end are correct. A ratio with the
    denominator 0 is 0. Scores that begin with "lenient_" decode invalid sequences of
    tags, too.
    """
    from seqeval.metrics import sequence_labeling, v1  # imports scikit-learn

    actual, predicted = [list(t) for t in actual], [list(t) for t in predicted]
    options = {"scheme": _seqeval(scheme), "zero_division": 0}

    def count(average):
        return v1.precision_recall_fscore_support(
            actual, predicted, average=average, **options
        )

    precision, recall, f1, _ = count("micro")
    names = ("precision", "recall", "f1", "entities")
    kinds = v1.unique_labels(actual, predicted, options["scheme"])
    by_kind = zip(*(values.tolist() for values in count(None)), strict=True)
    types = {
        kind: dict(zip(names, values, strict=True))
        for kind, values in zip(kinds, by_kind, strict=True)
    }
    # As conlleval, and so most published scores: I after O begins an entity, too.
    *lenient, lenient_f1, _ = sequence_labeling.precision_recall_fscore_support(
        actual, predicted, average="micro", zero_division=0
    )
    # `finetuning.summarise` selects the best of several runs by the first score.
    values = map(float, (f1, precision, recall, lenient_f1, *lenient))
    return {**dict(zip(METRICS, values, strict=True)), "types": types}


def _seqeval(scheme: str):
    """Return seqeval's class for a scheme."""
    from seqeval import scheme as seqeval_scheme

    name = "IOBES" if scheme == "BIOES" else scheme
    return getattr(seqeval_scheme, name)
