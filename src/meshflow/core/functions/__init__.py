"""`tf.function`: signatures, compiled programs, and their cached weights and executables."""
