"""A variant of the encoder: parallel blocks (Wang and Komatsuzaki 2021).

This file has everything that a variant needs. In the package, the config's field would
be in config/model.py, the classes in a package beside model/xlnet/, and the choice of
the class a line in `heads.make_encoder`.
"""

import dataclasses

import flax.linen as nn
import jax.numpy as jnp

from bert_jax import config as config_lib
from bert_jax.model import heads, norms, randomness
from bert_jax.model.block import Block
from bert_jax.model.encoder import Encoder
from bert_jax.model.feed_forward import FeedForward
from bert_jax.model.kernels import residual

make_encoder = heads.make_encoder


@dataclasses.dataclass(frozen=True, kw_only=True)
class ToyEncoderConfig(config_lib.EncoderConfig):
    # Whether attention and feed-forward network read the same input.
    parallel: bool = True


class ParallelBlock(Block):
    """x + dropout(attention(norm(x))) + dropout(feed_forward(norm(x)))."""

    @nn.compact
    def __call__(
        self,
        x,
        pattern,
        rotations,
        dropout_keys,
        *,
        read_at=None,
        return_probabilities=False,
    ):
        c = self.config
        feed_forward = FeedForward(c)
        nn.share_scope(self, feed_forward)
        normalised = norms.Norm(c, name="attention_norm")(x)
        *y, probabilities = self.attention_class(c, name="attention")(
            normalised,
            normalised,
            pattern,
            rotations,
            randomness.fold_in(dropout_keys, "attention_probabilities"),
            return_probabilities=return_probabilities,
        )
        keys = randomness.fold_in(dropout_keys, "attention_output")
        x = residual.add(c, x, *y, keys)
        keys = randomness.fold_in(dropout_keys, "feed_forward_output")
        x = residual.add(c, x, *feed_forward(normalised), keys)
        if read_at is not None:  # computed at all positions, then selected
            x = jnp.take_along_axis(x, read_at[..., None], axis=1)
        return x, probabilities


class ParallelEncoder(Encoder):
    block_class = ParallelBlock


def make_toy_encoder(config, shared_embeddings=None):
    """Like `make_encoder`, with one more class."""
    if getattr(config, "parallel", False):
        return ParallelEncoder(config, shared_embeddings)
    return make_encoder(config, shared_embeddings)
