r"""Write the feature vectors of texts from an encoder (BERT paper, 5.3).

  python -m bert_jax.run.extract_features --init_from=WORKDIR --input=LINES.txt \
      --output=FEATURES.jsonl --layers=-1,-2,-3,-4

Each line is a text, or a pair of texts `A ||| B`. With --text_a and --text_b, the texts
are columns of a TSV file with a header. The suffix of the output selects its format:
.jsonl (as in the original's extract_features.py), .npz or .parquet (docs/tasks.md).
Input and output may exceed the memory.
"""

from absl import flags

from bert_jax import terminal
from bert_jax.errors import UserError
from bert_jax.run import command_line


def define_flags() -> None:
    command_line.define_checkpoint_flags("run")
    command_line.define_text_flags()
    flags.DEFINE_string("output", "", "File that ends in .jsonl, .npz or .parquet.")
    flags.DEFINE_list(
        "layers",
        [],
        "-1 is the last, 1 the first, 0 the embeddings. Default: the last four, or all "
        "of a smaller encoder.",
    )
    flags.DEFINE_enum(
        "pool",
        "none",
        ["none", "cls", "mean", "max"],
        "A vector for each token, or one for each text: of [CLS], or over all tokens.",
    )
    flags.DEFINE_integer(
        "length",
        0,
        "Tokens of a text; longer ones are truncated. 0: the positions of the model.",
        lower_bound=0,
    )
    flags.DEFINE_integer(
        "batch_size", 32, "Texts that go through the model at once.", lower_bound=1
    )


def main() -> None:
    values = flags.FLAGS
    source = command_line.required_flag("init_from")
    name = command_line.required_flag("input")
    output = command_line.required_flag("output")
    try:
        layers = [int(layer) for layer in values.layers]
    except ValueError as error:
        raise UserError(
            f"--layers={','.join(values.layers)} must be integers, such as -1,-2"
        ) from error
    terminal.say("importing JAX")
    from bert_jax import prediction
    from bert_jax.prediction import feature_files, text_files

    feature_files.check_name(output)
    text_files.check_suffix(name, values.text_a)
    pool = values.pool
    model = prediction.load(source)
    layers = layers or list(range(-1, -1 - min(4, model.encoder.num_layers), -1))
    texts = text_files.read_texts(name, values.text_a, values.text_b)
    features = model.features(
        (text for _, text in texts), layers, pool, values.length, values.batch_size
    )
    with terminal.progress_bar(iterable=features, unit="text") as bar:
        count, truncated = feature_files.write(
            output, bar, layers, pooled=pool != "none"
        )
    report = f"{terminal.pluralise(count, 'text')} to {output}"
    if truncated:
        report += f"; truncated because they were too long: {truncated:,}"
    terminal.say(report)


if __name__ == "__main__":
    command_line.main(main, define_flags)
