"""What `run.pretrain` trains, and on what."""

import dataclasses

from bert_jax.config.model import EncoderConfig
from bert_jax.config.objectives import (
    SINGLE_SEGMENTS,
    CausalLmConfig,
    MaskedLmConfig,
    PermutationLmConfig,
    ReplacedTokensConfig,
)
from bert_jax.config.training import (
    LoopConfig,
    MeshConfig,
    OptimizerConfig,
    check_micro_batches,
)
from bert_jax.errors import UserError
from bert_jax.knobs import knob


@dataclasses.dataclass(frozen=True, kw_only=True)
class DataConfig:
    """Which corpus, or several and how much of each, and how they are dealt out."""

    # Folder from run.build_corpus; several with commas between them.
    corpus: str = knob("", free=True)
    fingerprint: str = ""  # of that corpus, or of these; "": whatever they are
    # Of several corpora, the shares of the rows that are made from each, up to a
    # common factor. Empty: as the numbers of their tokens, to a power.
    weights: tuple[float, ...] = knob((), more_than=0)
    # That power: 1 for each row alike, 0 for each corpus alike, 0.7 for multilingual
    # BERT.
    weight_exponent: float = knob(1.0, at_least=0, at_most=1)
    # A process reads only the shards of its groups.
    shard_groups: int = knob(1, at_least=1)

    @property
    def folders(self) -> tuple[str, ...]:
        """Folders of the corpora, one or several."""
        return tuple(folder.strip() for folder in self.corpus.split(","))

    def check(self, where: str) -> None:
        """Each corpus has a weight, or a size that says it."""
        if not self.weights:
            return
        if self.corpus and len(self.weights) != len(self.folders):
            raise UserError(
                f"{where}weights has {len(self.weights)} values for "
                f"{len(self.folders)} folders in {where}corpus={self.corpus!r}; give "
                "one for each, or none"
            )
        if self.weight_exponent != DataConfig.weight_exponent:
            raise UserError(
                f"{where}weight_exponent={self.weight_exponent} is of no use beside "
                f"{where}weights, which say it all; it must be 1 there"
            )


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
    # Peak learning rate of a schedule for this phase alone; 0: the schedule is the
    # optimizer's, which spans all phases.
    learning_rate: float = knob(0.0, at_least=0)
    # Of the steps of the phase, where it has a learning rate.
    warmup_fraction: float = knob(0.0, at_least=0, at_most=1)

    def check(self, where: str) -> None:
        """Pieces of a batch are of one size, and a warmup has a rate to rise to."""
        check_micro_batches(where, self.batch_size, self.micro_batches)
        if self.warmup_fraction and not self.learning_rate:
            raise UserError(
                f"{where}warmup_fraction={self.warmup_fraction} needs a "
                f"{where}learning_rate; optimizer.warmup_fraction is that of all phases"
            )


_OPTIMIZER = OptimizerConfig()


@dataclasses.dataclass(frozen=True, kw_only=True)
class PretrainConfig:
    """`run.pretrain`."""

    kind: str = "pretraining"
    seed: int = knob(0, at_least=0)
    # Checkpoint of ours or of another project to go on from; "": random parameters.
    # `encoder` is that of the checkpoint but for what says how it is trained.
    init_from: str = knob("", free=True)
    init_fingerprint: str = ""  # of its parameters; "": whatever they are
    encoder: EncoderConfig = EncoderConfig()
    objective: (
        MaskedLmConfig | CausalLmConfig | ReplacedTokensConfig | PermutationLmConfig
    ) = MaskedLmConfig()
    data: DataConfig = DataConfig()
    phases: tuple[PhaseConfig, ...] = (
        PhaseConfig(),
        PhaseConfig(steps=100_000, length=512),
    )
    optimizer: OptimizerConfig = _OPTIMIZER
    mesh: MeshConfig = MeshConfig()
    loop: LoopConfig = LoopConfig()

    @property
    def total_steps(self) -> int:
        return sum(phase.steps for phase in self.phases)

    @property
    def encoders(self) -> dict[str, EncoderConfig]:
        """All encoders that are trained, by what is said of them in messages."""
        encoders = {"encoder.": self.encoder}
        if isinstance(self.objective, ReplacedTokensConfig):
            encoders["generator's "] = self.objective.generator(self.encoder)
        return encoders

    def check(self, where: str) -> None:
        """The parts of the config fit one another."""
        if not self.phases:
            raise UserError(f"{where}phases is empty; a run needs at least one")
        self._check_encoder(where)
        self._check_rates(where)
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

    def _check_rates(self, where: str) -> None:
        """One schedule for all phases, or one for each; no field without effect."""
        without = [not phase.learning_rate for phase in self.phases]
        if any(without) and not all(without):
            raise UserError(
                f"{where}phases[{without.index(True)}].learning_rate is 0; all phases "
                "have one, or none has"
            )
        if any(without):
            return
        for name in ("learning_rate", "warmup_fraction"):
            value = getattr(self.optimizer, name)
            if value != getattr(_OPTIMIZER, name):
                raise UserError(
                    f"{where}optimizer.{name}={value} is of no use where phases have "
                    f"rates of their own; set {where}phases[0].{name} and the others"
                )

    def _check_encoder(self, where: str) -> None:
        if isinstance(self.objective, ReplacedTokensConfig):
            self._check_generator(where)
        segments, types = self.objective.segments, self.encoder.type_vocab_size
        if segments not in SINGLE_SEGMENTS and types < 2:
            raise UserError(
                f"{where}encoder.type_vocab_size={types} cannot tell the two segments "
                f"of {where}objective.segments={segments!r} apart; it must be at least "
                "2"
            )
        if isinstance(self.objective, PermutationLmConfig):
            self._check_permutations(where)
        examples = self.objective.examples_per_row
        if examples > 1 and self.encoder.is_relative:
            raise UserError(
                f"{where}objective.examples_per_row={examples} does not go with "
                f"{where}encoder.positions=relative; it must be 1"
            )
        if self.encoder.causal != self.objective.causal:
            raise UserError(
                f"{where}encoder.causal must be {self.objective.causal} for "
                f"{where}objective.kind={self.objective.kind!r}"
            )

    def _check_generator(self, where: str) -> None:
        generator = self.objective.generator(self.encoder)
        columns = self.encoder.head_size
        if generator.hidden_size % columns or not generator.hidden_size:
            raise UserError(
                f"{where}objective.generator_size={self.objective.generator_size} "
                f"gives a generator of hidden_size={generator.hidden_size}; it must be "
                f"a multiple of the {columns} columns of a head"
            )

    def _check_permutations(self, where: str) -> None:
        encoder, kind = self.encoder, self.objective.kind
        for name, value, wanted in (
            ("positions", encoder.positions, "relative"),
            ("embedding_size", encoder.embedding_columns, encoder.hidden_size),
        ):
            if value != wanted:
                raise UserError(
                    f"{where}encoder.{name}={value} does not go with "
                    f"{where}objective.kind={kind!r}; it must be {wanted}"
                )
