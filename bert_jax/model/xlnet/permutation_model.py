"""XLNet with its head, which predicts tokens in an order of factorisation."""

import dataclasses

import flax.linen as nn
from jaxtyping import Array, Int, UInt32

from bert_jax import config as config_lib
from bert_jax.model import heads, linear, randomness
from bert_jax.model.cross_entropy import VocabularyLogits
from bert_jax.model.inputs import Inputs
from bert_jax.model.xlnet.encoder import Targets, XLNetEncoder


class PermutationModel(nn.Module):
    """XLNet with logits of the tokens at its targets.

    The head is the token embedding and a bias (zihangdai/xlnet, modeling.py, lm_loss).
    """

    config: config_lib.EncoderConfig

    def setup(self):
        c = self.config
        self.encoder = XLNetEncoder(c)
        init = linear.initializer(c.initializer_range, ("hidden",))
        self.target_embedding = self.param("target_embedding", init, (c.hidden_size,))
        head = config_lib.PredictionHeadConfig(num_layers=0, norm=False)
        c = dataclasses.replace(c, prediction_head=head)
        self.lm_head = heads.PredictionHead(c)

    def __call__(
        self,
        inputs: Inputs,
        ranks: Int[Array, "B L"],
        target_positions: Int[Array, "B P"],
        *,
        dropout_keys: UInt32[Array, " B"] | None = None,
    ) -> VocabularyLogits:
        """Return the logits of the tokens at `target_positions`; see `Targets`."""
        encoded = self.encoder(
            inputs,
            targets=Targets(ranks, target_positions, self.target_embedding),
            dropout_keys=randomness.fold_in(dropout_keys, "encoder"),
        )
        return self.lm_head(encoded.hidden, self.encoder.embeddings.token)
