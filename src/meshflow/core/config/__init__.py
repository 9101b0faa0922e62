"""`tf.config`: devices, threads, optimizer options and graph mode."""
