"""Saved functions and objects as TensorFlow's graphs."""
