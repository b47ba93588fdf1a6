"""Token shards to batches, with tf.data. The only home of TensorFlow."""

import os

# TensorFlow greets on standard error unless this is set before it is imported. The
# second is about float products, of which there are none here.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")
# With Keras it would import scikit-learn and matplotlib, which takes as long as itself.
# So it looks for an older Keras, finds none, and goes on.
os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")
