"""Public ops, one module per TensorFlow namespace."""
