"""A stack of blocks, unrolled or in a loop, with parameters of their own or shared.

Parameters of all blocks are stacked: each array has a leading dimension N, or G if
groups of blocks share their parameters. Neither looping nor unrolling changes
parameter paths or results.

Blocks may differ in kind: local or global attention, with or without attention norm.
The stack of a parameter that some block lacks still has a row for it, which is not read
and keeps its initial value.
"""

import dataclasses
import operator
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax.linen import spmd
from jaxtyping import Array, Float, Int

from bert_jax import config as config_lib


@dataclasses.dataclass(frozen=True)
class Kind:
    """Kind of a block.

    Attributes:
      is_global: Whether it attends to whole rows.
      has_attention_norm: Whether a pre-norm block normalises the input of attention.
    """

    is_global: bool
    has_attention_norm: bool


def kind_of(config: config_lib.EncoderConfig, layer: int) -> Kind:
    """Return the kind of a block, by its index."""
    return Kind(config.is_global(layer), bool(layer) or config.first_attention_norm)


# (x, parameters, kind, index, read_at) -> (x, what each block returns besides).
ApplyBlock = Callable[..., tuple[jax.Array, Any]]


def init(
    key: jax.Array,
    init_block: Callable[[jax.Array], Any],
    config: config_lib.EncoderConfig,
) -> Any:
    """Initialise blocks one by one, and stack their boxed parameters.

    Args:
      key: Key of all initial values.
      init_block: Function from a key to the parameters of a block that has all of them.
      config: Encoder.
    """
    keys = jax.random.split(key, config.num_distinct_layers)
    return jax.tree.map(
        lambda box: box.replace(names=("layers", *box.names)),
        jax.vmap(init_block)(keys),
        is_leaf=lambda leaf: isinstance(leaf, spmd.LogicallyPartitioned),
    )


def apply(
    config: config_lib.EncoderConfig,
    apply_block: ApplyBlock,
    stacked: Any,
    x: Float[Array, "B L D"],
    read_at: Int[Array, "B P"] | None,
) -> tuple[Float[Array, "B P D"], Any]:
    """Apply all blocks.

    Args:
      config: Encoder.
      apply_block: Function of x, parameters, `Kind`, index, and positions to compute
        (None: all); it returns x and a tree of arrays.
      stacked: Stacked parameters.
      x: Hidden states below the first block.
      read_at: Positions whose hidden states are wanted; None: all, and P is L.

    Returns:
      Hidden states of the last block, and the trees of all blocks, stacked.
    """
    if config.remat == "layer":
        apply_block = jax.checkpoint(
            apply_block, prevent_cse=not config.scan_layers, static_argnums=2
        )
    if not config.scan_layers:
        return _unrolled(config, apply_block, _unstack(stacked), x, read_at)
    x, extras = _looped(config, apply_block, stacked, x)
    if read_at is not None:  # blocks in a loop compute all positions
        x = jnp.take_along_axis(x, read_at[..., None], axis=1)
    return x, extras


def _unrolled(config, apply_block, blocks, x, read_at):
    extras = []
    for i in range(config.num_layers):
        parameters = blocks[i * len(blocks) // config.num_layers]
        is_last = i == config.num_layers - 1
        x, extra = apply_block(
            x, parameters, kind_of(config, i), i, read_at if is_last else None
        )
        extras.append(extra)
    return x, jax.tree.map(lambda *leaves: jnp.stack(leaves), *extras)


def _looped(config, apply_block, stacked, x):
    """Loop over repeating groups of kinds, and unroll the blocks before and behind."""
    if config.num_layer_groups:
        return _looped_groups(config, apply_block, stacked, x)
    first = 0 if config.first_attention_norm else 1
    period = config.global_layer_every
    repeats = (config.num_layers - first) // period
    last = first + repeats * period
    kinds = [kind_of(config, i) for i in range(config.num_layers)]

    def apply_some(x, parameters, kinds, indices):
        extras = []
        for i, kind in enumerate(kinds):
            own = jax.tree.map(operator.itemgetter(i), parameters)
            x, extra = apply_block(x, own, kind, indices[i], None)
            extras.append(extra)
        return x, jax.tree.map(lambda *leaves: jnp.stack(leaves), *extras)

    def apply_group(x, group):
        return apply_some(x, group[0], kinds[first : first + period], group[1])

    indices = jnp.arange(config.num_layers)
    results = []
    for begin, end in ((0, first), (first, last), (last, config.num_layers)):
        if begin == end:
            continue
        part = jax.tree.map(lambda p: p[begin:end], (stacked, indices))  # noqa: B023
        if begin == first and repeats:
            part = jax.tree.map(
                lambda p: p.reshape(repeats, period, *p.shape[1:]), part
            )
            x, extras = jax.lax.scan(apply_group, x, part)
            extras = jax.tree.map(lambda e: jax.lax.collapse(e, 0, 2), extras)
        else:
            x, extras = apply_some(x, part[0], kinds[begin:end], part[1])
        results.append(extras)
    return x, jax.tree.map(lambda *parts: jnp.concatenate(parts), *results)


def _looped_groups(config, apply_block, stacked, x):
    """Loop over groups of blocks, which share parameters and are of one kind."""
    indices = jnp.arange(config.num_layers).reshape(config.num_layer_groups, -1)
    kind = kind_of(config, 0)

    def apply_group(x, group):
        parameters, indices = group
        return jax.lax.scan(
            lambda x, i: apply_block(x, parameters, kind, i, None), x, indices
        )

    x, extras = jax.lax.scan(apply_group, x, (stacked, indices))
    return x, jax.tree.map(lambda e: jax.lax.collapse(e, 0, 2), extras)


@jax.custom_vjp
def _unstack(stacked):
    """Return the parameters of each block; their gradients are stacked.

    Automatic differentiation would pad each gradient with zeros for all other blocks,
    and add them up.
    """
    count = len(jax.tree.leaves(stacked)[0])
    return [jax.tree.map(operator.itemgetter(i), stacked) for i in range(count)]


def _unstack_forward(stacked):
    return _unstack(stacked), None


def _unstack_backward(_, gradients):
    return (jax.tree.map(lambda *leaves: jnp.stack(leaves), *gradients),)


_unstack.defvjp(_unstack_forward, _unstack_backward)
