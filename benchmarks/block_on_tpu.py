r"""Cycles of one block of an encoder on a TPU, forward and backward, by both measures.

    pip install -e '.[tpu]' -c constraints.txt
    python benchmarks/block_on_tpu.py configs/modernbert.py:base --local \
        --rows=9 --length=1024

Nothing runs: the block is compiled and measured as `run.plan --schedule` measures a
step (docs/plan.md). It serves all encoders but XLNet and DeBERTa.
"""

import argparse
import functools
import re
import runpy


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("recipe", help="FILE or FILE:VARIANT")
    parser.add_argument("--topology", default="v5e:1x1")
    parser.add_argument("--rows", type=int, default=16)
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--local", action="store_true", help="attend to a window")
    parser.add_argument("--attention", action="store_true", help="attention alone")
    parser.add_argument("--kernels", choices=("auto", "off"), default="auto")
    args = parser.parse_args()
    from bert_jax.planning import cost, hlo, schedule, topology

    dump = schedule.ScheduleFolder()  # before the compiler is loaded
    import flax.linen as nn
    import jax
    import jax.numpy as jnp

    from bert_jax import config as config_lib
    from bert_jax import knobs
    from bert_jax.model import attention, block, rotary
    from bert_jax.model.attention_pattern import AttentionPattern

    jax.config.update("jax_enable_compilation_cache", False)
    file, _, variant = args.recipe.partition(":")
    recipe = runpy.run_path(file)["get_config"](variant)
    recipe.encoder.kernels = args.kernels
    c = knobs.from_configdict(config_lib.PretrainConfig, recipe).encoder
    part = attention.SelfAttention(c) if args.attention else block.Block(c)
    has_dropout = c.dropout_rate > 0 or c.attention_dropout_rate > 0
    window = c.attention_window if args.local else None

    def inputs_of(x, is_token, keys):
        rotations = None
        if c.positions == "rotary":
            positions = jnp.arange(args.length)[None]  # [1, L]
            rotations = rotary.rotations(positions, c.head_size, c.rotary_base)
        pattern = AttentionPattern(is_token, causal=c.causal, window=window)
        xs = (x, x) if args.attention else (x,)
        return *xs, pattern, rotations, keys if has_dropout else None

    def run(params, gradient, x, *others):
        def apply(params, x):
            return part.apply(params, *inputs_of(x, *others))[0]

        y, pullback = jax.vjp(apply, params, x)
        return y, pullback(gradient.astype(y.dtype))

    place = topology.open_topology(args.topology)
    sharding = jax.sharding.SingleDeviceSharding(place.devices[0])
    like = functools.partial(jax.ShapeDtypeStruct, sharding=sharding)
    x = like((args.rows, args.length, c.hidden_size), jnp.dtype(c.dtype))
    others = like(x.shape[:2], jnp.bool_), like(x.shape[:1], jnp.uint32)
    shapes = jax.eval_shape(
        lambda key, *arrays: nn.unbox(part.init(key, *inputs_of(*arrays))),
        jax.random.key(0),
        x,
        *others,
    )
    params = jax.tree.map(lambda p: like(p.shape, p.dtype), shapes)
    compiled = jax.jit(run).lower(params, x, x, *others).compile()
    schedules = dump.take()
    found = cost.measure(hlo.Program(compiled.as_text()), place.rates, schedules)
    estimate = found.estimated + found.kernel_cycles
    temporaries = compiled.memory_analysis().temp_size_in_bytes
    print(
        f"{estimate / 1e6:.2f} Mcycle by estimate with kernels, "
        f"{found.scheduled / 1e6:.2f} by schedule; {temporaries / 1e6:.0f} MB of "
        "temporaries"
    )
    for name, cycles in sorted(schedules.items()):
        if re.match("attention_|residual_", name):
            print(f"{name}: {cycles / 1e6:.3f} Mcycle by schedule")


if __name__ == "__main__":
    main()
