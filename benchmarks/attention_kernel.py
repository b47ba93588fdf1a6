"""Cost of one layer's attention on a TPU, by the kernel and by the plain path.

    python benchmarks/attention_kernel.py --rows=16 --length=512

Compiles the forward and the backward pass, without a TPU. For the kernel it prints the
scheduled cycles, which exclude waiting for memory, and the bytes that the kernel reads
and writes. For the plain path it prints the compiler's estimate, which is too high for
everything but products, and the bytes of temporaries. The two sides cannot be compared
directly.
"""

import argparse
import functools


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--topology", default="v5e:1x1")
    parser.add_argument("--rows", type=int, default=64)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--heads", type=int, default=12)
    parser.add_argument("--head_size", type=int, default=64)
    parser.add_argument("--rate", type=float, default=0.1)
    args = parser.parse_args()
    import jax
    import jax.numpy as jnp

    from bert_jax import config
    from bert_jax.model.attention_pattern import AttentionPattern
    from bert_jax.model.kernels import attention
    from bert_jax.planning import cost, hlo, schedule, topology

    dump = schedule.Dump()  # before the compiler is loaded
    jax.config.update("jax_enable_compilation_cache", False)
    device = topology.open_topology(args.topology).devices[0]
    sharding = jax.sharding.SingleDeviceSharding(device)
    like = functools.partial(jax.ShapeDtypeStruct, sharding=sharding)
    shape = args.rows, args.length, args.heads, args.head_size
    arrays = [like(shape, jnp.bfloat16)] * 4
    mask = like(shape[:2], jnp.bool_)
    keys = like(shape[:1], jnp.uint32)

    def compiled(kernels):
        encoder = config.EncoderConfig(
            hidden_size=args.heads * args.head_size,
            num_heads=args.heads,
            attention_dropout_rate=args.rate,
            kernels=kernels,
        )

        def run(query, key, value, g, mask, keys):
            def attend(*x):
                pattern = AttentionPattern(mask)
                return attention.attend(encoder, *x, (None,) * 3, pattern, None, keys)

            context, pullback = jax.vjp(attend, query, key, value)
            return context, *pullback(g)

        return jax.jit(run).lower(*arrays, mask, keys).compile()

    compiled("auto")
    schedules = dump.take()
    array = 2 * args.rows * args.length * args.heads * args.head_size
    for name, count in (("forward", 4), ("backward", 8)):
        (cycles,) = (c for n, c in schedules.items() if f"attention_{name}." in n)
        print(
            f"kernel {name}: {cycles / 1e6:.3f} Mcycle by schedule, "
            f"{count * array / 1e6:.1f} MB"
        )
    plain = compiled("off")
    estimate = cost.measure(hlo.Program(plain.as_text())).estimated
    temporaries = plain.memory_analysis().temp_size_in_bytes
    print(
        f"plain: {estimate / 1e6:.3f} Mcycle by estimate, "
        f"{temporaries / 1e6:.1f} MB of temporaries"
    )


if __name__ == "__main__":
    main()
