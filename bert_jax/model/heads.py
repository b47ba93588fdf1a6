"""The encoder with what is put on top of it for a purpose."""

import dataclasses

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, UInt32

from bert_jax import config as config_lib
from bert_jax.model import dropout, encoder, layers, products

_CLASSIFIER_PLACE = 1  # that draws a dropout mask; the encoder has 0 and from 16 up


class MaskedLanguageModelHead(nn.Module):
    """From vectors to logits over the vocabulary, tied to the token embedding."""

    config: config_lib.EncoderConfig

    @nn.compact
    def __call__(
        self, x: Float[Array, "B P D"], token_embedding: Float[Array, "V D"]
    ) -> Float[Array, "B P V"]:
        """Float32 logits. Those of the vocabulary's padding are very negative."""
        c = self.config
        x = layers.Linear(
            ("embed",),
            (("hidden", c.hidden_size),),
            c.dtype,
            c.initializer_range,
            name="transform",
        )(x)
        x = layers.activate(x, c.activation)
        x = layers.LayerNorm(c.layer_norm_epsilon, c.dtype, name="layer_norm")(x)
        zeros = nn.with_logical_partitioning(nn.initializers.zeros, ("vocab",))
        bias = self.param("output_bias", zeros, (c.padded_vocab_size,))
        logits = products.tied_linear(
            x.reshape(-1, c.hidden_size), token_embedding, bias, jnp.dtype(c.dtype)
        )
        if c.padded_vocab_size > c.vocab_size:
            is_token = jnp.arange(c.padded_vocab_size) < c.vocab_size
            logits = jnp.where(is_token, logits, -1e9)
        return logits.reshape(*x.shape[:2], c.padded_vocab_size)


@dataclasses.dataclass(frozen=True)
class PretrainingLogits:
    """What is predicted in pretraining, as float32 logits."""

    mlm: Float[Array, "B P V"]
    nsp: Float[Array, "B 2"]


class PretrainingModel(nn.Module):
    """BERT with its two heads: masked tokens and next sentence (paper, 3.1)."""

    config: config_lib.EncoderConfig

    def setup(self):
        c = self.config
        self.encoder = encoder.Encoder(c)
        self.mlm_head = MaskedLanguageModelHead(c)
        self.nsp_head = layers.Linear(
            ("embed",), (("class", 2),), c.dtype, c.initializer_range
        )

    def __call__(
        self,
        input_ids: Int[Array, "B L"],
        segment_ids: Int[Array, "B L"],
        attention_mask: Bool[Array, "B L"],
        mlm_positions: Int[Array, "B P"],
        *,
        dropout_keys: UInt32[Array, " B"] | None = None,
    ) -> PretrainingLogits:
        """Logits for the tokens at `mlm_positions` and for the pair of segments."""
        encoded = self.encoder(
            input_ids, segment_ids, attention_mask, dropout_keys=dropout_keys
        )
        # Gathered first: the product with the vocabulary is the largest of all.
        masked = jnp.take_along_axis(encoded.hidden, mlm_positions[..., None], axis=1)
        return PretrainingLogits(
            mlm=self.mlm_head(masked, self.encoder.token_embedding()),
            nsp=self.nsp_head(encoded.pooled).astype(jnp.float32),
        )


class ClassifierModel(nn.Module):
    """The encoder with a linear classifier on the pooled vector (paper, 4.1)."""

    config: config_lib.EncoderConfig
    num_classes: int

    def setup(self):
        c = self.config
        self.encoder = encoder.Encoder(c)
        self.classifier = layers.Linear(
            ("embed",), (("class", self.num_classes),), c.dtype, c.initializer_range
        )

    def __call__(
        self,
        input_ids: Int[Array, "B L"],
        segment_ids: Int[Array, "B L"],
        attention_mask: Bool[Array, "B L"],
        *,
        dropout_keys: UInt32[Array, " B"] | None = None,
    ) -> Float[Array, "B C"]:
        """Float32 logits of the classes."""
        encoded = self.encoder(
            input_ids, segment_ids, attention_mask, dropout_keys=dropout_keys
        )
        keys = dropout.fold_in(dropout_keys, _CLASSIFIER_PLACE)
        pooled = dropout.dropout(encoded.pooled, self.config.dropout_rate, keys)
        return self.classifier(pooled).astype(jnp.float32)
