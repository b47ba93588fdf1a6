"""Architecture and arithmetic of the encoder."""

import dataclasses
import math
import operator
from collections.abc import Iterator
from typing import Any

from bert_jax.config.fields import field, require
from bert_jax.errors import UserError

# The vocabulary of BERT uncased, used for `vocab_size=0` before a corpus is known.
BERT_VOCAB_SIZE = 30_522


@dataclasses.dataclass(frozen=True, kw_only=True)
class PredictionHeadConfig:
    """Layers between the encoder and the logits over the vocabulary."""

    # Dense layers, each followed by the activation. BERT has 1, EuroBERT none,
    # UltraBERT 2.
    num_layers: int = field(1, at_least=0, at_most=2)
    # Columns between two dense layers; 0: as many as the embeddings have.
    width: int = field(0, at_least=0)
    # "": the encoder's activation.
    activation: str = field("", choices=("", "gelu_tanh", "gelu_erf", "silu"))
    # Whether a norm, of the encoder's kind, follows the dense layers.
    norm: bool = True
    # Whether the dense layers have biases.
    bias: bool = True
    # Whether each token has a bias.
    output_bias: bool = True
    # Whether logits are products with the token embeddings, or with a table of their
    # own.
    tied: bool = True

    def check(self, where: str) -> None:
        """Check that `width` has an effect."""
        if self.num_layers < 2:
            require(self, where, [("width", 0, "num_layers")])


@dataclasses.dataclass(frozen=True, kw_only=True)
class PoolerConfig:
    """Layers between the encoder and a classifier."""

    # Vector of a text. "cls": the hidden state of [CLS], or of the last token if the
    # encoder is causal. "mean": the mean over its tokens, before the layers below.
    # "late_mean": the mean after them (EuroBERT).
    pooling: str = field("cls", choices=("cls", "mean", "late_mean"))
    # Activation of a dense layer: tanh in BERT, ReLU in DistilBERT, GELU in ELECTRA.
    # "": there is no dense layer (UltraBERT).
    activation: str = field(
        "tanh", choices=("", "tanh", "relu", "gelu_tanh", "gelu_erf", "silu")
    )
    # Whether the dense layer has a bias.
    bias: bool = True
    # Whether a norm of the encoder's kind follows (ModernBERT).
    norm: bool = False
    # Whether classifiers of tokens have these layers, too (ModernBERT).
    per_token: bool = False


# Fields that keep their defaults in DeBERTa's encoder, and in XLNet's.
DEBERTA_REQUIREMENTS = (
    "causal",
    "feed_forward",
    "norm",
    "norm_bias",
    "norm_placement",
    "linear_bias",
    "num_key_value_heads",
    "attention_window",
    "embedding_norm",
)
XLNET_REQUIREMENTS = (
    *DEBERTA_REQUIREMENTS,
    "embedding_size",
    *(f"pooler.{f.name}" for f in dataclasses.fields(PoolerConfig)),
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class EncoderConfig:
    """Architecture and arithmetic of the encoder. The defaults are BERT-Base.

    Source: BERT paper, 3. Fields that BERT lacks name the model that they come from.
    """

    # ---- sizes
    # Rows of the token embedding; 0: the size of the corpus's tokenizer.
    vocab_size: int = field(BERT_VOCAB_SIZE, at_least=0)
    # Embedding rows are padded up to a multiple of this.
    vocab_multiple: int = field(128, at_least=1)
    # Columns of the embeddings (ALBERT, 3.1; ELECTRA); 0: hidden_size.
    embedding_size: int = field(0, at_least=0)
    hidden_size: int = field(768, at_least=1)
    num_layers: int = field(12, at_least=1)
    # Groups of successive layers that share their parameters (ALBERT, 3.1); 0: each
    # layer has its own.
    num_layer_groups: int = field(0, at_least=0)
    num_heads: int = field(12, at_least=1)
    # Heads of keys and values, each shared by equally many query heads (Ainslie et al.
    # 2023); 0: num_heads.
    num_key_value_heads: int = field(0, at_least=0)
    intermediate_size: int = field(3072, at_least=1)
    # Longest row, in tokens; with absolute positions, rows of their table.
    max_position_embeddings: int = field(512, at_least=1, adaptable=True)
    # Number of segment embeddings; 1: all tokens share one; 0: none. With relative
    # positions, 2: attention knows whether two tokens share a segment; 0: it does not.
    type_vocab_size: int = field(2, at_least=0, adaptable=True)

    # ---- attention
    # "absolute": a table of position embeddings (BERT). "rotary": queries and keys are
    # rotated by their position (Su et al. 2021; ModernBERT). "relative" (XLNet) and
    # "disentangled" (DeBERTa) have encoder classes of their own (model/xlnet,
    # model/deberta).
    positions: str = field(
        "absolute", choices=("absolute", "rotary", "relative", "disentangled")
    )
    # Number of distance embeddings in each direction (DeBERTa). Half of them stand for
    # one distance each, the other half for ranges of growing size.
    distance_buckets: int = field(256, at_least=4)
    # From this distance on, tokens share a bucket (DeBERTa).
    max_distance: int = field(512, at_least=4)
    # Base of the rotary wavelengths.
    rotary_base: float = field(10_000.0, more_than=0, adaptable=True)
    # The same in local layers; 0: rotary_base.
    local_rotary_base: float = field(0.0, at_least=0, adaptable=True)
    # Local layers attend to this many positions on either side; 0: all layers are
    # global.
    attention_window: int = field(0, at_least=0)
    # Layer i is global if i % global_layer_every == first_global_layer.
    global_layer_every: int = field(1, at_least=1)
    first_global_layer: int = field(0, at_least=0)
    # Whether a token attends to itself and earlier tokens only.
    causal: bool = field(False, adaptable=True)

    # ---- feed-forward network, norms and biases
    # "gated": output(activation(gate(x)) * intermediate(x)) (Shazeer 2020).
    feed_forward: str = field("plain", choices=("plain", "gated"))
    # Hugging Face calls "gelu_erf" "gelu".
    activation: str = field("gelu_tanh", choices=("gelu_tanh", "gelu_erf", "silu"))
    # Layer norm, or its root-mean-square form without mean and bias (Zhang and Sennrich
    # 2019).
    norm: str = field("layer", choices=("layer", "rms"))
    # Whether layer norms have biases.
    norm_bias: bool = True
    # "post": norm(x + f(x)) (BERT). "pre": x + f(norm(x)), and a norm after the last
    # layer (ModernBERT).
    norm_placement: str = field("post", choices=("post", "pre"))
    # Whether a pre-norm encoder has a norm before the attention of layer 0. ModernBERT
    # has none, since its embeddings are normalised.
    first_attention_norm: bool = True
    # Whether embeddings are normalised.
    embedding_norm: bool = True
    layer_norm_epsilon: float = field(1e-12, more_than=0)
    # Whether the linear layers of attention and feed-forward network have biases.
    linear_bias: bool = True
    prediction_head: PredictionHeadConfig = PredictionHeadConfig()
    pooler: PoolerConfig = PoolerConfig()

    # ---- dropout and initialisation
    # Dropout of embeddings and of the outputs of attention and feed-forward network.
    dropout_rate: float = field(0.1, at_least=0, less_than=1, regularisation=True)
    attention_dropout_rate: float = field(
        0.1, at_least=0, less_than=1, regularisation=True
    )
    # Standard deviation of a normal distribution, which is truncated at twice this
    # value. The initial values have 0.88 times this standard deviation.
    initializer_range: float = field(0.02, at_least=0, regularisation=True)
    # Whether to divide `initializer_range` by sqrt(2 num_layers) for the output kernels
    # of attention and feed-forward network, the prediction head and the pooler
    # (ModernBERT in `transformers`; the authors' code leaves out the prediction head).
    depth_scaled_init: bool = field(False, regularisation=True)

    # ---- computation
    # Type of activations and of the factors of products.
    dtype: str = field("bfloat16", choices=("bfloat16", "float32"), free=True)
    # True: compile one layer and loop over it. False: unroll all.
    scan_layers: bool = field(False, free=True)
    # "auto": kernels where platform and shapes allow them (model/kernels). "off": no
    # kernels, in case a compiler rejects one. Both draw the same dropout masks.
    kernels: str = field("auto", choices=("auto", "off"), free=True)
    # What the backward pass recomputes instead of storing it.
    remat: str = field("none", choices=("none", "attention", "layer"), free=True)

    def check(self, where: str) -> None:
        """Check that sizes divide and that the fields fit together."""
        for name, by, parts in (
            ("hidden_size", "num_heads", self.num_heads),
            ("num_heads", "num_key_value_heads", self.key_value_heads),
            ("num_layers", "num_layer_groups", self.num_distinct_layers),
        ):
            if (size := getattr(self, name)) % parts:
                raise UserError(
                    f"{where}{by}={parts} does not divide {where}{name}={size}"
                )
        if self.positions == "rotary" and self.head_size % 2:
            raise UserError(
                f"{where}positions=rotary needs heads of an even size; hidden_size / "
                f"num_heads is {self.head_size}"
            )
        if self.positions == "relative" and self.hidden_size % 2:
            raise UserError(
                f"{where}hidden_size={self.hidden_size} must be even with "
                f"{where}positions=relative"
            )
        if self.max_distance < self.distance_buckets:
            raise UserError(
                f"{where}max_distance={self.max_distance} must be at least "
                f"{where}distance_buckets={self.distance_buckets}"
            )
        if self.attention_window and self.global_layer_every == 1:
            raise UserError(
                f"{where}attention_window={self.attention_window} is for local layers, "
                f"and all are global; set {where}global_layer_every to 2 or more"
            )
        if self.first_global_layer >= self.global_layer_every:
            raise UserError(
                f"{where}first_global_layer={self.first_global_layer} must be less "
                f"than {where}global_layer_every={self.global_layer_every}"
            )
        require(self, where, self._requirements())

    def _requirements(self) -> Iterator[tuple[str, Any, str]]:
        """Yield (field, its only possible value, the field that requires it)."""
        defaults = type(self)()
        if not self.attention_window:
            yield "global_layer_every", 1, "attention_window"
        if self.norm_placement == "post":
            yield "first_attention_norm", True, "norm_placement"
        if (
            self.embedding_columns != self.hidden_size
            and not self.prediction_head.num_layers
        ):
            yield "embedding_size", 0, "prediction_head.num_layers"
        if self.num_layer_groups:  # layers that share parameters are alike
            yield "attention_window", 0, "num_layer_groups"
            yield "first_attention_norm", True, "num_layer_groups"
        required = {
            "relative": XLNET_REQUIREMENTS,
            "disentangled": DEBERTA_REQUIREMENTS,
        }.get(self.positions, ())
        for name in required:
            yield name, operator.attrgetter(name)(defaults), "positions"
        if self.positions != "disentangled":
            yield "distance_buckets", defaults.distance_buckets, "positions"
            yield "max_distance", defaults.max_distance, "positions"
        if self.positions == "relative" and self.type_vocab_size:
            yield "type_vocab_size", 2, "positions"

    def check_rotary_bases(self, where: str) -> None:
        """Check that rotary bases that are set have an effect.

        This is not part of `check`: a run that begins with a checkpoint may set a base
        before the rest of its architecture is known.
        """
        requirements = []
        if self.positions != "rotary":
            default = type(self).rotary_base
            requirements.append(("rotary_base", default, "positions"))
            requirements.append(("local_rotary_base", 0.0, "positions"))
        if not self.attention_window:
            requirements.append(("local_rotary_base", 0.0, "attention_window"))
        require(self, where, requirements)

    def is_global(self, layer: int) -> bool:
        """Return whether a layer attends to whole rows, not to a window."""
        if not self.attention_window:
            return True
        return layer % self.global_layer_every == self.first_global_layer

    @property
    def head_activation(self) -> str:
        """Activation of the prediction head, with the default filled in."""
        return self.prediction_head.activation or self.activation

    @property
    def padded_vocab_size(self) -> int:
        """Rows of the token embedding; the padding's logits are never predicted."""
        return math.ceil(self.vocab_size / self.vocab_multiple) * self.vocab_multiple

    @property
    def embedding_columns(self) -> int:
        """Columns of the embeddings, with the default filled in: the dimension E."""
        return self.embedding_size or self.hidden_size

    @property
    def num_distinct_layers(self) -> int:
        """Layers with parameters of their own, which are stacked: the dimension G."""
        return self.num_layer_groups or self.num_layers

    @property
    def key_value_heads(self) -> int:
        """Heads of keys and values, with the default filled in."""
        return self.num_key_value_heads or self.num_heads

    @property
    def head_size(self) -> int:
        return self.hidden_size // self.num_heads
