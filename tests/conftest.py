"""Environment of all tests: emulated devices, and a compiler that optimises little."""

import importlib.metadata
import os
import signal
import tempfile

# Before anything imports jax. With "cuda,cpu", tests of cuDNN run on a GPU:
# `JAX_PLATFORMS=cuda,cpu pytest -n0 tests/test_attention_kernel.py -k cudnn`.
if os.environ.get("JAX_PLATFORMS") != "cuda,cpu":
    os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["JAX_NUM_CPU_DEVICES"] = "8"
# A compiler that optimises little: these programs run for less time than they compile.
# Without the emitters of fusions (jaxlib 0.11 has no choice) it needs two thirds of the
# time. `.ci/run` has some tests once more at XLA's default level.
_FLAGS = (
    "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
    " --xla_cpu_parallel_codegen_split_count=1"
)
if importlib.metadata.version("jaxlib") < "0.11":
    _FLAGS += " --xla_cpu_use_fusion_emitters=false"
os.environ.setdefault("XLA_FLAGS", _FLAGS)
# Tests that start processes, or compile what another test compiled, wait only once.
# pytest's worker processes inherit the folder of the process that started them.
if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
    _CACHE = tempfile.TemporaryDirectory(prefix="bert_jax_compiled_")
    os.environ["JAX_COMPILATION_CACHE_DIR"] = _CACHE.name
os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
# glibc's default. An entrypoint that is called here may not start pytest again.
os.environ["GLIBC_TUNABLES"] = "glibc.malloc.hugetlb=0"

# A shell has its background processes ignore Ctrl-C, and processes inherit that.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_configure(config):
    """Load the fixtures where tests run: not in the process that starts the workers.

    They import JAX and TensorFlow, and workers start when that process is ready.
    """
    if config.option.dist == "no":  # as in workers
        config.pluginmanager.import_plugin("shared_fixtures")
