"""A generator and a discriminator that share their embeddings (Clark et al. 2020)."""

import flax.linen as nn
from jaxtyping import Array, Float, Int, UInt32

from bert_jax import config as config_lib
from bert_jax.model import encoder, heads, layers, randomness
from bert_jax.model.inputs import Inputs


class ReplacedTokensModel(nn.Module):
    """ELECTRA: a masked language model, and an encoder that finds what it made up.

    The discriminator is `encoder`, which fine-tuning takes. As in the authors' code the
    generator has all of its embeddings, layer norm included (the paper's 3.2 names
    those of tokens and positions), and a projection of its own.

    Attributes:
      config: Shape of the discriminator.
      generator_config: Shape of the generator; vocabulary, positions, segments and
        columns of the embeddings are the discriminator's.
    """

    config: config_lib.EncoderConfig
    generator_config: config_lib.EncoderConfig

    def setup(self):
        c = self.config
        self.encoder = encoder.Encoder(c)
        self.generator = encoder.Encoder(
            self.generator_config, shared_embeddings=self.encoder.embeddings
        )
        self.generator_head = heads.LanguageModelHead(self.generator_config)
        self.discriminator_transform = layers.Linear(
            ("embed",), (("hidden", c.hidden_size),), c.dtype, c.initializer_range
        )
        self.discriminator = heads.classifier(c, 1)

    def __call__(
        self, inputs: Inputs, mlm_positions: Int[Array, "B P"]
    ) -> tuple[Float[Array, "B P V"], Float[Array, "B L"]]:
        """Both, on the same tokens; what initialisation needs."""
        return self.generate(inputs, mlm_positions), self.discriminate(inputs)

    def generate(
        self,
        inputs: Inputs,
        mlm_positions: Int[Array, "B P"],
        *,
        dropout_keys: UInt32[Array, " B"] | None = None,
    ) -> Float[Array, "B P V"]:
        """Float32 logits of the generator for the tokens at `mlm_positions`."""
        encoded = self.generator(
            inputs,
            dropout_keys=randomness.fold_in(dropout_keys, "generator"),
            read_at=mlm_positions,
        )
        return self.generator_head(encoded.hidden, self.encoder.token_embedding())

    def discriminate(
        self, inputs: Inputs, *, dropout_keys: UInt32[Array, " B"] | None = None
    ) -> Float[Array, "B L"]:
        """Float32 logits of each token's being replaced."""
        keys = randomness.fold_in(dropout_keys, "encoder")
        hidden = self.encoder(inputs, dropout_keys=keys).hidden
        hidden = self.discriminator_transform(hidden)
        hidden = layers.activate(hidden, self.config.activation)
        return self.discriminator(hidden)[..., 0]
