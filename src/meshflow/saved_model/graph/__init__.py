"""Graphs of SavedModels: writing of graphs that TensorFlow can run, and reading of them."""
