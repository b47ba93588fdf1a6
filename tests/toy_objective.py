"""A complete objective outside of the package: detect randomly replaced tokens.

Some tokens are replaced by random ones, sampled in the step, and the encoder predicts
which. It needs a config, a class, and an entry in `pretraining.OBJECTIVES`.
"""

import dataclasses
from typing import ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp

from bert_jax import config as config_lib
from bert_jax.config.fields import field
from bert_jax.model import flops, heads, randomness
from bert_jax.model.heads import make_encoder
from bert_jax.model.inputs import Inputs
from bert_jax.objectives import metric_sums


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReplacedConfig:
    kind: str = "replaced"
    causal: ClassVar[bool] = False
    masking: ClassVar[None] = None
    segments: str = field("doc_sentences", choices=config_lib.SINGLE_SEGMENTS)
    short_sequence_rate: float = field(0.0, at_least=0, at_most=1)
    examples_per_row: ClassVar[int] = 1
    rate: float = field(0.3, more_than=0, less_than=1)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ToyPretrainConfig(config_lib.PretrainConfig):
    objective: ReplacedConfig | config_lib.MaskedLmConfig = ReplacedConfig()


class ReplacedModel(nn.Module):
    config: config_lib.EncoderConfig

    def setup(self):
        self.encoder = make_encoder(self.config)
        self.head = heads.Classifier(self.config, 1)

    def __call__(self, inputs, dropout_keys=None):
        return self.head(self.encoder(inputs, dropout_keys=dropout_keys).hidden)[..., 0]


@dataclasses.dataclass(frozen=True)
class Replaced:
    encoder: config_lib.EncoderConfig
    config: ReplacedConfig

    token_predictor = logits_reader = ""
    losses: ClassVar = {"replaced_loss": 2.0}
    metrics = ("replaced_loss", "replaced_accuracy", "padding_fraction")

    def batch_shapes(self, batch_size, length):
        tokens = batch_size, length
        return {
            "input_ids": jax.ShapeDtypeStruct(tokens, jnp.int32),
            "attention_mask": jax.ShapeDtypeStruct(tokens, jnp.bool_),
            "weights": jax.ShapeDtypeStruct((batch_size,), jnp.float32),
        }

    def sequence_flops(self, length):
        return flops.training(flops.encoder(self.encoder, length))

    def init(self, key):
        ids = jnp.zeros((1, 1), jnp.int32)
        return ReplacedModel(self.encoder).init(key, Inputs(ids, ids == 0))["params"]

    def counts(self, batch):
        return {"replaced_loss": self._weights(batch).sum()}

    def _weights(self, batch):
        return batch["attention_mask"] * batch["weights"][:, None]

    def sums(self, params, batch, *, dropout_keys, sampling_keys):
        ids = batch["input_ids"]
        words = randomness.bits(sampling_keys, ids.shape[1:])
        others = randomness.bits(randomness.fold_in(sampling_keys, "id"), ids.shape[1:])
        replaced = words < jnp.uint32(self.config.rate * 2**32)
        other_ids = (others % self.encoder.vocab_size).astype(jnp.int32)
        inputs = Inputs.of(batch)._replace(
            input_ids=jnp.where(replaced, other_ids, ids)
        )
        logits = ReplacedModel(self.encoder).apply(
            {"params": params}, inputs, dropout_keys
        )
        loss = jnp.logaddexp(0.0, logits) - replaced * logits
        weights = self._weights(batch)
        correct = ((logits > 0) == replaced).astype(jnp.float32)
        return {
            "replaced_loss": metric_sums.weighted(loss, weights),
            "replaced_accuracy": metric_sums.weighted(correct, weights),
            "padding_fraction": metric_sums.padding_fraction(batch["attention_mask"]),
        }
