"""Entry points: `python -m bert_jax.run.NAME --help`."""
