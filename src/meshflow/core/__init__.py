"""Tensors, variables, ops, gradients and tracing: what everything else stands on."""
