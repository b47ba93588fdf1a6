"""Pretrain BERT and its relatives with JAX and Flax, and fine-tune the result."""

import importlib.metadata
import os

__version__ = "0.1.0"

# On CPUs, jaxlib 0.10.2 computes some fusions of a product and a sum wrongly, such as
# gradients of attention with one head of keys (jax-ml/jax, issue 39103). With this flag
# it fuses single products only. The flag counts if set before the first computation.
_PRODUCTS_ONLY = (
    "--xla_cpu_experimental_ynn_fusion_type=LIBRARY_FUSION_TYPE_INDIVIDUAL_DOT"
)
if importlib.metadata.version("jaxlib") == "0.10.2":
    _given = os.environ.get("XLA_FLAGS", "")
    if "xla_cpu_experimental_ynn_fusion_type" not in _given:
        os.environ["XLA_FLAGS"] = f"{_PRODUCTS_ONLY} {_given}".strip()
