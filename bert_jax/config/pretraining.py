"""Config of `run.pretrain`."""

import dataclasses
from collections.abc import Collection

from bert_jax.config.fields import field, require
from bert_jax.config.model import EncoderConfig, PredictionHeadConfig
from bert_jax.config.objectives import (
    PAIR_TASKS,
    SINGLE_SEGMENTS,
    DistillationConfig,
    MaskedLmConfig,
    ObjectiveConfig,
    PermutationLmConfig,
    ReplacedTokensConfig,
)
from bert_jax.config.training import (
    LoopConfig,
    MeshConfig,
    OptimizerConfig,
    check_micro_batches,
    check_shares,
)
from bert_jax.errors import UserError

# Fields of the encoder that a phase may set.
_ROTARY_BASES = ("rotary_base", "local_rotary_base")
# Positions that an objective does not work with.
_REFUSED_POSITIONS = {
    "causal_lm": ("relative", "disentangled"),
    "replaced_tokens": ("relative",),
}
# Shares of a schedule. A phase with a learning rate has its own.
_SCHEDULE_FRACTIONS = ("warmup_fraction", "decay_fraction")
_RATES = ("learning_rate", *_SCHEDULE_FRACTIONS)


@dataclasses.dataclass(frozen=True, kw_only=True)
class DataConfig:
    """One corpus, or several and their weights, and the sharding of their data."""

    # Folder from run.build_corpus; several with commas between them.
    corpus: str = field("", free=True)
    fingerprint: str = ""  # of the corpus or the corpora; "": not checked
    # Relative numbers of rows from each of several corpora. Empty: the number of tokens
    # of each corpus to the power `weight_exponent`.
    weights: tuple[float, ...] = field((), more_than=0)
    # 1: all tokens are drawn equally often, if rows are equally full. 0: all corpora
    # have the same number of rows. 0.7: multilingual BERT.
    weight_exponent: float = field(1.0, at_least=0, at_most=1)
    # A process reads only the shards of its groups.
    shard_groups: int = field(1, at_least=1)

    @property
    def folders(self) -> tuple[str, ...]:
        """Folders of the corpora, one or several."""
        return tuple(folder.strip() for folder in self.corpus.split(","))

    def check(self, where: str) -> None:
        """Check that all folders have names, and that weights are complete."""
        if self.corpus and "" in self.folders:
            raise UserError(
                f"{where}corpus={self.corpus!r} has a folder without a name; remove "
                "the comma, or give a folder on both sides of it"
            )
        self.check_weights(where, f"{where}weights", self.weights)
        if self.weights:
            require(self, where, [("weight_exponent", 1.0, "weights")])

    def check_weights(self, where: str, name: str, weights: tuple[float, ...]) -> None:
        """Check that there are as many weights as corpora, or none."""
        if weights and self.corpus and len(weights) != len(self.folders):
            raise UserError(
                f"{name} has {len(weights)} values for {len(self.folders)} folders in "
                f"{where}corpus={self.corpus!r}; give one for each, or none"
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class PhaseConfig:
    """A phase of a run, with one batch size and length.

    A phase continues the order of the corpus where earlier phases of its length ended.
    So a ramp of batch sizes, in several phases, still visits each chunk once an epoch.
    """

    steps: int = field(900_000, at_least=1)
    # Tokens in a sequence, special tokens included.
    length: int = field(128, at_least=8)
    # Sequences in a step, over all devices.
    batch_size: int = field(256, at_least=1, at_most=2**20)
    # Parts of a batch whose gradients are accumulated.
    micro_batches: int = field(1, at_least=1, free=True)
    # Share of the tokens that are predicted; 0: `objective.masking.rate`.
    masking_rate: float = field(0.0, at_least=0, at_most=1)
    # Relative numbers of rows from each of several corpora. Empty: `data.weights`.
    corpus_weights: tuple[float, ...] = field((), more_than=0)
    # Bases of rotary positions in this phase only; 0: the encoder's.
    rotary_base: float = field(0.0, at_least=0)
    local_rotary_base: float = field(0.0, at_least=0)
    # Peak of a new learning rate schedule, which begins with this phase and ends before
    # the next phase that has a rate. 0: the schedule of the phase before continues; in
    # the first phase, the optimizer's schedule begins.
    learning_rate: float = field(0.0, at_least=0)
    # Shares of the steps of this new schedule. With 0 it begins at its peak and, with
    # optimizer.schedule="wsd", ends there. ModernBERT's schedule is three phases: a
    # rate of 8e-4 with a warmup; 3e-4; and 3e-4 with a decay_fraction of 1.
    warmup_fraction: float = field(0.0, at_least=0, at_most=1)
    decay_fraction: float = field(0.0, at_least=0, at_most=1)

    def check(self, where: str) -> None:
        """Check that micro-batches have equal sizes, and that a schedule has a rate."""
        check_micro_batches(where, self)
        if not self.learning_rate:  # no new schedule begins
            required = [(name, 0.0, "learning_rate") for name in _SCHEDULE_FRACTIONS]
            require(self, where, required)
        check_shares(where, self)


# Prefix of the names of an encoder's fields in messages. A generator has no fields of
# its own: its config is derived from the encoder's.
FIELD_PREFIXES = {
    "encoder": "encoder.",
    "teacher": "objective.teacher_encoder.",
    "generator": "the generator's ",
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class PretrainConfig:
    """Config of `run.pretrain`."""

    kind: str = "pretraining"
    seed: int = field(0, at_least=0)
    # Checkpoint to begin with, of this or another project; "": random parameters. The
    # architecture of `encoder` is then the checkpoint's (warm_start.py).
    init_from: str = field("", free=True)
    init_fingerprint: str = ""  # of its parameters; "": not checked
    encoder: EncoderConfig = EncoderConfig()
    objective: ObjectiveConfig = MaskedLmConfig()
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

    def for_phase(self, index: int) -> "PretrainConfig":
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
        """All encoders of a step, by the names of `FIELD_PREFIXES`."""
        encoders = {"encoder": self.encoder}
        if isinstance(self.objective, ReplacedTokensConfig):
            encoders["generator"] = self.objective.generator(self.encoder)
        if isinstance(self.objective, DistillationConfig):
            encoders["teacher"] = self.objective.teacher_encoder
        return encoders

    def check(self, where: str) -> None:
        """Check the parts of the config against each other."""
        if not self.phases:
            raise UserError(f"{where}phases is empty; a run needs at least one")
        # With a checkpoint to read, architectures are not known yet.
        if not self.init_from:
            self.check_encoders(where)
        for i, phase in enumerate(self.phases):
            self._check_phase(where, f"{where}phases[{i}].", phase)
        if not self.init_from and not getattr(self.objective, "teacher", ""):
            self.check_phases_fit(where)
        self.check_rates((), where)

    def check_rates(self, given: Collection[str], where: str = "") -> None:
        """Check that phases replace no field that was changed, or given by its path."""
        if not self.phases[0].learning_rate:
            return
        for name in _RATES:
            path, value = f"optimizer.{name}", getattr(self.optimizer, name)
            if path in given or value != getattr(OptimizerConfig, name):
                raise UserError(
                    f"{where}{path}={value} has no effect beside "
                    f"{where}phases[0].learning_rate; set {where}phases[0].{name} "
                    "instead"
                )

    def check_encoders(self, where: str = "") -> None:
        """Check the objective against the architectures of the encoders."""
        objective, encoder = self.objective, self.encoder
        if encoder.positions in _REFUSED_POSITIONS.get(objective.kind, ()):
            raise UserError(
                f"{where}encoder.positions={encoder.positions!r} does not go with "
                f"{where}objective.kind={objective.kind!r}"
            )
        if isinstance(objective, ReplacedTokensConfig):
            if self.optimizer.name == "lamb":
                # It scales updates by their parameters, and differences begin at 0.
                path = "objective.embedding_sharing"
                require(self, where, [(path, "tied", "optimizer.name")])
            if not encoder.prediction_head.num_layers:
                head = "encoder.prediction_head.num_layers"
                require(self, where, [("objective.generator_size", 1.0, head)])
            generator = objective.generator(encoder)
            size, layers = generator.hidden_size, generator.num_layers
            if size % encoder.head_size or not size:
                raise UserError(
                    f"{where}objective.generator_size={objective.generator_size} gives "
                    f"a generator of hidden_size={size}; it must be a multiple of the "
                    f"{encoder.head_size} columns of a head"
                )
            if layers % generator.num_distinct_layers:
                raise UserError(
                    f"{where}objective.generator_layers={objective.generator_layers} "
                    f"gives a generator of num_layers={layers}; it must be a multiple "
                    f"of {where}encoder.num_layer_groups={encoder.num_layer_groups}"
                )
        for name, each in self.encoders.items():
            types = each.type_vocab_size
            if objective.segments not in SINGLE_SEGMENTS and types < 2:
                more = (
                    f", or {where}encoder.type_vocab_size=2"
                    if name == "encoder"
                    else ""
                )
                path = f"{where}objective.segments"
                raise UserError(
                    f"{where}{FIELD_PREFIXES[name]}type_vocab_size={types} cannot tell "
                    f"the two segments of {path}={objective.segments!r} apart; set "
                    f"{path}=full_sentences{more}"
                )
        requirements = [("encoder.causal", objective.causal, "objective.kind")]
        if objective.segments in PAIR_TASKS:  # answered from [CLS]
            requirements += [("encoder.pooler.pooling", "cls", "objective.segments")]
        if isinstance(objective, PermutationLmConfig):
            requirements += [("encoder.positions", "relative", "objective.kind")]
            # Its head is the token embedding and a bias.
            requirements += [
                (f"encoder.prediction_head.{f.name}", f.default, "objective.kind")
                for f in dataclasses.fields(PredictionHeadConfig)
            ]
        if encoder.positions == "relative":
            requirements += [("objective.examples_per_row", 1, "encoder.positions")]
        require(self, where, requirements)

    def check_phases_fit(self, where: str = "") -> None:
        """Check phases and rotary bases against the architectures of the encoders."""
        for name, each in self.encoders.items():
            each.check_rotary_bases(f"{where}{FIELD_PREFIXES[name]}")
        for i, phase in enumerate(self.phases):
            here = f"{where}phases[{i}]."
            for name, each in self.encoders.items():
                if phase.length > each.max_position_embeddings:
                    raise UserError(
                        f"{here}length={phase.length} is more than "
                        f"{where}{FIELD_PREFIXES[name]}max_position_embeddings="
                        f"{each.max_position_embeddings}"
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

    def _check_phase(self, where: str, here: str, phase: PhaseConfig) -> None:
        """Check the fields of a phase against the rest of the config."""
        if phase.masking_rate and not self.objective.masking:
            raise UserError(
                f"{here}masking_rate={phase.masking_rate}, but "
                f"{where}objective.kind={self.objective.kind!r} masks no tokens; it "
                "must be 0"
            )
        if phase.decay_fraction and self.optimizer.schedule != "wsd":
            raise UserError(
                f"{here}decay_fraction={phase.decay_fraction} has no effect with "
                f"{where}optimizer.schedule={self.optimizer.schedule!r}; it needs "
                f"{where}optimizer.schedule='wsd'"
            )
        self.data.check_weights(
            f"{where}data.", f"{here}corpus_weights", phase.corpus_weights
        )
        if phase.batch_size % self.data.shard_groups:
            raise UserError(
                f"{where}data.shard_groups={self.data.shard_groups} does not divide "
                f"{here}batch_size={phase.batch_size}"
            )
