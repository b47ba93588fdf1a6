"""Runs of several phases: the settings, checkpoints and restarts of each."""

import contextlib
import dataclasses
import gc
import io
import weakref

import pod_recipe
import pytest
from runs import assert_same_end, metrics

from bert_jax import config as config_lib
from bert_jax import pretraining
from bert_jax.errors import Interrupted
from bert_jax.objectives import masked_lm
from bert_jax.training import interrupts, restore

pytestmark = pytest.mark.runs

# Phases of one length. What the first one sets, the second one does not take over.
PHASES = (
    {"steps": 2, "batch_size": 8, "masking_rate": 0.4, "local_rotary_base": 2.0},
    {"steps": 3, "batch_size": 16, "rotary_base": 1000.0},
)


@dataclasses.dataclass(frozen=True)
class Scaled(masked_lm.MaskedLm):
    """Masked tokens, with a loss that is multiplied by the rotary base."""

    def sums(self, params, batch, **keys):
        sums = super().sums(params, batch, **keys)
        loss = sums["mlm_loss"]
        scaled = loss._replace(sum=loss.sum * self.encoder.rotary_base)
        return {**sums, "mlm_loss": scaled}


def configured(corpus):
    cfg = pod_recipe.get_config()
    cfg.data.corpus = str(corpus.folder)
    cfg.loop.update(log_every=1, eval_every=2, checkpoint_every=1, keep_checkpoints=20)
    config = config_lib.from_dict(config_lib.PretrainConfig, cfg)
    return dataclasses.replace(
        config,
        encoder=dataclasses.replace(
            config.encoder,
            positions="rotary",
            rotary_base=1.0,
            attention_window=4,
            global_layer_every=2,
        ),
        phases=tuple(config_lib.PhaseConfig(length=16, **phase) for phase in PHASES),
    )


@pytest.fixture(scope="module")
def undisturbed(corpus, tmp_path_factory):
    """Return the workdir of a run of all phases, and the lines that it printed.

    The data of two phases are never in memory at once. Steps of the data count from 0
    in each phase.
    """
    workdir, messages = tmp_path_factory.mktemp("phases") / "run", io.StringIO()
    opened, asked = [], []
    open_data = pretraining.open_data

    def open_alone(*arguments, **options):
        gc.collect()
        assert all(earlier() is None for earlier in opened)
        made = open_data(*arguments, **options)

        def read(start, stop):
            asked.append((start, stop))
            return made.batches(start, stop)

        data = dataclasses.replace(made, batches=read)
        opened.extend([weakref.ref(data), weakref.ref(made)])
        return data

    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(pretraining.OBJECTIVES, "masked_lm", Scaled)
        patch.setattr(pretraining, "open_data", open_alone)
        with contextlib.redirect_stderr(messages):
            pretraining.pretrain(configured(corpus), str(workdir))
    assert asked == [(0, 2), (0, 3)]
    assert len(opened) == 2 * len(PHASES)
    return workdir, messages.getvalue().splitlines()


def test_each_phase_trains_and_evaluates_its_own_objective(undisturbed):
    """The loss of random guesses among 1,000 tokens is 6.9, times the base."""
    records = metrics(undisturbed[0])
    assert {record["split"] for record in records} == {"train", "eval"}
    for record in records:
        scale = 1000 if record["step"] > 2 else 1
        assert 5 < record["mlm_loss"] / scale < 9, record["step"]


def test_a_run_that_has_not_learned_prints_one_notice(undisturbed):
    """At the first evaluation after a fifth of the steps."""
    workdir, lines = undisturbed
    (at,) = [i for i, line in enumerate(lines) if "not clearly below" in line]
    assert lines[at - 1].startswith("eval step 2/5")
    assert "unigram_entropy" in lines[at - 1]
    records = [record for record in metrics(workdir) if record["split"] == "eval"]
    loss = records[0]["mlm_loss"]
    assert lines[at].startswith(f"step 2 of 5: the held-out mlm_loss, {loss:.3g}, is")
    for name in ("unigram_entropy", "mlm_loss_without_context"):
        assert 4 < records[0][name] < 6
    assert len({record["unigram_entropy"] for record in records}) == 1


def test_checkpoints_have_the_encoder_of_their_phase(undisturbed):
    expected = [(1.0, 2.0)] * 2 + [(1000.0, 0.0)] * 3
    for step, bases in enumerate(expected, start=1):
        path = undisturbed[0] / "checkpoints" / str(step)
        encoder = restore.read_metadata(path).encoder
        assert (encoder.rotary_base, encoder.local_rotary_base) == bases


@pytest.mark.slow
@pytest.mark.parametrize(
    ("questions", "step"),
    [
        # The restart begins with the evaluation of the first phase.
        pytest.param(1, "2", id="at the end of the first phase"),
        pytest.param(4, "[34]", id="in the second phase"),
    ],
)
def test_a_run_that_is_stopped_ends_the_same(
    questions, step, undisturbed, corpus, tmp_path, monkeypatch
):
    monkeypatch.setitem(pretraining.OBJECTIVES, "masked_lm", Scaled)
    with monkeypatch.context() as patch:
        # Asked with each step and with each batch of an evaluation.
        asked = iter([False] * questions)
        patch.setattr(interrupts.StopRequests, "is_set", lambda _: next(asked, True))
        with pytest.raises(Interrupted, match=f"saved at step {step} of 5"):
            pretraining.pretrain(configured(corpus), str(tmp_path))
    pretraining.pretrain(configured(corpus), str(tmp_path))
    assert_same_end(undisturbed[0], tmp_path)
