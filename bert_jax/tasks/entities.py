"""How tags name entities: schemes, what they allow, and the entities of a sentence.

A tag is O, outside of all entities, or a letter, a hyphen and the type of the entity:

- IOB2: B for the first word of each entity, I for the others.
- IOB1: I for all words; B only for the first word of an entity that follows another of
  its type at once.
- BIOES: B, I and E for the first, the inner and the last words of an entity, S for an
  entity of one word.

Entities are those that seqeval finds in its strict mode: what a scheme does not allow
is no entity, such as an I after O in IOB2.
"""

import dataclasses
import itertools
import re
from collections.abc import Iterable, Sequence

from bert_jax.errors import UserError
from bert_jax.tasks import conll

_LETTERS = {"IOB1": "BI", "IOB2": "BI", "BIOES": "BIES"}
# L and U: the names that BILOU has for E and S.
_NAMES_ENTITY = re.compile("[BIESLU]-.+")


def scheme_of(file: conll.File) -> str:
    """The scheme of a file's tags; "none" if they name no entities.

    IOB1 and IOB2 have the same tags. It is the one of them that fewer words of the file
    contradict.

    Raises:
      UserError: Only some of the tags name entities, or the scheme is BILOU.
    """
    tags = {tag for sentence in file.sentences for tag in sentence.tags}
    named = {tag for tag in tags if _NAMES_ENTITY.fullmatch(tag)}
    if not named:
        return "none"
    letters = {tag[0] for tag in named}
    if others := sorted(tags - named - {"O"}):
        raise UserError(
            f"{file.where(others[0])}: the tag {others[0]!r} names no entity, but "
            f"others do, such as {min(named)!r}; pass --config.task.scheme=none to "
            "predict tags that are no entities"
        )
    if letters & {"L", "U"}:
        raise UserError(
            f"{file.path}: the tags are BILOU, which is BIOES with other letters; make "
            "L- to E- and U- to S-"
        )
    if letters & {"E", "S"}:
        return "BIOES"
    return min(("IOB2", "IOB1"), key=lambda scheme: count_invalid(file, scheme))


def check(file: conll.File, scheme: str) -> None:
    """Refuse tags that a scheme does not have.

    Raises:
      UserError: A tag has another form.
    """
    if scheme == "none":
        return
    allowed = re.compile(f"O|[{_LETTERS[scheme]}]-.+")
    for tag in sorted({tag for sentence in file.sentences for tag in sentence.tags}):
        if not allowed.fullmatch(tag):
            raise UserError(
                f"{file.where(tag)}: {tag!r} is no tag of {scheme}; those are O, and "
                f"{' or '.join(f'{x}-TYPE' for x in _LETTERS[scheme])}; "
                "--config.task.scheme=none is for tags that name no entities"
            )


def count_invalid(file: conll.File, scheme: str) -> int:
    """How many transitions between tags a scheme does not allow."""
    return sum(count_invalid_transitions(s.tags, scheme) for s in file.sentences)


def count_invalid_transitions(tags: Sequence[str], scheme: str) -> int:
    """How many transitions in a sentence a scheme does not allow.

    Those from its beginning and to its end are among them.
    """
    if scheme == "none":
        return 0
    return sum(
        not _is_allowed(before, tag, scheme)
        for before, tag in itertools.pairwise(("O", *tags, "O"))
    )


def _is_allowed(before: str, tag: str, scheme: str) -> bool:
    is_same = before != "O" and tag != "O" and before[2:] == tag[2:]
    if scheme == "IOB2":
        return tag[0] != "I" or is_same
    if scheme == "IOB1":
        return tag[0] != "B" or is_same
    goes_on = before[0] in "BI"
    return goes_on == (tag[0] in "IE") and (is_same or not goes_on)


@dataclasses.dataclass(frozen=True)
class Entity:
    """An entity in a sentence.

    Attributes:
      kind: Its type.
      begin: Number of its first word, from 0.
      end: Number of the word after its last.
      text: Its words, with spaces between them.
    """

    kind: str
    begin: int
    end: int
    text: str


def entities(words: Sequence[str], tags: Sequence[str], scheme: str) -> list[Entity]:
    """The entities of a sentence.

    Args:
      words: Words.
      tags: Tag of each word.
      scheme: What the tags mean, not "none".
    """
    from seqeval import scheme as seqeval_scheme  # imports scikit-learn

    spans = seqeval_scheme.Tokens(list(tags), _seqeval(scheme)).entities
    return [
        Entity(span.tag, span.start, span.end, " ".join(words[span.start : span.end]))
        for span in spans
    ]


def scores(
    actual: Iterable[Sequence[str]], predicted: Iterable[Sequence[str]], scheme: str
) -> dict:
    """F1, precision and recall of entities, of all and of each type.

    An entity counts if type, beginning and end agree. What divides by 0 is 0.

    Args:
      actual: Tags of each sentence.
      predicted: The same, as predicted.
      scheme: What the tags mean, not "none".
    """
    from seqeval.metrics import v1  # imports scikit-learn

    actual, predicted = [list(t) for t in actual], [list(t) for t in predicted]
    seqeval_scheme = _seqeval(scheme)

    def count(average):
        return v1.precision_recall_fscore_support(
            actual,
            predicted,
            average=average,
            scheme=seqeval_scheme,
            zero_division=0,
        )

    names = ("precision", "recall", "f1")
    precision, recall, f1 = map(float, count("micro")[:3])
    kinds = v1.unique_labels(actual, predicted, seqeval_scheme)
    of_kinds = zip(kinds, *(values.tolist() for values in count(None)), strict=True)
    of_kinds = {
        kind: dict(zip((*names, "entities"), values, strict=True))
        for kind, *values in of_kinds
    }
    # By the first score the best of several runs is known (`finetuning/repeats.py`).
    return {"f1": f1, "precision": precision, "recall": recall, "types": of_kinds}


def _seqeval(scheme: str):
    """The class that seqeval has for a scheme."""
    from seqeval import scheme as seqeval_scheme

    name = "IOBES" if scheme == "BIOES" else scheme
    return getattr(seqeval_scheme, name)
