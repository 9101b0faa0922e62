"""Keras layers and models: symbolic graphs, building, calling and training."""
