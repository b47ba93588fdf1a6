"""Checkpoints that runs start from, and further pretraining from a checkpoint."""

import dataclasses
from collections.abc import Collection
from typing import Any, TypeVar

import jax
from etils import epath

from bert_jax import config as config_lib
from bert_jax.corpus import shards
from bert_jax.errors import UserError
from bert_jax.interop import checkpoints
from bert_jax.model import parameters
from bert_jax.training import metadata as metadata_lib
from bert_jax.training import processes, restore, sharding
from bert_jax.training import step as step_lib
from bert_jax.training.run_description import Run

T = TypeVar("T")

# Embedding tables that may have more or fewer rows than in the checkpoint, and the
# encoder fields with their numbers of rows.
_ROWS = {
    "encoder/embeddings/position_embedding": "max_position_embeddings",
    "encoder/embeddings/segment_embedding": "type_vocab_size",
    "embedding_differences/position_embedding": "max_position_embeddings",
    "embedding_differences/segment_embedding": "type_vocab_size",
}

PLACEHOLDER = "CHECKPOINT"  # value of init_from in configs/continued.py


@dataclasses.dataclass(frozen=True)
class PretrainedCheckpoint:
    """Checkpoint that gives its encoder to a run."""

    path: epath.Path
    metadata: metadata_lib.Metadata
    fingerprint: str = ""  # hash of its parameters; "" if it was not computed yet


def read_checkpoint(path: epath.Path, fingerprint: str = "") -> PretrainedCheckpoint:
    """Read the metadata of a checkpoint."""
    return PretrainedCheckpoint(path, checkpoints.read_metadata(path), fingerprint)


def find_checkpoint(
    config: config_lib.PretrainConfig | config_lib.FinetuneConfig, folder: str
) -> PretrainedCheckpoint:
    """Find the checkpoint `init_from` of a run with the workdir `folder`.

    A run that resumes does not need it any more. If it is gone, the metadata comes from
    the run's own checkpoint. In pretraining, the encoder is then the run's: metadata
    has the encoder of one phase, which may have other rotary bases.
    """
    if config.init_from in ("", PLACEHOLDER):
        raise UserError(
            "init_from is not set; pass --config.init_from=DIR: a workdir, a "
            "checkpoint in it, or the folder of a published model"
        )
    path, fingerprint = checkpoints.initial_checkpoint(
        config.init_from, folder, type(config)
    )
    if checkpoints.exists(path):
        return read_checkpoint(path, fingerprint)
    own = checkpoints.read_metadata(restore.find(folder))
    if "encoder" in own.config:
        of_run = config_lib.from_dict(config_lib.EncoderConfig, own.config["encoder"])
        own = dataclasses.replace(own, encoder=of_run)
    return PretrainedCheckpoint(path, own, fingerprint)


def fill_in_fingerprint(config: T, source: PretrainedCheckpoint) -> T:
    """Return the config of a run with `init_fingerprint`. All processes must call it.

    Raises:
      UserError: The parameters have changed since the run started.
    """
    # Each host may have its own path. The saved config has the path of process 0.
    known = processes.call_on_main(lambda: source.fingerprint)
    return config_lib.fill_in(
        config,
        "init_fingerprint",
        known or checkpoints.fingerprint(source.path),
        f"the parameters of {source.path} have changed",
    )


def check_tokenizer(source: PretrainedCheckpoint, corpus: shards.Corpus) -> None:
    """Check that a corpus has the tokenizer of a checkpoint.

    Raises:
      UserError: It has another one.
    """
    expected, path = source.metadata.tokenizer.fingerprint, source.path
    if expected != corpus.tokenizer.fingerprint:
        raise UserError(
            f"the corpus {corpus.folder} has tokenizer {corpus.tokenizer.fingerprint}, "
            f"but {path} has {expected}; build the corpus with the "
            f"checkpoint's tokenizer: run.convert --input={path} --output=DIR "
            "--to=native writes it to DIR/tokenizer"
        )


def adopt_encoder(
    config: config_lib.PretrainConfig,
    source: PretrainedCheckpoint,
    overrides: Collection[str],
) -> config_lib.PretrainConfig:
    """Return the config with the encoder of a checkpoint; see `resolve_encoder`.

    Raises:
      UserError: The checkpoint does not fit the config.
    """
    _check_generator(config.objective, source)
    changed = resolve_encoder(config.encoder, source, overrides)
    # A run may go on with another objective: left to right first, then masked tokens.
    if "encoder.causal" not in overrides:
        changed = dataclasses.replace(changed, causal=config.objective.causal)
    config = dataclasses.replace(config, encoder=changed, init_from=str(source.path))
    try:
        config.check_encoders()
        config_lib.check(config)
    except UserError as error:
        raise UserError(
            f"the encoder of the checkpoint {source.path} does not fit this config: "
            f"{error}"
        ) from error
    return config


def _check_generator(objective: Any, source: PretrainedCheckpoint) -> None:
    """Check that ELECTRA's generator can continue from a checkpoint that has one.

    It must have the same size, and keep the embeddings that it was trained on: where
    embeddings have differences, a run without differences loads the sums, which only
    the discriminator has seen.
    """
    if "encoder" not in source.metadata.config:
        return  # a published discriminator, which has no generator
    trained = source.metadata.config.get("objective", {})
    for name in ("generator_size", "generator_layers", "embedding_sharing"):
        asked, value = getattr(objective, name, None), trained.get(name)
        if asked is None or value is None or asked == value:
            continue
        if name == "embedding_sharing":
            fits = value != "gradient_disentangled"
        else:  # two shares may round to one size
            same = dataclasses.replace(objective, **{name: value})
            of_checkpoint = source.metadata.encoder
            fits = same.generator(of_checkpoint) == objective.generator(of_checkpoint)
        if not fits:
            raise UserError(
                f"objective.{name}={asked!r}, but the checkpoint {source.path} has "
                f"{value!r}; set objective.{name}={value!r}"
            )


def resolve_encoder(
    config: config_lib.EncoderConfig,
    source: PretrainedCheckpoint,
    overrides: Collection[str],
    where: str = "encoder",
    *,
    may_adapt: bool = True,
) -> config_lib.EncoderConfig:
    """Return the config of a checkpoint's encoder, changed for further pretraining.

    The architecture is the checkpoint's. All other fields are the run's. A field of the
    architecture counts as set if it was given on the command line or differs from its
    default. A set field must agree with the checkpoint, unless parameters can be
    adapted to it (`config/fields.py`) and `may_adapt` is true. `overrides` has the
    paths of the fields that were given on the command line, and `where` is the path of
    the encoder.

    Raises:
      UserError: A field that is set contradicts the checkpoint.
    """

    def resolve(config, pretrained, where):
        fields, defaults = {}, type(config)()
        for field in config_lib.architecture(config):
            path = f"{where}.{field.name}"
            given, value = getattr(config, field.name), getattr(pretrained, field.name)
            is_set = path in overrides or given != getattr(defaults, field.name)
            if dataclasses.is_dataclass(given):
                value = resolve(given, value, path)
            elif is_set and may_adapt and field.metadata.get("adaptable"):
                value = given
            elif is_set and given != value:
                raise UserError(
                    f"{path}={given}, but the checkpoint {source.path} has {value}; "
                    "leave this field unset, as configs/continued.py does, or use "
                    "another checkpoint"
                )
            fields[field.name] = value
        return dataclasses.replace(config, **fields)

    pretrained = source.metadata.encoder
    # The table of a published checkpoint may have more rows than the tokenizer.
    if config.vocab_size in (0, source.metadata.tokenizer.vocab_size):
        config = dataclasses.replace(config, vocab_size=pretrained.vocab_size)
    return resolve(config, pretrained, where)


def load_initial_params(
    run: Run, source: PretrainedCheckpoint, state: step_lib.TrainState
) -> step_lib.TrainState:
    """Return the initial state with its parameters replaced by those of a checkpoint.

    Rows of a table that the checkpoint lacks keep their initial values. The head of a
    left-to-right model initialises the head for masked tokens, and the reverse.
    """
    shapes = parameters.flatten(run.state_shapes.params)
    stored_shapes = dict(shapes)
    tables = sorted(shapes.keys() & _ROWS.keys())
    for path in tables:
        rows = getattr(source.metadata.encoder, _ROWS[path])
        stored_shapes[path] = shapes[path].update(shape=(rows, *shapes[path].shape[1:]))
    loaded = _load_with_head(source, parameters.unflatten(stored_shapes))
    processes.say(loaded.describe(source.path))
    if (was_causal := source.metadata.encoder.causal) != run.config.encoder.causal:
        order = "left to right" if was_causal else "in both directions"
        processes.say(f"  the checkpoint was trained {order}, and this run is not")
    initial = parameters.flatten(state.params)
    with sharding.use(run.mesh):
        for path in tables:
            stored, wanted = stored_shapes[path].shape[0], shapes[path].shape[0]
            if path in loaded.params and stored != wanted:
                loaded.params[path] = _fit_rows(initial[path], loaded.params[path])
                first, last = min(stored, wanted), max(stored, wanted) - 1
                what = "new" if wanted > stored else "dropped"
                processes.say(f"  {path}: rows {first} to {last} are {what}")
    processes.say("  optimizer state and learning rate schedule start from scratch")
    if _repeats_rows(run.config, source.metadata.config):
        processes.say(
            "  warning: this run repeats rows of the checkpoint's run, which had a "
            f"corpus, a length and seed={run.config.seed} in common with it; to change "
            "their order, set another --config.seed"
        )
    return dataclasses.replace(state, params=restore.merge(state.params, loaded))


def _load_with_head(
    source: PretrainedCheckpoint, tree: dict[str, Any]
) -> restore.LoadedParams:
    """Load parameters. The other head for tokens replaces a missing one."""
    loaded = checkpoints.load_params(source.path, tree)
    for head, other in ("mlm_head", "lm_head"), ("lm_head", "mlm_head"):
        if not any(path.startswith(f"{head}/") for path in loaded.missing):
            continue
        also = checkpoints.load_params(source.path, {other: tree[head]})
        if also.missing or any(path.startswith(f"{other}/") for path in also.ignored):
            continue  # XLNet's `lm_head` has other parameters
        renamed = {p.replace(other, head, 1): x for p, x in also.params.items()}
        loaded = restore.LoadedParams(
            params=loaded.params | renamed,
            missing=[path for path in loaded.missing if path not in renamed],
            ignored=sorted(set(loaded.ignored) & set(also.ignored)),
        )
    return loaded


def _repeats_rows(config: config_lib.PretrainConfig, trained: dict[str, Any]) -> bool:
    """Return whether a run makes the same rows as the checkpoint's run."""
    if not trained.get("phases"):
        return False
    lengths = [phase["length"] for phase in trained["phases"]]
    earlier = _row_keys(trained["data"].get("fingerprint", ""), lengths)
    now = _row_keys(config.data.fingerprint, [phase.length for phase in config.phases])
    return (
        trained["seed"] == config.seed
        and trained["objective"]["segments"] == config.objective.segments
        and trained["data"].get("shard_groups", 1) == config.data.shard_groups
        and not earlier.isdisjoint(now)
    )


def _row_keys(fingerprint: str, lengths: list[int]) -> set[tuple[str, int, int, int]]:
    """Return the keys of the rows of each corpus and length, as in `data/batches.py`.

    A key has the corpus, its index, the length, and the first phase of this length.
    """
    corpora = enumerate(fingerprint.split(","))
    return {
        (corpus, i, length, lengths.index(length))
        for i, corpus in corpora
        for length in lengths
    }


def _fit_rows(initial: jax.Array, loaded: jax.Array) -> jax.Array:
    """Return the initial table with its first rows replaced by the loaded ones."""
    rows = min(len(initial), len(loaded))
    fit = jax.jit(
        lambda table, other: table.at[:rows].set(other[:rows]),
        out_shardings=initial.sharding,
    )
    return fit(initial, loaded)
