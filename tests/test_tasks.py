"""Requirements of `tasks.Task`, checked for every task."""

import dataclasses
import functools
import json
import pathlib

import flax.linen as nn
import jax
import numpy as np
import pytest
import questions
from toy import TINY

from bert_jax import config as config_lib
from bert_jax.errors import UserError
from bert_jax.tasks import choice, classification, embedding, squad, tagging

# Files by name. A name begins with the task that reads it.
FILES = {
    "tagging/train": "the\tO\nvalue\tB-x\n\nthe\tO\n1\tB-y\n",
    "tagging/eval": "the\tO\nvalue\tB-y\n",
    "tagging/test": "the\nvalue\n",
    "choice/train.csv": "a or b,a,b,,A\n" * 9 + "which,a,b,c,C\n",
    "choice/eval.csv": "the value,the value,name,,A\n" * 3,
    "choice/test.csv": "the value,the value,name,,\n" * 3,
    "embedding/train.csv": "text_a,text_b,negative\n"
    + "is it,the value,the name\n" * 9,
    "embedding/eval.csv": "text_a,text_b\nis it,the value\nof,to\nin,a value\n",
    "embedding/test.csv": "text_a,text_b\nis it,the value\n",
}
for _set in ("train", "eval", "test"):
    _rows = ({"text": "the value", "label": {"x": p, "y": 1 - p}} for p in (0.25, 1))
    FILES[f"soft labels/{_set}.jsonl"] = "\n".join(map(json.dumps, _rows))
for _name, _labels in (("classification", "xyz"), ("regression", ["0.5", "2", "-1"])):
    for _set, _count in (("train", 20), ("eval", 10), ("test", 10)):
        _rows = [f"the {_set} {i}\t{_labels[i % 3]}\n" for i in range(_count)]
        FILES[f"{_name}/{_set}.tsv"] = "text\tlabel\n" + "".join(_rows)


OF_TEXTS = functools.partial(config_lib.ClassificationConfig, length=16)
SQUAD = functools.partial(config_lib.SquadConfig, length=32, stride=8, max_question=12)
# Each task and its config.
TASKS = {
    "classification": (classification.Classification, OF_TEXTS()),
    "soft labels": (classification.Classification, OF_TEXTS()),
    "regression": (classification.Classification, OF_TEXTS(target="number")),
    "tagging": (tagging.Tagging, config_lib.TaggingConfig(length=16)),
    "choice": (choice.Choice, config_lib.ChoiceConfig(length=16)),
    "embedding": (embedding.Embedding, config_lib.EmbeddingConfig(length=16)),
    "squad 1.1": (squad.Squad, SQUAD()),
    "squad 2.0": (squad.Squad, SQUAD(no_answers=True)),
}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Return a function that returns the files of a task by set."""
    folder = tmp_path_factory.mktemp("tasks")
    for name, text in FILES.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    for name in ("squad 1.1", "squad 2.0"):
        (folder / name).mkdir()
        questions.write_pair(folder / name, no_answers=name == "squad 2.0")
    return lambda name: {path.stem: str(path) for path in (folder / name).iterdir()}


def make(name, files, tokenizer):
    kind, config = TASKS[name]
    return kind(dataclasses.replace(config, **files), tokenizer)


@pytest.mark.parametrize("name", TASKS)
def test_rows_fit_the_objective_and_outputs_are_scored(
    name, files, wordpiece, tmp_path
):
    task = make(name, files(name), wordpiece)
    objective = task.objective(TINY)
    for rows in (task.train, *task.held_out.values()):
        count, *_, length = rows["attention_mask"].shape
        shapes = objective.batch_shapes(count, length)
        # Programs are compiled for all arrays before there is a batch.
        assert {k: (x.shape, x.dtype) for k, x in rows.items()} == {
            k: (x.shape, x.dtype) for k, x in shapes.items()
        }
        assert rows["weights"].dtype == np.float32
    params = nn.unbox(jax.jit(objective.init)(jax.random.key(0)))
    assert json.loads(json.dumps([task.description, task.settings]))
    for part, rows in task.held_out.items():
        outputs = jax.device_get(jax.jit(objective.outputs)(params, rows))
        count = len(rows["weights"])
        assert all(len(values) == count for values in outputs.values())
        predictions = task.decode(part, outputs)
        scores = task.scores(part, predictions)
        if part == "eval":
            assert set(task.metrics) <= scores.keys()
        assert json.loads(json.dumps([scores]))
        before = len(list(tmp_path.iterdir()))
        task.write(tmp_path, part, predictions)
        assert len(list(tmp_path.iterdir())) > before


# A text in the files of each task, and what another example has in its place.
EDITS = {
    "classification": ("\tx\n", "\ty\n"),
    "soft labels": ('"x": 1, "y": 0', '"x": 0, "y": 1'),
    "regression": ("\t2\n", "\t3\n"),
    "tagging": ("\tO\n", "\tB-x\n"),
    "choice": (",,A\n", ",,B\n"),
    "embedding": ("it,the value", "it,a value"),
    "squad 1.1": ('"an object"', '"object"'),
    "squad 2.0": ('"an object"', '"object"'),
}


# Files that the message about a missing one asks for.
HINTS = {
    classification.Classification: "FILE.tsv, or --config.task.name=glue",
    tagging.Tagging: "FILE.conll",
    choice.Choice: "FILE.csv or FILE.jsonl",
    embedding.Embedding: "FILE.tsv with text_a and text_b",
    squad.Squad: "FILE.json",
}


@pytest.mark.parametrize("name", TASKS)
def test_fingerprints_identify_training_and_evaluation_examples(
    name, files, wordpiece, tmp_path
):
    sets = files(name)
    first = make(name, sets, wordpiece).fingerprint
    labelled = {part: file for part, file in sets.items() if part != "test"}
    assert make(name, labelled, wordpiece).fingerprint == first
    for part, file in labelled.items():
        edited = tmp_path / pathlib.Path(file).name
        edited.write_text(pathlib.Path(file).read_text().replace(*EDITS[name], 1))
        changed = make(name, sets | {part: str(edited)}, wordpiece)
        assert changed.fingerprint != first
        message = f"pass --config.task.{part}={HINTS[TASKS[name][0]]}"
        with pytest.raises(UserError, match=message):
            make(name, sets | {part: ""}, wordpiece)
