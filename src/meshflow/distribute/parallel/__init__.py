"""Parallel training of models that are larger than one device: `MeshStrategy` and its building blocks.

Keras layers import modules of this package, so the package itself exports nothing. The public names
are in `public_names.py`.
"""
