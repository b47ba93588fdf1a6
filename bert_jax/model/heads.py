"""The choice of the encoder, and its heads for pretraining and for tasks."""

import dataclasses
from collections.abc import Sequence
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
    pooler,
    products,
    randomness,
)
from bert_jax.model.cross_entropy import VocabularyLogits
from bert_jax.model.deberta.encoder import DebertaEncoder
from bert_jax.model.encoder import Encoder
from bert_jax.model.inputs import Inputs, at_positions
from bert_jax.model.linear import Linear
from bert_jax.model.xlnet.encoder import XLNetEncoder


def make_encoder(
    config: config_lib.EncoderConfig, shared_embeddings: nn.Module | None = None
) -> Encoder:
    """Return the encoder that a config describes, with arguments as in `Encoder`."""
    classes = {"relative": XLNetEncoder, "disentangled": DebertaEncoder}
    return classes.get(config.positions, Encoder)(config, shared_embeddings)


class PredictionHead(nn.Module):
    """Head from hidden states to logits over the vocabulary.

    The last dense layer has as many columns as the embeddings, as in ALBERT and
    ELECTRA. Logits are products with the token embedding, or with the head's own table.
    """

    config: config_lib.EncoderConfig

    @nn.compact
    def __call__(
        self, x: Float[Array, "B P D"], token_embedding: Float[Array, "V E"]
    ) -> VocabularyLogits:
        """Return the logits as factors."""
        c, head = self.config, self.config.prediction_head
        layers = [
            ("inner_transform", head.width or c.embedding_columns),
            ("transform", c.embedding_columns),
        ]
        for name, columns in layers[2 - head.num_layers :]:
            dense = Linear(
                c, (("hidden", columns),), has_bias=head.bias, is_scaled=True, name=name
            )
            x = activations.activate(dense(x), c.head_activation)
        if head.norm:
            x = norms.Norm(c, name="layer_norm")(x)
        table = token_embedding
        if not head.tied:
            table = embeddings.table(
                self, "output_embedding", "vocab", c.padded_vocab_size
            )
        bias = None
        if head.output_bias:
            zeros = nn.with_logical_partitioning(nn.initializers.zeros, ("vocab",))
            bias = self.param("output_bias", zeros, (c.padded_vocab_size,))
        return VocabularyLogits(x, table, bias, c)


class Classifier(nn.Module):
    """A linear layer from hidden states to float32 logits of classes."""

    config: config_lib.EncoderConfig
    num_classes: int

    @nn.compact
    def __call__(self, x: Float[Array, "*rows D"]) -> Float[Array, "*rows C"]:
        """Return the logits."""
        linear = Linear(self.config, (("class", self.num_classes),))
        nn.share_scope(self, linear)
        return products.add_bias(*linear.product_and_bias(x, may_round=False))


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class PretrainingLogits:
    """Logits of masked language modelling and of the sentence-pair task."""

    mlm: VocabularyLogits
    # In float32, for each example of packed rows; None without a pair task.
    sentence: Float[Array, "B 2"] | Float[Array, "B S 2"] | None
    hidden_states: Float[Array, "states B L D"] | None = None  # None: not requested


class PretrainingModel(nn.Module):
    """BERT with its heads: masked tokens, and pairs of segments (BERT paper, 3.1)."""

    config: config_lib.EncoderConfig
    # Name of the head for pairs of segments; "" for none, and no pooler.
    sentence_head: str = "nsp_head"

    def setup(self):
        self.encoder = make_encoder(self.config)
        self.mlm_head = PredictionHead(self.config)
        if self.sentence_head:
            self.sentence = Classifier(self.config, 2, name=self.sentence_head)

    def __call__(
        self,
        inputs: Inputs,
        mlm_positions: Int[Array, "B P"],
        pooled_positions: Int[Array, "B S"] | None = None,
        *,
        dropout_keys: UInt32[Array, " B"] | None = None,
        return_states: str = "",
    ) -> PretrainingLogits:
        """Return logits of the tokens at `mlm_positions` and of the segment pairs.

        Args:
          inputs: Rows of tokens.
          mlm_positions: Positions of the predicted tokens.
          pooled_positions: Positions of [CLS] of each example of packed rows; None:
            each row has one.
          dropout_keys: A key for each row; None for no dropout.
          return_states: Hidden states to return: "last" after the last layer, "all" of
            the embeddings and of each layer; "": none.
        """
        keys = randomness.fold_in(dropout_keys, "encoder")
        read_at, num_pooled = mlm_positions, 0
        if self.sentence_head:
            cls = pooled_positions
            if cls is None:
                cls = self.encoder.pooled_positions(inputs)
            read_at = jnp.concatenate([cls, mlm_positions], axis=1)  # [B, S + P]
            num_pooled = cls.shape[1]
        encoded = self.encoder(
            inputs,
            dropout_keys=keys,
            read_at=None if return_states else read_at,
            return_hidden_states=return_states == "all",
        )
        hidden, states = encoded.hidden, encoded.hidden_states
        if return_states:
            states = hidden[None] if return_states == "last" else states
            hidden = at_positions(hidden, read_at)
        sentence = None
        if self.sentence_head:
            pooled = hidden[:, :num_pooled]  # [B, S, D]
            if pooled_positions is None:
                pooled = pooled[:, 0]
            sentence = self.sentence(self.encoder.pooler(pooled))
        mlm = self.mlm_head(hidden[:, num_pooled:], self.encoder.embeddings.token)
        return PretrainingLogits(mlm, sentence, states)


class CausalModel(nn.Module):
    """The encoder as a left-to-right language model, with logits of each next token."""

    config: config_lib.EncoderConfig

    def setup(self):
        self.encoder = make_encoder(self.config)
        self.lm_head = PredictionHead(self.config)

    def __call__(
        self, inputs: Inputs, *, dropout_keys: UInt32[Array, " B"] | None = None
    ) -> VocabularyLogits:
        """Return the logits of the token after each position."""
        keys = randomness.fold_in(dropout_keys, "encoder")
        encoded = self.encoder(inputs, dropout_keys=keys)
        return self.lm_head(encoded.hidden, self.encoder.embeddings.token)


class ClassifierModel(nn.Module):
    """The encoder with a linear classifier on the pooled vector (BERT paper, 4.1)."""

    config: config_lib.EncoderConfig
    num_classes: int

    head_name = "classifier"
    has_dropout = True

    def setup(self):
        self.encoder = make_encoder(self.config)
        self.head = Classifier(self.config, self.num_classes, name=self.head_name)

    def __call__(
        self, inputs: Inputs, *, dropout_keys: UInt32[Array, " B"] | None = None
    ) -> Float[Array, "*rows C"]:
        """Return float32 logits of the classes, [B, C] or [B, L, C]."""
        x = self.features(inputs, randomness.fold_in(dropout_keys, "encoder"))
        if self.has_dropout:
            keys = randomness.fold_in(dropout_keys, self.head_name)
            x = dropout.dropout(x, self.config.dropout_rate, keys)
        return self.head(x)

    def features(
        self, inputs: Inputs, keys: UInt32[Array, " B"] | None
    ) -> Float[Array, "B D"]:
        """Return the vectors to classify."""
        return self.encoder.pooled(inputs, keys)


class TaggerModel(ClassifierModel):
    """The encoder with a linear classifier on each token's vector (BERT paper, 5.3)."""

    head_name = "tagger"

    def features(
        self, inputs: Inputs, keys: UInt32[Array, " B"] | None
    ) -> Float[Array, "B L D"]:
        hidden = self.encoder(inputs, dropout_keys=keys).hidden
        return self.encoder.pooler(hidden) if self.config.pooler.per_token else hidden


class SpanModel(TaggerModel):
    """The encoder with logits of a start and an end at each position (4.2).

    Logits are meaningless at padding. As in the original there is no dropout after the
    encoder.
    """

    num_classes: int = 2

    head_name = "span_classifier"
    has_dropout = False


class EmbeddingModel(nn.Module):
    """The encoder with a unit vector for each text."""

    config: config_lib.EncoderConfig
    # "mean" over all tokens, special tokens included; or "cls": the vector of [CLS], or
    # of the last token if the encoder is causal.
    pool: str

    def setup(self):
        self.encoder = make_encoder(self.config)

    def __call__(
        self, inputs: Inputs, *, dropout_keys: UInt32[Array, " B"] | None = None
    ) -> Float[Array, "B D"]:
        """Return float32 vectors of length 1, arbitrary for a row of padding."""
        keys = randomness.fold_in(dropout_keys, "encoder")
        if self.pool == "cls":
            read_at = self.encoder.pooled_positions(inputs)
            x = self.encoder(inputs, dropout_keys=keys, read_at=read_at).hidden[:, 0]
        else:
            hidden = self.encoder(inputs, dropout_keys=keys).hidden
            x = pooler.mean(hidden.astype(jnp.float32), inputs.attention_mask)
        x = x.astype(jnp.float32)
        square = jnp.sum(jnp.square(x), axis=-1, keepdims=True)
        return x * jax.lax.rsqrt(jnp.maximum(square, 1e-24))


def init(
    model: nn.Module,
    key: jax.Array,
    arguments: Sequence[str] = (),
    method: str | None = None,
) -> Any:
    """Initialise the parameters of a model, boxed with names of their dimensions.

    `arguments` is as in `apply`, and `method` names a method to call instead.
    """
    ids = jnp.zeros((1, 1), jnp.int32)  # one row of one token
    others = [ids] * len(arguments)
    return model.init(key, Inputs(ids, ids == 0), *others, method=method)["params"]


def apply(
    model: nn.Module,
    params: Any,
    batch: dict[str, jax.Array],
    arguments: Sequence[str] = (),
    **options: Any,
) -> Any:
    """Apply a model to the `Inputs` of a batch.

    `arguments` names further arrays of the batch that the model takes, int32. `options`
    are keyword arguments of `nn.Module.apply` or of the model.
    """
    arrays = [batch[name] for name in arguments]
    return model.apply({"params": params}, Inputs.of(batch), *arrays, **options)
