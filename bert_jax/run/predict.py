r"""Print the predictions of a fine-tuned model for the texts of a file.

  python -m bert_jax.run.predict --init_from=WORKDIR --input=LINES.txt > PREDICTED.jsonl

Each line of the input is a text, or for a classifier a pair of texts `A ||| B`. With
--text_a and --text_b, the texts are columns of a TSV file with a header. A model that
answers reads JSON lines {"question": TEXT, "context": TEXT}, and one that chooses
{"question": TEXT, "choices": [TEXT, ...]}. Each line of the output is a JSON object
with the prediction, as docs/tasks.md describes it; an embedder prints
{"vector": [...]}.
"""

import json
import sys

from absl import flags

from bert_jax import terminal
from bert_jax.run import command_line


def define_flags() -> None:
    command_line.define_checkpoint_flags("fine-tuning run")
    command_line.define_text_flags()
    flags.DEFINE_float(
        "null_threshold",
        None,
        "Null odds above which a question has no answer, such as best_f1_thresh of "
        "results.json. By default the run's task.null_threshold when it trained.",
    )


def main() -> None:
    source = command_line.required_flag("init_from")
    name = command_line.required_flag("input")
    terminal.say("importing JAX")
    from bert_jax import prediction
    from bert_jax.prediction import file_predictions

    model = prediction.load(source)
    predictions = file_predictions.predict(
        model, name, flags.FLAGS.text_a, flags.FLAGS.text_b, flags.FLAGS.null_threshold
    )
    # JSON is UTF-8 in every locale.
    sys.stdout.reconfigure(encoding="utf-8", errors="backslashreplace")
    for each in predictions:
        print(json.dumps(each, ensure_ascii=False))


if __name__ == "__main__":
    command_line.main(main, define_flags)
