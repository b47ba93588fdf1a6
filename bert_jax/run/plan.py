r"""Plan of a pretraining run on a TPU slice, made without a TPU.

  python -m bert_jax.run.plan --config=configs/bert_large.py --topology=v4:4x4x4

compiles training and evaluation, as run.pretrain does, for the devices of that slice,
and prints one page: memory, arithmetic, collectives by network, time and chip-hours. It
needs the TPU compiler, `pip install -e '.[tpu]'`, and no TPU. Compiling takes half a
minute to 20 minutes; --config.encoder.scan_layers=True is the fastest.

`docs/plan.md` has examples. Exit status: 0 if the run fits into the memory, 3 if not.
"""

import dataclasses
import functools
import json
import pathlib
import signal
from collections.abc import Sequence

from absl import flags

from bert_jax import config as config_lib
from bert_jax import terminal
from bert_jax.corpus import shards
from bert_jax.run import command_line

EXIT_DOES_NOT_FIT = 3


def define_flags() -> None:
    command_line.define_config_flag(None, "configs/bert_large.py")
    flags.DEFINE_string(
        "topology", "", "Generation and chips of a slice, such as v4:4x4x8, v5e:16x16."
    )
    flags.DEFINE_integer("slices", 1, "Slices of this topology.")
    flags.DEFINE_bool("json", False, "Print JSON instead of the page.")
    flags.DEFINE_bool(
        "search",
        False,
        "Also compile a few batch sizes to find the largest that fits, and changes "
        "that may make a phase fit.",
    )
    flags.DEFINE_bool(
        "schedule",
        False,
        "Also read the compiler's schedule, the second measure beside its estimate, "
        "and the only one for kernels.",
    )


def with_checkpoints(
    config: config_lib.PretrainConfig, corpora: Sequence[shards.Corpus]
) -> config_lib.PretrainConfig:
    """Return the config with the architectures of the checkpoints that it names.

    Raises:
      UserError: A checkpoint does not fit the config, or the tokenizer of the corpora.
    """
    from bert_jax import teacher, warm_start
    from bert_jax.interop import checkpoints

    def read_checkpoint(path: str) -> warm_start.PretrainedCheckpoint:
        source = warm_start.read_checkpoint(checkpoints.find(path))
        if corpora:
            warm_start.check_tokenizer(source, corpora[0])
        return source

    given = command_line.overrides()
    if config.init_from == warm_start.PLACEHOLDER:
        terminal.say("init_from is not set; the encoder is the recipe's")
    elif config.init_from:
        config = warm_start.adopt_encoder(
            config, read_checkpoint(config.init_from), given
        )
    if isinstance(config.objective, config_lib.DistillationConfig):
        if config.objective.teacher:
            config = teacher.adopt_teacher_encoder(
                config, read_checkpoint(config.objective.teacher), given
            )
        else:
            terminal.say("objective.teacher is not set; its encoder is the recipe's")
    if not config.data.corpus and not config.encoder.vocab_size:
        terminal.say(
            "data.corpus is not set; the vocabulary has BERT's "
            f"{config_lib.BERT_VOCAB_SIZE:,} tokens; pass "
            "--config.encoder.vocab_size=N for another size"
        )
    return config


def main() -> int:
    values = flags.FLAGS
    config = command_line.read_config(config_lib.PretrainConfig)
    name = command_line.required_flag("topology")
    terminal.say("importing JAX")
    from bert_jax import pretraining, teacher
    from bert_jax.corpus import mixture
    from bert_jax.planning import page, search
    from bert_jax.planning.plan import Planner
    from bert_jax.planning.schedule import ScheduleFolder
    from bert_jax.planning.topology import open_topology

    folders = config.data.folders if config.data.corpus else ()
    corpora = mixture.open_corpora(folders)
    if corpora:
        mixture.check_counts(config, corpora)
    config = with_checkpoints(config, corpora)
    config.check_rates(command_line.overrides())
    config = pretraining.fill_in_from_corpora(config, corpora)
    distils = isinstance(config.objective, config_lib.DistillationConfig)
    if distils and not config.objective.teacher:
        config = teacher.assume_encoder(config, command_line.overrides())
    # Before the compiler is loaded.
    schedule_folder = ScheduleFolder() if values.schedule else None
    # Python calls signal handlers only when a compilation, of minutes, ends. So Ctrl-C
    # ends the process directly, unless it has a temporary folder to remove.
    if not schedule_folder:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
    planner = Planner(open_topology(name, values.slices), schedule_folder)
    path, _, variant = values["config"].config_filename.partition(":")
    recipe = ":".join(filter(None, (pathlib.Path(path).stem, variant)))
    plan = planner.plan(config, recipe)
    suggestions = search.suggestions(planner, config, plan)
    report = {**page.to_dict(plan), "suggestions": suggestions}
    if not values.json:
        print(page.format_page(plan), flush=True)
    if values.search:
        say = terminal.say if values.json else functools.partial(print, flush=True)
        trials = search.search(planner, config, plan, say)
        report["search"] = [
            dataclasses.asdict(trial) | {"fits": trial.phase.fits} for trial in trials
        ]
    elif not plan.fits and not values.json:
        print("\nChanges that may make it fit; --search compiles them:")
        print(*(f"  {change}" for change in suggestions), sep="\n")
    if values.json:
        print(json.dumps(report, indent=1))
    return 0 if plan.fits else EXIT_DOES_NOT_FIT


if __name__ == "__main__":
    command_line.main(main, define_flags)
