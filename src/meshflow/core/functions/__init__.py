"""`tf.function`: signatures, compiled programs, the weights they keep prepared."""
