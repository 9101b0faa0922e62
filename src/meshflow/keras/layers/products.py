"""The product of inputs of any rank and weights."""

from __future__ import annotations

from typing import Any

from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.tensor import Tensor
from meshflow.ops import linalg, math

__all__ = ["dot"]


def dot(x: Any, y: Any) -> Tensor:
    """Sums over the last dimension of `x` and the last but one of `y`, as `numpy.dot` does.

    Args:
      x: a tensor.
      y: a tensor.

    Returns:
      A tensor of shape `x.shape[:-1] + y.shape[:-2] + y.shape[-1:]`.

    Example:
      >>> import meshflow as tf
      >>> tf.keras.backend.dot(tf.ones([2, 3]), tf.ones([4, 3, 5])).shape
      TensorShape([2, 4, 5])
    """
    x, y = convert_to_tensor(x), convert_to_tensor(y)
    if x.ndim <= 2 and y.ndim == 2 and x.ndim == 2:
        return math.matmul(x, y)
    return linalg.tensordot(x, y, [[x.ndim - 1], [max(y.ndim - 2, 0)]])
