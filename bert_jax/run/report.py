r"""Draw the curves of a run, or compare several.

  python -m bert_jax.run.report --workdir=DIR --output=curves.png
  python -m bert_jax.run.report --workdir=DIR OTHER ... --output=compared.png

Horizontal lines are the scores of a model without context (docs/what_to_expect.md).
For several workdirs, the curves are drawn on top of one another, and a table of the
config fields that differ, with the last numbers of each run, goes to standard output.
"""

import pathlib

from absl import flags

from bert_jax import io_errors, storage, terminal
from bert_jax.errors import UserError
from bert_jax.run import command_line
from bert_jax.training import comparison, curves, metrics_file


def define_flags() -> None:
    hint = "Folder of a run; more may follow."
    flags.DEFINE_string("workdir", "", hint, allow_overwrite=False)
    flags.DEFINE_string(
        "output",
        "",
        "File, whose ending (.png, .pdf, .svg) is its format, or folder to write to. "
        "Default: curves.png in the workdir, or in the current folder if the workdir "
        "is a URL; for several workdirs, compared.png in the current folder.",
    )


def main(others: list[str]) -> None:
    folder = storage.path(command_line.required_flag("workdir"))
    local = pathlib.Path() if storage.is_remote(folder) else folder
    default = pathlib.Path("compared.png") if others else local / "curves.png"
    if storage.is_remote(flags.FLAGS.output):
        raise UserError(f"--output={flags.FLAGS.output} must be a local file")
    output = storage.path(flags.FLAGS.output or default)
    if output.is_dir() or flags.FLAGS.output.endswith("/"):
        output /= default.name
    if not output.suffix:
        output = output.with_name(f"{output.name}.png")
    if others:
        runs = comparison.read([folder, *map(storage.path, others)])
        picture = curves.compare({run.name: run.records for run in runs})
        print(comparison.table(runs))
    else:
        name = terminal.printable(folder.name or pathlib.Path.cwd().name)  # of "."
        picture = curves.draw(metrics_file.read(folder), name)
    try:
        storage.make_folder(output.parent)
        picture.savefig(output)
    except (OSError, ValueError) as error:
        raise UserError(f"cannot write {output}: {io_errors.message(error)}") from error
    terminal.say(f"wrote {output}")


if __name__ == "__main__":
    command_line.main(main, define_flags)
