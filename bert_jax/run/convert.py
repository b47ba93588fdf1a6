r"""Convert checkpoints: from other projects, to other projects.

  python -m bert_jax.run.convert --input=WORKDIR --output=FOLDER --to=huggingface
  python -m bert_jax.run.convert --input=FOLDER --output=WORKDIR --to=ours

The input is a workdir of a run or one checkpoint in it, a folder that `transformers`
saved (BERT, ALBERT, ELECTRA, RoBERTa, XLNet), or one of google-research/bert. The
output is a new folder; it appears when it is complete. The generator of an ELECTRA is a
folder in it. Folders of other projects may be in an object store. docs/interop.md says
what goes in and out.
"""

from absl import flags

from bert_jax import terminal
from bert_jax.run import command_line


def define_flags() -> None:
    """Define the flags of this entry point."""
    flags.DEFINE_string("input", "", "Checkpoint to read; path or URL.")
    flags.DEFINE_string("output", "", "Folder to write, new or empty; path or URL.")
    flags.DEFINE_enum(
        "to",
        "",
        ["", "huggingface", "tensorflow", "ours"],
        "Format to write. Default: ours for a folder of another project, and else "
        "Hugging Face's.",
    )


def main() -> int:
    """Convert a checkpoint."""
    source = command_line.required("input", "give a checkpoint, --input=DIR")
    output = command_line.required("output", "give a new folder, --output=DIR")
    terminal.say("importing JAX")
    from bert_jax.interop import convert

    converted = convert.convert(source, output, flags.FLAGS.to)
    for name in converted.written:
        print(f"written  {name}")
    for name in converted.missing:
        print(f"missing  {name}")
    for name in converted.ignored:
        print(f"ignored  {name}")
    terminal.say(
        f"{output}: {converted.name or 'parameters'}, {len(converted.written)} arrays; "
        f"missing: {len(converted.missing)}, ignored: {len(converted.ignored)}"
    )
    return 0


if __name__ == "__main__":
    command_line.main(main, define_flags)
