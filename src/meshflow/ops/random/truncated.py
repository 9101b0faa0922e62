"""Normal numbers between two bounds."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from meshflow.core.dispatch.dispatch import op
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.ops.random.stateless import stateless_uniform


@op(kinds="f")
def _invert(
    uniform: TensorLike,
    means: TensorLike,
    stddevs: TensorLike,
    minvals: TensorLike,
    maxvals: TensorLike,
) -> Tensor:
    """Convert uniform numbers by the inverse of the distribution function."""
    low, high = ((bound - means) / stddevs for bound in (minvals, maxvals))
    # The tail with the smaller probabilities is more accurate.
    sign = jnp.where(low > 0, -1.0, 1.0).astype(uniform.dtype)
    first, last = (jax.scipy.special.ndtr(sign * bound) for bound in (low, high))
    standard = sign * jax.scipy.special.ndtri(first + uniform * (last - first))
    return jnp.clip(standard * stddevs + means, minvals, maxvals)


def stateless_parameterized_truncated_normal(
    shape: TensorLike,
    seed: TensorLike,
    means: TensorLike = 0.0,
    stddevs: TensorLike = 1.0,
    minvals: TensorLike = -2.0,
    maxvals: TensorLike = 2.0,
    name: str | None = None,
) -> Tensor:
    """Draw normal numbers between bounds; the numbers differ from TensorFlow's.

    Args:
      shape: Shape of the result; parameters are broadcast to it.
      seed: Two integers.
      means: Means of the normal distributions.
      stddevs: Their standard deviations.
      minvals: Lower bounds.
      maxvals: Upper bounds.
      name: Ignored.

    Example:
      >>> x = tf.random.stateless_parameterized_truncated_normal([1000], [1, 2], minvals=1.0, maxvals=1.5)
      >>> 1.0 <= float(tf.reduce_min(x)) <= float(tf.reduce_max(x)) <= 1.5
      True
    """
    parameters = [convert_to_tensor(p) for p in (means, stddevs, minvals, maxvals)]
    dtype = parameters[0].dtype
    return _invert(stateless_uniform(shape, seed, dtype=dtype), *parameters)
