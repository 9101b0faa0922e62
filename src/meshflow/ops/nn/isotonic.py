"""Isotonic regression: monotonic fits by least squares."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from meshflow.core.dispatch.dispatch import op
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.tensor import Tensor, TensorLike

__all__ = ["isotonic_regression"]


def _fit_decreasing(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the closest decreasing vector, and the index of the constant segment of each element."""
    sums: list[float] = []
    counts: list[int] = []
    for value in values:
        sums.append(float(value))
        counts.append(1)
        while len(sums) > 1 and sums[-2] / counts[-2] <= sums[-1] / counts[-1]:
            total, count = sums.pop(), counts.pop()
            sums[-1], counts[-1] = sums[-1] + total, counts[-1] + count
    means = np.array(sums) / np.array(counts)
    return np.repeat(means, counts), np.repeat(np.arange(len(counts)), counts)


@op(kinds="if")
def _regress(inputs: TensorLike, decreasing: bool, axis: int) -> tuple[Tensor, Tensor]:
    dtype = inputs.dtype if jnp.issubdtype(inputs.dtype, jnp.inexact) else np.dtype(np.float32)
    values = jnp.moveaxis(inputs.astype(dtype), axis, -1)
    size = values.shape[-1]

    def find_segments(rows: np.ndarray) -> np.ndarray:
        ordered = (rows if decreasing else -rows).reshape(-1, size)
        return (
            np.stack([_fit_decreasing(row)[1] for row in ordered])
            .reshape(rows.shape)
            .astype(np.int32)
        )

    shape = jax.ShapeDtypeStruct(values.shape, np.int32)
    segments = jax.pure_callback(
        find_segments, shape, jax.lax.stop_gradient(values), vmap_method="expand_dims"
    )
    # The fit is the mean of each segment, so its gradient is, too.
    member = (segments[..., :, None] == segments[..., None, :]).astype(dtype)
    fit = jnp.einsum("...ij,...j->...i", member, values) / jnp.sum(member, -1)
    return jnp.moveaxis(fit, -1, axis), jnp.moveaxis(segments, -1, axis)


def isotonic_regression(
    inputs: TensorLike, decreasing: bool = True, axis: int = -1
) -> tuple[Tensor, Tensor]:
    """Return the closest monotonic values along an axis, by least squares.

    Args:
      inputs: Tensor of numbers.
      decreasing: Whether the results decrease instead of increase.
      axis: The axis.

    Returns:
      The values, and the int32 index of the constant segment of each value, in the shape of the inputs.

    Example:
      >>> tf.nn.isotonic_regression([3.0, 1.0, 2.0])[0].numpy()
      array([3. , 1.5, 1.5], dtype=float32)
    """
    return _regress(convert_to_tensor(inputs), decreasing, axis)
