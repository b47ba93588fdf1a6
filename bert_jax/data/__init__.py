"""Token shards to batches, with tf.data."""

import os

# Without this, TensorFlow prints a greeting to standard error when it is imported.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
# Avoid a message about float products, which are not used here.
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")
# With Keras 3, TensorFlow would import scikit-learn and matplotlib, which takes as long
# as TensorFlow itself. It looks for Keras 2 instead, finds none, and goes on.
os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")
