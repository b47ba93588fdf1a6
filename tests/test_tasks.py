"""The same questions to every task, and what adding one takes."""

import json

import jax
import numpy as np
import pytest
import questions
from toy import TINY
from toy_objective import Replaced, ToyPretrainConfig
from toy_task import Length, LengthConfig, ToyFinetuneConfig

from bert_jax import config as config_lib
from bert_jax import finetuning, knobs, pretraining, recipe_variants
from bert_jax.tasks import choice, classification, squad, tagging, texts
from bert_jax.training import restore


@pytest.fixture(scope="module")
def tasks(wordpiece, tmp_path_factory):
    folder = tmp_path_factory.mktemp("tasks")
    for target, labels in (("class", "xyz"), ("number", ["0.5", "2", "-1"])):
        pairs = [
            texts.Example(f"the value {i}", "a name " * (i % 3), labels[i % 3])
            for i in range(30)
        ]
        texts.write_tsv(folder / f"train_{target}.tsv", pairs[:20])
        texts.write_tsv(folder / f"eval_{target}.tsv", pairs[20:])

    def files(target):
        return config_lib.ClassificationConfig(
            train=str(folder / f"train_{target}.tsv"),
            eval=str(folder / f"eval_{target}.tsv"),
            test=str(folder / f"eval_{target}.tsv"),
            target=target,
            length=16,
        )

    sentences = "".join(
        f"the\tO\nvalue\t{'B-x' if i % 3 else 'B-y'}\n{i}\tO\n\n" for i in range(9)
    )
    for name in ("train", "eval"):
        (folder / f"{name}.conll").write_text(sentences)
    (folder / "test.conll").write_text("the\nvalue\n")
    columns = config_lib.TaggingConfig(
        train=str(folder / "train.conll"),
        eval=str(folder / "eval.conll"),
        test=str(folder / "test.conll"),
        length=16,
    )
    (folder / "train.csv").write_text("a or b,a,b,,A\n" * 9 + "which,a,b,c,C\n")
    (folder / "eval.csv").write_text("the value,name,the value,,B\n" * 3)
    (folder / "test.csv").write_text("the value,name,the value,,\n" * 3)
    choices = config_lib.ChoiceConfig(
        train=str(folder / "train.csv"),
        eval=str(folder / "eval.csv"),
        test=str(folder / "test.csv"),
        length=16,
    )
    return {
        "classification": lambda: classification.Classification(
            files("class"), wordpiece
        ),
        "regression": lambda: classification.Classification(files("number"), wordpiece),
        "tagging": lambda: tagging.Tagging(columns, wordpiece),
        "choice": lambda: choice.Choice(choices, wordpiece),
        "questions": questions_task(folder / "v1", wordpiece, no_answers=False),
        "questions without answers": questions_task(
            folder / "v2", wordpiece, no_answers=True
        ),
        "a toy": lambda: Length(LengthConfig(), wordpiece),
    }


def questions_task(folder, tokenizer, *, no_answers):
    folder.mkdir()
    files = config_lib.SquadConfig(
        **questions.write_pair(folder, no_answers=no_answers),
        no_answers=no_answers,
        length=32,
        stride=8,
        max_question=12,
    )
    return lambda: squad.Squad(files, tokenizer)


NAMES = (
    "classification",
    "regression",
    "tagging",
    "choice",
    "questions",
    "questions without answers",
    "a toy",
)
each = pytest.mark.parametrize("name", NAMES)


@each
def test_rows_fit_the_objective(name, tasks):
    task = tasks[name]()
    objective = task.objective(TINY)
    for rows in (task.train, *task.held_out.values()):
        count = len(rows["weights"])
        shapes = objective.batch_shapes(count, task.length)
        # All of them: programs are compiled for these before there is a batch.
        assert rows.keys() == shapes.keys()
        for key, values in rows.items():
            assert (values.shape, values.dtype) == (
                shapes[key].shape,
                shapes[key].dtype,
            )
        assert rows["weights"].dtype == np.float32


@each
def test_scores_and_files_come_from_outputs(name, tasks, tmp_path):
    task = tasks[name]()
    objective = task.objective(TINY)
    params = jax.tree.map(
        lambda box: box.value,
        objective.init(jax.random.key(0)),
        is_leaf=lambda x: hasattr(x, "names"),
    )
    outputs = {
        name: jax.device_get(jax.jit(objective.outputs)(params, rows))
        for name, rows in task.held_out.items()
    }
    for name, rows in task.held_out.items():
        count = len(rows["weights"])
        assert all(len(values) == count for values in outputs[name].values())
    predictions = task.decode(outputs)
    assert predictions.keys() == task.held_out.keys()
    scores = task.scores(predictions)
    assert scores and json.loads(json.dumps({**scores, **task.description}))
    assert json.loads(json.dumps(task.settings)) == task.settings
    task.write(tmp_path, predictions)
    assert list(tmp_path.iterdir())


@each
def test_fingerprints_are_of_the_examples(name, tasks):
    assert tasks[name]().fingerprint == tasks[name]().fingerprint
    names = [make().fingerprint for make in tasks.values()]
    assert len(set(names)) == len(names)


@pytest.mark.slow
@pytest.mark.runs
def test_an_objective_and_a_task_are_added_in_a_file_each(
    corpus, tmp_path, monkeypatch, capsys
):
    """One entry in a dict each, and nothing else knows of them."""
    monkeypatch.setitem(pretraining.OBJECTIVES, "replaced", Replaced)
    monkeypatch.setitem(finetuning.TASKS, "length", Length)
    cfg = knobs.to_configdict(ToyPretrainConfig())
    recipe_variants.shrink_pretraining(cfg)
    cfg.encoder.vocab_size = 0
    cfg.encoder.dtype = "float32"
    cfg.data.corpus = str(corpus.folder)
    cfg.phases = cfg.phases[:1]
    cfg.objective.rate = 0.5
    config = knobs.from_configdict(ToyPretrainConfig, cfg)
    state, _ = pretraining.pretrain(config, str(tmp_path / "pretrain"))
    assert int(state.step) == 3
    records = [
        json.loads(line)
        for line in (tmp_path / "pretrain/metrics.jsonl").read_text().splitlines()
    ]
    for record in records:
        # The weight of this loss is 2.
        assert record["loss"] == pytest.approx(2 * record["replaced_loss"], rel=1e-5)
    # Its accuracy is shown beside the loss.
    assert "replaced_accuracy" in capsys.readouterr().err

    cfg = knobs.to_configdict(ToyFinetuneConfig(init_from=str(tmp_path / "pretrain")))
    cfg.update(batch_size=8, epochs=2.0)
    config = knobs.from_configdict(ToyFinetuneConfig, cfg)
    results = finetuning.finetune(config, str(tmp_path / "finetune"))
    assert results["examples"] == 24 and "correct" in results
    assert len(json.loads((tmp_path / "finetune/lengths.json").read_text())) == 24
    assert finetuning.finetune(config, str(tmp_path / "finetune")) == results
    metadata = restore.read_metadata(restore.find(tmp_path / "finetune"))
    assert metadata.config["task"]["kind"] == "length"
