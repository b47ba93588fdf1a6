"""Every knob of the project, declared once, with its default and its reason.

Recipes in `configs/` turn these dataclasses into an `ml_collections.ConfigDict`,
change what differs, and return it; the command line overrides leaves of it;
entrypoints turn it back with `from_configdict`, which validates. Inside the project
only the frozen dataclasses travel.

A field made with `free(...)` may change when a run is continued: it is about how the
run is computed and watched, not about what it learns. Any other difference refuses the
workdir (`differences`).
"""

import dataclasses
import json
import math
from typing import Any, TypeVar

import ml_collections

from bert_jax.errors import UserError

# The vocabulary of BERT uncased. What `vocab_size=0` means before a corpus is known.
BERT_VOCAB_SIZE = 30_522

T = TypeVar("T")


def free(default: Any) -> Any:
    """A field that may differ between a run and its continuation."""
    return dataclasses.field(default=default, metadata={"free": True})


@dataclasses.dataclass(frozen=True, kw_only=True)
class EncoderConfig:
    """Shape and arithmetic of the encoder. The defaults are BERT-Base (paper, 3)."""

    vocab_size: int = BERT_VOCAB_SIZE  # 0: the vocabulary of the corpus
    vocab_multiple: int = 128  # embedding rows are padded up to a multiple of this
    hidden_size: int = 768
    num_layers: int = 12
    num_heads: int = 12
    intermediate_size: int = 3072
    max_position_embeddings: int = 512
    type_vocab_size: int = 2  # segment A, segment B
    activation: str = "gelu_tanh"  # or "gelu_erf", which Hugging Face calls "gelu"
    dropout_rate: float = 0.1  # on hidden states
    attention_dropout_rate: float = 0.1  # on attention probabilities
    layer_norm_epsilon: float = 1e-12
    initializer_range: float = 0.02  # stddev of the normal, truncated at two of them
    dtype: str = free("bfloat16")  # of activations and products; or "float32"
    scan_layers: bool = free(False)  # one compiled layer in a loop, or all unrolled
    remat: str = free("none")  # recomputed in the backward pass: "attention", "layer"

    @property
    def padded_vocab_size(self) -> int:
        """Rows of the token embedding; the padding's logits are never predicted."""
        return math.ceil(self.vocab_size / self.vocab_multiple) * self.vocab_multiple

    @property
    def head_size(self) -> int:
        return self.hidden_size // self.num_heads


@dataclasses.dataclass(frozen=True, kw_only=True)
class DataConfig:
    """Which corpus, and what is made of it (paper, A.2)."""

    corpus: str = free("")  # folder from run.build_corpus
    fingerprint: str = ""  # of that corpus; "": whatever it is
    shard_groups: int = 1  # a process reads only its groups' shards
    short_sequence_rate: float = 0.1  # examples aimed at a random shorter length
    mask_rate: float = 0.15  # of all tokens that are not padding
    mask_token_rate: float = 0.8  # of the predicted positions: become [MASK]
    random_token_rate: float = 0.1  # become a random token; the rest stay as they are


@dataclasses.dataclass(frozen=True, kw_only=True)
class PhaseConfig:
    """A stretch of training with one batch shape. A run is a list of these."""

    steps: int = 900_000
    length: int = 128  # tokens in a sequence, special tokens included
    batch_size: int = 256  # sequences in a step, over all devices
    max_predictions: int = 20  # masked positions in a sequence, at most
    micro_batches: int = free(1)  # pieces of a batch that go through one by one


@dataclasses.dataclass(frozen=True, kw_only=True)
class OptimizerConfig:
    """The update. The defaults are the original's, its oddities included.

    Source: google-research/bert, optimization.py.
    """

    name: str = "adamw"  # or "lamb"
    learning_rate: float = 1e-4  # peak
    schedule: str = "original"  # "linear" joins warmup and decay without a jump
    warmup_fraction: float = 0.01  # of all steps
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-6
    weight_decay: float = 0.01  # not on biases and layer norms
    bias_correction: bool = False
    clip_norm: float = 1.0  # of the gradient over all parameters; 0: no clipping


@dataclasses.dataclass(frozen=True, kw_only=True)
class MeshConfig:
    """How devices are laid out. Sizes multiply to the number of devices.

    Slices of a TPU, with a slower network between them, split `data` and nothing else.
    """

    data: int = free(-1)  # copies of the model, each with a part of the batch; -1: rest
    fsdp: int = free(1)  # parts of parameters and batch
    tensor: int = free(1)  # parts of heads, feed-forward and vocabulary
    shard_optimizer: bool = free(False)  # moments split over `data`, too (ZeRO-1)


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunConfig:
    """How often a run looks at itself and saves itself, and what it does in trouble."""

    log_every: int = free(100)  # steps
    eval_every: int = free(10_000)  # steps; 0: only at the end of each phase
    eval_batches: int = free(100)  # of the held-out split at each look; 0: all of it
    checkpoint_every: int = free(5_000)  # steps; 0: only at the end of each phase
    keep_checkpoints: int = free(2)  # newest ones; older ones are deleted
    max_skipped_steps: int = free(0)  # with a loss or gradient that is not finite
    hang_seconds: int = free(1800)  # without a step: all stacks, and exit; 0: never
    profile_step: int = free(0)  # first of `profile_steps` to be profiled; 0: none
    profile_steps: int = free(3)
    compilation_cache: str = free("")  # folder for compiled programs; "": none


@dataclasses.dataclass(frozen=True, kw_only=True)
class PretrainConfig:
    """`run.pretrain`."""

    seed: int = 0
    encoder: EncoderConfig = EncoderConfig()
    data: DataConfig = DataConfig()
    phases: tuple[PhaseConfig, ...] = (
        PhaseConfig(),
        PhaseConfig(steps=100_000, length=512, max_predictions=77),
    )
    optimizer: OptimizerConfig = OptimizerConfig()
    mesh: MeshConfig = MeshConfig()
    run: RunConfig = RunConfig()

    @property
    def total_steps(self) -> int:
        return sum(phase.steps for phase in self.phases)


@dataclasses.dataclass(frozen=True, kw_only=True)
class TaskConfig:
    """Where labelled examples are. TSV with a header, see `tasks/classification.py`."""

    train: str = free("")
    eval: str = free("")
    fingerprint: str = ""  # of both files' examples; "": whatever they are
    length: int = 128  # tokens in a sequence; longer examples are truncated


@dataclasses.dataclass(frozen=True, kw_only=True)
class ClassifierConfig:
    """`run.finetune_classifier`. Defaults: google-research/bert, run_classifier.py."""

    seed: int = 0
    init_from: str = ""  # workdir of a pretraining run, or one checkpoint in it
    random_init: bool = False  # take only shape and tokenizer from there: a baseline
    dtype: str = free("")  # "": as pretrained
    dropout_rate: float = 0.1  # in encoder and classifier
    epochs: float = 3.0
    batch_size: int = 32
    micro_batches: int = free(1)
    task: TaskConfig = TaskConfig()
    optimizer: OptimizerConfig = OptimizerConfig(
        learning_rate=5e-5, warmup_fraction=0.1
    )
    mesh: MeshConfig = MeshConfig()
    run: RunConfig = RunConfig(
        log_every=20, eval_every=0, eval_batches=0, checkpoint_every=0
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class DemoConfig:
    """`run.demo`: from the documentation at hand to a fine-tuned classifier."""

    vocab_size: int = 8192  # small, as is the text
    sample_megabytes: int = 8  # of text that the vocabulary is learnt from
    held_out: float = 0.1  # of all documents
    train_examples: int = 3000  # that the classifier is fine-tuned on, at most
    repeats: int = 3  # of fine-tuning, with seeds that follow one another
    pretrain: PretrainConfig = PretrainConfig()
    finetune: ClassifierConfig = ClassifierConfig()


# ---- the bridge to ml_collections and JSON


def to_configdict(config: Any) -> ml_collections.ConfigDict:
    """A mutable, typed copy for recipes and the command line."""
    return ml_collections.ConfigDict(_convert(config, ml_collections.ConfigDict))


def from_configdict(cls: type[T], cfg: ml_collections.ConfigDict) -> T:
    """The frozen, validated form of a recipe.

    Raises:
      UserError: a field is unknown, missing, of the wrong type, or cannot work.
    """
    values = cfg.to_dict()
    _check_kind(cls, values)
    config = _rebuild(cls, values, "", complete=True)
    validate(config)
    return config


def to_dict(config: Any) -> dict[str, Any]:
    """Plain dicts, lists and scalars; what `config.json` holds."""
    return _convert(config, dict)


def from_dict(cls: type[T], values: dict[str, Any]) -> T:
    """Rebuild a config dataclass from `to_dict`'s output.

    A field that is missing has its default: what was saved before a field existed stays
    readable.

    Raises:
      UserError: a field is unknown or of the wrong type.
    """
    _check_kind(cls, values)
    return _rebuild(cls, values, "", complete=False)


def load_json(cls: type[T], text: str, source: str) -> T:
    """`from_dict` on a JSON text that was read from `source`."""
    try:
        return from_dict(cls, json.loads(text))
    except (json.JSONDecodeError, UserError) as error:
        raise UserError(f"{source} cannot be used: {error}") from error


def _check_kind(cls: type, values: Any) -> None:
    """Name the mistake of giving one program's config to another."""
    # A field that only the config of this program has.
    kinds = {
        "phases": (PretrainConfig, "run.pretrain"),
        "task": (ClassifierConfig, "run.finetune_classifier"),
        "repeats": (DemoConfig, "run.demo"),
    }
    programs = dict(kinds.values())
    if cls not in programs or not isinstance(values, dict):
        return
    for field, (kind, program) in kinds.items():
        if field in values and kind is not cls:
            raise UserError(f"this is a config for {program}, not for {programs[cls]}")


def _convert(value: Any, mapping: type) -> Any:
    if dataclasses.is_dataclass(value):
        fields = dataclasses.fields(value)
        return mapping(
            {f.name: _convert(getattr(value, f.name), mapping) for f in fields}
        )
    if isinstance(value, tuple):
        items = [_convert(item, mapping) for item in value]
        return items if mapping is dict else tuple(items)
    return value


def _rebuild(cls: Any, value: Any, where: str, *, complete: bool) -> Any:
    if dataclasses.is_dataclass(cls):
        if isinstance(value, ml_collections.ConfigDict):
            value = value.to_dict()
        if not isinstance(value, dict):
            raise UserError(
                f"config field {where}={value!r}: expected a group of fields"
            )
        fields = {f.name: f for f in dataclasses.fields(cls)}
        prefix = f"{where}." if where else ""
        for name in sorted(value.keys() - fields.keys()):
            known = ", ".join(sorted(fields))
            raise UserError(f"unknown config field {prefix}{name}; known here: {known}")
        for name in fields.keys() - value.keys() if complete else ():
            raise UserError(f"config field {prefix}{name} is missing")
        return cls(
            **{
                name: _rebuild(
                    fields[name].type, value[name], prefix + name, complete=complete
                )
                for name in value
            }
        )
    if cls == tuple[PhaseConfig, ...]:
        if not isinstance(value, (list, tuple)):
            raise UserError(
                f"config field {where}={value!r}: expected a list of phases"
            )
        return tuple(
            _rebuild(PhaseConfig, item, f"{where}[{i}]", complete=complete)
            for i, item in enumerate(value)
        )
    if cls is float and type(value) is int:
        return float(value)
    if type(value) is not cls:
        raise UserError(f"config field {where}={value!r}: expected {cls.__name__}")
    return value


# ---- what recipes are made with


def is_smoke(arg: str) -> bool:
    """Whether a recipe's argument asks for the variant that takes seconds.

    Raises:
      UserError: the argument is neither "" nor "smoke".
    """
    if arg not in ("", "smoke"):
        raise UserError(
            f"unknown argument {arg!r} of the recipe; there is only 'smoke'"
        )
    return arg == "smoke"


def shrink(cfg: ml_collections.ConfigDict) -> None:
    """Make a recipe small enough for a few seconds on a processor.

    What makes recipes differ stays: number of phases, optimizer, schedule, objective.
    """
    if "pretrain" in cfg:
        cfg.update(vocab_size=500, sample_megabytes=1, train_examples=64, repeats=2)
        shrink(cfg.pretrain)
        shrink(cfg.finetune)
        cfg.finetune.run.update(eval_every=4, checkpoint_every=0)
        return
    cfg.run.update(log_every=1, eval_every=2, eval_batches=2, checkpoint_every=2)
    if "phases" in cfg:
        cfg.encoder.update(hidden_size=32, num_layers=2, num_heads=2)
        cfg.encoder.update(intermediate_size=64, max_position_embeddings=64)
        for i, phase in enumerate(cfg.phases):
            phase.update(steps=3, length=32 * min(i + 1, 2), batch_size=8)
            phase.update(max_predictions=5)
    else:
        cfg.update(batch_size=8, epochs=1.0)
        cfg.task.length = 32


# ---- validation


def validate(config: PretrainConfig | ClassifierConfig | DemoConfig) -> None:
    """Check what can be checked without data and devices.

    Raises:
      UserError: names the field, its value, and what would be right.
    """
    if isinstance(config, DemoConfig):
        _validate_demo(config)
        return
    _check_range("seed", config.seed, 0, 2**31 - 1)
    _validate_optimizer(config.optimizer)
    _validate_mesh(config.mesh)
    _validate_run(config.run)
    if isinstance(config, PretrainConfig):
        validate_encoder(config.encoder)
        _validate_data(config.data)
        _validate_phases(config)
    else:
        _validate_classifier(config)


def validate_encoder(encoder: EncoderConfig) -> None:
    """`validate` for the encoder alone."""
    sizes = ("hidden_size", "num_layers", "num_heads", "intermediate_size")
    tables = ("max_position_embeddings", "type_vocab_size", "vocab_multiple")
    for name in sizes + tables:
        _check_range(f"encoder.{name}", getattr(encoder, name), 1)
    _check_range("encoder.vocab_size", encoder.vocab_size, 0)
    if encoder.hidden_size % encoder.num_heads:
        raise UserError(
            f"encoder.num_heads={encoder.num_heads} does not divide "
            f"encoder.hidden_size={encoder.hidden_size}"
        )
    _check_choice("encoder.activation", encoder.activation, ("gelu_tanh", "gelu_erf"))
    _check_choice("encoder.dtype", encoder.dtype, ("float32", "bfloat16"))
    _check_choice("encoder.remat", encoder.remat, ("none", "attention", "layer"))
    _check_rate("encoder.dropout_rate", encoder.dropout_rate)
    _check_rate("encoder.attention_dropout_rate", encoder.attention_dropout_rate)


def _validate_data(data: DataConfig) -> None:
    _check_range("data.shard_groups", data.shard_groups, 1)
    mask_rates = ("mask_rate", "mask_token_rate", "random_token_rate")
    for name in ("short_sequence_rate", *mask_rates):
        _check_range(f"data.{name}", getattr(data, name), 0.0, 1.0)
    if data.mask_token_rate + data.random_token_rate > 1:
        raise UserError(
            f"data.mask_token_rate={data.mask_token_rate} and data.random_token_rate="
            f"{data.random_token_rate} add up to more than 1"
        )


def _validate_phases(config: PretrainConfig) -> None:
    if not config.phases:
        raise UserError("phases is empty; a run needs at least one")
    for i, phase in enumerate(config.phases):
        where = f"phases[{i}]"
        _check_range(f"{where}.steps", phase.steps, 1)
        _check_range(f"{where}.length", phase.length, 8)
        if phase.length > config.encoder.max_position_embeddings:
            raise UserError(
                f"{where}.length={phase.length} is more than "
                f"encoder.max_position_embeddings={config.encoder.max_position_embeddings}"
            )
        _check_range(f"{where}.max_predictions", phase.max_predictions, 1, phase.length)
        _check_batch(f"{where}.", phase.batch_size, phase.micro_batches)
        if phase.batch_size % config.data.shard_groups:
            raise UserError(
                f"data.shard_groups={config.data.shard_groups} does not divide "
                f"{where}.batch_size={phase.batch_size}"
            )


def _validate_classifier(config: ClassifierConfig) -> None:
    for name in ("train", "eval"):
        if not getattr(config.task, name):
            raise UserError(f"task.{name} is empty; pass --config.task.{name}=FILE.tsv")
    if not config.init_from:
        raise UserError(
            "init_from is empty; pass --config.init_from=WORKDIR of a pretraining run"
        )
    _check_range("task.length", config.task.length, 8)
    _check_rate("dropout_rate", config.dropout_rate)
    if config.epochs <= 0:
        raise UserError(f"epochs={config.epochs} must be more than 0")
    _check_batch("", config.batch_size, config.micro_batches)
    _check_choice("dtype", config.dtype, ("", "float32", "bfloat16"))


def _validate_demo(config: DemoConfig) -> None:
    _check_range("vocab_size", config.vocab_size, 300)
    _check_range("sample_megabytes", config.sample_megabytes, 1)
    _check_range("held_out", config.held_out, 0.01, 0.5)
    _check_range("train_examples", config.train_examples, 1)
    _check_range("repeats", config.repeats, 1)
    filled_in = {
        "pretrain.data.corpus": config.pretrain.data.corpus,
        "finetune.init_from": config.finetune.init_from,
        "finetune.task.train": config.finetune.task.train,
        "finetune.task.eval": config.finetune.task.eval,
    }
    for name, value in filled_in.items():
        if value:
            raise UserError(f"{name}={value!r}: the demo makes this itself; leave it")
    try:
        validate(config.pretrain)
    except UserError as error:
        raise UserError(f"pretrain: {error}") from error
    try:
        validate(demo_finetune(config, "train.tsv", "eval.tsv", "pretrain"))
    except UserError as error:
        raise UserError(f"finetune: {error}") from error


def _validate_optimizer(optimizer: OptimizerConfig) -> None:
    _check_choice("optimizer.name", optimizer.name, ("adamw", "lamb"))
    _check_choice("optimizer.schedule", optimizer.schedule, ("original", "linear"))
    _check_range("optimizer.warmup_fraction", optimizer.warmup_fraction, 0.0, 1.0)
    _check_rate("optimizer.beta1", optimizer.beta1)
    _check_rate("optimizer.beta2", optimizer.beta2)
    for name in ("learning_rate", "epsilon", "weight_decay", "clip_norm"):
        _check_range(f"optimizer.{name}", getattr(optimizer, name), 0.0)


def _validate_mesh(mesh: MeshConfig) -> None:
    for axis in ("data", "fsdp", "tensor"):
        size = getattr(mesh, axis)
        if size < 1 and size != -1:
            raise UserError(
                f"mesh.{axis}={size} must be at least 1, or -1 for the rest"
            )
    if [mesh.data, mesh.fsdp, mesh.tensor].count(-1) > 1:
        raise UserError("mesh: only one of data, fsdp and tensor can be -1")


def _validate_run(run: RunConfig) -> None:
    _check_range("run.log_every", run.log_every, 1)
    _check_range("run.keep_checkpoints", run.keep_checkpoints, 1)
    _check_range("run.profile_steps", run.profile_steps, 1)
    for name in (
        "eval_every",
        "eval_batches",
        "checkpoint_every",
        "max_skipped_steps",
        "hang_seconds",
        "profile_step",
    ):
        _check_range(f"run.{name}", getattr(run, name), 0)


def _check_batch(where: str, batch_size: int, micro_batches: int) -> None:
    _check_range(f"{where}batch_size", batch_size, 1)
    _check_range(f"{where}micro_batches", micro_batches, 1)
    if batch_size % micro_batches:
        raise UserError(
            f"{where}micro_batches={micro_batches} does not divide "
            f"{where}batch_size={batch_size}"
        )


def _check_range(name: str, value: float, low: float, high: float = math.inf) -> None:
    if not low <= value <= high:
        wanted = f"at least {low}" if high == math.inf else f"from {low} to {high}"
        raise UserError(f"{name}={value} must be {wanted}")


def _check_rate(name: str, value: float) -> None:
    if not 0 <= value < 1:
        raise UserError(f"{name}={value} must be at least 0 and less than 1")


def _check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise UserError(
            f"{name}={value!r} must be one of {', '.join(map(repr, choices))}"
        )


# ---- continuing a run


def differences(old: Any, new: Any, *, free_fields: bool, where: str = "") -> list[str]:
    """Fields that differ between two configs of one type, as lines for a message.

    Args:
      old: what the workdir holds.
      new: what is asked for now.
      free_fields: whether to list the fields that may change between a run and its
        continuation, or those that may not.
      where: path of the two inside a larger config, for the lines.
    """
    if len(old) != len(new) if isinstance(old, tuple) else type(old) is not type(new):
        return [] if free_fields else [f"{where}: was {old!r}, is now {new!r}"]
    if isinstance(old, tuple):
        pairs = zip(old, new, strict=True)
        nested = [
            differences(a, b, free_fields=free_fields, where=f"{where}[{i}]")
            for i, (a, b) in enumerate(pairs)
        ]
        return [line for lines in nested for line in lines]
    lines = []
    for field in dataclasses.fields(old):
        a, b = getattr(old, field.name), getattr(new, field.name)
        name = f"{where}.{field.name}" if where else field.name
        if dataclasses.is_dataclass(a) or isinstance(a, tuple):
            lines += differences(a, b, free_fields=free_fields, where=name)
        elif a != b and field.metadata.get("free", False) == free_fields:
            lines.append(f"{name}: was {a!r}, is now {b!r}")
    return lines


def with_vocabulary(encoder: EncoderConfig, vocab_size: int) -> EncoderConfig:
    """Fill in `vocab_size=0`, or check that it is the vocabulary at hand.

    Raises:
      UserError: the config names another vocabulary size.
    """
    if encoder.vocab_size not in (0, vocab_size):
        raise UserError(
            f"encoder.vocab_size={encoder.vocab_size}, but the tokenizer has "
            f"{vocab_size} tokens; leave it 0 to follow the tokenizer"
        )
    return dataclasses.replace(encoder, vocab_size=vocab_size)


def with_fingerprint(data: DataConfig, fingerprint: str) -> DataConfig:
    """Fill in `fingerprint=""`, or check that it is that of the corpus at hand.

    Raises:
      UserError: the config names another corpus.
    """
    if data.fingerprint not in ("", fingerprint):
        raise UserError(
            f"data.fingerprint={data.fingerprint}, but the corpus {data.corpus} has "
            f"{fingerprint}"
        )
    return dataclasses.replace(data, fingerprint=fingerprint)


def with_examples(config: ClassifierConfig, fingerprint: str) -> ClassifierConfig:
    """Fill in `task.fingerprint`, or check that it is that of the files at hand.

    Raises:
      UserError: the config names other examples.
    """
    if config.task.fingerprint not in ("", fingerprint):
        raise UserError(
            f"task.fingerprint={config.task.fingerprint}, but {config.task.train} and "
            f"{config.task.eval} have {fingerprint}"
        )
    task = dataclasses.replace(config.task, fingerprint=fingerprint)
    return dataclasses.replace(config, task=task)


def demo_finetune(
    config: DemoConfig, train: str, held_out: str, init_from: str
) -> ClassifierConfig:
    """The demo's fine-tuning with what the demo fills in."""
    task = dataclasses.replace(config.finetune.task, train=train, eval=held_out)
    return dataclasses.replace(config.finetune, task=task, init_from=init_from)
