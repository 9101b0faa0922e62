"""Dot product of tensors of any rank, as in NumPy."""

from __future__ import annotations

from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.ops import linalg, math


def dot(x: TensorLike, y: TensorLike) -> Tensor:
    """Sum over the last axis of `x` and the second to last axis of `y`, as `numpy.dot` does.

    Args:
      x: Tensor.
      y: Tensor.

    Returns:
      A tensor of shape `x.shape[:-1] + y.shape[:-2] + y.shape[-1:]`.

    Example:
      >>> tf.keras.backend.dot(tf.ones([2, 3]), tf.ones([4, 3, 5])).shape
      TensorShape([2, 4, 5])
    """
    x, y = convert_to_tensor(x), convert_to_tensor(y)
    if x.ndim == 2 and y.ndim == 2:
        return math.matmul(x, y)
    return linalg.tensordot(x, y, [[x.ndim - 1], [max(y.ndim - 2, 0)]])
