"""Loading and interpretation of TensorFlow's graphs."""
