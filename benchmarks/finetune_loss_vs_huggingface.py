r"""Compare the losses of fine-tuning with Hugging Face's models and torch's AdamW.

    pip install -e '.[bench]' -c constraints.txt
    python benchmarks/finetune_loss_vs_huggingface.py

For classes, spans and tags: both models begin with the same random weights and train in
float32, without dropout, on the same 100 random batches with padding. torch's AdamW has
the settings of our optimizer: bias correction, epsilon 1e-6, decay 0.01 except on
biases and layer norms, clipping at 1, and a linear schedule. Prints the largest
difference of the two losses.

Hugging Face counts padding among the positions of a span, and we do not: its logits
there are set to a large negative number before its loss is computed.
"""

import argparse
import json

import flax.linen as nn
import jax
import numpy as np
import torch
import transformers

from bert_jax import config as config_lib
from bert_jax.interop import architectures, huggingface
from bert_jax.objectives import classification, metric_sums, spans, tagging
from bert_jax.training import optimizer as optimizer_lib
from bert_jax.training import step as step_lib

LENGTH, BATCH, CLASSES = 64, 16, 5
SETTINGS = config_lib.OptimizerConfig(
    learning_rate=5e-4, warmup_fraction=0.1, schedule="linear", bias_correction=True
)
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
OBJECTIVES = {
    "classes": classification.Classification(ENCODER, CLASSES),
    "spans": spans.Spans(ENCODER),
    "tags": tagging.Tagging(ENCODER, CLASSES),
}
THEIRS = {
    "classes": transformers.BertForSequenceClassification,
    "spans": transformers.BertForQuestionAnswering,
    "tags": transformers.BertForTokenClassification,
}
# Their head by ours.
HEADS = {
    "classes": ("classifier", "classifier"),
    "spans": ("span_classifier", "qa_outputs"),
    "tags": ("tagger", "classifier"),
}


def random_batch(kind, rng):
    """Rows of different lengths, whose labels depend on their tokens."""
    used = rng.integers(8, LENGTH + 1, BATCH)
    mask = np.arange(LENGTH) < used[:, None]
    ids = np.where(mask, rng.integers(5, ENCODER.vocab_size, mask.shape), 0)
    batch = {
        "input_ids": ids.astype(np.int32),
        "attention_mask": mask,
        "weights": np.ones(BATCH, np.float32),
    }
    if kind == "tags":
        has_label = mask & (rng.random(mask.shape) < 0.7)
        return batch | {"labels": np.where(has_label, ids % CLASSES, -1)}
    segments = ((np.arange(LENGTH) >= used[:, None] // 2) & mask).astype(np.int32)
    batch["segment_ids"] = segments
    if kind == "classes":
        return batch | {"labels": (ids[:, 1] % CLASSES).astype(np.int32)}
    ends = np.sort(rng.integers(1, used[:, None] - 1, (BATCH, 2)), axis=1)
    start, end = ends.T.astype(np.int32)
    return batch | {"start_positions": start, "end_positions": end}


def ours(objective, batches):
    """Losses of our trainer, and the parameters that it began with."""
    schedule = optimizer_lib.make_schedule(SETTINGS, len(batches))
    optimizer = optimizer_lib.make_optimizer(SETTINGS, schedule)

    @jax.jit
    def init(key):
        return step_lib.init_state(objective, optimizer, key)

    state = nn.unbox(init(jax.random.key(0)))
    initial = state.params
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


def their_model(kind, initial):
    """Hugging Face's model with our parameters."""
    settings = transformers.BertConfig(
        vocab_size=ENCODER.vocab_size,
        hidden_size=ENCODER.hidden_size,
        num_hidden_layers=ENCODER.num_layers,
        num_attention_heads=ENCODER.num_heads,
        intermediate_size=ENCODER.intermediate_size,
        hidden_act="gelu",
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        num_labels=2 if kind == "spans" else CLASSES,
    )
    model = THEIRS[kind](settings)
    our_head, their_head = HEADS[kind]
    form = huggingface.Form(architectures.BERT, architectures.BARE, ENCODER, pad_id=0)
    encoder = huggingface.to_huggingface({"encoder": initial["encoder"]}, form)
    state = {name: torch.tensor(np.array(value)) for name, value in encoder.items()}
    kernel, bias = (np.array(initial[our_head][name]) for name in ("kernel", "bias"))
    state[f"{their_head}.weight"] = torch.tensor(kernel.T)
    state[f"{their_head}.bias"] = torch.tensor(bias)
    missing, extra = model.load_state_dict(state, strict=False)
    assert all("position_ids" in name for name in missing), missing
    # Their models of spans and tags have no pooler.
    assert all("pooler" in name for name in extra), extra
    return model


def their_loss(kind, model, batch):
    """The loss of a batch, as a tensor."""
    inputs = {
        "input_ids": torch.tensor(batch["input_ids"]).long(),
        "attention_mask": torch.tensor(batch["attention_mask"]).long(),
    }
    if "segment_ids" in batch:
        inputs["token_type_ids"] = torch.tensor(batch["segment_ids"]).long()
    if kind == "spans":
        output = model(**inputs)
        is_real = torch.tensor(batch["attention_mask"])
        losses = [
            torch.nn.functional.cross_entropy(
                torch.where(is_real, logits, -1e9), torch.tensor(batch[name]).long()
            )
            for logits, name in (
                (output.start_logits, "start_positions"),
                (output.end_logits, "end_positions"),
            )
        ]
        return (losses[0] + losses[1]) / 2
    labels = torch.tensor(batch["labels"]).long()
    if kind == "tags":
        labels = torch.where(labels < 0, -100, labels)
    return model(**inputs, labels=labels).loss


def theirs(kind, batches, initial):
    """Losses of Hugging Face's model with torch's AdamW."""
    model = their_model(kind, initial)
    model.train()
    plain, decayed = [], []
    for name, parameter in model.named_parameters():
        is_plain = "LayerNorm" in name or "bias" in name
        (plain if is_plain else decayed).append(parameter)
    optimizer = torch.optim.AdamW(
        [
            {"params": decayed, "weight_decay": SETTINGS.weight_decay},
            {"params": plain, "weight_decay": 0.0},
        ],
        lr=SETTINGS.learning_rate,
        betas=(SETTINGS.beta1, SETTINGS.beta2),
        eps=SETTINGS.epsilon,
    )
    steps = len(batches)
    scheduler = transformers.get_linear_schedule_with_warmup(
        optimizer, round(SETTINGS.warmup_fraction * steps), steps
    )
    losses = []
    for batch in batches:
        loss = their_loss(kind, model, batch)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), SETTINGS.clip_norm)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return np.array(losses)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=100)
    values = parser.parse_args()
    report = {}
    for kind, objective in OBJECTIVES.items():
        rng = np.random.default_rng(0)
        batches = [random_batch(kind, rng) for _ in range(values.steps)]
        a, initial = ours(objective, batches)
        b = theirs(kind, batches, initial)
        distance = np.abs(a - b)
        report[kind] = {
            "first_loss": [round(float(x[0]), 5) for x in (a, b)],
            "mean_of_last_20": [round(float(x[-20:].mean()), 5) for x in (a, b)],
            "largest_difference": float(distance.max()),
            "at_step": int(distance.argmax()),
        }
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
