"""How much arithmetic a step is, and how much a device could do.

Analytic, because a compiler's own count misses loops (jax's cost analysis counts the
body of a scan once). A product of [m, k] and [k, n] is 2 m k n operations; the backward
pass has two products for each; recomputation is not counted, for it is no progress.
"""

from bert_jax import config as config_lib

# Peak of one JAX device for dense bfloat16 products, from the vendors' data sheets.
# TPU v2 and v3 have two devices to a chip, TPU7x likewise.
_PEAK_FLOPS = {
    "TPU v2": 22.5e12,
    "TPU v3": 61.5e12,
    "TPU v4": 275e12,
    "TPU v5 lite": 197e12,
    "TPU v5": 459e12,
    "TPU v6 lite": 918e12,
    "TPU7x": 1153e12,
    "NVIDIA A100": 312e12,
    "NVIDIA H100": 989e12,
    "NVIDIA H200": 989e12,
}


def peak_flops(device_kind: str) -> float:
    """Operations a second of a device, or 0 if it is not known.

    Args:
      device_kind: as JAX names it, such as "TPU v4" or "NVIDIA H100 80GB HBM3".
    """
    exact = _PEAK_FLOPS.get(device_kind)
    if exact or not device_kind.startswith("NVIDIA"):
        return exact or 0.0
    return next((f for n, f in _PEAK_FLOPS.items() if device_kind.startswith(n)), 0.0)


def pretraining_flops(
    encoder: config_lib.EncoderConfig, length: int, max_predictions: int
) -> float:
    """Operations to train on one sequence: encoder, pooler, both heads."""
    d, v = encoder.hidden_size, encoder.vocab_size
    heads = 2 * max_predictions * (d * d + d * v) + 2 * 2 * d
    return 3.0 * (_encoder_forward(encoder, length) + heads)


def classifier_flops(
    encoder: config_lib.EncoderConfig, length: int, num_classes: int
) -> float:
    """Operations to fine-tune on one sequence."""
    head = 2 * encoder.hidden_size * num_classes
    return 3.0 * (_encoder_forward(encoder, length) + head)


def _encoder_forward(encoder: config_lib.EncoderConfig, length: int) -> float:
    d, f = encoder.hidden_size, encoder.intermediate_size
    projections = 2 * length * (4 * d * d + 2 * d * f)
    attention = 2 * 2 * length * length * d
    return encoder.num_layers * (projections + attention) + 2 * d * d
