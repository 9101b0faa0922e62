"""TensorFlow's graph ops as functions of JAX and NumPy arrays, in one table for each group of ops."""
