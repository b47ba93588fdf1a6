r"""Draw the curves of a run.

python -m bert_jax.run.report --workdir=DIR --output=curves.png
"""

import pathlib

from absl import flags

from bert_jax.errors import UserError
from bert_jax.run import command_line
from bert_jax.training import curves, reporting


def define_flags() -> None:
    """Define the flags of this entrypoint."""
    command_line.define_workdir()
    flags.adopt_module_key_flags(command_line)
    flags.DEFINE_string("output", "", "File to write. Default: WORKDIR/curves.png.")


def main() -> int:
    """The entrypoint."""
    folder = pathlib.Path(
        command_line.required("workdir", "give the folder of a run, --workdir=DIR")
    )
    output = pathlib.Path(flags.FLAGS.output or folder / "curves.png")
    picture = curves.draw(curves.read_metrics(folder), folder.absolute().name)
    try:
        picture.savefig(output)
    except (OSError, ValueError) as error:
        raise UserError(f"cannot write {output}: {error}") from error
    reporting.say(f"wrote {output}")
    return 0


if __name__ == "__main__":
    command_line.main(main, define_flags)
