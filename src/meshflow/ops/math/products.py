"""Products of matrices and vectors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from meshflow.core.dispatch.dispatch import op
from meshflow.core.runtime.errors import InvalidValueError
from meshflow.core.values.dtypes import DTypeLike, as_dtype
from meshflow.core.values.shapes import can_be_equal
from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.environment.types import Array
from meshflow.ops.array.shaping import normalize_axis

__all__ = ["cross", "matmul", "tensordot"]


@op
def cross(a: TensorLike, b: TensorLike, name: str | None = None) -> Tensor:
    """Compute the cross product of vectors of shape (..., 3).

    Example:
      >>> print(tf.linalg.cross([1, 0, 0], [0, 1, 0]).numpy())
      [0 0 1]
    """
    if a.shape[-1:] != (3,) or a.shape != b.shape:
        raise InvalidValueError(
            "Cross-products are only defined for two tensors of one shape whose last size is 3, got "
            f"{list(a.shape)} and {list(b.shape)}."
        )
    return jnp.cross(a, b)


def cross_arrays(
    a: jax.Array,
    b: jax.Array,
    axisa: int = -1,
    axisb: int = -1,
    axisc: int = -1,
    axis: int | None = None,
) -> jax.Array:
    """Return the cross products of vectors with two or three elements.

    JAX 0.12 and NumPy 2.5 reject vectors of two elements; here their third element is zero.

    Args:
      a: Array of vectors.
      b: Array of vectors.
      axisa: Dimension of `a` with the elements of the vectors.
      axisb: Dimension of `b` with the elements of the vectors.
      axisc: Dimension of the result with the elements, unless all vectors have two elements.
      axis: A dimension that replaces these three.
    """
    axisa, axisb, axisc = (axisa, axisb, axisc) if axis is None else (axis,) * 3
    a, b = jnp.moveaxis(a, axisa, -1), jnp.moveaxis(b, axisb, -1)
    if a.shape[-1] == b.shape[-1] == 2:
        return a[..., 0] * b[..., 1] - a[..., 1] * b[..., 0]
    a, b = [_append_zero(v) if v.shape[-1] == 2 else v for v in (a, b)]
    return jnp.moveaxis(jnp.cross(a, b), -1, axisc)


def _append_zero(vectors: jax.Array) -> jax.Array:
    return jnp.pad(vectors, [(0, 0)] * (vectors.ndim - 1) + [(0, 1)])


@op(kinds="ifc")
def matmul(
    a: TensorLike,
    b: TensorLike,
    transpose_a: bool = False,
    transpose_b: bool = False,
    adjoint_a: bool = False,
    adjoint_b: bool = False,
    a_is_sparse: bool = False,
    b_is_sparse: bool = False,
    output_type: DTypeLike | None = None,
    name: str | None = None,
) -> Tensor:
    """Multiply matrices, with broadcasting of the batch dimensions.

    Args:
      a: Tensor of shape [..., m, k].
      b: Tensor of shape [..., k, n], of the same dtype.
      transpose_a: Whether to transpose `a` first.
      transpose_b: Whether to transpose `b` first.
      adjoint_a: Whether to conjugate and transpose `a` first.
      adjoint_b: Whether to conjugate and transpose `b` first.
      a_is_sparse: Ignored.
      b_is_sparse: Ignored.
      output_type: Dtype of the sums and of the result; default that of the operands.
      name: Ignored.

    Returns:
      Tensor of shape [..., m, n].

    Raises:
      InvalidArgumentError: If a rank is below 2 or the inner sizes differ.
      ValueError: If transpose and adjoint are both true for an operand.

    Example:
      >>> tf.matmul([[1.0, 2.0]], [[3.0], [4.0]]).numpy()
      array([[11.]], dtype=float32)
    """
    if (transpose_a and adjoint_a) or (transpose_b and adjoint_b):
        raise ValueError(
            "Only one of transpose_a and adjoint_a (transpose_b and adjoint_b) can be True."
        )
    if a.ndim < 2 or b.ndim < 2:
        raise InvalidValueError(
            f"matmul: In[0] ndims must be >= 2, and those of In[1], too, got shapes {list(a.shape)} and "
            f"{list(b.shape)}. [Op:MatMul]"
        )
    if transpose_a or adjoint_a:
        a = _transpose_matrices(a, adjoint_a)
    if transpose_b or adjoint_b:
        b = _transpose_matrices(b, adjoint_b)
    if not can_be_equal(a.shape[-1], b.shape[-2]):
        raise InvalidValueError(
            f"Matrix size-incompatible: In[0]: {list(a.shape)}, In[1]: {list(b.shape)} [Op:MatMul]"
        )
    if output_type is not None:
        # Sums of small integers would wrap.
        a, b = (v.astype(as_dtype(output_type).dtype) for v in (a, b))
    try:
        if a.ndim == b.ndim == 2 and a.dtype == b.dtype and a.dtype.kind == "f":
            # JAX traces `lax` faster than `jax.numpy`.
            axes = ((1,), (0,)), ((), ())
            return jax.lax.dot_general(a, b, axes, preferred_element_type=a.dtype)
        return jnp.matmul(a, b)
    except (TypeError, ValueError):
        raise InvalidValueError(
            f"matmul: In[0] and In[1] must have compatible batch dimensions, which are broadcast: {list(a.shape)} vs. {list(b.shape)} "
            "[Op:BatchMatMulV2]"
        ) from None


def _transpose_matrices(x: jax.Array, is_adjoint: bool) -> jax.Array:
    axes = *range(x.ndim - 2), x.ndim - 1, x.ndim - 2
    transposed = jax.lax.transpose(x, axes)
    return jnp.conj(transposed) if is_adjoint else transposed


@op
def tensordot(
    a: TensorLike, b: TensorLike, axes: int | Sequence[Any], name: str | None = None
) -> Tensor:
    """Sum products over given dimensions of `a` and `b`.

    Args:
      a: A tensor.
      b: A tensor of the same dtype.
      axes: A number n (last n of `a` with first n of `b`) or a pair of dimension lists.
      name: Ignored.

    Returns:
      Tensor with the remaining dimensions of `a`, then those of `b`.

    Example:
      >>> a = tf.reshape(tf.range(6), [2, 3])
      >>> print(tf.tensordot(a, [1, 10, 100], axes=1).numpy())
      [210 543]
      >>> print(tf.tensordot(a, a, axes=[[0, 1], [0, 1]]).numpy())
      55
    """
    _check_contracted(a, b, axes)
    return jnp.tensordot(a, b, axes)


def _check_contracted(a: Array, b: Array, axes: int | Sequence[Any]) -> None:
    """Raise unless the dimensions that `tensordot` sums over exist and have the same sizes."""
    if isinstance(axes, int):
        if axes < 0 or axes > min(a.ndim, b.ndim):
            raise InvalidValueError(
                f"tensordot: `axes` must not be larger than the number of dimensions of the tensors, and not negative, "
                f"got {axes} for shapes {list(a.shape)} and {list(b.shape)}."
            )
        pairs = list(zip(range(a.ndim - axes, a.ndim), range(axes), strict=True))
    else:
        if len(axes) != 2:
            raise InvalidValueError(
                f"tensordot: `axes` must be an integer or have length 2, got {axes}."
            )
        first, second = ((x,) if isinstance(x, int) else tuple(x) for x in axes)
        if len(first) != len(second):
            raise InvalidValueError(
                f"tensordot: Different number of contraction axes `a` and `b`, {len(first)} != {len(second)}."
            )
        pairs = list(zip(first, second, strict=True))
    for i, j in pairs:
        i, j = normalize_axis(i, a.ndim, "tensordot"), normalize_axis(j, b.ndim, "tensordot")
        if not can_be_equal(a.shape[i], b.shape[j]):
            raise InvalidValueError(
                f"tensordot: Matrix size-incompatible: In[0]: {list(a.shape)}, In[1]: {list(b.shape)}: the sizes of "
                f"axes {i} and {j} must be equal. [Op:MatMul]"
            )
