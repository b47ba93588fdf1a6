r"""Compare training losses with Hugging Face's models and torch's AdamW.

    pip install -e '.[bench]' -c constraints.txt
    python benchmarks/loss_vs_huggingface.py                # classes, spans and tags
    python benchmarks/loss_vs_huggingface.py --corpus=DIR --output=FILE.png

Both models begin with the same weights and train in float32, without dropout, on the
same batches: random ones with padding for fine-tuning, batches of a corpus for
pretraining. torch's AdamW has bert_jax's settings: bias correction, epsilon 1e-6, decay
0.01 except on biases and layer norms, clipping at 1, and a linear schedule. Prints the
largest difference of the losses; `--output` draws the last case.

bert_jax masks out the logits of spans in padding. Hugging Face's model does not, so its
logits there are set to a large negative number before its loss is computed.
"""

import dataclasses
import json

import jax
import numpy as np
import program_flags
import torch
import training_steps
import transformers
from matplotlib import figure

from bert_jax import config as config_lib
from bert_jax.corpus import shards
from bert_jax.data import batches as batches_lib
from bert_jax.interop import huggingface
from bert_jax.interop.families import bert, family
from bert_jax.objectives import classification, masked_lm, metric_sums, spans, tagging
from bert_jax.run import exit_status

LENGTH, BATCH, CLASSES = 64, 16, 5
ENCODER = config_lib.EncoderConfig(
    vocab_size=1000,
    num_layers=2,
    hidden_size=128,
    num_heads=2,
    intermediate_size=512,
    activation="gelu_erf",
    dropout_rate=0.0,
    attention_dropout_rate=0.0,
    dtype="float32",
)
# Purpose of the class of Hugging Face, by case.
PURPOSES = {
    "pretraining": family.NEXT_SENTENCE,
    "classes": family.CLASSIFICATION,
    "spans": family.ANSWERING,
    "tags": family.TAGGING,
}


def make_objective(case, encoder):
    if case == "pretraining":
        return masked_lm.MaskedLm(encoder)
    if case == "spans":
        return spans.Spans(encoder)
    head = {"classes": classification.Classification, "tags": tagging.Tagging}[case]
    return head(encoder, CLASSES)


def random_batch(case, rng):
    """Make rows of different lengths, whose labels depend on their tokens."""
    used = rng.integers(8, LENGTH + 1, BATCH)
    mask = np.arange(LENGTH) < used[:, None]
    ids = np.where(mask, rng.integers(5, ENCODER.vocab_size, mask.shape), 0)
    batch = {
        "input_ids": ids.astype(np.int32),
        "attention_mask": mask,
        "weights": np.ones(BATCH, np.float32),
    }
    if case == "tags":
        has_label = mask & (rng.random(mask.shape) < 0.7)
        return batch | {"labels": np.where(has_label, ids % CLASSES, -1)}
    segments = ((np.arange(LENGTH) >= used[:, None] // 2) & mask).astype(np.int32)
    batch["segment_ids"] = segments
    if case == "classes":
        return batch | {"labels": (ids[:, 1] % CLASSES).astype(np.int32)}
    ends = np.sort(rng.integers(1, used[:, None] - 1, (BATCH, 2)), axis=1)
    start, end = ends.T.astype(np.int32)
    return batch | {"start_positions": start, "end_positions": end}


def bert_jax_losses(objective, settings, batches):
    """Return the losses of bert_jax's trainer and its initial parameters."""
    state, train_step = training_steps.begin_training(objective, settings, len(batches))
    initial, train_step = state.params, jax.jit(train_step)
    losses = []
    for batch in batches:
        state, _ = train_step(state, batch)
        # The state adds up metrics since the last report. Report each step.
        sums = jax.device_get(state.metric_sums)
        losses.append(metric_sums.report(objective.loss_weights, sums)["loss"])
        zeros = jax.tree.map(jax.numpy.zeros_like, state.metric_sums)
        state = state.replace(metric_sums=zeros)
    return np.array(losses), initial


def huggingface_model(case, encoder, initial):
    """Return Hugging Face's model with bert_jax's initial parameters."""
    spec = huggingface.ModelSpec(bert.BERT, PURPOSES[case], encoder, pad_id=0)
    model = getattr(transformers, spec.name)(
        transformers.BertConfig(
            vocab_size=encoder.vocab_size,
            hidden_size=encoder.hidden_size,
            num_hidden_layers=encoder.num_layers,
            num_attention_heads=encoder.num_heads,
            intermediate_size=encoder.intermediate_size,
            hidden_act="gelu",
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
            num_labels=2 if case == "spans" else CLASSES,
        )
    )
    arrays = huggingface.state_dict(initial, spec)
    state = {name: torch.tensor(np.array(value)) for name, value in arrays.items()}
    missing, extra = model.load_state_dict(state, strict=False)
    # Second names of tied tensors are missing.
    assert all("decoder" in n or "position_ids" in n for n in missing), missing
    assert not extra, extra
    return model


def huggingface_loss(case, model, batch):
    """Return the loss of a batch, as a tensor."""

    def integers(name):
        return torch.tensor(batch[name]).long()

    inputs = {name: integers(name) for name in ("input_ids", "attention_mask")}
    if "segment_ids" in batch:
        inputs["token_type_ids"] = integers("segment_ids")
    if case == "spans":
        output = model(**inputs)
        is_real = torch.tensor(batch["attention_mask"])
        losses = [
            torch.nn.functional.cross_entropy(
                torch.where(is_real, logits, -1e9), integers(name)
            )
            for logits, name in (
                (output.start_logits, "start_positions"),
                (output.end_logits, "end_positions"),
            )
        ]
        return (losses[0] + losses[1]) / 2
    if case == "pretraining":
        labels = np.full(batch["input_ids"].shape, -100)
        rows, columns = np.nonzero(batch["mlm_weights"])
        positions = batch["mlm_positions"][rows, columns]
        labels[rows, positions] = batch["mlm_labels"][rows, columns]
        inputs["next_sentence_label"] = integers("nsp_labels")
        return model(**inputs, labels=torch.tensor(labels)).loss
    labels = integers("labels")
    if case == "tags":
        labels = torch.where(labels < 0, -100, labels)
    return model(**inputs, labels=labels).loss


def huggingface_losses(case, model, settings, batches):
    """Return the losses of Hugging Face's model with torch's AdamW."""
    model.train()
    plain, decayed = [], []
    for name, parameter in model.named_parameters():
        is_plain = "LayerNorm" in name or "bias" in name
        (plain if is_plain else decayed).append(parameter)
    optimizer = torch.optim.AdamW(
        [
            {"params": decayed, "weight_decay": settings.weight_decay},
            {"params": plain, "weight_decay": 0.0},
        ],
        lr=settings.learning_rate,
        betas=(settings.beta1, settings.beta2),
        eps=settings.epsilon,
    )
    steps = len(batches)
    scheduler = transformers.get_linear_schedule_with_warmup(
        optimizer, round(settings.warmup_fraction * steps), steps
    )
    losses = []
    for batch in batches:
        loss = huggingface_loss(case, model, batch)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), settings.clip_norm)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return np.array(losses)


def pretraining_batches(folder, steps):
    """Return the encoder for a corpus, and the first batches of the corpus."""
    corpus = shards.open_corpus(folder)
    encoder = dataclasses.replace(ENCODER, vocab_size=corpus.tokenizer.vocab_size)
    phase = config_lib.PhaseConfig(steps=steps, length=LENGTH, batch_size=BATCH)
    config = config_lib.PretrainConfig(encoder=encoder, phases=(phase,))
    data = batches_lib.PretrainingBatches([corpus], config, 0)
    return encoder, list(data.batches(0, steps))


def draw(a, b, path):
    picture = figure.Figure(figsize=(9, 3.5), dpi=110)
    left, right = picture.subplots(1, 2)
    left.plot(b, label="Hugging Face, torch AdamW", linewidth=3, alpha=0.5)
    left.plot(a, label="bert_jax", linewidth=1)
    left.set_ylabel("training loss (nats)")
    left.legend()
    right.semilogy(np.maximum(np.abs(a - b), 1e-9))
    right.set_ylabel("|difference|")
    for axis in (left, right):
        axis.set_xlabel("step")
        axis.grid(alpha=0.3)
    picture.tight_layout()
    picture.savefig(path)


def main():
    parser = program_flags.make_parser(__doc__)
    parser.add_argument("--corpus", help="from run.build_corpus, for pretraining")
    parser.add_argument(
        "--steps",
        type=program_flags.positive(int),
        help="default: 200, fine-tuning 100",
    )
    parser.add_argument("--output", help="picture to write")
    values = parser.parse_args()
    cases = ("pretraining",) if values.corpus else ("classes", "spans", "tags")
    steps = values.steps or (200 if values.corpus else 100)
    settings = config_lib.OptimizerConfig(
        learning_rate=1e-3 if values.corpus else 5e-4,
        warmup_fraction=0.1,
        schedule="linear",
        bias_correction=True,
    )
    report = {}
    for case in cases:
        if values.corpus:
            encoder, batches = pretraining_batches(values.corpus, steps)
        else:
            encoder, rng = ENCODER, np.random.default_rng(0)
            batches = [random_batch(case, rng) for _ in range(steps)]
        objective = make_objective(case, encoder)
        a, initial = bert_jax_losses(objective, settings, batches)
        model = huggingface_model(case, encoder, initial)
        b = huggingface_losses(case, model, settings, batches)
        distance = np.abs(a - b)
        report[case] = {
            "first_loss": [round(float(x[0]), 5) for x in (a, b)],
            "mean_of_last_20": [round(float(x[-20:].mean()), 5) for x in (a, b)],
            "largest_difference": float(distance.max()),
            "at_step": int(distance.argmax()),
            "largest_relative_difference": float((distance / b).max()),
        }
    print(json.dumps(report, indent=2))
    if values.output:
        draw(a, b, values.output)


if __name__ == "__main__":
    with exit_status.reported_errors():
        main()
