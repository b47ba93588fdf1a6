"""The parts of layers, beside NumPy in float64."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.model import activations


def gelu(x, name):
    """Values and slopes (Hendrycks and Gimpel 2016, section 2)."""
    if name == "gelu_erf":
        gate = 0.5 * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))
        return x * gate, gate + x * np.exp(-x * x / 2) / math.sqrt(2 * math.pi)
    factor = math.sqrt(2 / math.pi)
    tanh = np.tanh(factor * (x + 0.044715 * x**3))
    inner = factor * (1 + 3 * 0.044715 * x**2)
    return x * (1 + tanh) / 2, (1 + tanh) / 2 + x * (1 - tanh**2) / 2 * inner


@pytest.mark.parametrize("name", ["gelu_tanh", "gelu_erf"])
@pytest.mark.parametrize(
    ("dtype", "tolerance"), [("float32", 2e-5), ("bfloat16", 8e-3)]
)
def test_gelu_and_its_slope(name, dtype, tolerance):
    """Also far out, where it is 0 or linear: errors relative to max(1, |value|)."""
    x = jnp.asarray(np.append(np.linspace(-12, 12, 2001), [-1e4, 1e4]), dtype)
    y, pullback = jax.vjp(lambda x: activations.activate(x, name), x)
    (slope,) = pullback(jnp.ones_like(x))
    for got, exact in zip((y, slope), gelu(np.asarray(x, float), name), strict=True):
        assert got.dtype == x.dtype
        errors = np.abs(np.asarray(got, float) - exact) / np.maximum(1, np.abs(exact))
        assert errors.max() < tolerance
