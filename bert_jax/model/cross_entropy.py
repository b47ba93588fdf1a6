"""Cross entropy and accuracy of logits, which a kernel may compute.

`VocabularyLogits.compute` and the functions for arrays are the plain path, which
defines the result.
"""

import dataclasses

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

from bert_jax import config as config_lib
from bert_jax.model import products
from bert_jax.model.kernels import decisions, tpu_cross_entropy


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class VocabularyLogits:
    """Logits over the vocabulary, as factors of a product that is not computed yet."""

    x: Float[Array, "B P E"]  # vectors of the predictions
    table: Float[Array, "V E"]  # vectors of the tokens, and of the vocabulary's padding
    bias: Float[Array, " V"] | None  # None: no bias
    config: config_lib.EncoderConfig = dataclasses.field(metadata={"static": True})

    def compute(self) -> Float[Array, "B P V"]:
        """Return float32 logits, which are -1e9 for the vocabulary's padding."""
        size, columns = self.table.shape
        rows = self.x.reshape(-1, columns)  # [B P, E]
        dtype = jnp.dtype(self.config.dtype)
        logits = products.linear(rows, self.table, dtype, transposed=True)
        logits = products.add_bias(logits, self.bias)
        if size > self.config.vocab_size:
            is_token = jnp.arange(size) < self.config.vocab_size
            logits = jnp.where(is_token, logits, -1e9)
        return logits.reshape(*self.x.shape[:2], size)


def loss_and_accuracy(
    logits: Float[Array, "*rows V"] | VocabularyLogits, labels: Int[Array, "*rows"]
) -> tuple[Float[Array, "*rows"], Float[Array, "*rows"]]:
    """Return the cross entropy, and 1.0 where the label has the highest logit."""
    if not isinstance(logits, VocabularyLogits):
        return cross_entropy(logits, labels), is_correct(logits, labels)
    decision = decisions.cross_entropy(logits.config, "tpu", *labels.shape)
    if decision.implementation == decisions.PLAIN:
        return _plain(logits, labels)
    return lax.platform_dependent(logits, labels, tpu=_by_kernel, default=_plain)


def _plain(logits, labels):
    return loss_and_accuracy(logits.compute(), labels)


def _by_kernel(logits, labels):
    zeros = jnp.zeros(logits.table.shape[:1])
    return tpu_cross_entropy.cross_entropy(
        logits.x.astype(logits.config.dtype),
        logits.table,
        zeros if logits.bias is None else logits.bias,
        labels,
        vocab_size=logits.config.vocab_size,
    )


def is_correct(
    logits: Float[Array, "*rows V"], labels: Int[Array, "*rows"]
) -> Float[Array, "*rows"]:
    """Return 1.0 where the label is the argmax (the first on ties), else 0.0.

    It uses the reductions of `cross_entropy` and one more. With `jnp.argmax`, the head
    for masked tokens takes a quarter more cycles on a TPU.
    """
    index = jax.lax.broadcasted_iota(labels.dtype, logits.shape, logits.ndim - 1)
    is_earlier = index < labels[..., None]
    earlier = jnp.max(jnp.where(is_earlier, logits, -jnp.inf), axis=-1)
    chosen = jnp.sum(jnp.where(_is_label(logits, labels), logits, 0.0), axis=-1)
    highest = jnp.max(logits, axis=-1)
    return ((chosen >= highest) & (chosen > earlier)).astype(jnp.float32)


@jax.custom_vjp
def cross_entropy(
    logits: Float[Array, "*rows V"], labels: Int[Array, "*rows"]
) -> Float[Array, "*rows"]:
    """Return -log softmax(logits)[label], in nats.

    The custom derivative, softmax minus one-hot, is one loop over the logits. The
    derivative that JAX generates scatters into a second array of their size.
    """
    return _cross_entropy_forward(logits, labels)[0]


def _cross_entropy_forward(logits, labels):
    log_normalizer = jax.nn.logsumexp(logits, axis=-1)
    chosen = jnp.sum(jnp.where(_is_label(logits, labels), logits, 0.0), axis=-1)
    return log_normalizer - chosen, (logits, log_normalizer, labels)


def _cross_entropy_backward(residuals, g):
    logits, log_normalizer, labels = residuals
    probabilities = jnp.exp(logits - log_normalizer[..., None])
    return (probabilities - _is_label(logits, labels)) * g[..., None], None


cross_entropy.defvjp(_cross_entropy_forward, _cross_entropy_backward)


def _is_label(logits, labels):
    index = jax.lax.broadcasted_iota(labels.dtype, logits.shape, logits.ndim - 1)
    return index == labels[..., None]
