"""What the programs that fine-tune share: flags, and from a recipe to results."""

import json

from absl import flags

from bert_jax import config as config_lib
from bert_jax import knobs, terminal
from bert_jax.errors import UserError
from bert_jax.run import command_line


def define_flags(recipe: str) -> None:
    """Define the flags.

    Args:
      recipe: Recipe of the task, for the help.
    """
    command_line.define_config(None, recipe)
    command_line.define_workdir()
    command_line.define_huge_pages()
    command_line.define_processes()
    flags.adopt_module_key_flags(command_line)


def main(kind: str) -> int:
    """Fine-tune, and print the results.

    Args:
      kind: Kind of the task that this program is for.

    Raises:
      UserError: The recipe is for another task, or cannot work.
    """
    config = knobs.from_configdict(config_lib.FinetuneConfig, command_line.config())
    if config.task.kind != kind:
        raise UserError(
            f"task.kind={config.task.kind!r} is not what this program is for; give it "
            f"a recipe with {kind!r}"
        )
    folder = command_line.workdir()
    command_line.use_huge_pages()
    terminal.say("importing JAX")
    from bert_jax import finetuning
    from bert_jax.training import processes

    command_line.start_processes()
    results = finetuning.finetune(config, folder)
    if processes.is_main():
        print(json.dumps(results, indent=2))
    return 0
