"""What a run needs of a TPU slice, said without one: what `run.plan` shows."""
