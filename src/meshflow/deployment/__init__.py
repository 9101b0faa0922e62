"""What other runtimes are given of a model: its program as a flat list of equations, with what they know by name."""
