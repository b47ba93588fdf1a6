"""Distillation: predicting masked tokens, and imitating a teacher.

The teacher is a pretrained model with the same vocabulary, which sees the same masked
rows in the same step, without dropout. Its parameters are constants of the run
(`training/run_description.py`): no gradient is computed for them, and no checkpoint has
them.

Sources: Hinton et al. 2015, section 2; Sanh et al. 2019 (DistilBERT), section 2.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float
from optax import losses

from bert_jax import config as config_lib
from bert_jax.model import cross_entropy, flops, heads
from bert_jax.objectives import Batch, masked_lm, metric_sums

# Key of the teacher's parameters among the student's.
TEACHER = "teacher"


@dataclasses.dataclass(frozen=True)
class Distillation(masked_lm.MaskedLm):
    """The losses of `MaskedLm`, plus the divergence of the student from the teacher.

    `teacher_loss` is `divergence`, averaged over masked tokens; DistilBERT's code
    averages over all tokens unless `restrict_ce_to_mask` is set. `teacher_accuracy` is
    the share of masked tokens for which both models have the same best guess.
    `hidden_loss`, if it has a weight, is 1 minus the cosine of two hidden states,
    averaged over tokens and pairs of layers. TinyBERT has a squared distance, and
    projects hidden states of another size.
    """

    config: config_lib.DistillationConfig = config_lib.DistillationConfig()

    logits_reader = "the teacher's loss"

    @property
    def loss_weights(self) -> dict[str, float]:
        weights = {"teacher_loss": self.config.teacher_weight}
        if self.config.hidden_weight:
            weights["hidden_loss"] = self.config.hidden_weight
        return super().loss_weights | weights

    @property
    def metrics(self) -> tuple[str, ...]:
        return tuple(name for name in super().metrics if name != "hidden_accuracy")

    @property
    def teacher(self) -> heads.PretrainingModel:
        """Model whose predictions are imitated."""
        return heads.PretrainingModel(self.config.teacher_encoder, sentence_head="")

    def init_constants(self, key: jax.Array) -> Any:
        """Return random parameters of the teacher, boxed as by `init`."""
        return {TEACHER: heads.init(self.teacher, key, ("mlm_positions",))}

    def sequence_flops(self, length: int) -> float:
        """Add the teacher's forward pass."""
        encoder, predictions = self.config.teacher_encoder, self.num_predictions(length)
        forward = flops.encoder(
            encoder, length, self._states_computed(length, predictions)
        )
        forward += flops.prediction_head(encoder, predictions)
        return super().sequence_flops(length) + forward

    def _states_computed(self, length: int, wanted: int) -> int:
        return length if self.config.hidden_weight else wanted

    def counts(self, batch: Batch) -> dict[str, jax.Array]:
        counts = super().counts(batch)
        counts["teacher_loss"] = counts["mlm_loss"]
        if self.config.hidden_weight:
            counts["hidden_loss"] = jnp.sum(metric_sums.token_weights(batch))
        return counts

    def measure(self, params, batch, dropout_keys, sampling_keys):
        """Return losses and accuracies; `params` includes the teacher's."""
        student = {name: part for name, part in params.items() if name != TEACHER}
        compares = self.config.hidden_weight > 0
        options = {"return_states": self.config.hidden_layers if compares else ""}
        logits = self.logits(student, batch, dropout_keys=dropout_keys, **options)
        teacher_output = heads.apply(
            self.teacher, params[TEACHER], batch, ("mlm_positions",), **options
        )
        # Logits may have different sizes, because tables are padded, and published ones
        # may have unused rows. Compare the tokens, which come first.
        student_mlm = logits.mlm.compute()  # [B, P, V]
        teacher_mlm = teacher_output.mlm.compute()  # [B, P, V]
        sums = self.losses_and_accuracies(student_mlm, logits.sentence, batch)
        size = min(self.encoder.vocab_size, self.config.teacher_encoder.vocab_size)
        student_mlm, teacher_mlm = student_mlm[..., :size], teacher_mlm[..., :size]
        weights = batch["mlm_weights"]
        agrees = cross_entropy.is_correct(student_mlm, jnp.argmax(teacher_mlm, axis=-1))
        sums |= {
            "teacher_loss": metric_sums.weighted_sum(
                divergence(student_mlm, teacher_mlm, self.config.temperature), weights
            ),
            "teacher_accuracy": metric_sums.weighted_sum(agrees, weights),
        }
        if compares:
            pairs = self.config.compared_states(self.encoder)
            states, teacher_states = (
                output.hidden_states.astype(jnp.float32)
                for output in (logits, teacher_output)
            )
            distances = [
                losses.cosine_distance(states[i], teacher_states[j], epsilon=1e-6)
                for i, j in pairs
            ]  # of [B, L]
            sums["hidden_loss"] = metric_sums.weighted_sum(
                sum(distances) / len(pairs), metric_sums.token_weights(batch)
            )
        return sums


def divergence(
    student: Float[Array, "*rows V"],
    teacher: Float[Array, "*rows V"],
    temperature: float,
) -> Float[Array, "*rows"]:
    """Return T^2 KL(softmax(teacher / T) || softmax(student / T)), in nats.

    The factor keeps the size of the gradient, which a temperature T divides by T^2.
    """
    log_q, log_p = (
        jax.nn.log_softmax(logits / temperature) for logits in (student, teacher)
    )
    return temperature**2 * losses.kl_divergence_with_log_targets(log_q, log_p)
