"""Pretrain BERT and its relatives with JAX and Flax, and fine-tune the result."""

import importlib.metadata
import os

__version__ = "0.1.0"

# On CPUs, jaxlib 0.10.2 computes some fusions of a product and a sum wrongly, such as
# gradients of attention with one head of keys (jax-ml/jax, issue 39103). With this flag
# it fuses single products only. XLA reads the flag at the first computation, which may
# come before this import, so the programs of runs also have it as a compiler option.
_FUSION_TYPE = "xla_cpu_experimental_ynn_fusion_type"
CPU_COMPILER_OPTIONS: dict[str, str] = {}
if importlib.metadata.version("jaxlib") == "0.10.2":
    _given = os.environ.get("XLA_FLAGS", "")
    if _FUSION_TYPE not in _given:
        CPU_COMPILER_OPTIONS[_FUSION_TYPE] = "LIBRARY_FUSION_TYPE_INDIVIDUAL_DOT"
        _flag = f"--{_FUSION_TYPE}={CPU_COMPILER_OPTIONS[_FUSION_TYPE]}"
        os.environ["XLA_FLAGS"] = f"{_flag} {_given}".strip()
