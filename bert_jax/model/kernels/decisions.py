"""The decision, by platform and shape, between kernels and plain operations.

A program is traced once for all platforms and may be compiled for a TPU without one, so
decisions are made for each platform (`tpu`, `cuda`; every other one has the plain path
only). `describe` reports them.
"""

import dataclasses

import jax

from bert_jax import config as config_lib
from bert_jax.model.kernels import block_sizes, per_device
from bert_jax.model.kernels.block_sizes import (
    LANES,
    MAX_LENGTH_IN_16_MIB,
    QUERY_CHUNK,
    ROW_CHUNK,
)

PLAIN = "plain operations"
TPU_KERNEL = "TPU kernel"
TPU_KERNEL_ON_PIECES = "TPU kernel on overlapping pieces"
CUDNN = "cuDNN"

_HEAD_SIZES = (32, 64, 128)
# Longest row whose scores of distances fit the chip's memory.
MAX_LENGTH_WITH_DISTANCES = 512
# TPUs with one core and 128 MiB in it (jax/_src/pallas/mosaic/tpu_info.py).
_LARGE_CORES = ("TPU v5 lite", "TPU v5e", "TPU v6 lite", "TPU v6e")
# Smaller float32 logits mostly stay in the chip's memory, where plain operations are
# faster (docs/log.md, 2026-11-29).
_MIN_LOGITS_MIB = 112


@dataclasses.dataclass(frozen=True)
class Decision:
    """The implementation of a part, and why no kernel is used."""

    implementation: str  # one of the constants above
    reason: str = ""  # why the plain path is taken; "" for kernels

    def __str__(self) -> str:
        reason = f" ({self.reason})" if self.reason else ""
        return self.implementation + reason


def attention(
    config: config_lib.EncoderConfig,
    platform: str,
    batch: int,
    length: int,
    *,
    is_local: bool,
    has_dropout: bool,
    queries: int | None = None,
) -> Decision:
    """Decide how attention is computed.

    Args:
      config: Encoder.
      platform: Platform that the program is compiled for.
      batch: Rows of a batch, over all devices.
      length: Tokens of a row.
      is_local: Whether queries see a window only.
      has_dropout: Whether attention probabilities are dropped out.
      queries: Positions of a row that attend, anywhere in the row; None: all.
    """
    if config.kernels == "off":
        return Decision(PLAIN, "encoder.kernels=off")
    is_plain_pattern = not (is_local or config.causal or has_dropout)
    has_kernel = platform == "tpu" and is_plain_pattern
    fits_kernel = queries is None or QUERY_CHUNK <= queries <= length
    if queries is not None and not (fits_kernel and has_kernel):
        return Decision(PLAIN, f"{queries} positions of a row of {length}")
    has_distances = config.positions == "disentangled"
    if config.positions == "relative" or (has_distances and platform != "tpu"):
        reason = f"no kernel for platform {platform} has {config.positions} positions"
        return Decision(PLAIN, reason)
    if platform == "tpu":
        overlap = is_local and config.attention_window <= block_sizes.MAX_WINDOW
        in_pieces = overlap and length > block_sizes.MAX_LENGTH
        reasons = _attention_on_tpu(config, batch, length, has_dropout, in_pieces)
        return _first_reason(reasons, TPU_KERNEL_ON_PIECES if in_pieces else TPU_KERNEL)
    if platform == "cuda":
        reasons = _attention_on_cuda(config, batch, length, is_local, has_dropout)
        return _first_reason(reasons, CUDNN)
    return Decision(PLAIN, f"no kernel for platform {platform}")


def _attention_on_tpu(config, batch, length, has_dropout, in_pieces):
    heads = config.num_heads / per_device.num_shards("heads")
    columns = heads * config.head_size
    sizes = ", ".join(map(str, _HEAD_SIZES))
    yield (
        config.head_size not in _HEAD_SIZES,
        f"heads of {config.head_size} columns; kernels take {sizes}",
    )
    yield (
        heads % 1 or columns % LANES,
        f"{columns:g} columns of heads on a device; kernels take multiples of {LANES}",
    )
    yield (
        length % QUERY_CHUNK,
        f"rows of {length} tokens; kernels take multiples of {QUERY_CHUNK}",
    )
    if config.positions == "disentangled":
        limit = MAX_LENGTH_WITH_DISTANCES
        yield length > limit, f"rows of more than {limit} tokens with distances"
        yield config.dtype != "bfloat16", f"distances are {config.dtype}, not bfloat16"
    yield _too_much_float32(config, length)
    yield (
        per_device.device_kind() == "TPU v4"
        and length > MAX_LENGTH_IN_16_MIB
        and not in_pieces,
        f"rows of more than {MAX_LENGTH_IN_16_MIB} tokens on TPU v4",
    )
    limit = block_sizes.MAX_LENGTH
    yield (
        length > limit and has_dropout,
        f"rows of more than {limit} tokens with dropout of probabilities",
    )
    yield _too_old()
    yield _uneven_rows(batch)


def _attention_on_cuda(config, batch, length, is_local, has_dropout):
    yield not is_cudnn_available(), "no NVIDIA GPU of compute capability 8.0"
    yield has_dropout, "cuDNN has no usable dropout of probabilities"
    yield config.dtype != "bfloat16", f"cuDNN computes in bfloat16, not {config.dtype}"
    yield is_local, "the window of JAX's cuDNN call is one-sided"
    # JAX refuses gradients for odd lengths (`check_is_flash_attention` in
    # jax/_src/cudnn/fused_attention_stablehlo.py). The check is meant for a bias, but
    # JAX makes it without a bias, too: an empty array stands for none.
    yield length % 2, f"rows of {length} tokens; cuDNN takes even lengths"
    yield (
        config.head_size > 128 or config.head_size % 8,
        f"heads of {config.head_size} columns; cuDNN takes multiples of 8 up to 128",
    )
    yield _uneven_rows(batch)


def is_cudnn_available() -> bool:
    """Return whether the devices have cuDNN's attention.

    JAX cannot trace the call for any other device.
    """
    device = jax.devices()[0]
    if device.platform != "gpu" or "cuda" not in device.client.platform_version:
        return False
    # cuDNN's documentation, "Fused Flash Attention": Ampere and newer.
    return tuple(map(int, device.compute_capability.split("."))) >= (8, 0)


def residual(
    config: config_lib.EncoderConfig, platform: str, batch: int, length: int
) -> Decision:
    """Decide how dropout, residual and layer norm are computed; see `attention`."""
    return _decide(config, platform, _residual_on_tpu(config, batch, length))


def _residual_on_tpu(config, batch, length):
    size = config.hidden_size
    yield size % LANES, f"hidden size {size}; the kernel takes multiples of {LANES}"
    yield (
        length < ROW_CHUNK,
        f"rows of {length} tokens; the kernel takes {ROW_CHUNK} or more",
    )
    yield _uneven_rows(batch)


def cross_entropy(
    config: config_lib.EncoderConfig,
    platform: str,
    batch: int,
    predictions: int,
    logits_reader: str = "",
) -> Decision:
    """Decide how the cross entropy of predicted tokens is computed; see `attention`.

    A row has `predictions` predicted tokens. `logits_reader` names another reader of
    the logits, which rules out a kernel; "" if none.
    """
    reasons = _cross_entropy_on_tpu(config, batch, predictions, logits_reader)
    return _decide(config, platform, reasons)


def _cross_entropy_on_tpu(config, batch, predictions, logits_reader):
    yield logits_reader, f"{logits_reader} reads the logits, too"
    columns = config.embedding_columns
    yield config.dtype != "bfloat16", f"factors are {config.dtype}, not bfloat16"
    yield (
        columns % LANES,
        f"embeddings of {columns} columns; the kernel takes multiples of {LANES}",
    )
    yield (
        block_sizes.cross_entropy_columns(columns) is None,
        f"embeddings of {columns} columns do not fit into a core",
    )
    parts = per_device.num_shards("vocab")
    yield parts > 1, f"the vocabulary is split over {parts} devices"
    yield _too_old()
    yield _uneven_rows(batch)
    rows = batch * predictions // per_device.num_shards("batch")
    yield (
        4 * rows * config.vocab_size < _MIN_LOGITS_MIB * 2**20,
        f"logits of less than {_MIN_LOGITS_MIB} MiB on a device",
    )


def feed_forward(
    config: config_lib.EncoderConfig, platform: str, batch: int
) -> Decision:
    """Decide how a gated feed-forward network is computed; see `attention`."""
    return _decide(config, platform, _feed_forward_on_tpu(config, batch))


def _feed_forward_on_tpu(config, batch):
    kind = per_device.device_kind()
    yield (
        kind.startswith("TPU") and kind not in _LARGE_CORES,
        f"the kernel is for v5e and v6e, not {kind}",
    )
    yield config.linear_bias, "the kernel has no biases"
    yield config.dtype != "bfloat16", f"factors are {config.dtype}, not bfloat16"
    size = config.hidden_size
    yield size % LANES, f"hidden size {size}; the kernel takes multiples of {LANES}"
    parts = per_device.num_shards("mlp")
    yield parts > 1, f"the network is split over {parts} devices"
    yield _uneven_rows(batch)
    yield (
        block_sizes.feed_forward_block(size, config.intermediate_size) is None,
        f"a network of {size} x {config.intermediate_size} does not fit into a core",
    )


def _too_much_float32(config, length):
    """Return whether float32 rows are too long for a core's memory, and why.

    Cores newer than v4's may use 32 MiB.
    """
    kind = per_device.device_kind()
    limit = length
    if kind == "TPU v4":
        limit = 256
    elif config.head_size == 32:
        limit = 512
    return (
        config.dtype == "float32" and length > limit,
        f"rows of more than {limit} tokens in float32 on {kind}",
    )


def _too_old():
    # `is_matmul_supported` in jax/_src/pallas/mosaic/tpu_info.py has products of
    # bfloat16 from v4 on. In float32, most shapes of attention need more memory than
    # older cores have.
    kind = per_device.device_kind()
    return kind in ("TPU v2", "TPU v3"), f"the kernel needs TPU v4 or newer, not {kind}"


def _uneven_rows(batch):
    devices = per_device.num_shards("batch")
    return batch % devices, f"{batch} rows are not a multiple of {devices} devices"


def _decide(config, platform, reasons_on_tpu):
    """Decide about a part that has a kernel for TPUs only."""
    if config.kernels == "off":
        return Decision(PLAIN, "encoder.kernels=off")
    if platform != "tpu":
        return Decision(PLAIN, f"no kernel for platform {platform}")
    return _first_reason(reasons_on_tpu, TPU_KERNEL)


def _first_reason(reasons, kernel):
    """Return the kernel, or the plain path with the first reason that applies."""
    for applies, reason in reasons:
        if applies:
            return Decision(PLAIN, reason)
    return Decision(kernel)


def describe(
    config: config_lib.EncoderConfig,
    platform: str,
    batch: int,
    length: int,
    *,
    predictions: int,
    logits_reader: str,
) -> str:
    """Describe the implementation of each part of an encoder in training, and why.

    Call it with the mesh in use. A last layer that computes some positions only may use
    plain operations even where this returns a kernel.

    `batch` is the number of rows that are computed at once, over all devices. Without
    `predictions`, the loss has no cross entropy over the vocabulary. Other arguments
    are as in `attention` and `cross_entropy`.
    """
    kinds = {config.is_global(i) for i in range(config.num_layers)}
    decided = []
    for is_global in sorted(kinds, reverse=True):
        decision = attention(
            config,
            platform,
            batch,
            length,
            is_local=not is_global,
            has_dropout=config.attention_dropout_rate > 0,
        )
        prefix = ("global " if is_global else "local ") if len(kinds) > 1 else ""
        decided.append((f"{prefix}attention", decision))
    decided.append(("residuals", residual(config, platform, batch, length)))
    if config.feed_forward == "gated":
        decided.append(("feed-forward", feed_forward(config, platform, batch)))
    if predictions:
        decision = cross_entropy(config, platform, batch, predictions, logits_reader)
        decided.append(("cross entropy", decision))
    parts: dict[str, list[str]] = {}  # by decision
    for part, decision in decided:
        parts.setdefault(str(decision), []).append(part)
    return "; ".join(f"{', '.join(names)}: {what}" for what, names in parts.items())
