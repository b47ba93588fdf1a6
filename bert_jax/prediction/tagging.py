"""Tagging of words and recognition of entities with a fine-tuned model."""

import dataclasses
from collections.abc import Sequence

from bert_jax import config as config_lib
from bert_jax.objectives import tagging as objectives_tagging
from bert_jax.prediction import text_inputs
from bert_jax.prediction.trained_model import BATCH_SIZE, TrainedModel
from bert_jax.tasks import entities, tagging


@dataclasses.dataclass(frozen=True)
class TagPrediction:
    """Tags and entities of a text.

    Attributes:
      words: The words.
      tags: Tag of each word.
      entities: Entities that the tags describe; none for tags such as parts of speech.
      offsets: Begin and end of each word in the text; [] if words were given.
      truncated: Whether a word was longer than `task.length`.
    """

    words: list[str]
    tags: list[str]
    entities: list[entities.Entity]
    offsets: list[tuple[int, int]]
    truncated: bool


def tag(
    model: TrainedModel, texts: Sequence[str | Sequence[str]]
) -> list[TagPrediction]:
    """Tag the words of each text.

    Texts are split into runs of letters and digits, and into single Han and other
    characters. Give lists of words if the training file has others, such as "don't".
    """
    text_inputs.check_texts(texts, nested=True)
    config, settings = model.task(config_lib.TaggingConfig)
    names, scheme = settings["tags"], settings["scheme"]
    all_words, all_offsets = [], []
    for text in texts:
        is_text = isinstance(text, str)
        parts = tagging.split(text) if is_text else []
        all_offsets.append([place for _, place in parts])
        all_words.append([word for word, _ in parts] if is_text else list(text))
    rows = tagging.make_rows(all_words, model.tokenizer, config.length)
    objective = objectives_tagging.Tagging(model.encoder, len(names))
    outputs = model.engine(objective).outputs(rows.arrays, BATCH_SIZE)
    all_tags = rows.decode(outputs["predictions"], names)
    tagged = []
    for text, words, tags, offsets, truncated in zip(
        texts, all_words, all_tags, all_offsets, rows.truncated, strict=True
    ):
        found = [] if scheme == "none" else entities.entities(words, tags, scheme)
        if isinstance(text, str):
            spans = [slice(offsets[e.begin][0], offsets[e.end - 1][1]) for e in found]
            found = [
                dataclasses.replace(entity, text=text[span])
                for entity, span in zip(found, spans, strict=True)
            ]
        tagged.append(TagPrediction(words, tags, found, offsets, bool(truncated)))
    return tagged
