"""Classification of sequences (BERT paper, 4.1)."""

import dataclasses

import jax
import jax.numpy as jnp

from bert_jax.model import cross_entropy
from bert_jax.objectives import Batch, BatchShapes, labelled, metric_sums


@dataclasses.dataclass(frozen=True)
class Classification(labelled.LabelledObjective):
    """Mean cross entropy of the class.

    With label smoothing e, an example of class y has the loss

        -(1 - e) log p_y - e / C sum_c log p_c

    With class weights w, the mean over examples i is, as in PyTorch,

        sum_i w_{y_i} loss_i / sum_i w_{y_i}

    With both, PyTorch weights the terms log p_c of the smoothing by w_c, not by w_y.

    If labels are distributions q, such as a teacher's, -sum_c q_c log p_c takes the
    place of -log p_y, and y is the most probable class (Hinton et al. 2015).

    The accuracy does not use class weights.
    """

    num_classes: int  # C
    class_weights: tuple[float, ...] = ()  # w; if empty, all weights are 1
    label_smoothing: float = 0.0  # e
    has_probabilities: bool = False  # whether rows have an array `probabilities`, q

    loss_name = "classification_loss"

    def batch_shapes(self, batch_size: int, length: int) -> BatchShapes:
        shapes = super().batch_shapes(batch_size, length)
        if self.has_probabilities:
            shape = batch_size, self.num_classes
            shapes["probabilities"] = jax.ShapeDtypeStruct(shape, jnp.float32)
        return shapes

    def example_weights(self, batch: Batch) -> jax.Array:
        """Return the weight of each row times the weight of its class."""
        if not self.class_weights:
            return batch["weights"]
        return batch["weights"] * jnp.array(self.class_weights)[batch["labels"]]

    def measure_logits(self, logits: jax.Array, batch: Batch) -> metric_sums.MetricSums:
        labels = batch["labels"]
        if self.has_probabilities:
            normaliser = jax.nn.logsumexp(logits, axis=-1)
            loss = normaliser - jnp.sum(batch["probabilities"] * logits, axis=-1)
        else:
            loss = cross_entropy.cross_entropy(logits, labels)
        if self.label_smoothing:
            uniform = jax.nn.logsumexp(logits, axis=-1) - jnp.mean(logits, axis=-1)
            loss += self.label_smoothing * (uniform - loss)
        correct = cross_entropy.is_correct(logits, labels)
        return {
            self.loss_name: metric_sums.weighted_sum(loss, self.example_weights(batch)),
            "accuracy": metric_sums.weighted_sum(correct, batch["weights"]),
        }
