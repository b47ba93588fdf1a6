"""Token shards to batches, with tf.data. The only home of TensorFlow."""
