r"""Compare fine-tuning and predictions with Hugging Face's model, by their rates.

    pip install -e '.[bench]' -c constraints.txt
    python benchmarks/finetune_vs_huggingface.py --sst2=DIR --vocabulary=vocab.txt

SST-2 as GLUE's download has it, BERT-Mini with random weights, batches of 32, float32,
dropout 0.1, all cores, huge pages. Both sides begin with the same checkpoint of Hugging
Face. Its training is a plain loop with AdamW and clipping, and pads each batch to its
longest row. bert_jax trains as `run.finetune_classifier` does, on rows of a few
lengths. Predictions are for the evaluation set, and begin with texts.

The sides take turns (`interleaved_timing.py`), first to train and then to predict.
Programs are compiled before the clock runs.
"""

import argparse
import csv
import gzip
import itertools
import json
import os
import pathlib
import tempfile
import time

import interleaved_timing
import program_flags
import training_steps

from bert_jax.run import huge_pages

BATCH, LENGTH = 32, 128
CASES = ("training", "predictions")
# Steps before the clock runs; among as many batches are all lengths.
WARM_UP = 60


def read_sst2(folder, name):
    """Return the sentences and the labels of a file, which may be compressed."""
    path = pathlib.Path(folder) / f"{name}.tsv"
    opened, path = (open, path) if path.exists() else (gzip.open, f"{path}.gz")
    with opened(path, "rt", encoding="utf-8") as file:
        rows = list(csv.reader(file, delimiter="\t", quoting=csv.QUOTE_NONE))[1:]
    return [text for text, _ in rows], [int(label) for _, label in rows]


def save_random(vocabulary, folder):
    """Write a checkpoint of Hugging Face with random weights."""
    import transformers

    tokenizer = transformers.BertTokenizerFast.from_pretrained(vocabulary)
    tokenizer.save_pretrained(folder)
    config = transformers.BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=256,
        num_hidden_layers=4,
        num_attention_heads=4,
        intermediate_size=1024,
        id2label={0: "0", 1: "1"},
        label2id={"0": 0, "1": 1},
    )
    transformers.BertForSequenceClassification(config).save_pretrained(folder)


def bert_jax_side(values):
    """Return a function that trains for some steps, or predicts some times."""
    from bert_jax import config as config_lib
    from bert_jax import finetuning, prediction
    from bert_jax.finetuning import initialise
    from bert_jax.training import sharding

    model = prediction.load(values.model)
    if values.case == "predictions":
        texts, _ = read_sst2(values.sst2, "dev")
        return lambda count: [model.classify(texts) for _ in range(count)]
    config = config_lib.FinetuneConfig(
        batch_size=BATCH,
        epochs=100.0,
        task=config_lib.ClassificationConfig(
            name="glue/sst2", folder=values.sst2, length=LENGTH
        ),
    )
    task = finetuning.TASKS[config.task.kind](config.task, model.tokenizer)
    encoder = initialise.encoder_config(config, model.encoder)
    mesh = sharding.make_mesh(config.mesh)
    run, _ = finetuning.make_run(config, mesh, encoder, task)
    train = training_steps.steps_of_run(run)
    train(WARM_UP)
    return train


def huggingface_side(values):
    """Return the same of Hugging Face's model."""
    import torch
    import transformers

    torch.set_num_threads(len(os.sched_getaffinity(0)))
    tokenizer = transformers.AutoTokenizer.from_pretrained(values.model)
    model = transformers.AutoModelForSequenceClassification.from_pretrained(
        values.model
    )

    def loader(name, **options):
        texts, labels = read_sst2(values.sst2, name)
        encoded = tokenizer(texts, truncation=True, max_length=LENGTH)
        columns = {**encoded, "labels": labels}
        rows = [
            dict(zip(columns, row, strict=True))
            for row in zip(*columns.values(), strict=True)
        ]
        collate = transformers.DataCollatorWithPadding(tokenizer)
        return torch.utils.data.DataLoader(rows, BATCH, collate_fn=collate, **options)

    def predict(count):
        model.eval()
        with torch.inference_mode():
            for _ in range(count):
                for batch in loader("dev"):
                    model(**batch)

    if values.case == "predictions":
        return predict
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-5, fused=True)
    batches = itertools.chain.from_iterable(
        itertools.repeat(loader("train", shuffle=True))
    )

    def train(count):
        for batch in itertools.islice(batches, count):
            model(**batch).loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()

    return train


SIDES = {"bert_jax": bert_jax_side, "huggingface": huggingface_side}


def main():
    parser = program_flags.make_parser(__doc__)
    parser.add_argument("--sst2", required=True, help="folder with train.tsv, dev.tsv")
    parser.add_argument("--vocabulary", required=True, help="vocab.txt of BERT uncased")
    minutes = program_flags.positive(float)
    parser.add_argument("--minutes", type=minutes, default=5.0, help="for both cases")
    for name in ("side", "case", "model"):
        parser.add_argument(f"--{name}", help=argparse.SUPPRESS)
    values = parser.parse_args()
    if values.side:
        interleaved_timing.serve(lambda: SIDES[values.side](values))
        return
    for path in (values.sst2, values.vocabulary):
        if not os.path.exists(path):
            parser.error(f"there is no {path}")
    pages = {huge_pages.VARIABLE: huge_pages.VALUE}
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", **pages}
    examples = {"training": BATCH, "predictions": len(read_sst2(values.sst2, "dev")[0])}
    end = time.monotonic() + 60 * values.minutes
    report = {}
    with tempfile.TemporaryDirectory() as folder:
        save_random(values.vocabulary, folder)
        flags = [f"--sst2={values.sst2}", f"--vocabulary={values.vocabulary}"]
        flags.append(f"--model={folder}")
        for i, case in enumerate(CASES):
            commands = {
                side: [__file__, *flags, f"--case={case}", f"--side={side}"]
                for side in SIDES
            }
            deadline = interleaved_timing.share(end, [1] * len(CASES[i:]))
            seconds, turns = interleaved_timing.medians(commands, environment, deadline)
            rates = {side: examples[case] / s for side, s in seconds.items()}
            report[case] = {
                "examples_per_sec": {side: round(r, 1) for side, r in rates.items()},
                "turns": turns,
            }
            if len(rates) == len(SIDES):
                ratio = rates["bert_jax"] / rates["huggingface"]
                report[case]["ratio"] = round(ratio, 2)
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
