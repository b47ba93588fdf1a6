"""Training steps of bert_jax and Hugging Face on one batch of random tokens.

Forward and backward pass, clipping and Adam, with dropout and no padding. Hugging
Face's model computes its last layer and logits at all positions, bert_jax at masked
positions. bfloat16 is the compute type; parameters and Adam stay float32 on both sides.
"""

import dataclasses
import functools
import os

import numpy as np

VOCAB = 30_522


@dataclasses.dataclass(frozen=True)
class Case:
    """Model and batch of a benchmark."""

    size: str  # one of SIZES
    dtype: str  # compute type
    batch: int  # sequences of a batch
    length: int  # tokens of a sequence
    attention_dropout: float = 0.1  # rate of dropout of attention probabilities

    @property
    def shape(self):
        """Layers, hidden size, heads."""
        return SIZES[self.size]

    @property
    def predictions(self):
        """Masked tokens of a sequence: 15 %, rounded up."""
        return -(-self.length * 15 // 100)


SIZES = {
    "tiny": (2, 128, 2),
    "mini": (4, 256, 4),
    "base": (12, 768, 12),
    "large": (24, 1024, 16),
}


def make_batch(case):
    rng = np.random.default_rng(0)
    ids = rng.integers(1000, VOCAB, (case.batch, case.length)).astype(np.int32)
    segments = np.broadcast_to(np.arange(case.length) >= case.length // 2, ids.shape)
    columns = np.arange(1, case.length - 1)
    positions = np.stack(
        [np.sort(rng.choice(columns, case.predictions, replace=False)) for _ in ids]
    )
    return {
        "input_ids": ids,
        "segment_ids": segments.astype(np.int32),
        "attention_mask": np.ones(ids.shape, bool),
        "mlm_positions": positions.astype(np.int32),
        "mlm_labels": np.take_along_axis(ids, positions, 1),
        "mlm_weights": np.ones(positions.shape, np.float32),
        "nsp_labels": (np.arange(case.batch) % 2).astype(np.int32),
        "nsp_weights": np.ones(case.batch, np.float32),
    }


def bert_jax_objective(case):
    from bert_jax import config as config_lib
    from bert_jax.objectives import masked_lm

    layers, hidden, heads = case.shape
    encoder = config_lib.EncoderConfig(
        vocab_size=VOCAB,
        num_layers=layers,
        hidden_size=hidden,
        num_heads=heads,
        intermediate_size=4 * hidden,
        attention_dropout_rate=case.attention_dropout,
        dtype=case.dtype,
    )
    return masked_lm.MaskedLm(encoder)


def begin_training(objective, settings, steps):
    """Return the initial state and the training step of an objective, on one device."""
    import flax.linen as nn
    import jax

    from bert_jax.training import optimizer as optimizer_lib
    from bert_jax.training import step as step_lib

    schedule = optimizer_lib.make_schedule(settings, steps)
    optimizer = optimizer_lib.make_optimizer(settings, schedule)
    init = functools.partial(step_lib.init_state, objective, optimizer)
    state = nn.unbox(jax.jit(init)(jax.random.key(0)))
    return state, functools.partial(step_lib.train_step, objective, optimizer, seed=0)


def bert_jax_steps(case):
    """Return a function that runs a number of steps to completion."""
    import jax

    from bert_jax import config as config_lib

    settings = config_lib.OptimizerConfig()
    state, train_step = begin_training(bert_jax_objective(case), settings, 1000)
    train_step = jax.jit(train_step, donate_argnums=0)
    batch = jax.tree.map(jax.numpy.asarray, make_batch(case))

    def run(count):
        nonlocal state
        for _ in range(count):
            state, _ = train_step(state, batch)
        jax.block_until_ready(state)

    return run


def steps_of_run(run):
    """Return a function that trains a run of one phase for some steps, with batches."""
    import jax

    from bert_jax.training import programs, sharding

    (phase,), mesh = run.phases, run.mesh
    rows = sharding.local_rows(mesh, phase.batch_size)
    batches = phase.open_data(rows).batches(0, phase.steps)
    state = sharding.initialise(run.init, run.state_shapes, jax.random.key(0))
    signals = programs.HostSignals(0.0, 0.0).to_devices(mesh)
    seed = programs.seed_array(run)
    constants = run.read_constants(run.constant_shapes())

    @functools.cache
    def compiled(length):
        shapes = run.batch_shapes(phase, length)
        return programs.lower_train_step(run, phase, state, shapes).compile()

    def train(count):
        nonlocal state
        for _ in range(count):
            batch = next(batches)
            train_step = compiled(batch["input_ids"].shape[-1])
            batch = sharding.to_devices(mesh, batch, phase.batch_size)
            state, _ = train_step(state, batch, signals, seed, constants)
        jax.block_until_ready(state)

    return train


def huggingface_steps(case, *, compiled):
    """Return a function that runs a number of steps of Hugging Face's model."""
    import torch
    import transformers

    device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cpu":
        torch.set_num_threads(len(os.sched_getaffinity(0)))
    layers, hidden, heads = case.shape
    model = transformers.BertForPreTraining(
        transformers.BertConfig(
            vocab_size=VOCAB,
            hidden_size=hidden,
            num_hidden_layers=layers,
            num_attention_heads=heads,
            intermediate_size=4 * hidden,
            attention_probs_dropout_prob=case.attention_dropout,
            attn_implementation="sdpa",
        )
    ).to(device)
    model.train()
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=1e-4, eps=1e-6, weight_decay=0.01, fused=True
    )
    batch = make_batch(case)
    labels = np.full(batch["input_ids"].shape, -100)
    np.put_along_axis(labels, batch["mlm_positions"], batch["mlm_labels"], 1)
    inputs = {  # without padding, attention needs no mask
        "input_ids": batch["input_ids"],
        "token_type_ids": batch["segment_ids"],
        "labels": labels,
        "next_sentence_label": batch["nsp_labels"],
    }
    inputs = {name: torch.tensor(x).long().to(device) for name, x in inputs.items()}
    forward = torch.compile(model) if compiled else model

    def run(count):
        for _ in range(count):
            with torch.autocast(
                device, torch.bfloat16, enabled=case.dtype == "bfloat16"
            ):
                loss = forward(**inputs).loss
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
        loss.item()

    return run


SIDES = {
    "bert_jax": bert_jax_steps,
    "eager": lambda case: huggingface_steps(case, compiled=False),
    "compiled": lambda case: huggingface_steps(case, compiled=True),
}
