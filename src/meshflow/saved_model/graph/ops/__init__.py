"""What TensorFlow's graph ops compute, by JAX and NumPy: one table."""
