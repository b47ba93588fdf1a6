"""Checkpoints of other projects, in and out.

`checkpoints` reads them like native ones, and `convert` writes them. `families/`
describes the models of `transformers`, one file each.
"""
