"""Muon: orthogonalised updates for the matrices of the layers.

Sources: Jordan et al. 2024, Muon (kellerjordan.github.io/posts/muon); Liu et al. 2025
(Moonlight, arXiv 2502.16982) for the size of the updates. Momentum and Newton-Schulz
iteration come from `optax.contrib`. Matrices are divided by their Schatten-4 norm
before the iteration, not by the Frobenius norm, which is larger. Four steps are then
about as good as five, except for matrices of very low rank, with a fifth fewer
operations (docs/log.md). Optax corrects gradient and momentum for bias before it adds
them. The authors' codes do not, and so weight the momentum more in the first steps.
"""

import functools
import math
import re

import jax
import optax
from optax.contrib import MuonDimensionNumbers

from bert_jax.model import parameters
from bert_jax.training import sharding

# Kernels of the layers, each with a leading dimension N that stacks layers: of linear
# layers, and XLNet's `distance_kernel`.
_KERNEL = re.compile(r"(^|/)layers/(.*[/_])?kernel$")
# Root mean square of an entry of the updates. AdamW's is about the same, so that
# both share learning rate and weight decay (Moonlight, section 2.2).
_RMS = 0.2
# Factor of gradients and momentum. Updates do not depend on it, but Optax divides by
# 1e-4 where a Schatten-4 norm is smaller, whatever its `eps`; gradients of queries and
# keys can have 1e-6. A power of two rounds nothing, and norms of 1e4 do not overflow.
_SCALE = 2.0**16


def scale_by_muon(
    rest_transform: optax.GradientTransformation,
) -> optax.GradientTransformation:
    """Scale gradients of the layers' matrices by Muon, the rest by `rest_transform`.

    Each layer of each projection is a matrix of its own, whose update becomes
    0.2 sqrt(max(rows, columns)) U V^T, from the singular vectors of its momentum
    (0.95, Nesterov). The rest is embeddings, heads, norms and biases.

    `optax.contrib.muon` does not work inside the boxes with names of dimensions, and
    its Adam has Nesterov momentum and always corrects for bias.
    """
    muon = optax.contrib.scale_by_muon(
        ns_steps=4,
        preconditioning="schatten",
        weight_dimension_numbers=functools.partial(
            parameters.map_with_path, dimension_numbers
        ),
    )

    def init(params):
        matrices, rest = parameters.split(params, is_matrix)
        return muon.init(matrices), rest_transform.init(rest)

    def update(updates, state, params):
        matrices, rest = parameters.split(updates, is_matrix)
        _, rest_params = parameters.split(params, is_matrix)
        muon_state, rest_state = state

        def orthogonalise(*trees):  # gradients and momentum
            gradients, momentum = jax.tree.map(lambda x: _SCALE * x, trees)
            products, _ = muon.update(gradients, muon_state._replace(mu=momentum))
            return parameters.map_with_path(_rescale, products)

        # Each replica updates the momentum of all layers, and orthogonalises some of
        # them. The compiler removes the unused outputs of both calls.
        scaled = sharding.map_layers(orthogonalise, matrices, muon_state.mu)
        _, new_state = muon.update(matrices, muon_state)
        rest, rest_state = rest_transform.update(rest, rest_state, rest_params)
        return parameters.join(scaled, rest), (new_state, rest_state)

    return optax.GradientTransformation(init, update)


def is_matrix(path: str) -> bool:
    """Return True for parameters that Muon orthogonalises, by path."""
    return bool(_KERNEL.search(path))


def dimension_numbers(path: str, x: jax.Array) -> MuonDimensionNumbers:
    """Return which dimensions of an array are rows and columns of its matrices."""
    # The output of attention, [N, H, K, D], has two dimensions of rows. Queries, keys
    # and values, [N, D, H, K], have two of columns.
    first_column = 3 if path.endswith("attention/output/kernel") else 2
    return MuonDimensionNumbers(
        tuple(range(1, first_column)), tuple(range(first_column, x.ndim))
    )


def _rescale(path: str, x: jax.Array) -> jax.Array:
    numbers = dimension_numbers(path, x)
    rows, columns = (math.prod(x.shape[i] for i in dims) for dims in numbers)
    return _RMS * math.sqrt(max(rows, columns)) * x
