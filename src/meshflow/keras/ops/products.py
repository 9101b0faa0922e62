"""Products of matrices and vectors.

Example:
  >>> ops.matmul([[1, 2]], [[3], [4]]).numpy().tolist()
  [[11]]
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp

from meshflow.core.dispatch.dispatch import op
from meshflow.core.values import dtypes
from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.keras.ops.graph_calls import as_single_layer
from meshflow.keras.ops.op_factories import make_binary
from meshflow.keras.ops.promotion import as_tensor, promote
from meshflow.ops import casting
from meshflow.ops.math.products import cross_arrays

__all__ = [
    "cdist",
    "correlate",
    "cross",
    "dot",
    "einsum",
    "inner",
    "kron",
    "matmul",
    "outer",
    "tensordot",
    "vdot",
]


def _promote_factors(x1: TensorLike, x2: TensorLike) -> Sequence[Tensor]:
    """Promote factors to a common dtype; int8 products are summed in int32."""
    x1, x2 = as_tensor(x1), as_tensor(x2)
    if all(dtypes.as_dtype(x.dtype) is dtypes.int8 for x in (x1, x2)):
        return casting.cast(x1, "int32"), casting.cast(x2, "int32")
    return promote(x1, x2)


@op(same=("x1", "x2"), name="matmul")
def _matmul(x1: TensorLike, x2: TensorLike) -> Any:
    return jnp.matmul(x1, x2)


def matmul(x1: TensorLike, x2: TensorLike) -> Tensor:
    """Multiply matrices or batches of matrices; a 1-D operand is a vector.

    Args:
      x1: [..., m, k].
      x2: [..., k, n].

    Example:
      >>> ops.matmul([[1, 2]], [[3], [4]]).numpy().tolist()
      [[11]]
    """
    return _matmul(*_promote_factors(x1, x2))


dot = make_binary(
    "dot",
    jnp.dot,
    "the dot product over the last axis of `x1` and the second last of `x2`",
    array=True,
)
inner = make_binary("inner", jnp.inner, "the inner products of the last axes", array=True)
outer = make_binary("outer", jnp.outer, "the products of all pairs of elements", array=True)
vdot = make_binary("vdot", jnp.vdot, "the dot product of the flattened tensors", array=True)
kron = make_binary("kron", jnp.kron, "the Kronecker product", array=True)


@op(same=("x1", "x2"), name="cross")
def _cross(
    x1: TensorLike, x2: TensorLike, axisa: int, axisb: int, axisc: int, axis: int | None
) -> Any:
    return cross_arrays(x1, x2, axisa, axisb, axisc, axis)


@as_single_layer()
def cross(
    x1: TensorLike,
    x2: TensorLike,
    axisa: int = -1,
    axisb: int = -1,
    axisc: int = -1,
    axis: int | None = None,
) -> Tensor:
    """Compute the cross product of vectors of 2 or 3 elements.

    Args:
      x1: A tensor of vectors.
      x2: A tensor of vectors.
      axisa: Axis of the vectors of `x1`.
      axisb: Axis of the vectors of `x2`.
      axisc: Axis of the vectors of the result.
      axis: Overrides the three axes.

    Example:
      >>> ops.cross([1, 0, 0], [0, 1, 0]).numpy().tolist()
      [0, 0, 1]
    """
    x1, x2 = promote(x1, x2)
    return _cross(x1, x2, axisa, axisb, axisc, axis)


@op(same=("x1", "x2"), name="tensordot")
def _tensordot(x1: TensorLike, x2: TensorLike, axes: Any) -> Any:
    return jnp.tensordot(x1, x2, axes)


@as_single_layer()
def tensordot(
    x1: TensorLike, x2: TensorLike, axes: int | Sequence[int | Sequence[int]] = 2
) -> Tensor:
    """Sum products over pairs of axes.

    Args:
      x1: A tensor.
      x2: A tensor.
      axes: Number of last axes of `x1` and first axes of `x2`, or both lists of axes.

    Example:
      >>> int(ops.tensordot([1, 2], [3, 4], axes=1))
      11
    """
    x1, x2 = promote(x1, x2)
    return _tensordot(x1, x2, axes)


@op(name="einsum")
def _einsum(operands: Sequence[TensorLike], subscripts: str) -> Any:
    return jnp.einsum(subscripts, *operands)


@as_single_layer()
def einsum(subscripts: str, *operands: TensorLike, **kwargs: Any) -> Tensor:
    """Sum products over axes named by letters (Einstein's convention).

    Args:
      subscripts: Names of the axes, for example 'ij,jk->ik'.
      *operands: The tensors.
      **kwargs: Accepted and ignored: XLA decides about the order of the products.

    Example:
      >>> ops.einsum("ij,j->i", [[1, 2], [3, 4]], [1, 1]).numpy().tolist()
      [3, 7]
    """
    tensors = [as_tensor(v) for v in operands]
    if all(dtypes.as_dtype(v.dtype) is dtypes.int8 for v in tensors):
        tensors = [casting.cast(v, "int32") for v in tensors]
    return _einsum(promote(*tensors), subscripts)


@op(same=("x1", "x2"), name="correlate")
def _correlate(x1: TensorLike, x2: TensorLike, mode: str) -> Any:
    return jnp.correlate(x1, x2, mode)


@as_single_layer()
def correlate(x1: TensorLike, x2: TensorLike, mode: str = "valid") -> Tensor:
    """Compute the cross-correlation of two vectors.

    Args:
      x1: A vector.
      x2: A vector.
      mode: 'valid', 'same' or 'full'.

    Example:
      >>> ops.correlate([1, 2, 3], [0, 1, 0.5]).numpy().tolist()
      [3.5]
    """
    x1, x2 = promote(x1, x2, also=float)
    return _correlate(x1, x2, mode)


@op(same=("x", "y"), name="cdist")
def _cdist(x: TensorLike, y: TensorLike) -> Any:
    differences = x[..., :, None, :] - y[..., None, :, :]
    total = jnp.sum(differences * differences, -1)
    # The gradient of a distance of 0 is defined as 0 instead of infinity.
    return jnp.where(total > 0, jnp.sqrt(jnp.where(total > 0, total, 1)), 0)


@as_single_layer()
def cdist(x: TensorLike, y: TensorLike) -> Tensor:
    """Compute the Euclidean distances of all pairs of rows.

    Args:
      x: [..., m, d].
      y: [..., n, d].

    Returns:
      [..., m, n].

    Example:
      >>> ops.cdist([[0.0, 0.0]], [[3.0, 4.0]]).numpy().tolist()
      [[5.0]]
    """
    return _cdist(*promote(x, y, also=float))
