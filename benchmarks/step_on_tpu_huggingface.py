r"""Cycles of a training step of Hugging Face's Flax BERT, by both measures of a plan.

    pip install -e '.[tpu]'
    pip install transformers==4.51.3    # the last with Flax; replaces tokenizers, too
    python benchmarks/step_on_tpu_huggingface.py --rows=64 --length=128

BERT-Base with both heads, bfloat16, parameters in float32, dropout 0.1, AdamW, on one
chip. Its step follows their script for masked tokens
(examples/flax/language-modeling/run_mlm_flax.py) with next sentence beside it: logits
at all positions, the loss at those with labels. Unlike bert_jax's step, it has no
clipping and no schedule, and decays all parameters. Nothing runs: the step is compiled
and measured as `run.plan --schedule` measures bert_jax's (command in docs/results.md).
"""

import jax
import jax.numpy as jnp
import optax
import program_flags

from bert_jax.planning import cost, hlo, schedule, topology


def train_step(model, optimizer):
    """Return the step, a function of parameters, moments, batch and key."""

    def loss(params, batch, key):
        labels, next_sentence = batch["labels"], batch["next_sentence_label"]
        names = "input_ids", "attention_mask", "token_type_ids"
        inputs = {name: batch[name] for name in names}
        outputs = model(**inputs, params=params, dropout_rng=key, train=True)
        cross_entropy = optax.softmax_cross_entropy_with_integer_labels
        is_label = labels > 0
        losses = cross_entropy(outputs.prediction_logits, labels) * is_label
        return (
            losses.sum() / is_label.sum()
            + cross_entropy(outputs.seq_relationship_logits, next_sentence).mean()
        )

    def step(params, state, batch, key):
        value, gradients = jax.value_and_grad(loss)(params, batch, key)
        updates, state = optimizer.update(gradients, state, params)
        return optax.apply_updates(params, updates), state, value

    return step


def main() -> None:
    parser = program_flags.make_parser(__doc__)
    parser.add_argument("--topology", default="v5e:1x1", help="TPU slice")
    parser.add_argument("--rows", type=int, default=64, help="of a batch")
    parser.add_argument("--length", type=int, default=128, help="of a row")
    parser.add_argument("--layers", type=int, default=12, help="of the model")
    args = parser.parse_args()
    dump = schedule.ScheduleFolder()  # before the compiler is loaded
    import transformers

    jax.config.update("jax_enable_compilation_cache", False)
    opened = topology.open_topology(args.topology)
    place = jax.sharding.SingleDeviceSharding(opened.devices[0])
    config = transformers.BertConfig(num_hidden_layers=args.layers)
    model = transformers.FlaxBertForPreTraining(
        config, dtype=jnp.bfloat16, _do_init=False
    )
    optimizer = optax.adamw(1e-4, weight_decay=0.01)
    ids = jax.ShapeDtypeStruct((args.rows, args.length), jnp.int32)
    names = ("input_ids", "attention_mask", "token_type_ids", "labels")
    batch = dict.fromkeys(names, ids)
    batch["next_sentence_label"] = jax.ShapeDtypeStruct((args.rows,), jnp.int32)
    key = jax.eval_shape(lambda: jax.random.PRNGKey(0))
    params = jax.eval_shape(lambda k: model.init_weights(k, (1, args.length)), key)
    state = jax.eval_shape(optimizer.init, params)
    arguments = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=place),
        (params, state, batch, key),
    )
    step = jax.jit(train_step(model, optimizer), donate_argnums=(0, 1))
    text = step.lower(*arguments).compile().as_text()
    measured = cost.measure(hlo.Program(text), opened.rates, dump.read_cycles())
    print(
        f"{args.rows} of {args.length}, {args.layers} layers, {args.topology}: "
        f"{measured.estimated / 1e6:.1f} million cycles by the compiler's estimate, "
        f"{measured.scheduled / 1e6:.1f} by schedule"
    )


if __name__ == "__main__":
    main()
