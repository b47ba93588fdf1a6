"""Plans of runs on absent TPU slices, for `run.plan`."""
