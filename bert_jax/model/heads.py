"""The encoder with what is put on top of it for a purpose."""

import dataclasses
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, UInt32

from bert_jax import config as config_lib
from bert_jax.model import dropout, encoder, layers, products, randomness
from bert_jax.model.inputs import Inputs


class LanguageModelHead(nn.Module):
    """From vectors to logits over the vocabulary, tied to the token embedding.

    The transformation makes vectors of the embedding's width, as in ALBERT and ELECTRA.

    Attributes:
      config: Shape of the encoder.
      transforms: Whether vectors are transformed; XLNet has none of it.
    """

    config: config_lib.EncoderConfig
    transforms: bool = True

    @nn.compact
    def __call__(
        self, x: Float[Array, "B P D"], token_embedding: Float[Array, "V E"]
    ) -> Float[Array, "B P V"]:
        """Float32 logits. Those of the vocabulary's padding are very negative."""
        c = self.config
        if self.transforms:
            x = layers.Linear(
                ("embed",),
                (("hidden", c.embedding_columns),),
                c.dtype,
                c.initializer_range,
                name="transform",
            )(x)
            x = layers.activate(x, c.activation)
            x = layers.LayerNorm(c.layer_norm_epsilon, c.dtype, name="layer_norm")(x)
        zeros = nn.with_logical_partitioning(nn.initializers.zeros, ("vocab",))
        bias = self.param("output_bias", zeros, (c.padded_vocab_size,))
        rows = x.reshape(-1, c.embedding_columns)
        logits = products.tied_linear(rows, token_embedding, bias, jnp.dtype(c.dtype))
        if c.padded_vocab_size > c.vocab_size:
            is_token = jnp.arange(c.padded_vocab_size) < c.vocab_size
            logits = jnp.where(is_token, logits, -1e9)
        return logits.reshape(*x.shape[:2], c.padded_vocab_size)


def classifier(
    config: config_lib.EncoderConfig, num_classes: int, name: str | None = None
) -> layers.Linear:
    """From vectors of the encoder to float32 logits of classes."""
    return layers.Linear(
        ("embed",),
        (("class", num_classes),),
        config.dtype,
        config.initializer_range,
        result_dtype="float32",
        name=name,
    )


@dataclasses.dataclass(frozen=True)
class PretrainingLogits:
    """What is predicted in pretraining, as float32 logits.

    Attributes:
      mlm: Logits of the masked tokens.
      sentence: Logits of what is asked about the two segments, of rows that are packed
        for each example; None if nothing is asked.
    """

    mlm: Float[Array, "B P V"]
    sentence: Float[Array, "B 2"] | Float[Array, "B S 2"] | None


class PretrainingModel(nn.Module):
    """BERT with its heads: masked tokens, and pairs of segments (paper, 3.1).

    Attributes:
      config: Shape of the encoder.
      sentence_head: Name of the head for pairs of segments; "" for none, and no pooler.
    """

    config: config_lib.EncoderConfig
    sentence_head: str = "nsp_head"

    def setup(self):
        self.encoder = encoder.Encoder(self.config)
        self.mlm_head = LanguageModelHead(self.config)
        if self.sentence_head:
            self.sentence = classifier(self.config, 2, self.sentence_head)

    def __call__(
        self,
        inputs: Inputs,
        mlm_positions: Int[Array, "B P"],
        pooled_positions: Int[Array, "B S"] | None = None,
        *,
        dropout_keys: UInt32[Array, " B"] | None = None,
    ) -> PretrainingLogits:
        """Logits for the tokens at `mlm_positions` and for the pairs of segments.

        Args:
          inputs: Rows of tokens.
          mlm_positions: Which tokens are predicted.
          pooled_positions: [CLS] of each example of packed rows; None: a row has one.
          dropout_keys: A key for each row; None for no dropout.
        """
        keys = randomness.fold_in(dropout_keys, "encoder")
        read_at, count = mlm_positions, 0
        if self.sentence_head:
            pooled = pooled_positions
            if pooled is None:
                pooled = self.encoder.pooled_positions(inputs)
            read_at, count = jnp.concatenate([pooled, read_at], axis=1), pooled.shape[1]
        encoded = self.encoder(inputs, dropout_keys=keys, read_at=read_at)
        masked, sentence = encoded.hidden[:, count:], None
        if self.sentence_head:
            pooled = encoded.hidden[:, :count]
            if pooled_positions is None:
                pooled = pooled[:, 0]
            sentence = self.sentence(self.encoder.pool(pooled))
        return PretrainingLogits(
            self.mlm_head(masked, self.encoder.token_embedding()), sentence
        )


class CausalModel(nn.Module):
    """The encoder as a left-to-right model, with logits for each next token."""

    config: config_lib.EncoderConfig

    def setup(self):
        self.encoder = encoder.Encoder(self.config)
        self.lm_head = LanguageModelHead(self.config)

    def __call__(
        self,
        inputs: Inputs,
        *,
        dropout_keys: UInt32[Array, " B"] | None = None,
    ) -> Float[Array, "B L V"]:
        """Float32 logits of the token after each position."""
        keys = randomness.fold_in(dropout_keys, "encoder")
        encoded = self.encoder(inputs, dropout_keys=keys)
        return self.lm_head(encoded.hidden, self.encoder.token_embedding())


class ClassifierModel(nn.Module):
    """The encoder with a linear classifier on the pooled vector (paper, 4.1)."""

    config: config_lib.EncoderConfig
    num_classes: int

    def setup(self):
        self.encoder = encoder.Encoder(self.config)
        self.classifier = classifier(self.config, self.num_classes)

    def __call__(
        self,
        inputs: Inputs,
        *,
        dropout_keys: UInt32[Array, " B"] | None = None,
    ) -> Float[Array, "B C"]:
        """Float32 logits of the classes."""
        keys = randomness.fold_in(dropout_keys, "encoder")
        pooled = self.encoder.pooled_positions(inputs)
        encoded = self.encoder(inputs, dropout_keys=keys, read_at=pooled)
        keys = randomness.fold_in(dropout_keys, "classifier")
        pooled = dropout.dropout(
            self.encoder.pool(encoded.hidden[:, 0]), self.config.dropout_rate, keys
        )
        return self.classifier(pooled)


class TaggerModel(nn.Module):
    """The encoder with a linear classifier on the vector of each token (paper, 5.3)."""

    config: config_lib.EncoderConfig
    num_classes: int

    def setup(self):
        self.encoder = encoder.Encoder(self.config)
        self.tagger = classifier(self.config, self.num_classes)

    def __call__(
        self,
        inputs: Inputs,
        *,
        dropout_keys: UInt32[Array, " B"] | None = None,
    ) -> Float[Array, "B L C"]:
        """Float32 logits of the classes of each token."""
        keys = randomness.fold_in(dropout_keys, "encoder")
        encoded = self.encoder(inputs, dropout_keys=keys)
        keys = randomness.fold_in(dropout_keys, "tagger")
        hidden = dropout.dropout(encoded.hidden, self.config.dropout_rate, keys)
        return self.tagger(hidden)


class SpanModel(nn.Module):
    """The encoder with two logits for each position: of a start, and of an end (4.2).

    Without a pooler, and as in the original without dropout behind the encoder.
    """

    config: config_lib.EncoderConfig

    def setup(self):
        self.encoder = encoder.Encoder(self.config)
        self.span_classifier = classifier(self.config, 2)

    def __call__(
        self,
        inputs: Inputs,
        *,
        dropout_keys: UInt32[Array, " B"] | None = None,
    ) -> Float[Array, "B L 2"]:
        """Float32 logits; those of padding mean nothing."""
        keys = randomness.fold_in(dropout_keys, "encoder")
        encoded = self.encoder(inputs, dropout_keys=keys)
        return self.span_classifier(encoded.hidden)


def init(model: nn.Module, key: jax.Array, *arguments: jax.Array) -> Any:
    """Initial parameters of a model, boxed with the names of their dimensions.

    Args:
      model: A model of inputs.
      key: Key for what is drawn.
      arguments: What the model is given besides, for one row of one token.
    """
    ids = jnp.zeros((1, 1), jnp.int32)
    return model.init(key, Inputs(ids, ids == 0), *arguments)["params"]
