"""Base class of layers: weights, calls, losses, and tracking of attributes."""
