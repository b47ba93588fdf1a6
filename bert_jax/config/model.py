"""Shape and arithmetic of the encoder."""

import dataclasses
import math

from bert_jax.errors import UserError
from bert_jax.knobs import knob

# The vocabulary of BERT uncased. What `vocab_size=0` means before a corpus is known.
BERT_VOCAB_SIZE = 30_522

# What the attention kernel is made for: columns of a head, and positions.
KERNEL_HEAD_SIZES = (32, 64, 128)
KERNEL_MAX_LENGTH = 512


@dataclasses.dataclass(frozen=True, kw_only=True)
class EncoderConfig:
    """Shape and arithmetic of the encoder. The defaults are BERT-Base (paper, 3)."""

    # Rows of the token embedding; 0: as many as the tokenizer of the corpus has.
    vocab_size: int = knob(BERT_VOCAB_SIZE, at_least=0)
    # Embedding rows are padded up to a multiple of this.
    vocab_multiple: int = knob(128, at_least=1)
    # Columns of the embeddings (ALBERT, 3.1; ELECTRA); 0: hidden_size.
    embedding_size: int = knob(0, at_least=0)
    hidden_size: int = knob(768, at_least=1)
    num_layers: int = knob(12, at_least=1)
    # Groups of successive layers that share their parameters (ALBERT, 3.1); 0: each
    # layer has its own.
    num_layer_groups: int = knob(0, at_least=0)
    num_heads: int = knob(12, at_least=1)
    intermediate_size: int = knob(3072, at_least=1)
    # Tokens of a row, at most; where positions are absolute, rows of their table.
    max_position_embeddings: int = knob(512, at_least=1)
    # Kinds of segments with an embedding each; 1: all share one; 0: no embedding. Where
    # positions are relative, 2: two segments are the same or not; 0: none of that.
    type_vocab_size: int = knob(2, at_least=0)
    # "absolute": embeddings of positions and segments (BERT). "relative": attention
    # knows distances, and whether segments differ (XLNet); then there are neither
    # embeddings of positions nor a layer norm behind those of tokens, queries, keys and
    # values have no biases, and [CLS] counts as the last token of its row.
    positions: str = knob("absolute", choices=("absolute", "relative"))
    # Whether a token attends only to itself and those before it: left to right.
    causal: bool = False
    # Hugging Face calls "gelu_erf" "gelu".
    activation: str = knob("gelu_tanh", choices=("gelu_tanh", "gelu_erf"))
    # Of hidden states, and of attention probabilities.
    dropout_rate: float = knob(0.1, at_least=0, less_than=1)
    attention_dropout_rate: float = knob(0.1, at_least=0, less_than=1)
    layer_norm_epsilon: float = knob(1e-12, more_than=0)
    # Standard deviation of the normal distribution, which is cut off at two of them.
    initializer_range: float = knob(0.02, at_least=0)
    # Type of activations and of the factors of products.
    dtype: str = knob("bfloat16", choices=("bfloat16", "float32"), free=True)
    # Whether the compiler sees one layer in a loop, or all of them unrolled.
    scan_layers: bool = knob(False, free=True)
    # How attention is computed. "kernel": as one kernel for TPUs, but not in a last
    # layer that is read at some positions; on other backends the kernel is interpreted,
    # which is slow. "plain": in the operations that XLA knows. "auto":
    # by the kernel on TPUs where shapes allow it, and by cuDNN's on NVIDIA GPUs in
    # bfloat16 and without dropout of probabilities. All three draw the same dropout.
    attention: str = knob("auto", choices=("auto", "plain", "kernel"), free=True)
    # What the backward pass recomputes instead of keeping it.
    remat: str = knob("none", choices=("none", "attention", "layer"), free=True)

    def check(self, where: str) -> None:
        """Heads and groups are equal parts, and the kernel knows the heads' size."""
        if self.hidden_size % self.num_heads:
            raise UserError(
                f"{where}num_heads={self.num_heads} does not divide "
                f"{where}hidden_size={self.hidden_size}"
            )
        if self.num_layers % self.num_distinct_layers:
            raise UserError(
                f"{where}num_layer_groups={self.num_layer_groups} does not divide "
                f"{where}num_layers={self.num_layers}"
            )
        if self.is_relative:
            self._check_relative(where)
        if self.attention != "kernel":
            return
        if self.head_size not in KERNEL_HEAD_SIZES:
            sizes = ", ".join(map(str, KERNEL_HEAD_SIZES))
            raise UserError(
                f"{where}attention=kernel is for heads of {sizes} columns, not "
                f"hidden_size / num_heads = {self.head_size}; take auto or plain"
            )
        if self.max_position_embeddings > KERNEL_MAX_LENGTH:
            raise UserError(
                f"{where}attention=kernel is for up to {KERNEL_MAX_LENGTH} positions, "
                f"not max_position_embeddings={self.max_position_embeddings}; take "
                "auto or plain"
            )

    def _check_relative(self, where: str) -> None:
        for name, works, advice in (
            ("causal", not self.causal, "must be False"),
            ("attention", self.attention != "kernel", "must be auto or plain"),
            ("type_vocab_size", self.type_vocab_size in (0, 2), "must be 0 or 2"),
            ("hidden_size", self.hidden_size % 2 == 0, "must be even"),
        ):
            if not works:
                raise UserError(
                    f"{where}{name}={getattr(self, name)} does not go with "
                    f"{where}positions=relative; it {advice}"
                )

    @property
    def is_relative(self) -> bool:
        return self.positions == "relative"

    @property
    def padded_vocab_size(self) -> int:
        """Rows of the token embedding; the padding's logits are never predicted."""
        return math.ceil(self.vocab_size / self.vocab_multiple) * self.vocab_multiple

    @property
    def embedding_columns(self) -> int:
        """Columns of the embeddings, whatever says so: the dimension E."""
        return self.embedding_size or self.hidden_size

    @property
    def num_distinct_layers(self) -> int:
        """Layers with parameters of their own, which are stacked: the dimension G."""
        return self.num_layer_groups or self.num_layers

    @property
    def head_size(self) -> int:
        return self.hidden_size // self.num_heads
