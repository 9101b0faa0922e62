"""Dtypes, shapes, specs and tensors, and the conversion of Python values to tensors."""
