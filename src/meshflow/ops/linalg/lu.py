"""The LU factorization, and what is done with its factors."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from meshflow.core.dispatch.dispatch import op
from meshflow.core.runtime.errors import InvalidValueError
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.dtypes import int32
from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.ops.math import cast

__all__ = ["lu", "lu_matrix_inverse", "lu_reconstruct", "lu_solve"]


class Lu(NamedTuple):
    """Both factors in one matrix, and the order of rows."""

    lu: Tensor
    p: Tensor


@op(kinds="fc", name="lu")
def _lu(input: TensorLike) -> Any:
    factors, _, order = jax.lax.linalg.lu(input)
    return factors, order


def lu(input: TensorLike, output_idx_type: Any = int32, name: str | None = None) -> Lu:
    """The LU factorization of square matrices with partial pivoting.

    Args:
      input: [..., n, n].
      output_idx_type: dtype of the order of rows.
      name: ignored.

    Returns:
      A named tuple: `lu` [..., n, n] with the lower factor below the diagonal (its own is 1) and the
      upper one, and `p` [..., n], the rows of `input` in the order of the product of the factors.

    Raises:
      InvalidArgumentError: when the matrices are not square.

    Example:
      >>> import meshflow as tf
      >>> factors, order = tf.linalg.lu([[1.0, 2.0], [4.0, 4.0]])
      >>> print(factors.numpy().tolist(), order.numpy())
      [[4.0, 4.0], [0.25, 1.0]] [1 0]
    """
    shape = input.shape if hasattr(input, "shape") else _shape(input)
    if len(shape) < 2 or shape[-1] != shape[-2]:
        raise InvalidValueError(f"lu: input must be square matrices, got shape {list(shape)}.")
    factors, order = _lu(input)
    return Lu(factors, cast(order, output_idx_type))


def _shape(value: Any) -> Any:
    return convert_to_tensor(value).shape


def _factors(lower_upper: Any) -> tuple[Any, Any]:
    return jnp.tril(lower_upper, -1) + jnp.eye(
        lower_upper.shape[-1], dtype=lower_upper.dtype
    ), jnp.triu(lower_upper)


def _moved(rows: Any, order: Any) -> Any:
    """Rows in another order, over batch dimensions."""
    return jnp.take_along_axis(rows, order[..., None], axis=-2)


@op(kinds="fc", same=("lower_upper",))
def lu_reconstruct(
    lower_upper: TensorLike, perm: TensorLike, validate_args: bool = False, name: str | None = None
) -> Tensor:
    """The matrices that `lu` factorized.

    From (..., n, n) and (..., n) to (..., n, n).

    Args:
      lower_upper: `lu` of the result of `tf.linalg.lu`.
      perm: `p` of it.
      validate_args: ignored.
      name: ignored.

    Example:
      >>> import meshflow as tf
      >>> print(tf.linalg.lu_reconstruct(*tf.linalg.lu([[1.0, 2.0], [4.0, 4.0]])).numpy())
      [[1. 2.]
       [4. 4.]]
    """
    lower, upper = _factors(lower_upper)
    return _moved(lower @ upper, jnp.argsort(perm, axis=-1))


def _solved(lower_upper: Any, perm: Any, rhs: Any) -> Any:
    lead = jnp.broadcast_shapes(lower_upper.shape[:-2], rhs.shape[:-2])
    rhs = jnp.broadcast_to(rhs, (*lead, *rhs.shape[-2:]))
    factors = jnp.broadcast_to(lower_upper, (*lead, *lower_upper.shape[-2:]))
    order = jnp.broadcast_to(perm, (*lead, perm.shape[-1]))
    solve = jax.scipy.linalg.solve_triangular
    inner = solve(factors, _moved(rhs, order), lower=True, unit_diagonal=True)
    return solve(factors, inner)


@op(kinds="fc", same=("lower_upper", "rhs"))
def lu_solve(
    lower_upper: TensorLike,
    perm: TensorLike,
    rhs: TensorLike,
    validate_args: bool = False,
    name: str | None = None,
) -> Tensor:
    """Solves systems of equations whose matrices `lu` factorized.

    Args:
      lower_upper: `lu` of the result of `tf.linalg.lu`.
      perm: `p` of it.
      rhs: right sides [..., n, k].
      validate_args: ignored.
      name: ignored.

    Example:
      >>> import meshflow as tf
      >>> factors = tf.linalg.lu([[1.0, 2.0], [4.0, 4.0]])
      >>> print(tf.linalg.lu_solve(*factors, [[3.0], [8.0]])[:, 0].numpy())
      [1. 1.]
    """
    return _solved(lower_upper, perm, rhs)


@op(kinds="fc", same=("lower_upper",))
def lu_matrix_inverse(
    lower_upper: TensorLike, perm: TensorLike, validate_args: bool = False, name: str | None = None
) -> Tensor:
    """Inverses of the matrices that `lu` factorized; arguments as in `lu_reconstruct`.

    From (..., n, n) and (..., n) to (..., n, n).

    Example:
      >>> import meshflow as tf
      >>> print(tf.linalg.lu_matrix_inverse(*tf.linalg.lu([[0.0, 2.0], [4.0, 0.0]])).numpy())
      [[0.   0.25]
       [0.5  0.  ]]
    """
    identity = jnp.eye(lower_upper.shape[-1], dtype=lower_upper.dtype)
    return _solved(lower_upper, perm, jnp.broadcast_to(identity, lower_upper.shape))
