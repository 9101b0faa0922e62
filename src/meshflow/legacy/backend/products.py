"""Products of tensors in Keras' conventions."""

from __future__ import annotations

from collections.abc import Sequence

from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.keras.layers.products import dot
from meshflow.ops import array, linalg

__all__ = ["batch_dot", "dot"]


def batch_dot(x: TensorLike, y: TensorLike, axes: int | Sequence[int] | None = None) -> Tensor:
    """Multiply the examples of two batches.

    Args:
      x: Tensor of shape [batch, ...] with two or more dimensions.
      y: Tensor of shape [batch, ...] with two or more dimensions.
      axes: Dimension of each tensor to sum over, or one integer for both. By default the last of
        `x`, and the second to last of `y` (the last if `y` has two dimensions).

    Returns:
      A tensor of shape [batch, remaining dimensions of x, remaining dimensions of y], or [batch, 1]
      if no dimensions remain.

    Raises:
      ValueError: If a tensor has rank below 2, the summed sizes differ, or the sum is over the
        batch.

    Example:
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
    x_axis, y_axis = axes[0] % x.ndim, axes[1] % y.ndim
    if 0 in (x_axis, y_axis):
        raise ValueError(
            "Cannot perform batch_dot over axis 0. If your inputs are not batched, add a dummy batch dimension "
            "to your inputs using K.expand_dims(x, 0)"
        )
    if (
        x.shape[x_axis] is not None
        and y.shape[y_axis] is not None
        and x.shape[x_axis] != y.shape[y_axis]
    ):
        raise ValueError(
            f"Cannot do batch_dot on inputs with shapes {x.shape} and {y.shape} with axes={list(axes)}. "
            f"x.shape[{x_axis}] != y.shape[{y_axis}] ({x.shape[x_axis]} != {y.shape[y_axis]})."
        )
    letters = iter("cdefghijklmnopqrstuvwxyz")
    x_letters = ["a", *(next(letters) for _ in range(x.ndim - 1))]
    y_letters = ["a", *(next(letters) for _ in range(y.ndim - 1))]
    x_letters[x_axis] = y_letters[y_axis] = "b"
    result_letters = [c for c in x_letters if c != "b"] + [c for c in y_letters[1:] if c != "b"]
    result = linalg.einsum(
        f"{''.join(x_letters)},{''.join(y_letters)}->{''.join(result_letters)}", x, y
    )
    return array.expand_dims(result, 1) if len(result_letters) == 1 else result
