"""Every knob of the project, declared once: its default, its limits and its reason.

Recipes in `configs/` turn these dataclasses into an `ml_collections.ConfigDict`, change
what differs, and return it; the command line overrides fields of it; entrypoints turn
it back with `knobs.from_configdict`, which checks it. Inside the project only the
frozen dataclasses travel.

Limits of one field stand at the field. What must hold between fields is in the method
`check` of the dataclass that has them; its argument `where` is the path of the fields
inside the whole config, such as "encoder.", for messages.
"""

import dataclasses
import math
from typing import ClassVar

from bert_jax.errors import UserError
from bert_jax.knobs import knob

# The vocabulary of BERT uncased. What `vocab_size=0` means before a corpus is known.
BERT_VOCAB_SIZE = 30_522
# Kinds of sequences with two segments and a question about them, with the short name of
# the question; and kinds with one segment.
PAIR_QUESTIONS = {"next_sentence": "nsp", "sentence_order": "sop"}
SINGLE_SEGMENTS = ("full_sentences", "doc_sentences")


@dataclasses.dataclass(frozen=True, kw_only=True)
class EncoderConfig:
    """Shape and arithmetic of the encoder. The defaults are BERT-Base (paper, 3)."""

    # Rows of the token embedding; 0: as many as the tokenizer of the corpus has.
    vocab_size: int = knob(BERT_VOCAB_SIZE, at_least=0)
    # Embedding rows are padded up to a multiple of this.
    vocab_multiple: int = knob(128, at_least=1)
    hidden_size: int = knob(768, at_least=1)
    num_layers: int = knob(12, at_least=1)
    num_heads: int = knob(12, at_least=1)
    intermediate_size: int = knob(3072, at_least=1)
    max_position_embeddings: int = knob(512, at_least=1)
    # Kinds of segments with an embedding each; 1: all share one; 0: no embedding.
    type_vocab_size: int = knob(2, at_least=0)
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
    # What the backward pass recomputes instead of keeping it.
    remat: str = knob("none", choices=("none", "attention", "layer"), free=True)

    def check(self, where: str) -> None:
        """Heads are equal parts of the hidden size."""
        if self.hidden_size % self.num_heads:
            raise UserError(
                f"{where}num_heads={self.num_heads} does not divide "
                f"{where}hidden_size={self.hidden_size}"
            )

    @property
    def padded_vocab_size(self) -> int:
        """Rows of the token embedding; the padding's logits are never predicted."""
        return math.ceil(self.vocab_size / self.vocab_multiple) * self.vocab_multiple

    @property
    def head_size(self) -> int:
        return self.hidden_size // self.num_heads


@dataclasses.dataclass(frozen=True, kw_only=True)
class MaskingConfig:
    """Which tokens are predicted, and what stands in their place (paper, 3.1)."""

    # Share of the tokens that are predicted; padding does not count. Several values are
    # the rates at equal distances over the run: 0.3,0.15 falls from 0.3 to 0.15.
    rate: tuple[float, ...] = knob((0.15,), more_than=0, at_most=1)
    # The same for held-out text: one value, so that runs with other rates compare.
    eval_rate: float = knob(0.15, more_than=0, at_most=1)
    # What is masked as a whole: "token"; "word": a token with those that continue it;
    # "ngram": 1 to max_ngram words.
    unit: str = knob("token", choices=("token", "word", "ngram"))
    max_ngram: int = knob(3, at_least=1, at_most=16)
    # How predictions are counted, and what may be among them; see data/masking.py.
    convention: str = knob("original", choices=("original", "fairseq"))
    # Predictions in a sequence, at most; 0: as many as the rates ask for.
    max_predictions: int = knob(0, at_least=0)
    # Of the predicted tokens, the shares that become [MASK] and a random token; the
    # others stay as they are.
    mask_token_rate: float = knob(0.8, at_least=0, at_most=1)
    random_token_rate: float = knob(0.1, at_least=0, at_most=1)

    def check(self, where: str) -> None:
        """There is a rate, and what predicted tokens become adds up."""
        if not self.rate:
            raise UserError(f"{where}rate is empty; give one rate or several")
        if self.mask_token_rate + self.random_token_rate > 1:
            raise UserError(
                f"{where}mask_token_rate={self.mask_token_rate} and "
                f"{where}random_token_rate={self.random_token_rate} add up to more "
                "than 1"
            )

    def predictions(self, length: int) -> int:
        """Predictions in a sequence, at most: the dimension P of a batch."""
        # Rounded first: 0.1 * 30 is a little more than 3.
        wanted = math.ceil(round(max(*self.rate, self.eval_rate) * length, 6))
        return min(length, self.max_predictions or wanted)


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
    masking: MaskingConfig = MaskingConfig()


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


@dataclasses.dataclass(frozen=True, kw_only=True)
class DataConfig:
    """Which corpus, and how it is dealt out."""

    corpus: str = knob("", free=True)  # folder from run.build_corpus
    fingerprint: str = ""  # of that corpus; "": whatever it is
    # A process reads only the shards of its groups.
    shard_groups: int = knob(1, at_least=1)


@dataclasses.dataclass(frozen=True, kw_only=True)
class PhaseConfig:
    """A stretch of training with one batch shape. A run is a list of these."""

    steps: int = knob(900_000, at_least=1)
    # Tokens in a sequence, special tokens included.
    length: int = knob(128, at_least=8)
    # Sequences in a step, over all devices.
    batch_size: int = knob(256, at_least=1)
    # Pieces of a batch that go through one by one.
    micro_batches: int = knob(1, at_least=1, free=True)

    def check(self, where: str) -> None:
        """Pieces of a batch are of one size."""
        _check_micro_batches(where, self.batch_size, self.micro_batches)


@dataclasses.dataclass(frozen=True, kw_only=True)
class OptimizerConfig:
    """The update. The defaults are the original's, its oddities included.

    Source: google-research/bert, optimization.py.
    """

    name: str = knob("adamw", choices=("adamw", "lamb"))
    learning_rate: float = knob(1e-4, at_least=0)  # peak
    # "linear" joins warmup and decay; "original" jumps down at the end of the warmup.
    schedule: str = knob("original", choices=("original", "linear"))
    warmup_fraction: float = knob(0.01, at_least=0, at_most=1)  # of all steps
    beta1: float = knob(0.9, at_least=0, less_than=1)
    beta2: float = knob(0.999, at_least=0, less_than=1)
    epsilon: float = knob(1e-6, more_than=0)
    weight_decay: float = knob(0.01, at_least=0)  # not on biases and layer norms
    bias_correction: bool = False
    # Norm of the gradient over all parameters, at most; 0: no clipping.
    clip_norm: float = knob(1.0, at_least=0)


@dataclasses.dataclass(frozen=True, kw_only=True)
class MeshConfig:
    """How devices are laid out. Sizes multiply to the number of devices.

    Slices of a TPU, with a slower network between them, split `data` and nothing else.
    """

    # Copies of the model, each with a part of the batch. In all three, -1 is the rest.
    data: int = knob(-1, at_least=-1, free=True)
    # Parts of parameters and batch.
    fsdp: int = knob(1, at_least=-1, free=True)
    # Parts of heads, feed-forward and vocabulary.
    tensor: int = knob(1, at_least=-1, free=True)
    # Whether moments are split over `data`, too (ZeRO-1).
    shard_optimizer: bool = knob(False, free=True)

    def check(self, where: str) -> None:
        """An axis has a size, and at most one has what the others leave."""
        for axis in ("data", "fsdp", "tensor"):
            if getattr(self, axis) == 0:
                raise UserError(
                    f"{where}{axis}=0 must be at least 1, or -1 for the rest"
                )
        if [self.data, self.fsdp, self.tensor].count(-1) > 1:
            group = where.rstrip(".")
            raise UserError(f"{group}: only one of data, fsdp and tensor can be -1")


@dataclasses.dataclass(frozen=True, kw_only=True)
class LoopConfig:
    """How often a run logs, evaluates and saves, and what it does in trouble."""

    log_every: int = knob(100, at_least=1, free=True)  # steps
    # Steps; 0: only at the end of each phase.
    eval_every: int = knob(10_000, at_least=0, free=True)
    # Batches of the held-out split in each evaluation; 0: all of them.
    eval_batches: int = knob(100, at_least=0, free=True)
    # Steps; 0: only at the end of each phase.
    checkpoint_every: int = knob(5_000, at_least=0, free=True)
    # Newest checkpoints; older ones are deleted.
    keep_checkpoints: int = knob(2, at_least=1, free=True)
    # Steps with a loss or gradient that is not finite, before the run stops.
    max_skipped_steps: int = knob(0, at_least=0, free=True)
    # Seconds without a step after which a process prints all stacks and exits; 0: none.
    hang_seconds: int = knob(1800, at_least=0, free=True)
    # First step to be profiled; 0: none.
    profile_step: int = knob(0, at_least=0, free=True)
    profile_steps: int = knob(3, at_least=1, free=True)
    # Folder for compiled programs; "": none.
    compilation_cache: str = knob("", free=True)


@dataclasses.dataclass(frozen=True, kw_only=True)
class PretrainConfig:
    """`run.pretrain`."""

    kind: str = "pretraining"
    seed: int = knob(0, at_least=0)
    encoder: EncoderConfig = EncoderConfig()
    objective: MaskedLmConfig | CausalLmConfig = MaskedLmConfig()
    data: DataConfig = DataConfig()
    phases: tuple[PhaseConfig, ...] = (
        PhaseConfig(),
        PhaseConfig(steps=100_000, length=512),
    )
    optimizer: OptimizerConfig = OptimizerConfig()
    mesh: MeshConfig = MeshConfig()
    loop: LoopConfig = LoopConfig()

    @property
    def total_steps(self) -> int:
        return sum(phase.steps for phase in self.phases)

    def check(self, where: str) -> None:
        """The parts of the config fit one another."""
        if not self.phases:
            raise UserError(f"{where}phases is empty; a run needs at least one")
        self._check_encoder(where)
        for i, phase in enumerate(self.phases):
            if phase.length > self.encoder.max_position_embeddings:
                raise UserError(
                    f"{where}phases[{i}].length={phase.length} is more than "
                    f"{where}encoder.max_position_embeddings="
                    f"{self.encoder.max_position_embeddings}"
                )
            if phase.batch_size % self.data.shard_groups:
                raise UserError(
                    f"{where}data.shard_groups={self.data.shard_groups} does not "
                    f"divide {where}phases[{i}].batch_size={phase.batch_size}"
                )

    def _check_encoder(self, where: str) -> None:
        segments, types = self.objective.segments, self.encoder.type_vocab_size
        if segments not in SINGLE_SEGMENTS and types < 2:
            raise UserError(
                f"{where}encoder.type_vocab_size={types} cannot tell the two segments "
                f"of {where}objective.segments={segments!r} apart; it must be at least "
                "2"
            )
        if self.encoder.causal != self.objective.causal:
            raise UserError(
                f"{where}encoder.causal must be {self.objective.causal} for "
                f"{where}objective.kind={self.objective.kind!r}"
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class ClassificationConfig:
    """Classification of texts or pairs of texts (`tasks/classification.py`)."""

    kind: str = "classification"
    # TSV files with a header.
    train: str = knob("", free=True)
    eval: str = knob("", free=True)
    fingerprint: str = ""  # of both files' examples; "": whatever they are
    # Tokens in a sequence; longer examples are truncated.
    length: int = knob(128, at_least=8)


@dataclasses.dataclass(frozen=True, kw_only=True)
class FinetuneConfig:
    """`run.finetune_classifier`. Defaults: google-research/bert, run_classifier.py."""

    kind: str = "finetuning"
    seed: int = knob(0, at_least=0)
    # Workdir of a pretraining run, or one checkpoint in it.
    init_from: str = knob("", free=True)
    init_fingerprint: str = ""  # of its parameters; "": whatever they are
    # Take only shape and tokenizer from there: a baseline.
    random_init: bool = False
    # Type of activations; "": as pretrained.
    dtype: str = knob("", choices=("", "bfloat16", "float32"), free=True)
    # Of hidden states in encoder and head, and of attention probabilities.
    dropout_rate: float = knob(0.1, at_least=0, less_than=1)
    attention_dropout_rate: float = knob(0.1, at_least=0, less_than=1)
    epochs: float = knob(3.0, more_than=0, at_most=10_000)
    batch_size: int = knob(32, at_least=1)
    micro_batches: int = knob(1, at_least=1, free=True)
    task: ClassificationConfig = ClassificationConfig()
    optimizer: OptimizerConfig = OptimizerConfig(
        learning_rate=5e-5, warmup_fraction=0.1
    )
    mesh: MeshConfig = MeshConfig()
    loop: LoopConfig = LoopConfig(
        log_every=20, eval_every=0, eval_batches=0, checkpoint_every=0
    )

    def check(self, where: str) -> None:
        """Pieces of a batch are of one size."""
        _check_micro_batches(where, self.batch_size, self.micro_batches)


def _check_micro_batches(where: str, batch_size: int, micro_batches: int) -> None:
    if batch_size % micro_batches:
        raise UserError(
            f"{where}micro_batches={micro_batches} does not divide "
            f"{where}batch_size={batch_size}"
        )
