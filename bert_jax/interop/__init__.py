"""Checkpoints of other projects, in and out.

`sources` reads them as `training.stored` reads ours; `convert` writes them.
"""
