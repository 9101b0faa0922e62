"""Implementations of TensorFlow's graph ops with JAX and NumPy."""
