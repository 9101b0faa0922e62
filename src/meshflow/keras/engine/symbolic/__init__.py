"""Symbolic tensors, input specs and call signatures, with which models are built."""
