"""Distillation: predicting masked tokens, and imitating a teacher's guesses.

The teacher is a pretrained model with the same vocabulary, which sees the same masked
rows in the same step, without dropout. Its parameters are constants of the run
(`training/run.py`): no gradient is computed for them, and no checkpoint has them.

Sources: Hinton et al. 2015, section 2; Sanh et al. 2019 (DistilBERT), without its loss
of hidden states.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from bert_jax import config as config_lib
from bert_jax.model import flops, heads
from bert_jax.model.inputs import Inputs
from bert_jax.objectives import Batch, masked_lm, metric_sums

# Key of the teacher's parameters, beside those of the student.
TEACHER = "teacher"


@dataclasses.dataclass(frozen=True)
class Distillation(masked_lm.MaskedLm):
    """The losses of `MaskedLm`, plus the divergence of the student from the teacher.

    `teacher_loss` is `divergence`, averaged over masked tokens. `teacher_accuracy` is
    the share of masked tokens for which both models have the same best guess.
    """

    config: config_lib.DistillationConfig = config_lib.DistillationConfig()

    @property
    def losses(self) -> dict[str, float]:
        return super().losses | {"teacher_loss": self.config.teacher_weight}

    @property
    def teacher(self) -> heads.PretrainingModel:
        """Model whose predictions are imitated."""
        return heads.PretrainingModel(self.config.teacher_encoder, sentence_head="")

    def init_constants(self, key: jax.Array) -> Any:
        """Return random parameters of the teacher, boxed as by `init`."""
        positions = jnp.zeros((1, 1), jnp.int32)
        return {TEACHER: heads.init(self.teacher, key, positions)}

    def sequence_flops(self, length: int) -> float:
        """Add the teacher's forward pass."""
        encoder, predictions = self.config.teacher_encoder, self._predictions(length)
        forward = flops.encoder(encoder, length, predictions)
        forward += flops.prediction_head(encoder, predictions)
        return super().sequence_flops(length) + forward

    def counts(self, batch: Batch) -> dict[str, jax.Array]:
        """Return the divisors of `MaskedLm`, and the number of masked tokens again."""
        counts = super().counts(batch)
        return counts | {"teacher_loss": counts["mlm_loss"]}

    def measure(self, params, batch, dropout_keys, sampling_keys):
        """Return losses and accuracies; `params` includes the teacher's."""
        student = {name: part for name, part in params.items() if name != TEACHER}
        logits = self.logits(student, batch, dropout_keys)
        taught = self.teacher.apply(
            {"params": params[TEACHER]}, Inputs.of(batch), batch["mlm_positions"]
        ).mlm
        # Tables may be padded to different sizes; the tokens come first.
        size = min(taught.shape[-1], logits.mlm.shape[-1])
        ours, theirs = logits.mlm[..., :size], taught[..., :size]  # [B, P, V]
        weights = batch["mlm_weights"]
        agrees = metric_sums.is_correct(ours, jnp.argmax(theirs, axis=-1))
        return self.compare(logits, batch) | {
            "teacher_loss": metric_sums.weighted(
                divergence(ours, theirs, self.config.temperature), weights
            ),
            "teacher_accuracy": metric_sums.weighted(agrees, weights),
        }


def divergence(
    student: Float[Array, "*rows V"],
    teacher: Float[Array, "*rows V"],
    temperature: float,
) -> Float[Array, "*rows"]:
    """Return T^2 KL(softmax(teacher / T) || softmax(student / T)), in nats.

    The factor keeps the size of the gradient, which a temperature T divides by T^2.
    """
    wanted = jax.nn.log_softmax(teacher / temperature)
    given = jax.nn.log_softmax(student / temperature)
    return temperature**2 * jnp.sum(jnp.exp(wanted) * (wanted - given), axis=-1)
