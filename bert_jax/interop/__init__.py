"""Checkpoints of other projects, in and out.

`sources` reads them as `training.stored` reads native ones; `convert` writes them.
`families/` describes the models of `transformers`, one file each.
"""
