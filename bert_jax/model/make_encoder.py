"""The choice of the encoder's class from its config."""

from bert_jax import config as config_lib
from bert_jax.model import embeddings, encoder
from bert_jax.model.xlnet import encoder as xlnet


def make_encoder(
    config: config_lib.EncoderConfig,
    shared_embeddings: embeddings.Embeddings | None = None,
) -> encoder.Encoder | xlnet.XLNetEncoder:
    """Return the encoder that a config describes.

    Args:
      config: Encoder.
      shared_embeddings: Embeddings of another encoder to use; None: its own.
    """
    if config.positions == "relative":
        return xlnet.XLNetEncoder(config, shared_embeddings)
    return encoder.Encoder(config, shared_embeddings)
