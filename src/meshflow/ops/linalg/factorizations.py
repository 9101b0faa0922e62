"""Matrix factorizations: Cholesky, QR, singular values, eigenvalues."""

from __future__ import annotations

from typing import Literal, NamedTuple, overload

import jax
import jax.numpy as jnp

from meshflow.core.dispatch.dispatch import op
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.ops.linalg.products import check_matrices, conjugate_transpose

__all__ = ["cholesky", "eig", "eigh", "eigvals", "eigvalsh", "matrix_rank", "qr", "svd"]


class QrFactors(NamedTuple):
    """Orthogonal and upper triangular factors of matrices."""

    q: Tensor
    r: Tensor


def _symmetrize(x: jax.Array) -> jax.Array:
    """Return the self-adjoint matrix with the lower triangle of `x`; only this part has a gradient."""
    return jnp.tril(x) + conjugate_transpose(jnp.tril(x, -1))


@op(kinds="fc")
def cholesky(input: TensorLike, name: str | None = None) -> Tensor:
    """Compute the lower triangular factors of positive definite matrices [..., n, n].

    Example:
      >>> tf.linalg.cholesky([[4.0, 2.0], [2.0, 10.0]]).numpy().round(3).tolist()
      [[2.0, 0.0], [1.0, 3.0]]
    """
    check_matrices("cholesky", input)
    return jnp.linalg.cholesky(input)


@op(kinds="fc", name="qr")
def _qr(input: TensorLike, full_matrices: bool) -> tuple[Tensor, Tensor]:
    check_matrices("qr", input, is_square=False)
    if full_matrices and input.shape[-1] == 0:
        # LAPACK does not write the orthogonal matrix of no columns.
        rows = input.shape[-2]
        identity = jnp.eye(rows, dtype=input.dtype)
        return jnp.broadcast_to(identity, (*input.shape[:-2], rows, rows)), input
    return tuple(jnp.linalg.qr(input, mode="complete" if full_matrices else "reduced"))


def qr(input: TensorLike, full_matrices: bool = False, name: str | None = None) -> QrFactors:
    """Compute orthogonal and upper triangular factors (q, r) of matrices [..., m, n].

    The factor `q` is square only if `full_matrices` is true.

    Example:
      >>> q, r = tf.linalg.qr([[0.0, 1.0], [2.0, 0.0], [0.0, 0.0]])
      >>> q.shape, tf.abs(r).numpy().round(3).tolist()
      (TensorShape([3, 2]), [[2.0, 0.0], [0.0, 1.0]])
    """
    return QrFactors(*_qr(input, full_matrices))


@op(kinds="fc", name="svd")
def _svd(tensor: TensorLike, full_matrices: bool, compute_uv: bool) -> Tensor | tuple[Tensor, ...]:
    check_matrices("svd", tensor, is_square=False)
    if not compute_uv:
        return jnp.linalg.svd(tensor, compute_uv=False)
    u, s, vh = jnp.linalg.svd(tensor, full_matrices=full_matrices)
    return s, u, conjugate_transpose(vh)


@overload
def svd(
    tensor: TensorLike,
    full_matrices: bool = False,
    compute_uv: Literal[True] = True,
    name: str | None = None,
) -> tuple[Tensor, Tensor, Tensor]: ...
@overload
def svd(
    tensor: TensorLike,
    full_matrices: bool = False,
    *,
    compute_uv: Literal[False],
    name: str | None = None,
) -> Tensor: ...
@overload
def svd(
    tensor: TensorLike,
    full_matrices: bool = False,
    compute_uv: bool = True,
    name: str | None = None,
) -> Tensor | tuple[Tensor, Tensor, Tensor]: ...
def svd(
    tensor: TensorLike,
    full_matrices: bool = False,
    compute_uv: bool = True,
    name: str | None = None,
) -> Tensor | tuple[Tensor, Tensor, Tensor]:
    """Compute singular values and vectors: (s, u, v) with `tensor = u @ diag(s) @ v^H`.

    Args:
      tensor: Matrices [..., m, n].
      full_matrices: Whether `u` and `v` are square.
      compute_uv: Whether to compute vectors; otherwise only `s` is returned.
      name: Ignored.

    Example:
      >>> s, u, v = tf.linalg.svd([[0.0, 2.0], [3.0, 0.0]])
      >>> print(s.numpy().round(3), (u @ tf.linalg.diag(s) @ tf.transpose(v)).numpy().round(3).tolist())
      [3. 2.] [[0.0, 2.0], [3.0, 0.0]]
    """
    return _svd(tensor, full_matrices, compute_uv)


@op(kinds="fc", name="eigh")
def _eigh(tensor: TensorLike) -> tuple[Tensor, Tensor]:
    check_matrices("eigh", tensor)
    values, vectors = jnp.linalg.eigh(_symmetrize(tensor))
    return values.astype(tensor.dtype), vectors


def eigh(tensor: TensorLike, name: str | None = None) -> tuple[Tensor, Tensor]:
    """Compute the eigenvalues and eigenvectors of self-adjoint matrices [..., n, n].

    The eigenvalues, [..., n], are ascending and have the dtype of the matrices. The eigenvectors are the columns of a
    tensor [..., n, n].

    Example:
      >>> e, v = tf.linalg.eigh([[0.0, 1.0], [1.0, 0.0]])
      >>> print(e.numpy().round(3), tf.abs(v)[:, 0].numpy().round(3))
      [-1.  1.] [0.707 0.707]
    """
    return _eigh(tensor)


@op(kinds="fc")
def eigvalsh(tensor: TensorLike, name: str | None = None) -> Tensor:
    """Compute the eigenvalues [..., n], ascending, of self-adjoint matrices [..., n, n].

    Only the lower triangle is read. The eigenvalues have the dtype of the matrices.

    Example:
      >>> print(tf.linalg.eigvalsh([[2.0, 0.0], [0.0, 1.0]]).numpy().round(3))
      [1. 2.]
    """
    check_matrices("eigvalsh", tensor)
    return jnp.linalg.eigvalsh(_symmetrize(tensor)).astype(tensor.dtype)


@op(kinds="fc", name="eig")
def _eig(tensor: TensorLike) -> tuple[Tensor, Tensor]:
    check_matrices("eig", tensor)
    return tuple(jnp.linalg.eig(tensor))


def eig(tensor: TensorLike, name: str | None = None) -> tuple[Tensor, Tensor]:
    """Compute the complex eigenvalues and eigenvectors of matrices [..., n, n], on CPUs only.

    The eigenvalues have shape [..., n]. The eigenvectors are the columns of a tensor [..., n, n].

    Example:
      >>> e, v = tf.linalg.eig(tf.constant([[0.0, -1.0], [1.0, 0.0]]))
      >>> sorted(tf.math.imag(e).numpy().round(3).tolist()), v.shape
      ([-1.0, 1.0], TensorShape([2, 2]))
    """
    return _eig(tensor)


@op(kinds="fc")
def eigvals(tensor: TensorLike, name: str | None = None) -> Tensor:
    """Compute the complex eigenvalues [..., n] of matrices [..., n, n], on CPUs only.

    Example:
      >>> e = tf.linalg.eigvals(tf.constant([[0.0, -1.0], [1.0, 0.0]]))
      >>> sorted(tf.math.imag(e).numpy().round(3).tolist())
      [-1.0, 1.0]
    """
    check_matrices("eigvals", tensor)
    return jnp.linalg.eigvals(tensor)


@op(kinds="fc", differentiable=False, name="matrix_rank")
def _matrix_rank(a: TensorLike, tol: float | None) -> Tensor:
    return jnp.linalg.matrix_rank(a, tol).astype(jnp.int32)


def matrix_rank(a: TensorLike, tol: float | None = None, name: str | None = None) -> Tensor:
    """Count the singular values above a tolerance.

    Args:
      a: Matrices [..., m, n].
      tol: Default from the largest singular value, the dtype and the sizes.
      name: Ignored.

    Example:
      >>> tf.linalg.matrix_rank([[1.0, 2.0], [2.0, 4.0]]).numpy().item()
      1
    """
    a = convert_to_tensor(a)
    if len(a.shape) < 2:
        raise ValueError(f"matrix_rank: a must have at least 2 dimensions, got shape {a.shape}.")
    return _matrix_rank(a, tol)
