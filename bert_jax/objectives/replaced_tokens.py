"""Replaced token detection (Clark et al. 2020, ELECTRA).

The generator, a small masked language model, samples tokens for the masked positions.
The encoder, the discriminator, predicts for each token whether it was replaced. Both
train together; no gradient passes through the samples.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float, Int, UInt32

from bert_jax import config as config_lib
from bert_jax.model import flops, heads, randomness
from bert_jax.model import replaced_tokens as model_lib
from bert_jax.objectives import Batch, metric_sums, pretraining


@dataclasses.dataclass(frozen=True)
class ReplacedTokens(pretraining.PretrainingObjective):
    """Mean generator loss over masked tokens, plus mean discriminator loss over all.

    A sampled token that equals the original is not a replaced one. The discriminator's
    loss is the mean over all tokens except padding, in rows with masked tokens.

    Source: google-research/electra, run_pretraining.py. The original draws masked
    positions with replacement, so that a row may have fewer, and 10 % of its rows have
    one segment. Here rows and masks are made as for `MaskedLm`.
    """

    config: config_lib.ReplacedTokensConfig = config_lib.ReplacedTokensConfig()
    logits_reader = "sampling"

    @property
    def loss_weights(self) -> dict[str, float]:
        return {"mlm_loss": 1.0, "disc_loss": self.config.discriminator_weight}

    @property
    def metrics(self) -> tuple[str, ...]:
        """Names of the metrics; precision and recall refer to replaced tokens."""
        names = "disc_precision", "disc_recall", "replaced_fraction"
        return (*super().metrics, *names)

    @property
    def generator(self) -> config_lib.EncoderConfig:
        return self.config.generator(self.encoder)

    @property
    def model(self) -> model_lib.ReplacedTokensModel:
        return model_lib.ReplacedTokensModel(self.encoder, self.generator)

    def num_predictions(self, length: int) -> int:
        return self.config.masking.num_predictions(length)

    def sequence_flops(self, length: int) -> float:
        predictions = self.num_predictions(length)
        d = self.encoder.hidden_size
        return flops.training(
            flops.encoder(self.generator, length, predictions)
            + flops.prediction_head(self.generator, predictions)
            + flops.encoder(self.encoder, length)
            + length * (2.0 * d * d + flops.classifier(self.encoder, 1))
        )

    def init(self, key: jax.Array) -> Any:
        params = super().init(key)
        if self.config.embedding_sharing == "gradient_disentangled":
            embeddings = params["encoder"]["embeddings"]
            params["embedding_differences"] = jax.tree.map(jnp.zeros_like, embeddings)
        return params

    def _discriminator_params(self, params):
        """Return the parameters with the embeddings that the discriminator reads."""
        if self.config.embedding_sharing == "tied":
            return params
        embeddings = jax.tree.map(
            lambda shared, difference: jax.lax.stop_gradient(shared) + difference,
            params["encoder"]["embeddings"],
            params["embedding_differences"],
        )
        return params | {"encoder": params["encoder"] | {"embeddings": embeddings}}

    def counts(self, batch: Batch) -> dict[str, jax.Array]:
        return {
            "mlm_loss": jnp.sum(batch["mlm_weights"]),
            "disc_loss": jnp.sum(metric_sums.token_weights(batch)),
        }

    def measure(self, params, batch, dropout_keys, sampling_keys):
        """Return losses, accuracies, and shares of replaced and found tokens."""
        logits = self.logits(
            params, batch, dropout_keys=dropout_keys, method="generate"
        )  # [B, P, V]
        samples = sample(jax.lax.stop_gradient(logits), sampling_keys)
        ids, is_replaced = fill_in(batch, samples)
        scores = heads.apply(
            self.model,
            self._discriminator_params(params),
            batch | {"input_ids": ids},
            dropout_keys=dropout_keys,
            method="discriminate",
        )  # [B, L]
        weights, is_found = metric_sums.token_weights(batch), scores > 0
        hits = is_found & is_replaced
        loss = optax.sigmoid_binary_cross_entropy(scores, is_replaced)
        return {
            **metric_sums.loss_and_accuracy(
                "mlm", logits, batch["mlm_labels"], batch["mlm_weights"]
            ),
            "disc_loss": metric_sums.weighted_sum(loss, weights),
            "disc_accuracy": metric_sums.weighted_sum(is_found == is_replaced, weights),
            "disc_precision": metric_sums.weighted_sum(hits, weights * is_found),
            "disc_recall": metric_sums.weighted_sum(hits, weights * is_replaced),
            "replaced_fraction": metric_sums.weighted_sum(is_replaced, weights),
        }


def sample(
    logits: Float[Array, "B P V"], keys: UInt32[Array, " B"]
) -> Int[Array, "B P"]:
    """Sample a token for each prediction from the softmax of its logits.

    The argmax of logits plus Gumbel noise is such a sample.
    """
    noise = gumbel(randomness.bits(keys, logits.shape[1:]))
    return jnp.argmax(logits + noise, axis=-1)


def gumbel(words: UInt32[Array, "..."]) -> Float[Array, "..."]:
    """Map random words to Gumbel noise, -log(-log(u)), which is always finite.

    u is the midpoint of one of 2**23 intervals of (0, 1). With 2**24 intervals, float32
    would round the last midpoint to 1, and the noise would be infinite for it.
    """
    uniform = ((words >> 9).astype(jnp.float32) + 0.5) * 2.0**-23
    return -jnp.log(-jnp.log(uniform))


def fill_in(
    batch: Batch, samples: Int[Array, "B P"]
) -> tuple[Int[Array, "B L"], Bool[Array, "B L"]]:
    """Return the tokens with samples at predicted positions, and a mask of changes.

    A predicted token that was left unmasked gets its sample, too.
    """
    ids, chosen = batch["input_ids"], batch["mlm_weights"] > 0
    # Slots without a prediction are out of range, and the scatter drops them.
    at = jnp.where(chosen, batch["mlm_positions"], ids.shape[1])
    row = jnp.arange(ids.shape[0])[:, None]
    ids = ids.at[row, at].set(samples.astype(ids.dtype), mode="drop")
    is_replaced = jnp.zeros(ids.shape, bool)
    is_other = samples != batch["mlm_labels"]
    return ids, is_replaced.at[row, at].set(is_other, mode="drop")
