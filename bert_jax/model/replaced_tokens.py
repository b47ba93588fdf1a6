"""A generator and a discriminator that share their embeddings (Clark et al. 2020)."""

import flax.linen as nn
from jaxtyping import Array, Float, Int, UInt32

from bert_jax import config as config_lib
from bert_jax.model import activations, heads, randomness
from bert_jax.model.inputs import Inputs
from bert_jax.model.linear import Linear


class ReplacedTokensModel(nn.Module):
    """ELECTRA: a generator that replaces tokens, and an encoder that finds them.

    The discriminator is `encoder`, which fine-tuning loads. As in the authors' code the
    generator shares all of its embeddings, layer norm included (the paper's 3.2 names
    token and position embeddings only), and has a projection of its own. In that code
    these projections and the discriminator's last layer begin with Glorot's uniform
    values, TensorFlow's default; here all kernels begin alike.
    """

    config: config_lib.EncoderConfig  # discriminator
    # Vocabulary, positions, segments and embedding columns are the discriminator's.
    generator_config: config_lib.EncoderConfig

    def setup(self):
        c = self.config
        self.encoder = heads.make_encoder(c)
        self.generator = heads.make_encoder(
            self.generator_config, shared_embeddings=self.encoder.embeddings
        )
        self.generator_head = heads.PredictionHead(self.generator_config)
        self.discriminator_transform = Linear(c, (("hidden", c.hidden_size),))
        self.discriminator = heads.Classifier(c, 1)

    def __call__(
        self, inputs: Inputs, mlm_positions: Int[Array, "B P"]
    ) -> tuple[Float[Array, "B P V"], Float[Array, "B L"]]:
        """Run both models on the same tokens, to initialise their parameters."""
        return self.generate(inputs, mlm_positions), self.discriminate(inputs)

    def generate(
        self,
        inputs: Inputs,
        mlm_positions: Int[Array, "B P"],
        *,
        dropout_keys: UInt32[Array, " B"] | None = None,
    ) -> Float[Array, "B P V"]:
        """Return the generator's float32 logits of the tokens at `mlm_positions`."""
        encoded = self.generator(
            inputs,
            dropout_keys=randomness.fold_in(dropout_keys, "generator"),
            read_at=mlm_positions,
        )
        table = self.encoder.embeddings.token
        return self.generator_head(encoded.hidden, table).compute()

    def discriminate(
        self, inputs: Inputs, *, dropout_keys: UInt32[Array, " B"] | None = None
    ) -> Float[Array, "B L"]:
        """Return float32 logits of each token being replaced."""
        keys = randomness.fold_in(dropout_keys, "encoder")
        hidden = self.encoder(inputs, dropout_keys=keys).hidden
        hidden = self.discriminator_transform(hidden)
        hidden = activations.activate(hidden, self.config.activation)
        return self.discriminator(hidden)[..., 0]
