"""Factors of matrices: triangular, orthogonal, singular values, eigenvalues."""

from __future__ import annotations

from typing import Any, Literal, overload

import jax.numpy as jnp

from meshflow.core.dispatch.dispatch import op
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.ops.linalg.products import conjugate_transpose

__all__ = [
    "cholesky",
    "eig",
    "eigh",
    "eigvals",
    "eigvalsh",
    "matrix_rank",
    "qr",
    "svd",
]


def _lower(x: Any) -> Any:
    """The self-adjoint matrix with the lower triangle of `x`: the part that is read, and has a gradient."""
    return jnp.tril(x) + conjugate_transpose(jnp.tril(x, -1))


@op(kinds="fc")
def cholesky(input: TensorLike, name: str | None = None) -> Tensor:
    """Lower triangular factors of positive definite matrices [..., n, n].

    Example:
      >>> import meshflow as tf
      >>> tf.linalg.cholesky([[4.0, 2.0], [2.0, 10.0]]).numpy().round(3).tolist()
      [[2.0, 0.0], [1.0, 3.0]]
    """
    return jnp.linalg.cholesky(input)


@op(kinds="fc", name="qr")
def _qr(input: TensorLike, full_matrices: bool) -> Any:
    return tuple(jnp.linalg.qr(input, mode="complete" if full_matrices else "reduced"))


def qr(
    input: TensorLike, full_matrices: bool = False, name: str | None = None
) -> tuple[Tensor, Tensor]:
    """Orthogonal and upper triangular factors (q, r) of matrices [..., m, n]; `q` is square only when asked for.

    Example:
      >>> import meshflow as tf
      >>> q, r = tf.linalg.qr([[0.0, 1.0], [2.0, 0.0], [0.0, 0.0]])
      >>> q.shape, tf.abs(r).numpy().round(3).tolist()
      (TensorShape([3, 2]), [[2.0, 0.0], [0.0, 1.0]])
    """
    q, r = _qr(input, full_matrices)
    return q, r


@op(kinds="fc", name="svd")
def _svd(tensor: TensorLike, full_matrices: bool, compute_uv: bool) -> Any:
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
) -> Any:
    """Singular values and vectors: (s, u, v) with `tensor = u @ diag(s) @ v^H`.

    Args:
      tensor: matrices [..., m, n].
      full_matrices: whether `u` and `v` are square.
      compute_uv: whether vectors are wanted; else only `s` is returned.
      name: ignored.

    Example:
      >>> import meshflow as tf
      >>> s, u, v = tf.linalg.svd([[0.0, 2.0], [3.0, 0.0]])
      >>> print(s.numpy().round(3), (u @ tf.linalg.diag(s) @ tf.transpose(v)).numpy().round(3).tolist())
      [3. 2.] [[0.0, 2.0], [3.0, 0.0]]
    """
    return _svd(tensor, full_matrices, compute_uv)


@op(kinds="fc", name="eigh")
def _eigh(tensor: TensorLike) -> Any:
    return tuple(jnp.linalg.eigh(_lower(tensor)))


def eigh(tensor: TensorLike, name: str | None = None) -> tuple[Tensor, Tensor]:
    """Eigenvalues [..., n] (rising) and eigenvectors (columns of [..., n, n]) of self-adjoint matrices.

    Example:
      >>> import meshflow as tf
      >>> e, v = tf.linalg.eigh([[0.0, 1.0], [1.0, 0.0]])
      >>> print(e.numpy().round(3), tf.abs(v)[:, 0].numpy().round(3))
      [-1.  1.] [0.707 0.707]
    """
    return _eigh(tensor)


@op(kinds="fc")
def eigvalsh(tensor: TensorLike, name: str | None = None) -> Tensor:
    """Eigenvalues [..., n], rising, of self-adjoint matrices [..., n, n]; the lower triangle is read.

    Example:
      >>> import meshflow as tf
      >>> print(tf.linalg.eigvalsh([[2.0, 0.0], [0.0, 1.0]]).numpy().round(3))
      [1. 2.]
    """
    return jnp.linalg.eigvalsh(_lower(tensor))


@op(kinds="fc", name="eig")
def _eig(tensor: TensorLike) -> Any:
    return tuple(jnp.linalg.eig(tensor))


def eig(tensor: TensorLike, name: str | None = None) -> tuple[Tensor, Tensor]:
    """Complex eigenvalues [..., n] and eigenvectors (columns of [..., n, n]) of matrices (on CPU).

    Example:
      >>> import meshflow as tf
      >>> e, v = tf.linalg.eig(tf.constant([[0.0, -1.0], [1.0, 0.0]]))
      >>> sorted(tf.math.imag(e).numpy().round(3).tolist()), v.shape
      ([-1.0, 1.0], TensorShape([2, 2]))
    """
    return _eig(tensor)


@op(kinds="fc")
def eigvals(tensor: TensorLike, name: str | None = None) -> Tensor:
    """Complex eigenvalues [..., n] of matrices [..., n, n] (on CPU).

    Example:
      >>> import meshflow as tf
      >>> e = tf.linalg.eigvals(tf.constant([[0.0, -1.0], [1.0, 0.0]]))
      >>> sorted(tf.math.imag(e).numpy().round(3).tolist())
      [-1.0, 1.0]
    """
    return jnp.linalg.eigvals(tensor)


@op(kinds="fc", differentiable=False, name="matrix_rank")
def _matrix_rank(a: TensorLike, tol: Any) -> Tensor:
    return jnp.linalg.matrix_rank(a, tol).astype(jnp.int32)


def matrix_rank(a: TensorLike, tol: Any = None, name: str | None = None) -> Tensor:
    """Numbers of singular values above a tolerance.

    Args:
      a: matrices [..., m, n].
      tol: the tolerance; default from the largest singular value, the dtype and the sizes.
      name: ignored.

    Example:
      >>> import meshflow as tf
      >>> tf.linalg.matrix_rank([[1.0, 2.0], [2.0, 4.0]]).numpy().item()
      1
    """
    a = convert_to_tensor(a)
    if len(a.shape) < 2:
        raise ValueError(f"matrix_rank: a must have at least 2 dimensions, got shape {a.shape}.")
    return _matrix_rank(a, tol)
