r"""Pretrain an encoder on a corpus.

  python -m bert_jax.run.pretrain --config=configs/bert_base.py \
      --config.data.corpus=DIR --workdir=DIR

--config.init_from=CHECKPOINT starts from the parameters of another run or project.
The same command resumes a run that was stopped, with the same result. On a pod it is
started once on each host (launch/README.md). Exit status: 0 when all steps are done, 75
when the run was stopped and the same command continues it, 2 for an error that would
recur, anything else for a crash.
"""

from bert_jax import config as config_lib
from bert_jax.run import command_line


def define_flags() -> None:
    command_line.define_training_flags(None, "configs/bert_base.py")
    command_line.define_process_flags()


def main() -> None:
    config = command_line.read_config(config_lib.PretrainConfig)
    folder = command_line.start_training()
    from bert_jax import pretraining

    command_line.start_processes()
    pretraining.pretrain(config, folder, command_line.overrides())


if __name__ == "__main__":
    command_line.main(main, define_flags)
