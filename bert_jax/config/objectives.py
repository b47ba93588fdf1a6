"""What pretraining asks of a model, and of which rows."""

import dataclasses
import math
from typing import ClassVar

from bert_jax.config.model import EncoderConfig
from bert_jax.errors import UserError
from bert_jax.knobs import knob

# Kinds of sequences with two segments and a question about them, with the short name of
# the question; and kinds with one segment.
PAIR_QUESTIONS = {"next_sentence": "nsp", "sentence_order": "sop"}
SINGLE_SEGMENTS = ("full_sentences", "doc_sentences")
MAX_EXAMPLES_PER_ROW = 64


@dataclasses.dataclass(frozen=True, kw_only=True)
class MaskingConfig:
    """Which tokens are predicted, and what stands in their place (paper, 3.1)."""

    # Share of the tokens that are predicted; padding does not count. A phase may have a
    # rate of its own (`PhaseConfig.masking_rate`).
    rate: float = knob(0.15, more_than=0, at_most=1)
    # The same for held-out text, in all phases, so that runs with other rates compare.
    eval_rate: float = knob(0.15, more_than=0, at_most=1)
    # What is masked as a whole: "token"; "word": a token with those that continue it;
    # "ngram": 1 to max_ngram words.
    unit: str = knob("token", choices=("token", "word", "ngram"))
    max_ngram: int = knob(3, at_least=1, at_most=16)
    # How predictions are counted, and what may be among them; see data/masking.py.
    convention: str = knob("original", choices=("original", "fairseq"))
    # Predictions in an example, at most; 0: as many as the higher rate asks for.
    max_predictions: int = knob(0, at_least=0)
    # Of the predicted tokens, the shares that become [MASK] and a random token; the
    # others stay as they are.
    mask_token_rate: float = knob(0.8, at_least=0, at_most=1)
    random_token_rate: float = knob(0.1, at_least=0, at_most=1)

    def check(self, where: str) -> None:
        """Check that the shares of what predicted tokens become add up."""
        if self.mask_token_rate + self.random_token_rate > 1:
            raise UserError(
                f"{where}mask_token_rate={self.mask_token_rate} and "
                f"{where}random_token_rate={self.random_token_rate} add up to more "
                "than 1"
            )

    def predictions(self, length: int, examples: int = 1) -> int:
        """Return the largest number of predictions in a row: P of a batch.

        Args:
          length: Tokens in a row.
          examples: Examples in a row, at most.
        """
        # Rounded first: 0.1 * 30 is a little more than 3.
        wanted = math.ceil(round(max(self.rate, self.eval_rate) * length, 6))
        if examples == 1:
            return min(length, self.max_predictions or wanted)
        # The number of each example is rounded, to less than one more.
        wanted += examples - 1
        return min(length, wanted, examples * self.max_predictions or wanted)


@dataclasses.dataclass(frozen=True, kw_only=True)
class MaskedLmConfig:
    """Masked tokens, and a question about pairs of segments if these ask one.

    What a sequence is (data/segments.py):
    "next_sentence": two segments that follow one another or do not (paper, 3.1);
    "sentence_order": two that do, in order or swapped (ALBERT);
    "consecutive": two that do, in order, and no question;
    "full_sentences", "doc_sentences": as much text as there is room for, across
    documents or of one (RoBERTa).
    """

    kind: str = "masked_lm"
    causal: ClassVar[bool] = False
    segments: str = knob(
        "next_sentence", choices=(*PAIR_QUESTIONS, "consecutive", *SINGLE_SEGMENTS)
    )
    # Share of the sequences that aim at a random shorter length (paper, A.2).
    short_sequence_rate: float = knob(0.1, at_least=0, at_most=1)
    # More than 1: rows are packed with up to so many examples, each with its own [CLS],
    # positions and attention (data/packing.py). 1: each example has a row.
    examples_per_row: int = knob(1, at_least=1, at_most=MAX_EXAMPLES_PER_ROW)
    masking: MaskingConfig = MaskingConfig()

    def check(self, where: str) -> None:
        """What is packed are examples of one document."""
        _check_packing(self, where)


@dataclasses.dataclass(frozen=True, kw_only=True)
class CausalLmConfig:
    """Each token from those before it: left to right (paper, 5.1, "LTR").

    `segments` as for `MaskedLmConfig`, those without a question.
    """

    kind: str = "causal_lm"
    causal: ClassVar[bool] = True
    masking: ClassVar[None] = None
    segments: str = knob("consecutive", choices=("consecutive", *SINGLE_SEGMENTS))
    # Share of the sequences that aim at a random shorter length (paper, A.2).
    short_sequence_rate: float = knob(0.1, at_least=0, at_most=1)
    # Examples in a row, at most, as for `MaskedLmConfig`.
    examples_per_row: int = knob(1, at_least=1, at_most=MAX_EXAMPLES_PER_ROW)

    def check(self, where: str) -> None:
        """What is packed are examples of one document."""
        _check_packing(self, where)


def _check_packing(objective: MaskedLmConfig | CausalLmConfig, where: str) -> None:
    if objective.examples_per_row > 1 and objective.segments == "full_sentences":
        raise UserError(
            f"{where}examples_per_row={objective.examples_per_row} packs examples of "
            f"one document, and {where}segments='full_sentences' fills rows across "
            "documents; take doc_sentences, or 1 example"
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReplacedTokensConfig:
    """Which tokens a small generator has replaced (Clark et al. 2020, ELECTRA).

    `segments` as for `MaskedLmConfig`, those without a question. Masked tokens are what
    the generator fills in; by default 15 % of them show what it has to predict.
    """

    kind: str = "replaced_tokens"
    causal: ClassVar[bool] = False
    examples_per_row: ClassVar[int] = 1
    segments: str = knob("consecutive", choices=("consecutive", *SINGLE_SEGMENTS))
    # Share of the sequences that aim at a random shorter length.
    short_sequence_rate: float = knob(0.05, at_least=0, at_most=1)
    masking: MaskingConfig = MaskingConfig(mask_token_rate=0.85, random_token_rate=0.0)
    # Of the encoder's hidden size, feed-forward part and number of heads.
    generator_size: float = knob(0.25, more_than=0, at_most=1)
    # Of the encoder's number of layers.
    generator_layers: float = knob(1.0, more_than=0, at_most=1)
    # Of the discriminator's loss in the sum; the generator's has 1.
    discriminator_weight: float = knob(50.0, more_than=0)

    def generator(self, encoder: EncoderConfig) -> EncoderConfig:
        """Shape of the generator beside an encoder, with heads of the same size.

        `PretrainConfig.check` refuses a `generator_size` for which there is none.
        """
        hidden_size = round(encoder.hidden_size * self.generator_size)
        return dataclasses.replace(
            encoder,
            embedding_size=encoder.embedding_columns,
            hidden_size=hidden_size,
            num_layers=max(1, round(encoder.num_layers * self.generator_layers)),
            num_heads=max(1, hidden_size // encoder.head_size),
            intermediate_size=round(encoder.intermediate_size * self.generator_size),
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class PermutationLmConfig:
    """Tokens in any order, each from those before it (Yang et al. 2019, XLNet).

    `segments` as for `MaskedLmConfig`, those without a question. Nothing is masked: the
    last tokens of the order are predicted, and attention hides what comes later.
    """

    kind: str = "permutation_lm"
    causal: ClassVar[bool] = False
    masking: ClassVar[None] = None
    examples_per_row: ClassVar[int] = 1
    segments: str = knob("consecutive", choices=("consecutive", *SINGLE_SEGMENTS))
    # Share of the sequences that aim at a random shorter length.
    short_sequence_rate: float = knob(0.0, at_least=0, at_most=1)
    # Of this many tokens one is predicted (the paper's K).
    context: int = knob(6, at_least=2)
    # Predicted tokens that stand together, at most.
    max_span: int = knob(5, at_least=1)

    def predictions(self, length: int) -> int:
        """Predictions in a sequence, at most: the dimension P of a batch."""
        return max(1, (length - 1) // self.context)
