"""Kernels for TPUs and GPUs, each beside the plain function that defines its result."""
