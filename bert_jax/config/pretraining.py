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

# Fields of the encoder that a phase may set.
_ROTARY_BASES = ("rotary_base", "local_rotary_base")
# Shares of a schedule, which a phase with a learning rate sets for its own.
_OF_SCHEDULE = ("warmup_fraction", "decay_fraction")


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
        """Check that each corpus has a weight, or a size that says it."""
        self.check_weights(where, f"{where}weights", self.weights)
        if self.weights and self.weight_exponent != DataConfig.weight_exponent:
            raise UserError(
                f"{where}weight_exponent={self.weight_exponent} is of no use beside "
                f"{where}weights, which say it all; it must be 1 there"
            )

    def check_weights(self, where: str, name: str, weights: tuple[float, ...]) -> None:
        """Check that there are as many weights as corpora, or none.

        Args:
          where: Path of this config, for the message.
          name: Path of the weights.
          weights: Weights of the run or of a phase.
        """
        if weights and self.corpus and len(weights) != len(self.folders):
            raise UserError(
                f"{name} has {len(weights)} values for {len(self.folders)} folders in "
                f"{where}corpus={self.corpus!r}; give one for each, or none"
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class PhaseConfig:
    """Stretch of training with one batch size and length. A run is a list of these.

    Phases of one length continue one order of the corpus: a ramp of batch sizes is a
    few phases, and still visits each chunk once an epoch.
    """

    steps: int = knob(900_000, at_least=1)
    # Tokens in a sequence, special tokens included.
    length: int = knob(128, at_least=8)
    # Sequences in a step, over all devices.
    batch_size: int = knob(256, at_least=1)
    # Pieces of a batch that go through one by one.
    micro_batches: int = knob(1, at_least=1, free=True)
    # Share of the tokens that are predicted; 0: that of `objective.masking.rate`.
    masking_rate: float = knob(0.0, at_least=0, at_most=1)
    # Of several corpora, the shares of the rows that are made from each, up to a common
    # factor. Empty: those of `data`.
    corpus_weights: tuple[float, ...] = knob((), more_than=0)
    # Bases of rotary positions in this phase alone; 0: those of `encoder`.
    rotary_base: float = knob(0.0, at_least=0)
    local_rotary_base: float = knob(0.0, at_least=0)
    # Peak of a new learning rate schedule, which begins with this phase and spans the
    # phases after it, too, up to the next that has a rate. 0: the schedule of the phase
    # before continues; in the first phase, the optimizer's begins.
    learning_rate: float = knob(0.0, at_least=0)
    # Shares of the steps of this new schedule. With 0 it begins at its peak, and, where
    # optimizer.schedule="wsd", ends there. So ModernBERT's is three phases: a rate of
    # 8e-4 with a warmup; 3e-4; and 3e-4 with a decay_fraction of 1.
    warmup_fraction: float = knob(0.0, at_least=0, at_most=1)
    decay_fraction: float = knob(0.0, at_least=0, at_most=1)

    def check(self, where: str) -> None:
        """Check that micro-batches are equal parts, and that a schedule has a rate."""
        check_micro_batches(where, self.batch_size, self.micro_batches)
        for name in _OF_SCHEDULE:
            if (value := getattr(self, name)) and not self.learning_rate:
                raise UserError(
                    f"{where}{name}={value} needs a {where}learning_rate; without, the "
                    f"schedule of the phase before continues, or optimizer.{name} holds"
                )
        if self.warmup_fraction + self.decay_fraction > 1:
            raise UserError(
                f"{where}warmup_fraction={self.warmup_fraction} and "
                f"{where}decay_fraction={self.decay_fraction} must not add up to more "
                "than 1"
            )


_OPTIMIZER = OptimizerConfig()


@dataclasses.dataclass(frozen=True, kw_only=True)
class PretrainConfig:
    """`run.pretrain`."""

    kind: str = "pretraining"
    seed: int = knob(0, at_least=0)
    # Checkpoint of ours or of another project to go on from; "": random parameters.
    # The architecture of `encoder` is then the checkpoint's (warm_start.py).
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

    def of_phase(self, index: int) -> "PretrainConfig":
        """Return the config with the settings of one phase in place of the run's."""
        phase, encoder, objective = self.phases[index], self.encoder, self.objective
        for name in _ROTARY_BASES:
            if base := getattr(phase, name):
                encoder = dataclasses.replace(encoder, **{name: base})
        if phase.masking_rate:
            masking = dataclasses.replace(objective.masking, rate=phase.masking_rate)
            objective = dataclasses.replace(objective, masking=masking)
        data = self.data
        if phase.corpus_weights:
            data = dataclasses.replace(data, weights=phase.corpus_weights)
        return dataclasses.replace(
            self, encoder=encoder, objective=objective, data=data
        )

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
            self._check_phase(where, f"{where}phases[{i}].", phase)

    def _check_phase(self, where: str, here: str, phase: PhaseConfig) -> None:
        """Check what a phase sets against the rest of the config."""
        if phase.length > self.encoder.max_position_embeddings:
            raise UserError(
                f"{here}length={phase.length} is more than "
                f"{where}encoder.max_position_embeddings="
                f"{self.encoder.max_position_embeddings}"
            )
        if phase.masking_rate and not self.objective.masking:
            raise UserError(
                f"{here}masking_rate={phase.masking_rate}, but "
                f"{where}objective.kind={self.objective.kind!r} masks no tokens; it "
                "must be 0"
            )
        for name in _ROTARY_BASES:
            base, positions = getattr(phase, name), self.encoder.positions
            if base and positions != "rotary":
                raise UserError(
                    f"{here}{name}={base} needs {where}encoder.positions='rotary', "
                    f"not {positions!r}"
                )
        if phase.local_rotary_base and not self.encoder.attention_window:
            raise UserError(
                f"{here}local_rotary_base={phase.local_rotary_base} needs local "
                f"layers; set {where}encoder.attention_window, or leave it 0"
            )
        self.data.check_weights(
            f"{where}data.", f"{here}corpus_weights", phase.corpus_weights
        )
        if phase.batch_size % self.data.shard_groups:
            raise UserError(
                f"{where}data.shard_groups={self.data.shard_groups} does not divide "
                f"{here}batch_size={phase.batch_size}"
            )

    def _check_rates(self, where: str) -> None:
        """Check that no setting of a schedule is without effect."""
        schedule = self.optimizer.schedule
        for i, phase in enumerate(self.phases):
            if phase.decay_fraction and schedule != "wsd":
                raise UserError(
                    f"{where}phases[{i}].decay_fraction={phase.decay_fraction} has no "
                    f"effect with {where}optimizer.schedule={schedule!r}; it needs "
                    f"{where}optimizer.schedule='wsd'"
                )
        if not self.phases[0].learning_rate:
            return
        for name in ("learning_rate", *_OF_SCHEDULE):
            value = getattr(self.optimizer, name)
            if value != getattr(_OPTIMIZER, name):
                raise UserError(
                    f"{where}optimizer.{name}={value} has no effect beside "
                    f"{where}phases[0].learning_rate; set {where}phases[0].{name}"
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
        if examples > 1 and self.encoder.positions == "relative":
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
        positions, kind = self.encoder.positions, self.objective.kind
        if positions != "relative":
            raise UserError(
                f"{where}encoder.positions={positions} does not go with "
                f"{where}objective.kind={kind!r}; it must be relative"
            )
