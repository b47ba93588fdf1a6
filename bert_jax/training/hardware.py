"""Peak arithmetic throughput of devices."""

# Peak of one JAX device for dense bfloat16 products, from the vendors' data sheets.
# A chip of TPU v2, v3 and TPU7x has two devices.
_PEAK_FLOPS = {
    "TPU v2": 22.5e12,
    "TPU v3": 61.5e12,
    "TPU v4": 275e12,
    "TPU v5 lite": 197e12,
    "TPU v5": 459e12,
    "TPU v6 lite": 918e12,
    "TPU7x": 1153e12,
    "NVIDIA A100-SXM4-40GB": 312e12,
    "NVIDIA A100-SXM4-80GB": 312e12,
    "NVIDIA H100 80GB HBM3": 989e12,
    "NVIDIA H200": 989e12,
}


def peak_flops(device_kind: str) -> float:
    """Return the peak FLOP/s of a device, or 0 if it is unknown.

    Variants of a GPU, such as "NVIDIA H100 PCIe" and MIG parts, have other peaks.
    """
    return _PEAK_FLOPS.get(device_kind, 0.0)
