"""The model: pure functions over arrays, written for one device.

Letters for dimensions, in signatures, einsums and comments of this package:
  B batch, L length (M: a second length), D hidden, E embedding, H heads, K per head,
  F feed-forward, V vocabulary (padded), P predictions, or positions to compute,
  C classes, N layers, G heads of keys and values, or layers with their own parameters,
  S examples of a packed row, or segment types, R rows of any kind.
In the TPU's attention kernel, scores are [M, N]: M keys and N queries.
Each parameter names its dimensions. `training/sharding.py` maps these names to mesh
axes.
"""
