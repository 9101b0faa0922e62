"""`tf.config`: devices, threads, the optimizer, graph mode."""
