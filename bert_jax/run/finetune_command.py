"""Implementation of the fine-tuning commands."""

import json
from collections.abc import Callable

from bert_jax import config as config_lib
from bert_jax.run import command_line


def program(kind: str, recipe: str) -> tuple[Callable[[], None], Callable[[], None]]:
    """Return `main` and `define_flags` of the command for a kind of task."""

    def define_flags() -> None:
        command_line.define_training_flags(None, recipe)
        command_line.define_process_flags()

    def main() -> None:
        config = command_line.read_config(config_lib.FinetuneConfig, kind)
        folder = command_line.start_training()
        from bert_jax import finetuning
        from bert_jax.training import processes

        command_line.start_processes()
        results = finetuning.finetune(config, folder)
        if processes.is_main():
            print(json.dumps(results, indent=2))

    return main, define_flags
