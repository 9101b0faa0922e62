"""Inverse permutations and Sobol sequences."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from meshflow.core.dispatch.dispatch import op
from meshflow.core.dispatch.operands import to_static_value
from meshflow.core.runtime.bounds_checks import BoundsCheck, check_bounds
from meshflow.core.runtime.errors import InvalidValueError
from meshflow.core.values.convert import convert_python_value, convert_to_tensor
from meshflow.core.values.dtypes import DTypeLike, as_dtype, float32
from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.ops.array.shaping import StaticInts

__all__ = ["invert_permutation", "sobol_sample"]


@op(kinds="i", differentiable=False, name="invert_permutation")
def _invert_permutation(x: TensorLike) -> Tensor:
    return jnp.zeros_like(x).at[x].set(jnp.arange(x.shape[0], dtype=x.dtype))


def invert_permutation(x: TensorLike, name: str | None = None) -> Tensor:
    """Invert a permutation.

    Args:
      x: A vector that contains each integer from 0 to n - 1 once.
      name: Ignored.

    Returns:
      The vector y with `y[x[i]] == i`.

    Raises:
      InvalidArgumentError: If the values of `x` are known and are not a permutation.

    Example:
      >>> tf.math.invert_permutation([3, 0, 1, 2]).numpy()
      array([1, 2, 3, 0], dtype=int32)
    """
    x = convert_to_tensor(x)
    if len(x.shape) != 1:
        raise InvalidValueError(f"invert_permutation: x must be a vector, got shape {x.shape}.")
    if not isinstance(x.array, jax.core.Tracer):
        indices = np.asarray(x.array)
        if not np.array_equal(np.sort(indices), np.arange(indices.size)):
            raise InvalidValueError(
                f"invert_permutation: {indices.tolist()} must hold each number from 0 to "
                f"{indices.size - 1} once; one is duplicated in the input or out of range."
            )
    else:
        # TensorFlow's message contains n, although n is not allowed.
        size = x.array.shape
        x = check_bounds(
            x, BoundsCheck("{value} is not between 0 and {sizes}", (0,), size, sizes=size)
        )
    return _invert_permutation(x)


def sobol_sample(
    dim: StaticInts,
    num_results: StaticInts,
    skip: StaticInts = 0,
    dtype: DTypeLike = float32,
    name: str | None = None,
) -> Tensor:
    """Compute points of the Sobol sequence, which are distributed evenly in the unit cube.

    Args:
      dim: Number of dimensions of the cube.
      num_results: Number of points.
      skip: Number of points to skip.
      dtype: Float32 or float64.
      name: Ignored.

    Returns:
      Tensor of shape [num_results, dim].

    Example:
      >>> print(tf.math.sobol_sample(dim=2, num_results=3).numpy())
      [[0.5  0.5 ]
       [0.75 0.25]
       [0.25 0.75]]
    """
    from scipy.stats import qmc  # noqa: PLC0415 - half a second

    dtype_, count = as_dtype(dtype), to_static_value(num_results, "num_results")
    num_dimensions = to_static_value(dim, "dim")
    if num_dimensions < 1:
        raise InvalidValueError(f"sobol_sample: dim must be at least one, got {dim}.")
    # TensorFlow's sequence starts after the origin.
    sequence = qmc.Sobol(num_dimensions, scramble=False)
    sequence.fast_forward(to_static_value(skip, "skip") + 1)
    return convert_python_value(sequence.random(count).astype(dtype_.dtype), dtype_)
