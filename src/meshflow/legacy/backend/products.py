"""Products of tensors as Keras defines them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.tensor import Tensor
from meshflow.keras.layers.products import dot
from meshflow.ops import array, linalg

__all__ = ["batch_dot", "dot"]


def batch_dot(x: Any, y: Any, axes: int | Sequence[int] | None = None) -> Tensor:
    """Products of the examples of two batches.

    Args:
      x: a tensor of shape [batch, ...] with two or more dimensions.
      y: a tensor of shape [batch, ...] with two or more dimensions.
      axes: the dimension of each to sum over; an int for both the same; default the last of `x`
        and the last but one of `y` (its last when it has only two).

    Returns:
      A tensor of shape [batch, the other dimensions of x, the other dimensions of y], and of shape
      [batch, 1] when there are no others.

    Raises:
      ValueError: for tensors without a second dimension, for sizes that differ, or for a sum over
        the batch.

    Example:
      >>> import meshflow as tf
      >>> tf.keras.backend.batch_dot(tf.ones([8, 4, 5]), tf.ones([8, 5, 2]), axes=(2, 1)).shape
      TensorShape([8, 4, 2])
    """
    x, y = convert_to_tensor(x), convert_to_tensor(y)
    if x.ndim < 2 or y.ndim < 2:
        raise ValueError(
            "Cannot do batch_dot on inputs with rank < 2. Received inputs with shapes "
            f"{x.shape} and {y.shape}."
        )
    if axes is None:
        axes = (x.ndim - 1, y.ndim - 1 if y.ndim == 2 else y.ndim - 2)
    elif isinstance(axes, int):
        axes = (axes, axes)
    if any(isinstance(a, (list, tuple)) for a in axes):
        raise ValueError(
            f"Multiple target dimensions are not supported by batch_dot. Received axes={axes}"
        )
    of_x, of_y = axes[0] % x.ndim, axes[1] % y.ndim
    if 0 in (of_x, of_y):
        raise ValueError(
            "Cannot perform batch_dot over axis 0. If your inputs are not batched, add a dummy batch dimension "
            "to your inputs using K.expand_dims(x, 0)"
        )
    if x.shape[of_x] is not None and y.shape[of_y] is not None and x.shape[of_x] != y.shape[of_y]:
        raise ValueError(
            f"Cannot do batch_dot on inputs with shapes {x.shape} and {y.shape} with axes={list(axes)}. "
            f"x.shape[{of_x}] != y.shape[{of_y}] ({x.shape[of_x]} != {y.shape[of_y]})."
        )
    letters = iter("cdefghijklmnopqrstuvwxyz")
    x_letters = ["a", *(next(letters) for _ in range(x.ndim - 1))]
    y_letters = ["a", *(next(letters) for _ in range(y.ndim - 1))]
    x_letters[of_x] = y_letters[of_y] = "b"
    kept = [c for c in x_letters if c != "b"] + [c for c in y_letters[1:] if c != "b"]
    result = linalg.einsum(f"{''.join(x_letters)},{''.join(y_letters)}->{''.join(kept)}", x, y)
    return array.expand_dims(result, 1) if len(kept) == 1 else result
