"""Products of matrices and vectors."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

from meshflow.core.dispatch.dispatch import op
from meshflow.core.runtime.errors import InvalidValueError
from meshflow.core.values.dtypes import as_dtype
from meshflow.core.values.tensor import Tensor, TensorLike

__all__ = ["cross", "matmul", "tensordot"]


@op
def cross(a: TensorLike, b: TensorLike, name: str | None = None) -> Tensor:
    """Cross product along the last dimension, of size 3.

    Vectors (..., 3); the result has their shape.

    Example:
      >>> import meshflow as tf
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
    a: Any, b: Any, axisa: int = -1, axisb: int = -1, axisc: int = -1, axis: int | None = None
) -> Any:
    """Return the cross products of vectors of two or three elements.

    JAX 0.12 and NumPy 2.5 refuse vectors of two elements; here their third element is zero.

    Args:
      a, b: arrays of vectors.
      axisa, axisb: the dimensions with the elements of the vectors.
      axisc: that of the results, which do not have it where all vectors have two elements.
      axis: a dimension that replaces these three.
    """
    axisa, axisb, axisc = (axisa, axisb, axisc) if axis is None else (axis,) * 3
    a, b = jnp.moveaxis(a, axisa, -1), jnp.moveaxis(b, axisb, -1)
    if a.shape[-1] == b.shape[-1] == 2:
        return a[..., 0] * b[..., 1] - a[..., 1] * b[..., 0]
    padded = [_append_zero(v) if v.shape[-1] == 2 else v for v in (a, b)]
    return jnp.moveaxis(jnp.cross(*padded), -1, axisc)


def _append_zero(vectors: Any) -> Any:
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
    output_type: Any = None,
    name: str | None = None,
) -> Tensor:
    """Matrix product, over any batch dimensions.

    Args:
      a: tensor of shape [..., m, k].
      b: tensor of shape [..., k, n], of the same dtype.
      transpose_a: whether `a` is transposed first.
      transpose_b: whether `b` is transposed first.
      adjoint_a: whether `a` is conjugated and transposed first.
      adjoint_b: whether `b` is conjugated and transposed first.
      a_is_sparse: ignored.
      b_is_sparse: ignored.
      output_type: dtype of the result; default that of the operands.
      name: ignored.

    Returns:
      Tensor of shape [..., m, n].

    Raises:
      InvalidArgumentError: when ranks are below 2 or inner sizes differ.
      ValueError: when both transpose and adjoint are asked for.

    Example:
      >>> import meshflow as tf
      >>> tf.matmul([[1.0, 2.0]], [[3.0], [4.0]]).numpy()
      array([[11.]], dtype=float32)
    """
    if (transpose_a and adjoint_a) or (transpose_b and adjoint_b):
        raise ValueError(
            "Only one of transpose_a and adjoint_a (transpose_b and adjoint_b) can be True."
        )
    if a.ndim < 2 or b.ndim < 2:
        raise InvalidValueError(
            f"In[0] and In[1] of matmul must have at least 2 dimensions, got shapes {list(a.shape)} and "
            f"{list(b.shape)}."
        )
    a = (
        jnp.conj(jnp.swapaxes(a, -1, -2))
        if adjoint_a
        else jnp.swapaxes(a, -1, -2)
        if transpose_a
        else a
    )
    b = (
        jnp.conj(jnp.swapaxes(b, -1, -2))
        if adjoint_b
        else jnp.swapaxes(b, -1, -2)
        if transpose_b
        else b
    )
    if a.shape[-1] != b.shape[-2]:
        raise InvalidValueError(
            f"Matrix size-incompatible: In[0]: {list(a.shape)}, In[1]: {list(b.shape)} [Op:MatMul]"
        )
    result = jnp.matmul(a, b)
    return result if output_type is None else result.astype(as_dtype(output_type).dtype)


@op
def tensordot(a: TensorLike, b: TensorLike, axes: Any, name: str | None = None) -> Tensor:
    """Sums products over the given dimensions of `a` and `b`.

    Args:
      a: a tensor.
      b: a tensor of the same dtype.
      axes: a number n (last n of `a` with first n of `b`) or a pair of dimension lists.
      name: ignored.

    Returns:
      Tensor with the dimensions left of `a`, then those of `b`.

    Example:
      >>> import meshflow as tf
      >>> a = tf.reshape(tf.range(6), [2, 3])
      >>> print(tf.tensordot(a, [1, 10, 100], axes=1).numpy())
      [210 543]
      >>> print(tf.tensordot(a, a, axes=[[0, 1], [0, 1]]).numpy())
      55
    """
    return jnp.tensordot(a, b, axes)
