"""Solvers of linear systems, inverses and determinants."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from meshflow.core.dispatch.dispatch import op
from meshflow.core.dispatch.symbolic_calls import dispatch_composites
from meshflow.core.runtime.errors import InvalidArgumentError, InvalidValueError
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.ops.linalg.products import check_matrices, check_system, conjugate_transpose

__all__ = [
    "cholesky_solve",
    "det",
    "inv",
    "logdet",
    "lstsq",
    "pinv",
    "slogdet",
    "solve",
    "triangular_solve",
]


@op(kinds="fc", name="inv")
def _inv(input: TensorLike, adjoint: bool) -> Tensor:
    check_matrices("inv", input)
    return jnp.linalg.inv(conjugate_transpose(input) if adjoint else input)


@dispatch_composites
def inv(input: TensorLike, adjoint: bool = False, name: str | None = None) -> Tensor:
    """Invert matrices.

    Args:
      input: Square matrices [..., n, n].
      adjoint: Whether to invert the adjoint matrices.
      name: Ignored.

    Raises:
      InvalidArgumentError: If a matrix is singular (only eagerly).

    Example:
      >>> tf.linalg.inv([[2.0, 0.0], [0.0, 4.0]]).numpy().tolist()
      [[0.5, 0.0], [0.0, 0.25]]
    """
    return check_invertible(
        _inv(input, adjoint), "Input is not invertible. [Op:MatrixInverse]", input
    )


def check_invertible(result: Tensor, message: str, *operands: TensorLike) -> Tensor:
    """Raise if the result is not finite although the operands are, and return it otherwise."""
    is_known = isinstance(result, Tensor) and not isinstance(result.array, jax.core.Tracer)
    is_wrong = is_known and not _is_finite(result)
    if is_wrong and all(_is_finite(convert_to_tensor(o)) for o in operands):
        raise InvalidArgumentError(message)
    return result


def _is_finite(tensor: Tensor) -> bool:
    library = np if isinstance(tensor.array, np.ndarray) else jnp  # JAX would start a program.
    return bool(library.all(library.isfinite(tensor.array)))


@op(kinds="fc")
def det(input: TensorLike, name: str | None = None) -> Tensor:
    """Compute the determinants [...] of matrices [..., n, n].

    Example:
      >>> print(tf.linalg.det([[1.0, 2.0], [3.0, 4.0]]).numpy().round(3))
      -2.0
    """
    check_matrices("det", input)
    return jnp.linalg.det(input)


@op(kinds="fc", name="slogdet")
def _slogdet(input: TensorLike) -> tuple[Tensor, Tensor]:
    check_matrices("slogdet", input)
    sign, logarithm = jnp.linalg.slogdet(input)
    return sign, logarithm.astype(input.dtype)


def slogdet(input: TensorLike, name: str | None = None) -> tuple[Tensor, Tensor]:
    """Compute signs and log absolute values, both [...], of determinants of matrices [..., n, n].

    Example:
      >>> sign, log = tf.linalg.slogdet([[0.0, 1.0], [1.0, 0.0]])
      >>> sign.numpy().item(), log.numpy().item()
      (-1.0, 0.0)
    """
    sign, logarithm = _slogdet(input)
    return sign, logarithm


@op(kinds="fc")
def logdet(matrix: TensorLike, name: str | None = None) -> Tensor:
    """Compute the logarithms [...] of determinants of positive definite matrices [..., n, n].

    Example:
      >>> print(tf.exp(tf.linalg.logdet([[2.0, 0.0], [0.0, 3.0]])).numpy().round(3))
      6.0
    """
    check_matrices("logdet", matrix)
    return 2 * jnp.sum(
        jnp.log(jnp.real(jnp.diagonal(jnp.linalg.cholesky(matrix), axis1=-2, axis2=-1))), axis=-1
    )


@op(kinds="fc")
def cholesky_solve(chol: TensorLike, rhs: TensorLike, name: str | None = None) -> Tensor:
    """Solve `chol @ chol^H @ x = rhs` with a Cholesky factor, and right-hand sides [..., n, k].

    The batch dimensions are broadcast.

    Example:
      >>> chol = tf.linalg.cholesky([[4.0, 0.0], [0.0, 9.0]])
      >>> tf.linalg.cholesky_solve(chol, [[8.0], [9.0]]).numpy().round(3).tolist()
      [[2.0], [1.0]]
    """
    check_system("cholesky_solve", chol, rhs)
    batch = jnp.broadcast_shapes(chol.shape[:-2], rhs.shape[:-2])
    chol, rhs = (jnp.broadcast_to(a, (*batch, *a.shape[-2:])) for a in (chol, rhs))
    intermediate = jax.lax.linalg.triangular_solve(chol, rhs, left_side=True, lower=True)
    return jax.lax.linalg.triangular_solve(
        chol, intermediate, left_side=True, lower=True, transpose_a=True, conjugate_a=True
    )


@op(kinds="fc", name="solve")
def _solve(matrix: TensorLike, rhs: TensorLike, adjoint: bool) -> Tensor:
    if matrix.ndim != rhs.ndim:
        raise InvalidValueError("All input tensors must have the same rank. [Op:MatrixSolve]")
    check_system("solve", matrix, rhs)
    return jnp.linalg.solve(conjugate_transpose(matrix) if adjoint else matrix, rhs)


@dispatch_composites
def solve(
    matrix: TensorLike, rhs: TensorLike, adjoint: bool = False, name: str | None = None
) -> Tensor:
    """Solve `matrix @ x = rhs`.

    Args:
      matrix: Square matrices [..., n, n].
      rhs: Right-hand sides [..., n, k].
      adjoint: Whether to solve with the adjoint matrices.
      name: Ignored.

    Raises:
      InvalidArgumentError: If the ranks differ or (only eagerly) a matrix is singular.

    Example:
      >>> tf.linalg.solve([[2.0, 0.0], [1.0, 1.0]], [[4.0], [5.0]]).numpy().round(3).tolist()
      [[2.0], [3.0]]
    """
    solution = _solve(matrix, rhs, adjoint)
    return check_invertible(
        solution, "Input matrix is not invertible. [Op:MatrixSolve]", matrix, rhs
    )


@op(kinds="fc")
def triangular_solve(
    matrix: TensorLike,
    rhs: TensorLike,
    lower: bool = True,
    adjoint: bool = False,
    name: str | None = None,
) -> Tensor:
    """Solve linear systems with triangular matrices.

    Args:
      matrix: Square matrices [..., n, n]; the other triangle is not read.
      rhs: Right-hand sides [..., n, k].
      lower: Whether to read the lower triangle instead of the upper one.
      adjoint: Whether to solve with the adjoint matrices.
      name: Ignored.

    Example:
      >>> tf.linalg.triangular_solve([[2.0, 99.0], [1.0, 1.0]], [[4.0], [5.0]]).numpy().round(3).tolist()
      [[2.0], [3.0]]
    """
    check_system("triangular_solve", matrix, rhs)
    lead = jnp.broadcast_shapes(matrix.shape[:-2], rhs.shape[:-2])
    matrix = jnp.broadcast_to(matrix, (*lead, *matrix.shape[-2:]))
    rhs = jnp.broadcast_to(rhs, (*lead, *rhs.shape[-2:]))
    return jax.lax.linalg.triangular_solve(
        matrix, rhs, left_side=True, lower=lower, transpose_a=adjoint, conjugate_a=adjoint
    )


@op(kinds="fc")
def lstsq(
    matrix: TensorLike,
    rhs: TensorLike,
    l2_regularizer: float = 0.0,
    fast: bool = True,
    name: str | None = None,
) -> Tensor:
    """Compute least-squares solutions of `matrix @ x = rhs`.

    Args:
      matrix: Matrices [..., m, n].
      rhs: Right-hand sides [..., m, k].
      l2_regularizer: Weight of the squared norm of the solution.
      fast: Whether to solve the normal equations, which is less exact.
      name: Ignored.

    Example:
      >>> ones = tf.ones([3, 1])
      >>> tf.linalg.lstsq(ones, [[1.0], [2.0], [6.0]]).numpy().round(3).item()  # the mean
      3.0
    """
    check_matrices("lstsq", matrix, rhs, is_square=False)
    if l2_regularizer or (fast and matrix.shape[-2] >= matrix.shape[-1]):
        gram = conjugate_transpose(matrix) @ matrix + l2_regularizer * jnp.eye(
            matrix.shape[-1], dtype=matrix.dtype
        )
        return jnp.linalg.solve(gram, conjugate_transpose(matrix) @ rhs)
    return jnp.linalg.pinv(matrix) @ rhs


@op(kinds="fc")
def pinv(a: TensorLike, rcond: float | None = None, name: str | None = None) -> Tensor:
    """Compute the Moore-Penrose inverses of matrices.

    Args:
      a: Matrices [..., m, n].
      rcond: Singular values below `rcond` times the largest one count as 0; default from the dtype
        and the sizes.
      name: Ignored.

    Example:
      >>> tf.linalg.pinv([[2.0, 0.0], [0.0, 0.0]]).numpy().round(3).tolist()
      [[0.5, 0.0], [0.0, 0.0]]
    """
    if a.ndim < 2:
        raise InvalidValueError(f"Input `a` must have at least 2 dimensions (saw: {a.ndim}).")
    return jnp.linalg.pinv(a, rtol=rcond)
