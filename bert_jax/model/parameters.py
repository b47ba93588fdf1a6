"""Trees of parameters by path, such as `encoder/layers/output/kernel`."""

from collections.abc import Callable
from typing import Any

import jax
from flax import traverse_util
from jax.tree_util import GetAttrKey


def flatten(params: dict[str, Any]) -> dict[str, Any]:
    """Return the leaves of nested dicts by path."""
    return traverse_util.flatten_dict(params, sep="/")


def unflatten(by_path: dict[str, Any]) -> dict[str, Any]:
    """Return nested dicts from leaves by path; the inverse of `flatten`."""
    return traverse_util.unflatten_dict(by_path, sep="/")


def split(
    params: dict[str, Any], is_chosen: Callable[[str], bool]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Split leaves by their path: return the chosen leaves and the others, nested.

    Boxes with the names of dimensions count as leaves.
    """
    by_path = flatten(params)
    return tuple(
        unflatten({path: x for path, x in by_path.items() if is_chosen(path) == side})
        for side in (True, False)
    )


def join(*parts: dict[str, Any]) -> dict[str, Any]:
    """Return one nested dict with the leaves of several; the inverse of `split`."""
    return unflatten({path: x for part in parts for path, x in flatten(part).items()})


def map_with_path(function: Callable[..., Any], *trees: Any) -> Any:
    """Map a function of a path and the leaves there over pytrees of any kind."""
    return jax.tree_util.tree_map_with_path(
        lambda path, *leaves: function(_text(path), *leaves), *trees
    )


def embedding_difference_path(path: str) -> str:
    """Return the path of the parameter that a discriminator adds to an embedding.

    It is stored with some ELECTRAs (`ReplacedTokensConfig.embedding_sharing`). Returns
    "" if `path` is not an embedding of the encoder.
    """
    prefix = "encoder/embeddings/"
    if not path.startswith(prefix):
        return ""
    return f"embedding_differences/{path.removeprefix(prefix)}"


def is_vocabulary_table(path: str) -> bool:
    """Return True if a parameter's first dimension is the padded vocabulary."""
    return path.endswith(("token_embedding", "output_embedding", "output_bias"))


def paths(tree: Any) -> list[str]:
    """Return the paths of the leaves of a tree of any kind, in JAX's order."""
    return [_text(path) for path, _ in jax.tree.leaves_with_path(tree)]


def _text(path: Any) -> str:
    """Return a path as text; the box of a parameter is no part of it."""
    if path[-1:] == (GetAttrKey("value"),):
        path = path[:-1]
    return jax.tree_util.keystr(path, simple=True, separator="/")
