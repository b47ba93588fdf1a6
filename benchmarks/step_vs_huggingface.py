r"""Time a training step on a processor, ours and Hugging Face's, eager and compiled.

    pip install -e '.[bench]' -c constraints.txt
    python benchmarks/step_vs_huggingface.py --output=FILE.json

A step is forward and backward pass, clipping and Adam, on the same batch of random
tokens, with dropout 0.1, no padding, and 20 masked positions of 128. Each measurement
is a process of its own, on the same cores. The processes take turns over several
rounds, so that all sides see the machine in the same state. Hugging Face's model
computes its last layer and logits at all positions. bfloat16 is the compute type;
parameters and Adam stay float32 on both sides.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time

BATCH, LENGTH, PREDICTIONS, VOCAB = 8, 128, 20, 30_522
SHAPES = {"tiny": (2, 128, 2), "mini": (4, 256, 4), "base": (12, 768, 12)}
SIDES = ("bert_jax", "eager", "compiled")
# Compared by default, with the least ratio that the project promises.
CASES = {("mini", "float32"): 2.2, ("mini", "bfloat16"): 1.4, ("base", "bfloat16"): 1.0}


def make_batch():
    import numpy as np

    rng = np.random.default_rng(0)
    ids = rng.integers(1000, VOCAB, (BATCH, LENGTH)).astype(np.int32)
    segments = np.broadcast_to(np.arange(LENGTH) >= LENGTH // 2, ids.shape)
    columns = np.arange(1, LENGTH - 1)
    positions = np.stack(
        [np.sort(rng.choice(columns, PREDICTIONS, replace=False)) for _ in ids]
    )
    return {
        "input_ids": ids,
        "segment_ids": segments.astype(np.int32),
        "attention_mask": np.ones(ids.shape, bool),
        "mlm_positions": positions.astype(np.int32),
        "mlm_labels": np.take_along_axis(ids, positions, 1),
        "mlm_weights": np.ones(positions.shape, np.float32),
        "nsp_labels": (np.arange(BATCH) % 2).astype(np.int32),
        "nsp_weights": np.ones(BATCH, np.float32),
    }


def bert_jax_step(layers, hidden, heads, dtype):
    import flax.linen as nn
    import jax

    from bert_jax import config as config_lib
    from bert_jax.objectives import masked_lm
    from bert_jax.training import optimizer as optimizer_lib
    from bert_jax.training import step as step_lib

    encoder = config_lib.EncoderConfig(
        vocab_size=VOCAB,
        num_layers=layers,
        hidden_size=hidden,
        num_heads=heads,
        intermediate_size=4 * hidden,
        dtype=dtype,
    )
    objective = masked_lm.MaskedLm(encoder)
    settings = config_lib.OptimizerConfig()
    schedule = optimizer_lib.make_schedule(settings, 1000)
    optimizer = optimizer_lib.make_optimizer(settings, schedule)

    @jax.jit
    def init(key):
        return step_lib.init_state(objective, optimizer, key)

    state = nn.unbox(init(jax.random.key(0)))
    train_step = jax.jit(
        step_lib.make_train_step(objective, optimizer, seed=0), donate_argnums=0
    )
    batch = jax.tree.map(jax.numpy.asarray, make_batch())

    def run():
        nonlocal state
        state, _ = train_step(state, batch)
        jax.block_until_ready(state)

    return run


def huggingface_step(layers, hidden, heads, dtype, compiled):
    import numpy as np
    import torch
    import transformers

    torch.set_num_threads(len(os.sched_getaffinity(0)))
    model = transformers.BertForPreTraining(
        transformers.BertConfig(
            vocab_size=VOCAB,
            hidden_size=hidden,
            num_hidden_layers=layers,
            num_attention_heads=heads,
            intermediate_size=4 * hidden,
        )
    )
    model.train()
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=1e-4, eps=1e-6, weight_decay=0.01, fused=True
    )
    batch = make_batch()
    labels = np.full((BATCH, LENGTH), -100)
    np.put_along_axis(labels, batch["mlm_positions"], batch["mlm_labels"], 1)
    inputs = {
        "input_ids": torch.tensor(batch["input_ids"]).long(),
        "token_type_ids": torch.tensor(batch["segment_ids"]).long(),
        "attention_mask": torch.tensor(batch["attention_mask"]).long(),
        "labels": torch.tensor(labels),
        "next_sentence_label": torch.tensor(batch["nsp_labels"]).long(),
    }
    forward = torch.compile(model) if compiled else model

    def run():
        with torch.autocast("cpu", torch.bfloat16, enabled=dtype == "bfloat16"):
            loss = forward(**inputs).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        return loss.item()

    return run


def measure(side, size, dtype, steps):
    """Milliseconds of each of some steps, after three steps to warm up."""
    shape = SHAPES[size]
    if side == "bert_jax":
        run = bert_jax_step(*shape, dtype)
    else:
        run = huggingface_step(*shape, dtype, side == "compiled")
    for _ in range(3):
        run()
    times = []
    for _ in range(steps):
        start = time.perf_counter()
        run()
        times.append(1e3 * (time.perf_counter() - start))
    return times


def in_process(side, size, dtype, steps):
    one = json.dumps([side, size, dtype, steps])
    environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(
        [sys.executable, __file__, f"--one={one}"],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        env=environment,
    )
    return json.loads(done.stdout.splitlines()[-1])


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--output", help="file for the report")
    parser.add_argument("--one", help="for the script's own use")
    values = parser.parse_args()
    if values.one:
        print(json.dumps(measure(*json.loads(values.one))))
        return
    # Processes inherit this, so that all of them run on the same cores.
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: values.cores])
    report = {}
    for (size, dtype), wanted in CASES.items():
        times = {side: [] for side in SIDES}
        for _ in range(values.rounds):
            for side in SIDES:
                steps = 6 if size == "base" else 20
                times[side] += in_process(side, size, dtype, steps)
        medians = {side: statistics.median(t) for side, t in times.items()}
        best = min(medians["eager"], medians["compiled"])
        report[f"{size} {dtype}"] = {
            "milliseconds": {side: round(m, 1) for side, m in medians.items()},
            "ratio": round(best / medians["bert_jax"], 2),
            "wanted": wanted,
        }
        print(size, dtype, json.dumps(report[f"{size} {dtype}"]), flush=True)
    if values.output:
        with open(values.output, "w") as stream:
            json.dump(report, stream, indent=2)


if __name__ == "__main__":
    main()
