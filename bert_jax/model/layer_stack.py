"""A stack of blocks, unrolled or in a loop, with parameters of their own or shared.

Parameters of all blocks are stacked: each array has a leading dimension N, or G if
groups of blocks share their parameters. Neither looping nor unrolling changes
parameter paths or results.

Blocks may differ in kind: local or global attention, with or without attention norm.
A stacked parameter has an entry for each block, even if the block lacks it. Such an
entry is never read, and keeps its initial value.
"""

import dataclasses
import functools
import operator
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax.linen import spmd
from jaxtyping import Array, Float, Int

from bert_jax import config as config_lib
from bert_jax.model.inputs import at_positions


@dataclasses.dataclass(frozen=True)
class BlockKind:
    """Properties in which the blocks of a stack may differ."""

    is_global: bool  # whether it attends to whole rows
    has_attention_norm: bool  # as in `Block`


def init(
    key: jax.Array,
    init_block: Callable[[jax.Array], Any],
    config: config_lib.EncoderConfig,
) -> Any:
    """Initialise all blocks, each with its own key, and stack their boxed parameters.

    `init_block` maps a key to the parameters of a block that has all of them.
    """
    keys = jax.random.split(key, config.num_distinct_layers)
    return jax.tree.map(
        lambda box: box.replace(names=("layers", *box.names)),
        jax.vmap(init_block)(keys),
        is_leaf=lambda leaf: isinstance(leaf, spmd.LogicallyPartitioned),
    )


def apply(
    config: config_lib.EncoderConfig,
    apply_block: Callable[..., tuple[jax.Array, Any]],
    stacked: Any,
    x: Float[Array, "B L D"],
    read_at: Int[Array, "B P"] | None,
) -> tuple[Float[Array, "B P D"], Any]:
    """Apply all blocks.

    Args:
      config: Encoder.
      apply_block: Function of x, parameters, `BlockKind`, layer index, and `read_at` of
        the block; it returns x and a tree of arrays.
      stacked: Stacked parameters.
      x: Hidden states below the first block.
      read_at: Positions whose hidden states are wanted; None: all, and P is L.

    Returns:
      Hidden states of the last block, and the trees of all blocks, stacked.
    """
    if config.remat == "layer":
        apply_block = jax.checkpoint(apply_block, static_argnums=2)
    # Blocks of one kind are traced once. Inlined, as in `kernels/per_device.py`.
    apply_block = jax.jit(apply_block, static_argnums=2, inline=True)
    kinds = [
        BlockKind(config.is_global(i), i > 0 or config.first_attention_norm)
        for i in range(config.num_layers)
    ]
    if not config.scan_layers:
        blocks = _unstack(stacked)
        shared_by = config.num_layers // len(blocks)
        blocks = [blocks[i // shared_by] for i in range(config.num_layers)]
        return _unrolled(apply_block, kinds, x, blocks, range(len(blocks)), read_at)
    loop = _looped_groups if config.num_layer_groups else _looped
    x, results = loop(config, apply_block, kinds, x, stacked)
    # Blocks in a loop compute all positions.
    return at_positions(x, read_at), results


def _unrolled(apply_block, kinds, x, blocks, indices, read_at=None):
    """Apply some blocks, the last of them at `read_at` only."""
    results = []
    for i, (kind, parameters) in enumerate(zip(kinds, blocks, strict=True)):
        is_last = i == len(blocks) - 1
        x, result = apply_block(
            x, parameters, kind, indices[i], read_at if is_last else None
        )
        results.append(result)
    return x, jax.tree.map(lambda *leaves: jnp.stack(leaves), *results)


def _looped(config, apply_block, kinds, x, stacked):
    """Loop over periods of kinds, and unroll the blocks before and after them."""
    begin = 0 if config.first_attention_norm else 1
    period = config.global_layer_every
    end = begin + (config.num_layers - begin) // period * period
    indices = jnp.arange(config.num_layers)

    def part(first, stop):
        return jax.tree.map(lambda p: p[first:stop], (stacked, indices))

    def apply_part(kinds, x, stacked_part):
        parameters, indices = stacked_part
        parameters = [_block(parameters, i) for i in range(len(kinds))]
        return _unrolled(apply_block, kinds, x, parameters, indices)

    results = []
    if begin > 0:
        x, result = apply_part(kinds[:begin], x, part(0, begin))
        results.append(result)
    if begin < end:
        periods = jax.tree.map(
            lambda p: p.reshape(-1, period, *p.shape[1:]), part(begin, end)
        )
        apply_period = functools.partial(apply_part, kinds[begin : begin + period])
        x, result = jax.lax.scan(apply_period, x, periods)
        results.append(_merge_groups(result))
    if end < config.num_layers:
        x, result = apply_part(kinds[end:], x, part(end, config.num_layers))
        results.append(result)
    return x, jax.tree.map(lambda *parts: jnp.concatenate(parts), *results)


def _looped_groups(config, apply_block, kinds, x, stacked):
    """Loop over groups of blocks, which share parameters and are of one kind."""
    indices = jnp.arange(config.num_layers).reshape(config.num_layer_groups, -1)

    def apply_group(x, group):
        parameters, indices = group
        return jax.lax.scan(
            lambda x, i: apply_block(x, parameters, kinds[0], i, None), x, indices
        )

    x, results = jax.lax.scan(apply_group, x, (stacked, indices))
    return x, _merge_groups(results)


def _merge_groups(results):
    """Merge the dimensions of groups, or periods, and of the blocks in one."""
    return jax.tree.map(lambda r: jax.lax.collapse(r, 0, 2), results)


def _block(stacked, index):
    """Return the parameters of one block."""
    return jax.tree.map(operator.itemgetter(index), stacked)


@jax.custom_vjp
def _unstack(stacked):
    """Return the parameters of each block; their gradients are stacked.

    Automatic differentiation would pad each gradient with zeros for all other blocks,
    and add them up.
    """
    count = len(jax.tree.leaves(stacked)[0])
    return [_block(stacked, i) for i in range(count)]


def _unstack_forward(stacked):
    return _unstack(stacked), None


def _unstack_backward(_, gradients):
    return (jax.tree.map(lambda *leaves: jnp.stack(leaves), *gradients),)


_unstack.defvjp(_unstack_forward, _unstack_backward)
