"""Models larger than a device: one strategy over a mesh, with its rules and options.

Layers use parts of this package, so it shows none of its names: `public_names.py` has those of users.
"""
