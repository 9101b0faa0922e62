"""Messages, nodes and attributes of TensorFlow's graphs."""
