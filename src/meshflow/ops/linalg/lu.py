"""LU factorization, and ops on its factors."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from meshflow.core.dispatch.dispatch import op
from meshflow.core.dispatch.symbolic_calls import record_in_graph
from meshflow.core.runtime.errors import InvalidArgumentError, InvalidValueError
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.dtypes import DTypeLike, int32
from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.ops.math import cast

__all__ = ["lu", "lu_matrix_inverse", "lu_reconstruct", "lu_solve"]


class Lu(NamedTuple):
    """Result of `tf.linalg.lu`: both factors in one matrix, and the permutation of rows."""

    lu: Tensor
    p: Tensor


@op(kinds="fc", name="lu")
def _lu(input: TensorLike) -> tuple[Tensor, Tensor]:
    factors, _, order = jax.lax.linalg.lu(input)
    return factors, order


@record_in_graph
def lu(input: TensorLike, output_idx_type: DTypeLike = int32, name: str | None = None) -> Lu:
    """Compute the LU factorization of square matrices with partial pivoting.

    Args:
      input: [..., n, n].
      output_idx_type: Dtype of the permutation.
      name: Ignored.

    Returns:
      A named tuple: `lu` [..., n, n] with the lower factor below the diagonal (its diagonal is 1)
      and the upper factor, and `p` [..., n], the row of `input` for each row of the product of the
      factors.

    Raises:
      InvalidArgumentError: If the matrices are not square, or if one is singular (only eagerly).

    Example:
      >>> factors, order = tf.linalg.lu([[1.0, 2.0], [4.0, 4.0]])
      >>> print(factors.numpy().tolist(), order.numpy())
      [[4.0, 4.0], [0.25, 1.0]] [1 0]
    """
    shape = input.shape if hasattr(input, "shape") else convert_to_tensor(input).shape
    if len(shape) < 2 or shape[-1] != shape[-2]:
        raise InvalidValueError(f"lu: input must be square matrices, got shape {list(shape)}.")
    factors, order = _lu(input)
    if isinstance(factors, Tensor) and not isinstance(factors.array, jax.core.Tracer):
        library = np if isinstance(factors.array, np.ndarray) else jnp
        pivots = library.diagonal(factors.array, axis1=-2, axis2=-1)
        if bool(library.any(pivots == 0)):
            raise InvalidArgumentError("Input is not invertible. [Op:Lu]")
    return Lu(factors, cast(order, output_idx_type))


def _split_factors(lower_upper: jax.Array) -> tuple[Any, Any]:
    return jnp.tril(lower_upper, -1) + jnp.eye(
        lower_upper.shape[-1], dtype=lower_upper.dtype
    ), jnp.triu(lower_upper)


def _reorder_rows(rows: jax.Array, order: jax.Array) -> jax.Array:
    """Reorder the rows of a batch of matrices."""
    return jnp.take_along_axis(rows, order[..., None], axis=-2)


@op(kinds="fc", same=("lower_upper",))
def lu_reconstruct(
    lower_upper: TensorLike, perm: TensorLike, validate_args: bool = False, name: str | None = None
) -> Tensor:
    """Multiply the factors of `lu`: from (..., n, n) and (..., n) to (..., n, n).

    Args:
      lower_upper: Result `lu` of `tf.linalg.lu`.
      perm: Result `p` of `tf.linalg.lu`.
      validate_args: Ignored.
      name: Ignored.

    Example:
      >>> print(tf.linalg.lu_reconstruct(*tf.linalg.lu([[1.0, 2.0], [4.0, 4.0]])).numpy())
      [[1. 2.]
       [4. 4.]]
    """
    lower, upper = _split_factors(lower_upper)
    return _reorder_rows(lower @ upper, jnp.argsort(perm, axis=-1))


def _solve_factorized(lower_upper: jax.Array, perm: jax.Array, rhs: jax.Array) -> jax.Array:
    batch_shape = jnp.broadcast_shapes(lower_upper.shape[:-2], rhs.shape[:-2])
    rhs = jnp.broadcast_to(rhs, (*batch_shape, *rhs.shape[-2:]))
    factors = jnp.broadcast_to(lower_upper, (*batch_shape, *lower_upper.shape[-2:]))
    order = jnp.broadcast_to(perm, (*batch_shape, perm.shape[-1]))
    solve = jax.scipy.linalg.solve_triangular
    intermediate = solve(factors, _reorder_rows(rhs, order), lower=True, unit_diagonal=True)
    return solve(factors, intermediate)


@op(kinds="fc", same=("lower_upper", "rhs"))
def lu_solve(
    lower_upper: TensorLike,
    perm: TensorLike,
    rhs: TensorLike,
    validate_args: bool = False,
    name: str | None = None,
) -> Tensor:
    """Solve linear systems with matrices that `lu` has factorized.

    Args:
      lower_upper: Result `lu` of `tf.linalg.lu`.
      perm: Result `p` of `tf.linalg.lu`.
      rhs: Right-hand sides [..., n, k].
      validate_args: Ignored.
      name: Ignored.

    Example:
      >>> factors = tf.linalg.lu([[1.0, 2.0], [4.0, 4.0]])
      >>> print(tf.linalg.lu_solve(*factors, [[3.0], [8.0]])[:, 0].numpy())
      [1. 1.]
    """
    return _solve_factorized(lower_upper, perm, rhs)


@op(kinds="fc", same=("lower_upper",))
def lu_matrix_inverse(
    lower_upper: TensorLike, perm: TensorLike, validate_args: bool = False, name: str | None = None
) -> Tensor:
    """Invert matrices that `lu` has factorized; the arguments are those of `lu_reconstruct`.

    The shapes (..., n, n) and (..., n) result in (..., n, n).

    Example:
      >>> print(tf.linalg.lu_matrix_inverse(*tf.linalg.lu([[0.0, 2.0], [4.0, 0.0]])).numpy())
      [[0.   0.25]
       [0.5  0.  ]]
    """
    identity = jnp.eye(lower_upper.shape[-1], dtype=lower_upper.dtype)
    return _solve_factorized(lower_upper, perm, jnp.broadcast_to(identity, lower_upper.shape))
