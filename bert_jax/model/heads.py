"""The encoder with heads for pretraining and for tasks."""

import dataclasses
import functools
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, UInt32

from bert_jax import config as config_lib
from bert_jax.model import (
    activations,
    dropout,
    embeddings,
    norms,
    products,
    randomness,
)
from bert_jax.model.attention import output_stddev
from bert_jax.model.inputs import Inputs
from bert_jax.model.linear import Linear
from bert_jax.model.make_encoder import make_encoder


class PredictionHead(nn.Module):
    """From hidden states to logits over the vocabulary.

    Dense layers end with as many columns as the embeddings have, as in ALBERT and
    ELECTRA. Logits are products with the token embedding, or with a table of their own.

    Attributes:
      config: Encoder.
      head: Shape of the head; None: the encoder's.
    """

    config: config_lib.EncoderConfig
    head: config_lib.PredictionHeadConfig | None = None

    @nn.compact
    def __call__(
        self, x: Float[Array, "B P D"], token_embedding: Float[Array, "V E"]
    ) -> Float[Array, "B P V"]:
        """Return float32 logits, which are -1e9 for the vocabulary's padding."""
        c, head = self.config, self.head or self.config.prediction_head
        dense = functools.partial(
            Linear,
            ("embed",),
            dtype=c.dtype,
            stddev=output_stddev(c),
            has_bias=head.bias,
        )
        layers = [("transform", c.embedding_columns)][: head.num_layers]
        if head.num_layers == 2:
            layers.insert(0, ("inner_transform", head.width or c.embedding_columns))
        for name, columns in layers:
            x = dense((("hidden", columns),), name=name)(x)
            x = activations.activate(x, head.activation or c.activation)
        if head.norm:
            x = norms.Norm(c, name="layer_norm")(x)
        table = token_embedding
        if not head.tied:
            table = embeddings.table(
                self, "output_embedding", "vocab", c.padded_vocab_size
            )
        rows = x.reshape(-1, c.embedding_columns)  # [B P, E]
        logits = products.transposed_linear(rows, table, jnp.dtype(c.dtype))
        if head.output_bias:
            zeros = nn.with_logical_partitioning(nn.initializers.zeros, ("vocab",))
            bias = self.param("output_bias", zeros, (c.padded_vocab_size,))
            logits = products.add_bias(logits, bias)
        if c.padded_vocab_size > c.vocab_size:
            is_token = jnp.arange(c.padded_vocab_size) < c.vocab_size
            logits = jnp.where(is_token, logits, -1e9)
        return logits.reshape(*x.shape[:2], c.padded_vocab_size)


class Classifier(Linear):
    """A linear layer from hidden states to float32 logits of classes."""

    def __call__(self, x: Float[Array, "*rows D"]) -> Float[Array, "*rows C"]:
        """Return the logits."""
        return products.add_bias(*self.product_and_bias(x))


def classifier(
    config: config_lib.EncoderConfig, num_classes: int, name: str | None = None
) -> Classifier:
    """Return a classifier of an encoder's hidden states."""
    return Classifier(
        ("embed",),
        (("class", num_classes),),
        config.dtype,
        config.initializer_range,
        name=name,
    )


@dataclasses.dataclass(frozen=True)
class PretrainingLogits:
    """Float32 logits of masked language modelling and of the question about segments.

    Attributes:
      mlm: Logits of the masked tokens.
      sentence: Logits of the answer about two segments; in packed rows, of each
        example's; None without a question.
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
        self.encoder = make_encoder(self.config)
        self.mlm_head = PredictionHead(self.config)
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
        """Return logits of the tokens at `mlm_positions` and of the segment pairs.

        Args:
          inputs: Rows of tokens.
          mlm_positions: Positions of the predicted tokens.
          pooled_positions: Positions of [CLS] of each example of packed rows; None:
            each row has one.
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
    """The encoder as a left-to-right language model, with logits of each next token."""

    config: config_lib.EncoderConfig

    def setup(self):
        self.encoder = make_encoder(self.config)
        self.lm_head = PredictionHead(self.config)

    def __call__(
        self,
        inputs: Inputs,
        *,
        dropout_keys: UInt32[Array, " B"] | None = None,
    ) -> Float[Array, "B L V"]:
        """Return float32 logits of the token after each position."""
        keys = randomness.fold_in(dropout_keys, "encoder")
        encoded = self.encoder(inputs, dropout_keys=keys)
        return self.lm_head(encoded.hidden, self.encoder.token_embedding())


class ClassifierModel(nn.Module):
    """The encoder with a linear classifier on the pooled vector (paper, 4.1)."""

    config: config_lib.EncoderConfig
    num_classes: int

    def setup(self):
        self.encoder = make_encoder(self.config)
        self.classifier = classifier(self.config, self.num_classes)

    def __call__(
        self,
        inputs: Inputs,
        *,
        dropout_keys: UInt32[Array, " B"] | None = None,
    ) -> Float[Array, "B C"]:
        """Return float32 logits of the classes."""
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
        self.encoder = make_encoder(self.config)
        self.tagger = classifier(self.config, self.num_classes)

    def __call__(
        self,
        inputs: Inputs,
        *,
        dropout_keys: UInt32[Array, " B"] | None = None,
    ) -> Float[Array, "B L C"]:
        """Return float32 logits of the classes of each token."""
        keys = randomness.fold_in(dropout_keys, "encoder")
        encoded = self.encoder(inputs, dropout_keys=keys)
        keys = randomness.fold_in(dropout_keys, "tagger")
        hidden = dropout.dropout(encoded.hidden, self.config.dropout_rate, keys)
        return self.tagger(hidden)


class SpanModel(nn.Module):
    """The encoder with logits of a start and an end at each position (4.2).

    As in the original there is no dropout after the encoder.
    """

    config: config_lib.EncoderConfig

    def setup(self):
        self.encoder = make_encoder(self.config)
        self.span_classifier = classifier(self.config, 2)

    def __call__(
        self,
        inputs: Inputs,
        *,
        dropout_keys: UInt32[Array, " B"] | None = None,
    ) -> Float[Array, "B L 2"]:
        """Return float32 logits, which are meaningless at padding."""
        keys = randomness.fold_in(dropout_keys, "encoder")
        encoded = self.encoder(inputs, dropout_keys=keys)
        return self.span_classifier(encoded.hidden)


def init(model: nn.Module, key: jax.Array, *arguments: jax.Array) -> Any:
    """Initialise the parameters of a model, boxed with names of their dimensions.

    Args:
      model: A model whose first argument is `Inputs`.
      key: Key of the initial values.
      arguments: Its further arguments, for one row of one token.
    """
    ids = jnp.zeros((1, 1), jnp.int32)
    return model.init(key, Inputs(ids, ids == 0), *arguments)["params"]
