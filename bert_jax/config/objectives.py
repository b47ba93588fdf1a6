"""Configs of pretraining objectives, and of the rows that they are trained on."""

import dataclasses
import math
from typing import ClassVar

from bert_jax.config.fields import field, require
from bert_jax.config.model import EncoderConfig
from bert_jax.errors import UserError

# Short names of pair tasks, by the kind of rows with two segments.
PAIR_TASKS = {"next_sentence": "nsp", "sentence_order": "sop"}
# Kinds of rows with one segment.
SINGLE_SEGMENTS = ("full_sentences", "doc_sentences")
MAX_EXAMPLES_PER_ROW = 64


@dataclasses.dataclass(frozen=True, kw_only=True)
class MaskingConfig:
    """The choice of predicted tokens, and of their replacements (BERT paper, 3.1)."""

    # Share of the tokens that are predicted, without padding. A phase may have a rate
    # of its own (`PhaseConfig.masking_rate`).
    rate: float = field(0.15, more_than=0, at_most=1)
    # The same for held-out text, in all phases, to compare runs with different rates.
    eval_rate: float = field(0.15, more_than=0, at_most=1)
    # Unit that is masked as a whole: "token"; "word": a token and its continuations;
    # "ngram": 1 to max_ngram words.
    unit: str = field("token", choices=("token", "word", "ngram"))
    max_ngram: int = field(3, at_least=1, at_most=16)
    # Number of predictions, and whether special tokens are among them; see
    # data/masking.py.
    convention: str = field("original", choices=("original", "fairseq"))
    # Maximum number of predictions in an example; 0: as many as the higher of the two
    # rates gives.
    max_predictions: int = field(0, at_least=0)
    # Shares of the predicted tokens that become [MASK] and a random token; the rest
    # stay unchanged.
    mask_token_rate: float = field(0.8, at_least=0, at_most=1)
    random_token_rate: float = field(0.1, at_least=0, at_most=1)

    def check(self, where: str) -> None:
        """Check the shares of replacements, and that `max_ngram` has an effect."""
        if self.unit != "ngram":
            require(self, where, [("max_ngram", 3, "unit")])
        if self.mask_token_rate + self.random_token_rate > 1:
            raise UserError(
                f"{where}mask_token_rate={self.mask_token_rate} and "
                f"{where}random_token_rate={self.random_token_rate} add up to more "
                "than 1"
            )

    def num_predictions(self, length: int, examples: int = 1) -> int:
        """Return the largest number of predictions in a row: P of a batch."""
        # Round first: 0.1 * 30 is a little more than 3.
        wanted = math.ceil(round(max(self.rate, self.eval_rate) * length, 6))
        if examples == 1:
            return min(length, self.max_predictions or wanted)
        # Rounding may add a prediction to each example.
        wanted += examples - 1
        return min(length, wanted, examples * self.max_predictions or wanted)


@dataclasses.dataclass(frozen=True, kw_only=True)
class RowsConfig:
    """Base class of the configs of objectives: how their rows are made.

    A subclass makes a constant a field where it may vary.
    """

    kind: str
    # Kinds of rows (data/segments.py), of which the first two have a pair task.
    # "next_sentence": two segments that are consecutive or not (BERT paper, 3.1);
    # "sentence_order": two consecutive segments, in order or swapped (ALBERT);
    # "consecutive": two consecutive segments, without a pair task;
    # "full_sentences": as much text as fits, across documents (RoBERTa);
    # "doc_sentences": as much text of one document as fits (RoBERTa).
    segments: str = field("consecutive", choices=("consecutive", *SINGLE_SEGMENTS))
    # Share of the sequences that aim at a random shorter length (google-research/bert,
    # create_pretraining_data.py).
    short_sequence_rate: float = field(0.1, at_least=0, at_most=1)
    # Maximum number of examples in a row. 1: no packing. In packed rows each example
    # has its own [CLS], positions and attention (data/packing.py).
    examples_per_row: ClassVar[int] = 1
    masking: ClassVar[MaskingConfig | None] = None
    causal: ClassVar[bool] = False  # as in `EncoderConfig`

    def check(self, where: str) -> None:
        """Check that only examples of one document are packed."""
        if self.examples_per_row > 1 and self.segments == "full_sentences":
            raise UserError(
                f"{where}examples_per_row={self.examples_per_row} packs examples of "
                f"one document, but {where}segments='full_sentences' crosses "
                f"documents; use {where}segments='doc_sentences', or "
                f"{where}examples_per_row=1"
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class MaskedLmConfig(RowsConfig):
    """Masked language modelling, with or without a pair task."""

    kind: str = "masked_lm"
    segments: str = field(
        "next_sentence", choices=(*PAIR_TASKS, "consecutive", *SINGLE_SEGMENTS)
    )
    examples_per_row: int = field(1, at_least=1, at_most=MAX_EXAMPLES_PER_ROW)
    masking: MaskingConfig = MaskingConfig()


@dataclasses.dataclass(frozen=True, kw_only=True)
class DistillationConfig(MaskedLmConfig):
    """Masked language modelling that also imitates a teacher.

    Sources: Hinton et al. 2015; Sanh et al. 2019 (DistilBERT), for the temperature and
    for the losses and their ratio; Jiao et al. 2020 (TinyBERT, 3.1), for the layers.
    """

    kind: str = "distillation"
    # Checkpoint of this or another project with a head for masked tokens, and with the
    # corpus's tokenizer.
    teacher: str = field("", free=True)
    teacher_fingerprint: str = ""  # of its parameters; "": not checked
    # The architecture is filled in from the checkpoint; a plan needs no checkpoint.
    teacher_encoder: EncoderConfig = EncoderConfig()
    # Weight of the teacher's loss; the loss of masked tokens has weight 1.
    teacher_weight: float = field(2.5, at_least=0)
    # Divides the logits of both models.
    temperature: float = field(2.0, more_than=0)
    # Weight of the loss of hidden states; 0: they are not compared.
    hidden_weight: float = field(0.0, at_least=0)
    # "last": after the last layer. "all": the embeddings and all layers; layer m
    # of M imitates layer m N / M of the teacher's N.
    hidden_layers: str = field("last", choices=("last", "all"))

    def check(self, where: str) -> None:
        super().check(where)
        if not self.hidden_weight:
            require(self, where, [("hidden_layers", "last", "hidden_weight")])
        if not self.teacher_weight:
            require(self, where, [("temperature", 2.0, "teacher_weight")])
        if self.teacher_encoder.positions == "relative":
            path = "teacher_encoder.positions"
            require(self, where, [("examples_per_row", 1, path)])

    def compared_states(self, encoder: EncoderConfig) -> list[tuple[int, int]]:
        """Return the hidden states to compare, by index in student and teacher.

        The embeddings have index 0, the states after the last layer -1.

        Raises:
          UserError: The shapes of the encoders do not fit.
        """
        size, teacher_size = encoder.hidden_size, self.teacher_encoder.hidden_size
        layers, teacher_layers = encoder.num_layers, self.teacher_encoder.num_layers
        if size != teacher_size:
            raise UserError(
                "objective.hidden_weight compares hidden states of one size, but "
                f"encoder.hidden_size is {size}, and the teacher's is {teacher_size}; "
                "make them equal, or set objective.hidden_weight=0"
            )
        if self.hidden_layers == "last":
            return [(-1, -1)]
        if teacher_layers % layers:
            raise UserError(
                f"encoder.num_layers={layers} does not divide the teacher's layers, "
                f"{teacher_layers}; set a divisor, or objective.hidden_layers='last'"
            )
        return [(i, i * teacher_layers // layers) for i in range(layers + 1)]


@dataclasses.dataclass(frozen=True, kw_only=True)
class CausalLmConfig(RowsConfig):
    """Left-to-right language modelling (BERT paper, 5.1, "LTR")."""

    kind: str = "causal_lm"
    causal: ClassVar[bool] = True
    examples_per_row: int = field(1, at_least=1, at_most=MAX_EXAMPLES_PER_ROW)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReplacedTokensConfig(RowsConfig):
    """Detection of tokens that a small generator replaced (Clark et al. 2020, ELECTRA).

    The generator fills in masked tokens; by default 15 % of them stay unchanged.
    """

    kind: str = "replaced_tokens"
    short_sequence_rate: float = field(0.05, at_least=0, at_most=1)
    masking: MaskingConfig = MaskingConfig(mask_token_rate=0.85, random_token_rate=0.0)
    # Hidden size, feed-forward size and number of heads of the generator, as a share of
    # the encoder's.
    generator_size: float = field(0.25, more_than=0, at_most=1)
    # Number of layers of the generator, as a share of the encoder's.
    generator_layers: float = field(1.0, more_than=0, at_most=1)
    # "tied": both have the same embeddings (ELECTRA). "gradient_disentangled": the
    # encoder's are the generator's, without their gradient, plus differences that only
    # the encoder trains (He et al. 2021, DeBERTaV3, 3.3).
    embedding_sharing: str = field("tied", choices=("tied", "gradient_disentangled"))
    # Weight of the discriminator's loss; the generator's loss has weight 1.
    discriminator_weight: float = field(50.0, more_than=0)

    def generator(self, encoder: EncoderConfig) -> EncoderConfig:
        """Return the generator's config, with heads of the encoder's head size.

        `PretrainConfig.check` refuses a `generator_size` that does not allow this.
        """
        hidden_size = round(encoder.hidden_size * self.generator_size)
        intermediate_size = round(encoder.intermediate_size * self.generator_size)
        num_heads = max(1, hidden_size // encoder.head_size)
        shared = encoder.num_key_value_heads
        return dataclasses.replace(
            encoder,
            embedding_size=encoder.embedding_columns,
            hidden_size=hidden_size,
            num_layers=max(1, round(encoder.num_layers * self.generator_layers)),
            num_heads=num_heads,
            num_key_value_heads=shared and math.gcd(shared, num_heads),
            intermediate_size=max(1, intermediate_size),
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class PermutationLmConfig(RowsConfig):
    """Prediction of tokens in a random order (Yang et al. 2019, XLNet).

    Tokens are not masked: attention hides tokens that are later in the order.
    """

    kind: str = "permutation_lm"
    short_sequence_rate: float = field(0.0, at_least=0, at_most=1)
    # One in `context` tokens is predicted (the paper's K).
    context: int = field(6, at_least=2)
    # Maximum number of tokens in a predicted span.
    max_span: int = field(5, at_least=1)

    def num_predictions(self, length: int) -> int:
        """Return the largest number of predictions in a row: P of a batch."""
        return max(1, (length - 1) // self.context)


# Any objective of pretraining.
ObjectiveConfig = (
    MaskedLmConfig
    | DistillationConfig
    | CausalLmConfig
    | ReplacedTokensConfig
    | PermutationLmConfig
)
