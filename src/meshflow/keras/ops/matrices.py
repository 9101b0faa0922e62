"""Factorizations of matrices, and linear equations.

Example:
  >>> ops.linalg.solve([[2.0, 0.0], [0.0, 4.0]], [2.0, 4.0]).numpy().tolist()
  [1.0, 1.0]
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import jax.scipy.linalg as jsl

from meshflow.core.dispatch.dispatch import op
from meshflow.core.gradients.forward_accumulator import ForwardAccumulator
from meshflow.core.runtime.errors import InvalidValueError
from meshflow.core.values import dtypes, nest
from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.keras.ops.graph_calls import as_single_layer
from meshflow.keras.ops.promotion import Axis, as_float, as_tensor, promote
from meshflow.ops import casting
from meshflow.ops import linalg as linalg_ops

__all__ = [
    "cholesky",
    "cholesky_inverse",
    "det",
    "eig",
    "eigh",
    "inv",
    "jvp",
    "logdet",
    "lstsq",
    "lu_factor",
    "matrix_rank",
    "norm",
    "pinv",
    "qr",
    "slogdet",
    "solve",
    "solve_triangular",
    "svd",
]


def _compute_wide(
    function: Callable[..., Any], *operands: Tensor, **settings: float | str | bool | Axis
) -> Any:
    """Call a function of matrices, in float32 for 16-bit matrices, which XLA cannot factorize."""
    kind = dtypes.as_dtype(operands[0].dtype)
    if not (kind.is_floating and kind.size == 2):
        return function(*operands, **settings)
    results = function(*[casting.cast(x, dtypes.float32) for x in operands], **settings)
    cast_back = lambda y: casting.cast(y, kind) if y.dtype == dtypes.float32 else y
    return nest.map_structure(cast_back, results)


def cholesky(x: TensorLike, upper: bool = False) -> Tensor:
    """Compute the Cholesky factor of symmetric positive definite matrices.

    Args:
      x: [..., m, m].
      upper: Whether to return the upper instead of the lower triangular factor.

    Raises:
      ValueError: In eager mode, if a matrix is not positive definite; in functions the factor is
        NaN.

    Example:
      >>> ops.cholesky([[4.0]]).numpy().tolist()
      [[2.0]]
    """
    root = _compute_wide(linalg_ops.cholesky, as_float(x))
    value: Any = getattr(root, "_value", None)
    is_concrete = value is not None and not isinstance(value, jax.core.Tracer)
    if is_concrete and jnp.isnan(value).any():
        raise InvalidValueError(
            "cholesky: expected symmetric positive definite matrices, but a matrix is not, or contains NaN."
        )
    return linalg_ops.adjoint(root) if upper else root


@op(same=(), name="cholesky_inverse")
def _cholesky_inverse(x: TensorLike, upper: bool) -> Any:
    identity = jnp.broadcast_to(jnp.eye(x.shape[-1], dtype=x.dtype), x.shape)
    return jsl.cho_solve((x, not upper), identity)


@as_single_layer()
def cholesky_inverse(x: TensorLike, upper: bool = False) -> Tensor:
    """Compute the inverse of a matrix from its Cholesky factor.

    Args:
      x: Triangular factors, [..., m, m].
      upper: Whether the matrix is upper triangular.

    Example:
      >>> ops.cholesky_inverse([[2.0]]).numpy().tolist()
      [[0.25]]
    """
    return _compute_wide(_cholesky_inverse, as_float(x), upper=upper)


def det(x: TensorLike) -> Tensor:
    """Compute the determinant.

    Args:
      x: [..., m, m].

    Example:
      >>> round(float(ops.det([[1.0, 2.0], [3.0, 5.0]])), 4)
      -1.0
    """
    return _compute_wide(linalg_ops.det, as_float(x))


def slogdet(x: TensorLike) -> tuple[Tensor, Tensor]:
    """Compute the sign of the determinant and the logarithm of its absolute value.

    Args:
      x: [..., m, m].

    Example:
      >>> [float(v) for v in ops.slogdet([[1.0]])]
      [1.0, 0.0]
    """
    return _compute_wide(linalg_ops.slogdet, as_float(x))


def logdet(x: TensorLike) -> Tensor:
    """Compute the logarithm of the determinant of symmetric positive definite matrices.

    Args:
      x: [..., m, m].

    Example:
      >>> float(ops.logdet([[1.0]]))
      0.0
    """
    return _compute_wide(linalg_ops.logdet, as_float(x))


def eig(x: TensorLike) -> tuple[Tensor, Tensor]:
    """Compute complex eigenvalues and eigenvectors.

    Args:
      x: [..., m, m].

    Example:
      >>> ops.eig([[2.0]])[0].numpy().tolist()
      [(2+0j)]
    """
    return _compute_wide(linalg_ops.eig, as_float(x))


def eigh(x: TensorLike) -> tuple[Tensor, Tensor]:
    """Compute ascending eigenvalues and the eigenvectors of symmetric matrices.

    Args:
      x: [..., m, m].

    Example:
      >>> ops.eigh([[2.0]])[0].numpy().tolist()
      [2.0]
    """
    return _compute_wide(linalg_ops.eigh, as_float(x))


def inv(x: TensorLike) -> Tensor:
    """Compute the inverse.

    Args:
      x: [..., m, m].

    Example:
      >>> ops.inv([[2.0]]).numpy().tolist()
      [[0.5]]
    """
    return _compute_wide(linalg_ops.inv, as_float(x))


def pinv(x: TensorLike, rcond: float | None = None) -> Tensor:
    """Compute the Moore-Penrose pseudo-inverse.

    Args:
      x: [..., m, n].
      rcond: Singular values below this fraction of the largest one count as 0.

    Example:
      >>> ops.pinv([[2.0]]).numpy().tolist()
      [[0.5]]
    """
    return _compute_wide(linalg_ops.pinv, as_float(x), rcond=rcond)


@op(same=(), name="lu_factor")
def _lu_factor(x: TensorLike) -> Any:
    lu, pivots, _ = jax.lax.linalg.lu(x)
    return lu, pivots.astype(jnp.int32)


@as_single_layer()
def lu_factor(x: TensorLike) -> tuple[Tensor, Tensor]:
    """Compute the LU factorization: both triangles in one matrix, and the pivots.

    Args:
      x: [..., m, m].

    Example:
      >>> ops.lu_factor([[2.0]])[0].numpy().tolist()
      [[2.0]]
    """
    return tuple(_compute_wide(_lu_factor, as_float(x)))


@op(same=(), name="matrix_rank", differentiable=False)
def _matrix_rank(x: TensorLike, tol: float | None) -> Any:
    values = jnp.linalg.svd(x, compute_uv=False)
    if tol is None:
        tol = jnp.max(values, -1, keepdims=True) * (max(x.shape[-2:]) * jnp.finfo(x.dtype).eps)
    return jnp.sum(values > tol, -1).astype(jnp.int32)


@as_single_layer()
def matrix_rank(x: TensorLike, tol: float | None = None) -> Tensor:
    """Count the singular values that are not 0.

    Args:
      x: [..., m, n].
      tol: Singular values up to this value count as 0; default relative to the largest one.

    Example:
      >>> int(ops.matrix_rank([[1.0, 1.0], [1.0, 1.0]]))
      1
    """
    return _compute_wide(_matrix_rank, as_float(x), tol=tol)


@op(same=(), name="norm")
def _norm(x: TensorLike, ord: float | str | None, axis: Axis, keepdims: bool) -> Any:
    return jnp.linalg.norm(x, ord, axis, keepdims)


@as_single_layer()
def norm(
    x: TensorLike, ord: float | str | None = None, axis: Axis = None, keepdims: bool = False
) -> Tensor:
    """Compute the norm of vectors or matrices.

    Args:
      x: A tensor.
      ord: Order of the norm: a number, 'fro', 'nuc' or infinity; default the Euclidean norm.
      axis: Axis of the vectors, or two axes of the matrices; default all.
      keepdims: Whether to keep reduced axes with size 1.

    Example:
      >>> float(ops.norm([3, 4]))
      5.0
    """
    axis = tuple(axis) if isinstance(axis, list) else axis
    return _compute_wide(_norm, as_float(x), ord=ord, axis=axis, keepdims=keepdims)


def qr(x: TensorLike, mode: str = "reduced") -> tuple[Tensor, Tensor]:
    """Factorize matrices into orthogonal columns and an upper triangular matrix.

    Args:
      x: [..., m, n].
      mode: 'reduced' or 'complete'.

    Example:
      >>> ops.qr([[2.0]])[0].shape
      TensorShape([1, 1])
    """
    if mode not in ("reduced", "complete"):
        raise ValueError(
            f"`mode` argument value not supported. Expected one of {{'reduced', 'complete'}}. Received: mode={mode}"
        )
    return _compute_wide(linalg_ops.qr, as_float(x), full_matrices=mode == "complete")


def solve(a: TensorLike, b: TensorLike) -> Tensor:
    """Solve `a x = b`.

    Args:
      a: [..., m, m].
      b: [..., m] or [..., m, n].

    Example:
      >>> ops.solve([[2.0]], [[4.0]]).numpy().tolist()
      [[2.0]]
    """
    a, b = promote(a, b, also=float)
    if len(b.shape) == len(a.shape) - 1:
        return _compute_wide(linalg_ops.solve, a, b[..., None])[..., 0]
    return _compute_wide(linalg_ops.solve, a, b)


def solve_triangular(a: TensorLike, b: TensorLike, lower: bool = False) -> Tensor:
    """Solve `a x = b` for a triangular `a`.

    Args:
      a: [..., m, m]; one triangle is read.
      b: [..., m] or [..., m, n].
      lower: Whether to read the lower triangle.

    Example:
      >>> ops.solve_triangular([[2.0]], [[4.0]]).numpy().tolist()
      [[2.0]]
    """
    a, b = promote(a, b, also=float)
    if len(b.shape) == len(a.shape) - 1:
        return _compute_wide(linalg_ops.triangular_solve, a, b[..., None], lower=lower)[..., 0]
    return _compute_wide(linalg_ops.triangular_solve, a, b, lower=lower)


@op(same=("a", "b"), name="lstsq")
def _lstsq(a: TensorLike, b: TensorLike, rcond: float | None) -> Any:
    return jnp.linalg.lstsq(a, b, rcond)[0]


@as_single_layer()
def lstsq(a: TensorLike, b: TensorLike, rcond: float | None = None) -> Tensor:
    """Find the x that minimizes `|a x - b|`.

    Args:
      a: [m, n].
      b: [m] or [m, k].
      rcond: Singular values below this fraction of the largest one count as 0.

    Example:
      >>> ops.lstsq([[1.0], [1.0]], [1.0, 3.0]).numpy().round(4).tolist()
      [2.0]
    """
    a, b = promote(a, b, also=float)
    return _compute_wide(_lstsq, a, b, rcond=rcond)


@op(same=(), name="svd")
def _svd(x: TensorLike, full_matrices: bool, compute_uv: bool) -> Any:
    factors = jnp.linalg.svd(x, full_matrices, compute_uv)
    return tuple(factors) if compute_uv else factors


@as_single_layer()
def svd(
    x: TensorLike, full_matrices: bool = True, compute_uv: bool = True
) -> Tensor | tuple[Tensor, Tensor, Tensor]:
    """Compute singular values, and the singular vectors.

    Args:
      x: [..., m, n].
      full_matrices: Whether the vectors form square matrices.
      compute_uv: Whether to return the vectors.

    Returns:
      (u, s, v) with `x = u diag(s) v`, or only s.

    Example:
      >>> ops.svd([[2.0]], compute_uv=False).numpy().tolist()
      [2.0]
    """
    factors = _compute_wide(_svd, as_float(x), full_matrices=full_matrices, compute_uv=compute_uv)
    return tuple(factors) if compute_uv else factors


def jvp(
    fun: Callable[..., Any], primals: Sequence[Any], tangents: Sequence[Any], has_aux: bool = False
) -> tuple[Any, ...]:
    """Compute a function's value and its derivative along a direction (forward differentiation).

    Args:
      fun: A function of tensors.
      primals: A list or tuple of its arguments.
      tangents: A direction for each argument.
      has_aux: Whether `fun` returns (value, auxiliary output).

    Returns:
      (value, derivative), and the auxiliary output if there is one.

    Example:
      >>> [float(v) for v in ops.jvp(lambda x: x * x, [ops.array(3.0)], [ops.array(1.0)])]
      [9.0, 6.0]
    """
    primals = nest.map_structure(as_tensor, tuple(primals))
    with ForwardAccumulator(primals, nest.map_structure(as_tensor, tuple(tangents))) as accumulator:
        result = fun(*primals)
        value, *aux = result if has_aux else (result,)
        change = accumulator.jvp(value)
    return (value, change, *aux)
