r"""Compare the loss curve of our trainer with Hugging Face's model and torch's AdamW.

    pip install -e '.[bench]' -c constraints.txt
    python benchmarks/loss_vs_huggingface.py --corpus=DIR --output=FILE.png

Both models begin with the same weights and train in float32, without dropout, on the
same 200 batches. torch's AdamW has the settings of our optimizer: bias correction,
epsilon 1e-6, decay 0.01 except on biases and layer norms, clipping at 1, and a linear
schedule. Prints the largest difference of the two losses and draws both curves.
"""

import argparse
import json

import flax.linen as nn
import jax
import matplotlib
import numpy as np
import torch
import transformers

from bert_jax import config as config_lib
from bert_jax.corpus import shards
from bert_jax.data import batches as batches_lib
from bert_jax.interop import architectures, huggingface
from bert_jax.objectives import masked_lm, metric_sums
from bert_jax.training import optimizer as optimizer_lib
from bert_jax.training import step as step_lib

matplotlib.use("Agg")

from matplotlib import figure

LENGTH, BATCH = 64, 16
SETTINGS = config_lib.OptimizerConfig(
    learning_rate=1e-3, warmup_fraction=0.1, schedule="linear", bias_correction=True
)


def make_encoder(vocab_size):
    """BERT-Tiny without dropout, with the GELU that Hugging Face has by default."""
    return config_lib.EncoderConfig(
        vocab_size=vocab_size,
        num_layers=2,
        hidden_size=128,
        num_heads=2,
        intermediate_size=512,
        activation="gelu_erf",
        dropout_rate=0.0,
        attention_dropout_rate=0.0,
        dtype="float32",
    )


def ours(encoder, steps, batches):
    """Losses of our trainer, and the weights that it began with, by name."""
    objective = masked_lm.MaskedLm(encoder)
    schedule = optimizer_lib.make_schedule(SETTINGS, steps)
    optimizer = optimizer_lib.make_optimizer(SETTINGS, schedule)

    @jax.jit
    def init(key):
        return step_lib.init_state(objective, optimizer, key)

    state = nn.unbox(init(jax.random.key(0)))
    form = huggingface.Form(
        architectures.BERT, architectures.NEXT_SENTENCE, encoder, pad_id=0
    )
    initial = huggingface.to_huggingface(state.params, form)
    train_step = jax.jit(step_lib.make_train_step(objective, optimizer, seed=0))
    losses = []
    for batch in batches:
        state, _ = train_step(state, batch)
        # The state adds up what was measured since the last report. Report each step.
        terms = jax.device_get(state.terms)
        losses.append(metric_sums.report(objective.losses, terms)["loss"])
        zeros = jax.tree.map(jax.numpy.zeros_like, state.terms)
        state = state.replace(terms=zeros)
    return np.array(losses), initial


def theirs(encoder, steps, batches, initial):
    """Losses of Hugging Face's model with torch's AdamW."""
    model = transformers.BertForPreTraining(
        transformers.BertConfig(
            vocab_size=encoder.vocab_size,
            hidden_size=encoder.hidden_size,
            num_hidden_layers=encoder.num_layers,
            num_attention_heads=encoder.num_heads,
            intermediate_size=encoder.intermediate_size,
            hidden_act="gelu",
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
        )
    )
    state = {name: torch.tensor(np.array(v)) for name, v in initial.items()}
    missing = model.load_state_dict(state, strict=False).missing_keys
    # The missing names are other names of the same tensors.
    assert all("decoder" in name or "position_ids" in name for name in missing), missing
    model.train()
    plain = [p for n, p in model.named_parameters() if "LayerNorm" in n or "bias" in n]
    decayed = [
        p for n, p in model.named_parameters() if not ("LayerNorm" in n or "bias" in n)
    ]
    optimizer = torch.optim.AdamW(
        [
            {"params": decayed, "weight_decay": SETTINGS.weight_decay},
            {"params": plain, "weight_decay": 0.0},
        ],
        lr=SETTINGS.learning_rate,
        betas=(SETTINGS.beta1, SETTINGS.beta2),
        eps=SETTINGS.epsilon,
    )
    scheduler = transformers.get_linear_schedule_with_warmup(
        optimizer, round(SETTINGS.warmup_fraction * steps), steps
    )
    losses = []
    for batch in batches:
        labels = np.full(batch["input_ids"].shape, -100)
        rows, columns = np.nonzero(batch["mlm_weights"])
        positions = batch["mlm_positions"][rows, columns]
        labels[rows, positions] = batch["mlm_labels"][rows, columns]
        output = model(
            input_ids=torch.tensor(batch["input_ids"]).long(),
            token_type_ids=torch.tensor(batch["segment_ids"]).long(),
            attention_mask=torch.tensor(batch["attention_mask"]).long(),
            labels=torch.tensor(labels),
            next_sentence_label=torch.tensor(batch["nsp_labels"]).long(),
        )
        output.loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), SETTINGS.clip_norm)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        losses.append(output.loss.item())
    return np.array(losses)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--corpus", required=True, help="from run.build_corpus")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--output", help="picture to write")
    values = parser.parse_args()
    corpus = shards.open_corpus(values.corpus)
    encoder = make_encoder(corpus.tokenizer.vocab_size)
    phase = config_lib.PhaseConfig(steps=values.steps, length=LENGTH, batch_size=BATCH)
    config = config_lib.PretrainConfig(encoder=encoder, phases=(phase,))
    data = batches_lib.PretrainingBatches([corpus], config, 0)
    batches = list(data.batches(0, values.steps))
    a, initial = ours(encoder, values.steps, batches)
    b = theirs(encoder, values.steps, batches, initial)
    distance = np.abs(a - b)
    report = {
        "steps": values.steps,
        "first_loss": [round(float(x[0]), 5) for x in (a, b)],
        "mean_of_last_20": [round(float(x[-20:].mean()), 5) for x in (a, b)],
        "largest_difference": float(distance.max()),
        "at_step": int(distance.argmax()),
        "largest_relative_difference": float((distance / b).max()),
    }
    print(json.dumps(report, indent=2))
    if values.output:
        picture = figure.Figure(figsize=(9, 3.5), dpi=110)
        left, right = picture.subplots(1, 2)
        left.plot(b, label="Hugging Face, torch AdamW", linewidth=3, alpha=0.5)
        left.plot(a, label="bert_jax", linewidth=1)
        left.set_ylabel("training loss (nats)")
        left.legend()
        right.semilogy(np.maximum(distance, 1e-9))
        right.set_ylabel("|difference|")
        for axis in (left, right):
            axis.set_xlabel("step")
            axis.grid(alpha=0.3)
        picture.tight_layout()
        picture.savefig(values.output)


if __name__ == "__main__":
    main()
