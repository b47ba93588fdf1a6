"""Pretraining that imitates a teacher."""

import dataclasses
import functools
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import recipes
import saved
from runs import assert_same_end, metrics
from scipy import special
from toy import TINY, params_of, random_batch, sums_of

from bert_jax import config, pretraining
from bert_jax import teacher as teacher_lib
from bert_jax.errors import UserError
from bert_jax.interop import convert
from bert_jax.model import flops, heads
from bert_jax.model.encoder import Encoder
from bert_jax.model.inputs import Inputs
from bert_jax.objectives import classification, distillation, masked_lm
from bert_jax.training import metrics_file, workdir

# Another width than the student's, another position table, and a padded vocabulary with
# more rows than there are tokens, as published ones have.
TEACHER = dataclasses.replace(
    TINY,
    vocab_size=TINY.vocab_size + 3,
    num_layers=1,
    hidden_size=64,
    max_position_embeddings=64,
    vocab_multiple=16,
)
SETTINGS = config.DistillationConfig(teacher_encoder=TEACHER)
# As wide as the student, with twice the layers.
DEEP = dataclasses.replace(TINY, num_layers=2 * TINY.num_layers, norm_placement="pre")
HIDDEN = {"teacher_encoder": DEEP, "hidden_weight": 2.0, "hidden_layers": "all"}


def distilled(**changes):
    return distillation.Distillation(TINY, dataclasses.replace(SETTINGS, **changes))


@functools.cache
def teacher(encoder=TEACHER):
    return params_of(distilled(teacher_encoder=encoder).init_constants, 1)


@pytest.mark.parametrize("temperature", [1.0, 2.0])
def test_the_loss_equals_its_restatement(temperature):
    objective, batch = distilled(temperature=temperature), random_batch()
    student = params_of(objective.init, 2)
    got = sums_of(objective, {**student, **teacher()}, batch)
    inputs, positions = Inputs.of(batch), batch["mlm_positions"]
    logits = [
        np.asarray(
            jax.jit(model.apply)({"params": params}, inputs, positions).mlm.compute(),
            np.float64,
        )
        for model, params in (
            (heads.PretrainingModel(TEACHER, ""), teacher()["teacher"]),
            (objective.model, student),
        )
    ]

    p, q = (
        special.softmax(x[..., : TINY.vocab_size] / temperature, axis=-1)
        for x in logits
    )
    divergence = temperature**2 * (p * np.log(p / q)).sum(-1)
    weights = np.asarray(batch["mlm_weights"])
    loss, count = got["teacher_loss"]
    np.testing.assert_allclose(loss, (divergence * weights).sum(), rtol=1e-5)
    assert count == weights.sum() == objective.counts(batch)["teacher_loss"]
    assert distilled(teacher_weight=0.5).loss_weights["teacher_loss"] == 0.5
    agree = logits[0].argmax(-1) == logits[1].argmax(-1)
    assert got["teacher_accuracy"].sum == (agree * weights).sum()
    alone = sums_of(masked_lm.MaskedLm(TINY), student, batch)
    assert set(got) - set(alone) == {"teacher_loss", "teacher_accuracy"}
    for name, value in alone.items():
        np.testing.assert_allclose(got[name], value, rtol=1e-6)


@pytest.mark.parametrize("layers", ["last", "all"])
def test_the_loss_of_hidden_states_equals_its_restatement(layers):
    objective = distilled(**HIDDEN | {"hidden_layers": layers})
    batch = random_batch()
    student = params_of(objective.init, 2)
    got = sums_of(objective, {**student, **teacher(DEEP)}, batch)
    ours, theirs = (
        np.asarray(
            jax.jit(
                functools.partial(Encoder(encoder).apply, return_hidden_states=True)
            )({"params": params["encoder"]}, Inputs.of(batch)).hidden_states,
            np.float64,
        )
        for encoder, params in ((TINY, student), (DEEP, teacher(DEEP)["teacher"]))
    )
    if layers == "last":
        ours, theirs = ours[-1:], theirs[-1:]
    else:
        theirs = theirs[::2]

    def unit(x):
        return x / np.linalg.norm(x, axis=-1, keepdims=True)

    distances = 1 - (unit(ours) * unit(theirs)).sum(-1)  # [states, B, L]
    is_text = np.asarray(batch["attention_mask"])
    assert not is_text.all()
    loss, count = got["hidden_loss"]
    assert count == is_text.sum() == objective.counts(batch)["hidden_loss"]
    np.testing.assert_allclose(loss / count, distances[:, is_text].mean(), rtol=1e-5)
    assert objective.loss_weights["hidden_loss"] == 2.0


def test_hidden_states_change_no_other_loss():
    """The last layer reads all positions, with the dropout masks as before."""
    batch, keys = random_batch(), jnp.arange(8, dtype=jnp.uint32)
    plain = distilled(teacher_encoder=DEEP)
    params = {**params_of(plain.init, 2), **teacher(DEEP)}
    sums = [
        sums_of(objective, params, batch, keys)
        for objective in (plain, distilled(**HIDDEN))
    ]
    assert {*sums[1]} - {*sums[0]} == {"hidden_loss"}
    for name, value in sums[0].items():
        np.testing.assert_allclose(sums[1][name], value, rtol=1e-5)


# ---- runs


def make_config(corpus, teacher, **changes):
    cfg = recipes.load("distillation", "smoke")
    cfg.data.corpus = str(corpus.folder)
    cfg.objective.update(teacher=str(teacher), hidden_weight=0.5)
    cfg.encoder.dtype = "float32"
    cfg.update_from_flattened_dict(changes)
    return config.from_dict(config.PretrainConfig, cfg)


def save_teacher(folder, corpus, make_objective):
    encoder = dataclasses.replace(
        TINY, vocab_size=corpus.tokenizer.vocab_size, max_position_embeddings=64
    )
    saved.save(folder, make_objective(encoder), corpus.tokenizer)


@pytest.mark.slow
def test_a_run_resumes_bit_for_bit_with_a_teacher_of_any_format(
    corpus, pretrained, tmp_path
):
    published, runs = tmp_path / "published", [tmp_path / name for name in "abc"]
    convert.convert(str(pretrained), str(published))
    _, resolved = pretraining.pretrain(make_config(corpus, pretrained), str(runs[0]))
    teacher = resolved.objective.teacher_encoder
    assert (teacher.hidden_size, teacher.dtype) == (32, resolved.encoder.dtype)
    shutil.copytree(runs[0], runs[1])
    shutil.rmtree(runs[1] / "checkpoints" / "3")
    pretraining.pretrain(make_config(corpus, pretrained), str(runs[1]))
    assert_same_end(runs[1], runs[0])
    # The student alone is saved.
    assert {path.split("/")[0] for path in saved.parameters_of(runs[0])} == {
        "encoder",
        "mlm_head",
    }
    pretraining.pretrain(make_config(corpus, published), str(runs[2]))
    first, second = (
        [r["teacher_loss"] for r in metrics(run) if "teacher_loss" in r]
        for run in (runs[0], runs[2])
    )
    assert first == second and first[0] > 0
    save_teacher(tmp_path / "other", corpus, masked_lm.MaskedLm)
    with pytest.raises(UserError, match="teacher_fingerprint: was .*, is now"):
        pretraining.pretrain(make_config(corpus, tmp_path / "other"), str(runs[0]))


def test_a_run_keeps_its_teacher_when_the_teacher_has_newer_checkpoints(
    corpus, pretrained, tmp_path
):
    shutil.copytree(pretrained, tmp_path / "teacher")
    asked, run = make_config(corpus, tmp_path / "teacher"), tmp_path / "run"
    adopted = teacher_lib.fill_in_teacher(asked, str(run), corpus, ())
    with workdir.claim(run, adopted):
        pass
    (run / metrics_file.FILE).write_text('{"step": 1, "split": "train"}\n')
    (newest,) = (tmp_path / "teacher/checkpoints").glob("[0-9]*")
    shutil.copytree(newest, newest.with_name("999"))
    again = teacher_lib.fill_in_teacher(asked, str(run), corpus, ())
    assert again.objective.teacher == adopted.objective.teacher == str(newest)
    other = teacher_lib.fill_in_teacher(asked, str(tmp_path / "other"), corpus, ())
    assert other.objective.teacher.endswith("/999")
    workdir.note_checkpoint(run)
    shutil.rmtree(newest)
    with pytest.raises(UserError, match=f"^the teacher {newest}, with .* is gone"):
        teacher_lib.fill_in_teacher(asked, str(run), corpus, ())


def test_flops_include_the_teachers_forward_pass():
    student = masked_lm.MaskedLm(
        TINY, config.MaskedLmConfig(segments=SETTINGS.segments)
    )
    predictions = SETTINGS.masking.num_predictions(24)
    forward = flops.encoder(TEACHER, 24, predictions)
    forward += flops.prediction_head(TEACHER, predictions)
    assert distilled().sequence_flops(24) == student.sequence_flops(24) + forward


def test_teachers_that_do_not_fit_are_refused(
    corpus, byte_bpe_corpus, pretrained, tmp_path
):
    run = str(tmp_path / "run")
    with pytest.raises(UserError, match="objective.teacher is not set; pass --config"):
        pretraining.pretrain(make_config(corpus, ""), run)
    with pytest.raises(UserError, match="but .* has .*; build the corpus with the "):
        pretraining.pretrain(make_config(byte_bpe_corpus, pretrained), run)
    for field, value in (
        ("num_layers", 5),
        # Further pretraining may change these.
        ("causal", True),
        ("type_vocab_size", 0),
        ("max_position_embeddings", 128),
    ):
        field = f"objective.teacher_encoder.{field}"
        with pytest.raises(UserError, match=f"{field}={value}, but the checkpoint "):
            asked = make_config(corpus, pretrained, **{field: value})
            pretraining.pretrain(asked, run)
    for changes, message in (
        ({"encoder.hidden_size": 64}, "encoder.hidden_size is 64, and the .* is 32; "),
        (
            {"objective.hidden_layers": "all", "encoder.num_layers": 3},
            "encoder.num_layers=3 does not divide the teacher's layers, 2; set a div",
        ),
    ):
        with pytest.raises(UserError, match=message):
            pretraining.pretrain(make_config(corpus, pretrained, **changes), run)
    save_teacher(
        tmp_path / "classifier",
        corpus,
        functools.partial(classification.Classification, num_classes=3),
    )
    with pytest.raises(UserError, match="has no mlm_head.*; use a checkpoint that was"):
        pretraining.pretrain(make_config(corpus, tmp_path / "classifier"), run)


def test_a_teacher_needs_both_segments():
    """The checkpoint has its number of segments, so another field is to be set."""
    alone = dataclasses.replace(TEACHER, type_vocab_size=1)
    asked = config.DistillationConfig(segments="next_sentence", teacher_encoder=alone)
    field = "objective.teacher_encoder.type_vocab_size=1"
    message = f"^{field} .*; set objective.segments=full_sentences$"
    with pytest.raises(UserError, match=message):
        config.check(config.PretrainConfig(objective=asked))
