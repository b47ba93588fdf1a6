"""DeBERTa's encoder: disentangled attention over one table of distances.

Source: He et al. 2020, DeBERTa, 3; microsoft/DeBERTa; `DebertaV2Model` of
`transformers`.
"""

from bert_jax.model import embeddings, encoder, norms
from bert_jax.model.deberta.attention import DisentangledAttention, DistancePattern
from bert_jax.model.inputs import Inputs


class DebertaEncoder(encoder.Encoder):
    """DeBERTa without heads.

    Distances are the only position information, and all layers share their embeddings.
    As in `DebertaV2ForMaskedLM`, there is no enhanced mask decoder, which in the
    original adds absolute positions to predict masked tokens (DeBERTa paper, 3.2).
    Hidden states of padding differ from the original's, which zeroes its embeddings.
    """

    attention_class = DisentangledAttention

    def setup(self):
        c = self.config
        rows = 2 * c.distance_buckets
        self.distance_embedding = embeddings.table(
            self, "distance_embedding", "position", rows, c.hidden_size
        )
        self.distance_norm = norms.Norm(c)
        self.distances = self.distance_norm(self.distance_embedding)  # [R, D]
        super().setup()

    def _pattern(self, inputs: Inputs, is_global: bool) -> DistancePattern:
        pattern = super()._pattern(inputs, is_global)
        return DistancePattern(**vars(pattern), distances=self.distances)
