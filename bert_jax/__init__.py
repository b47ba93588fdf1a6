"""Pretrain BERT and its relatives with JAX and Flax, and fine-tune the result."""

__version__ = "0.1.0"
