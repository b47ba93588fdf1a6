r"""Convert checkpoints from and to the formats of other projects.

  python -m bert_jax.run.convert --input=WORKDIR --output=FOLDER --to=huggingface
  python -m bert_jax.run.convert --input=FOLDER --output=CHECKPOINT --to=native

The input is the workdir of a run, one checkpoint in a workdir, a folder that
`transformers` saved, or a folder of google-research/bert. The output is a new folder.
It appears when it is complete. The generator of an ELECTRA is written to a subfolder.
Folders of other projects may be in an object store. docs/interop.md lists what can be
converted.
"""

from absl import flags

from bert_jax import terminal
from bert_jax.run import command_line


def define_flags() -> None:
    hint = "Checkpoint to read; path or URL."
    flags.DEFINE_string("input", "", hint, allow_overwrite=False)
    flags.DEFINE_string("output", "", "Folder to write, new or empty; path or URL.")
    flags.DEFINE_enum(
        "to",
        None,
        ["huggingface", "tensorflow", "native"],
        "Format to write: native is bert_jax's own. Default: native for a published "
        "model, huggingface for a native checkpoint.",
    )


def main() -> None:
    source = command_line.required_flag("input")
    output = command_line.required_flag("output")
    terminal.say("importing JAX")
    from bert_jax.interop import convert

    converted = convert.convert(source, output, flags.FLAGS.to or "")
    for kind in ("written", "missing", "ignored"):
        for name in getattr(converted, kind):
            print(f"{kind}  {name}")
    terminal.say(
        f"{output}: {converted.name or 'parameters'}, {len(converted.written)} arrays; "
        f"missing: {len(converted.missing)}, ignored: {len(converted.ignored)}"
    )


if __name__ == "__main__":
    command_line.main(main, define_flags)
