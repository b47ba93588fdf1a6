"""XLNet with its head: tokens predicted in an order of factorisation."""

import flax.linen as nn
from jaxtyping import Array, Float, UInt32

from bert_jax import config as config_lib
from bert_jax.model import encoder, heads, layers, randomness
from bert_jax.model.inputs import Inputs


class PermutationModel(nn.Module):
    """The encoder with a stream of targets, and logits of what stands there.

    The head is the table of tokens and a bias (zihangdai/xlnet, modeling.py, lm_loss);
    so embeddings are as wide as hidden states.
    """

    config: config_lib.EncoderConfig

    def setup(self):
        c = self.config
        self.encoder = encoder.Encoder(c)
        init = nn.with_logical_partitioning(
            layers.initializer(c.initializer_range), ("hidden",)
        )
        self.target_embedding = self.param("target_embedding", init, (c.hidden_size,))
        self.lm_head = heads.LanguageModelHead(c, transforms=False)

    def __call__(
        self, inputs: Inputs, *, dropout_keys: UInt32[Array, " B"] | None = None
    ) -> Float[Array, "B P V"]:
        """Float32 logits of the tokens at `inputs.target_positions`."""
        encoded = self.encoder(
            inputs,
            dropout_keys=randomness.fold_in(dropout_keys, "encoder"),
            target_embedding=self.target_embedding,
        )
        return self.lm_head(encoded.hidden, self.encoder.token_embedding())
