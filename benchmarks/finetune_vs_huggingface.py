r"""Compare fine-tuning and predictions with Hugging Face's `Trainer`, by their rates.

    pip install -e '.[bench]' -c constraints.txt
    python benchmarks/finetune_vs_huggingface.py --sst2=DIR --vocabulary=vocab.txt

SST-2 as GLUE's download has it, BERT-Mini with random weights, batches of 32, float32,
dropout 0.1, all cores. `Trainer` pads each batch to its longest row, as its users are
advised to. Each side trains for some steps, and then predicts for the evaluation set.
Ours trains by the command that users give, with the huge pages that it takes, and
predicts by the function for notebooks, without them. Predictions begin with texts. The
sides take turns over several rounds, each time in a process of its own; medians of
their rates are compared. Programs are compiled, and memory is set up, before the clock
runs: the first two fifths of the steps, and a first round of predictions, do not count.
"""

import argparse
import csv
import functools
import gzip
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

BATCH, LENGTH = 32, 128
SIDES = ("bert_jax", "trainer")
RECIPE = pathlib.Path(__file__).parent.parent / "configs" / "glue.py"


def read_sst2(folder, name):
    """Sentences and labels of a file, which may be compressed."""
    path = pathlib.Path(folder) / f"{name}.tsv"
    if not path.exists():
        path = path.with_name(f"{name}.tsv.gz")
    opened = gzip.open if path.suffix == ".gz" else open
    with opened(path, "rt", encoding="utf-8") as file:
        rows = list(csv.reader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
    return [(text, int(label)) for text, label in rows[1:]]


def bert_jax_rates(values):
    """Examples a second in training and in predictions."""
    from bert_jax import config as config_lib
    from bert_jax import prediction
    from bert_jax import tokenizer as tokenizer_lib

    with tempfile.TemporaryDirectory() as folder:
        source, workdir = pathlib.Path(folder) / "source", pathlib.Path(folder) / "run"
        tokenizer = tokenizer_lib.from_vocab_file(values.vocabulary, True, True)
        encoder = config_lib.EncoderConfig(
            vocab_size=tokenizer.vocab_size,
            hidden_size=256,
            num_layers=4,
            num_heads=4,
            intermediate_size=1024,
            dtype="float32",
        )
        save_random(encoder, tokenizer, source)
        examples = len(read_sst2(values.sst2, "train"))
        options = {
            "init_from": source,
            "random_init": True,
            "batch_size": BATCH,
            "epochs": values.steps * BATCH / examples,
            "task.folder": values.sst2,
            "task.length": LENGTH,
            "loop.log_every": values.steps // 5,
        }
        command = [sys.executable, "-m", "bert_jax.run.finetune_classifier"]
        command += [f"--config={RECIPE}:sst2", f"--workdir={workdir}"]
        command += [f"--config.{name}={value}" for name, value in options.items()]
        subprocess.run(command, stdout=sys.stderr, check=True)
        lines = (workdir / "metrics.jsonl").read_text().splitlines()
        records = [r for r in map(json.loads, lines) if r["split"] == "train"]
        rates = [r["sequences_per_sec"] for r in records if r["step"] > 1]
        texts = [text for text, _ in read_sst2(values.sst2, "dev")]
        model = prediction.load(str(workdir))
        model.classify(texts)
        start = time.perf_counter()
        model.classify(texts)
        seconds = time.perf_counter() - start
    return {"training": statistics.mean(rates[2:]), "inference": len(texts) / seconds}


def save_random(encoder, tokenizer, folder):
    """Write a checkpoint with random weights, for its shape and tokenizer."""
    import jax

    from bert_jax import config as config_lib
    from bert_jax.objectives import masked_lm
    from bert_jax.training import checkpoint, metadata, optimizer, sharding
    from bert_jax.training import step as step_lib

    config = config_lib.PretrainConfig(encoder=encoder)
    objective = masked_lm.MaskedLm(encoder, config.objective)
    update = optimizer.make_optimizer(config.optimizer, lambda step: 0.0)
    init = functools.partial(step_lib.init_state, objective, update)
    shapes = sharding.state_shapes(init, sharding.make_mesh(config.mesh))
    state = sharding.initialise(init, shapes, jax.random.key(0))
    about = metadata.of_run(config, objective, tokenizer)
    checkpoints = checkpoint.Checkpoints(folder / "checkpoints", 1, about)
    checkpoints.save(1, state, objective.encoder, {})
    checkpoints.close()


def trainer_rates(values):
    """Likewise, of Hugging Face's `Trainer`."""
    import transformers

    tokenizer = transformers.BertTokenizerFast(vocab_file=values.vocabulary)

    def encoded(name):
        rows = read_sst2(values.sst2, name)
        texts = tokenizer([t for t, _ in rows], truncation=True, max_length=LENGTH)
        return [
            {**{key: texts[key][i] for key in texts}, "labels": label}
            for i, (_, label) in enumerate(rows)
        ]

    class Clock(transformers.TrainerCallback):
        def __init__(self):
            self.times = []

        def on_step_end(self, arguments, state, control, **more):
            self.times.append(time.perf_counter())

    model = transformers.BertForSequenceClassification(
        transformers.BertConfig(
            vocab_size=len(tokenizer),
            hidden_size=256,
            num_hidden_layers=4,
            num_attention_heads=4,
            intermediate_size=1024,
            num_labels=2,
        )
    )
    clock = Clock()
    with tempfile.TemporaryDirectory() as folder:
        trainer = transformers.Trainer(
            model,
            transformers.TrainingArguments(
                folder,
                use_cpu=True,
                per_device_train_batch_size=BATCH,
                per_device_eval_batch_size=BATCH,
                max_steps=values.steps,
                learning_rate=5e-5,
                report_to=[],
                save_strategy="no",
                logging_strategy="no",
                disable_tqdm=True,
            ),
            data_collator=transformers.DataCollatorWithPadding(tokenizer),
            train_dataset=encoded("train"),
            callbacks=[clock],
        )
        trainer.train()
        trainer.predict(encoded("dev"))
        start = time.perf_counter()
        dev = encoded("dev")
        trainer.predict(dev)
        seconds = time.perf_counter() - start
    first = values.steps * 2 // 5
    counted = clock.times[first:]
    rate = BATCH * (len(counted) - 1) / (counted[-1] - counted[0])
    return {"training": rate, "inference": len(dev) / seconds}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sst2", required=True, help="folder with train.tsv, dev.tsv")
    parser.add_argument("--vocabulary", required=True, help="vocab.txt of BERT uncased")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--side", choices=SIDES, help=argparse.SUPPRESS)
    values = parser.parse_args()
    if values.side:
        rates = bert_jax_rates if values.side == "bert_jax" else trainer_rates
        print(json.dumps(rates(values)))
        return
    measured = {side: [] for side in SIDES}
    for _ in range(values.rounds):
        for side in SIDES:
            command = [sys.executable, *sys.argv, f"--side={side}"]
            environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
            done = subprocess.run(
                command, env=environment, stdout=subprocess.PIPE, check=True, text=True
            )
            measured[side].append(json.loads(done.stdout.splitlines()[-1]))
            print(side, measured[side][-1], file=sys.stderr)
    report = {}
    for what in ("training", "inference"):
        rates = {
            side: statistics.median(r[what] for r in measured[side]) for side in SIDES
        }
        report[what] = {
            **{f"{side}, examples/s": round(rate, 1) for side, rate in rates.items()},
            "ratio": round(rates["bert_jax"] / rates["trainer"], 2),
        }
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
