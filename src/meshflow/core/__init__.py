"""Tensors, variables, ops, gradients and tracing: the foundation of all other packages."""
