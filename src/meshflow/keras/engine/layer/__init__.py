"""The base class of layers: weights, calls, losses, what a layer refers to."""
