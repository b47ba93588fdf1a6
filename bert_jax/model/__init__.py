"""The model: pure functions over arrays, written for one device.

Letters for dimensions, in signatures, einsums and comments of this package:
  B batch, L length (M where a second one is needed), D hidden, E embedding, H heads,
  K per head, F feed-forward, V vocabulary (padded), P predictions, C classes, N layers,
  G heads of keys and values, or layers with parameters of their own,
  S examples of a packed row, or segment types, R rows of any kind,
  M keys and N queries in scores [M, N] of the TPU's attention kernel.
Each parameter names its dimensions. `training/sharding.py` maps these names to mesh
axes.
"""
