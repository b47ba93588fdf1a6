"""Trees of parameters by path, such as `encoder/layers/output/kernel`."""

from collections.abc import Callable
from typing import Any

import jax
from flax import traverse_util


def flatten(params: dict[str, Any]) -> dict[str, Any]:
    """Nested dicts to leaves by path."""
    return traverse_util.flatten_dict(params, sep="/")


def unflatten(by_path: dict[str, Any]) -> dict[str, Any]:
    """The inverse of `flatten`."""
    return traverse_util.unflatten_dict(by_path, sep="/")


def map_with_path(function: Callable[..., Any], *trees: Any) -> Any:
    """Apply a function of a path and the leaves there; trees may be of any kind."""
    return jax.tree_util.tree_map_with_path(
        lambda path, *leaves: function(_text(path), *leaves), *trees
    )


def has_row_for_each_token(path: str) -> bool:
    """Whether a parameter's first dimension is the vocabulary, with its padding."""
    return path.endswith(("token_embedding", "output_bias"))


def paths(tree: Any) -> list[str]:
    """Paths of the leaves of a tree of any kind, in JAX's order."""
    return [_text(path) for path, _ in jax.tree.leaves_with_path(tree)]


def _text(path: Any) -> str:
    return jax.tree_util.keystr(path, simple=True, separator="/")
