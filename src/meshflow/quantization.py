"""`tf.quantization`: quantization ops."""

from meshflow.ops import quantization as _quantization
from meshflow.ops.quantization import *  # noqa: F403

__all__ = sorted(_quantization.__all__)
