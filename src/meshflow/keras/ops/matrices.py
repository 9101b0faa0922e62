"""Factorizations of matrices, and linear equations.

Example:
  >>> from meshflow.keras import ops
  >>> ops.linalg.solve([[2.0, 0.0], [0.0, 4.0]], [2.0, 4.0]).numpy().tolist()
  [1.0, 1.0]
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import jax.scipy.linalg as jsl

from meshflow.core.dispatch.dispatch import op
from meshflow.core.gradients.forward import ForwardAccumulator
from meshflow.core.runtime.errors import InvalidValueError
from meshflow.core.values import dtypes, nest
from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.keras.ops.graph_calls import one_layer
from meshflow.keras.ops.promotion import as_float, common, tensor
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


def _computed(function: Callable[..., Any], *operands: Any, **settings: Any) -> Any:
    """`function` of matrices; those of 16 bits in 32, as no factorization is there for them."""
    kind = dtypes.as_dtype(operands[0].dtype)
    if not (kind.is_floating and kind.size == 2):
        return function(*operands, **settings)
    found = function(*[casting.cast(x, dtypes.float32) for x in operands], **settings)
    narrow = lambda y: casting.cast(y, kind) if y.dtype == dtypes.float32 else y
    return nest.map_structure(narrow, found)


def cholesky(x: TensorLike, upper: bool = False) -> Tensor:
    """The triangular root of a symmetric positive definite matrix.

    Args:
      x: [..., m, m].
      upper: whether it is an upper triangle; else a lower one.

    Raises:
      ValueError: eagerly, for a matrix that is not positive definite; inside functions the root is NaN.

    Example:
      >>> from meshflow.keras import ops
      >>> ops.cholesky([[4.0]]).numpy().tolist()
      [[2.0]]
    """
    root = _computed(linalg_ops.cholesky, as_float(x))
    value: Any = getattr(root, "_value", None)
    known = isinstance(value, jax.Array) and not isinstance(value, jax.core.Tracer)
    if known and jnp.isnan(value).any():
        raise InvalidValueError(
            "cholesky: expected symmetric positive definite matrices, got one that is not (or has NaN)."
        )
    return linalg_ops.adjoint(root) if upper else root


@op(same=(), name="cholesky_inverse")
def _cholesky_inverse(x: TensorLike, upper: bool) -> Any:
    identity = jnp.broadcast_to(jnp.eye(x.shape[-1], dtype=x.dtype), x.shape)
    return jsl.cho_solve((x, not upper), identity)


@one_layer()
def cholesky_inverse(x: TensorLike, upper: bool = False) -> Tensor:
    """The inverse of the matrix of which `x` is the Cholesky root.

    Args:
      x: [..., m, m], triangular.
      upper: whether it is an upper triangle.

    Example:
      >>> from meshflow.keras import ops
      >>> ops.cholesky_inverse([[2.0]]).numpy().tolist()
      [[0.25]]
    """
    return _computed(_cholesky_inverse, as_float(x), upper=upper)


def det(x: TensorLike) -> Tensor:
    """The determinant.

    Args:
      x: [..., m, m].

    Example:
      >>> from meshflow.keras import ops
      >>> float(ops.det([[1.0, 2.0], [3.0, 5.0]]))
      -1.0
    """
    return _computed(linalg_ops.det, as_float(x))


def slogdet(x: TensorLike) -> tuple[Tensor, Tensor]:
    """The sign of the determinant and the logarithm of its absolute value.

    Args:
      x: [..., m, m].

    Example:
      >>> from meshflow.keras import ops
      >>> [float(v) for v in ops.slogdet([[1.0]])]
      [1.0, 0.0]
    """
    return _computed(linalg_ops.slogdet, as_float(x))


def logdet(x: TensorLike) -> Tensor:
    """The logarithm of the determinant of a symmetric positive definite matrix.

    Args:
      x: [..., m, m].

    Example:
      >>> from meshflow.keras import ops
      >>> float(ops.logdet([[1.0]]))
      0.0
    """
    return _computed(linalg_ops.logdet, as_float(x))


def eig(x: TensorLike) -> tuple[Tensor, Tensor]:
    """Eigenvalues and eigenvectors, which are complex.

    Args:
      x: [..., m, m].

    Example:
      >>> from meshflow.keras import ops
      >>> ops.eig([[2.0]])[0].numpy().tolist()
      [(2+0j)]
    """
    return _computed(linalg_ops.eig, as_float(x))


def eigh(x: TensorLike) -> tuple[Tensor, Tensor]:
    """Eigenvalues, rising, and eigenvectors of a symmetric matrix.

    Args:
      x: [..., m, m].

    Example:
      >>> from meshflow.keras import ops
      >>> ops.eigh([[2.0]])[0].numpy().tolist()
      [2.0]
    """
    return _computed(linalg_ops.eigh, as_float(x))


def inv(x: TensorLike) -> Tensor:
    """The inverse.

    Args:
      x: [..., m, m].

    Example:
      >>> from meshflow.keras import ops
      >>> ops.inv([[2.0]]).numpy().tolist()
      [[0.5]]
    """
    return _computed(linalg_ops.inv, as_float(x))


def pinv(x: TensorLike, rcond: Any = None) -> Tensor:
    """The pseudo-inverse (Moore and Penrose).

    Args:
      x: [..., m, n].
      rcond: singular values below this share of the largest one count as 0.

    Example:
      >>> from meshflow.keras import ops
      >>> ops.pinv([[2.0]]).numpy().tolist()
      [[0.5]]
    """
    return _computed(linalg_ops.pinv, as_float(x), rcond=rcond)


@op(same=(), name="lu_factor")
def _lu_factor(x: TensorLike) -> Any:
    lu, pivots, _ = jax.lax.linalg.lu(x)
    return lu, pivots.astype(jnp.int32)


@one_layer()
def lu_factor(x: TensorLike) -> tuple[Tensor, Tensor]:
    """Lower and upper triangles in one matrix, and the pivots.

    Args:
      x: [..., m, m].

    Example:
      >>> from meshflow.keras import ops
      >>> ops.lu_factor([[2.0]])[0].numpy().tolist()
      [[2.0]]
    """
    return tuple(_computed(_lu_factor, as_float(x)))


@op(same=(), name="matrix_rank", differentiable=False)
def _matrix_rank(x: TensorLike, tol: Any) -> Any:
    values = jnp.linalg.svd(x, compute_uv=False)
    if tol is None:
        tol = jnp.max(values, -1, keepdims=True) * (max(x.shape[-2:]) * jnp.finfo(x.dtype).eps)
    return jnp.sum(values > tol, -1).astype(jnp.int32)


@one_layer()
def matrix_rank(x: TensorLike, tol: Any = None) -> Tensor:
    """How many singular values are not 0.

    Args:
      x: [..., m, n].
      tol: what counts as 0.

    Example:
      >>> from meshflow.keras import ops
      >>> int(ops.matrix_rank([[1.0, 1.0], [1.0, 1.0]]))
      1
    """
    return _computed(_matrix_rank, as_float(x), tol=tol)


@op(same=(), name="norm")
def _norm(x: TensorLike, ord: Any, axis: Any, keepdims: bool) -> Any:
    return jnp.linalg.norm(x, ord, axis, keepdims)


@one_layer()
def norm(x: TensorLike, ord: Any = None, axis: Any = None, keepdims: bool = False) -> Tensor:
    """The length of vectors, or a norm of matrices.

    Args:
      x: a tensor.
      ord: which norm: a number, 'fro', 'nuc' or infinity; default the Euclidean one.
      axis: the dimension of vectors, or the two of matrices; default all.
      keepdims: whether reduced dimensions stay, of size 1.

    Example:
      >>> from meshflow.keras import ops
      >>> float(ops.norm([3, 4]))
      5.0
    """
    axis = tuple(axis) if isinstance(axis, list) else axis
    return _computed(_norm, as_float(x), ord=ord, axis=axis, keepdims=keepdims)


def qr(x: TensorLike, mode: str = "reduced") -> tuple[Tensor, Tensor]:
    """Orthogonal columns times an upper triangle.

    Args:
      x: [..., m, n].
      mode: 'reduced' or 'complete'.

    Example:
      >>> from meshflow.keras import ops
      >>> ops.qr([[2.0]])[0].shape
      TensorShape([1, 1])
    """
    if mode not in ("reduced", "complete"):
        raise ValueError(
            f"`mode` argument value not supported. Expected one of {{'reduced', 'complete'}}. Received: mode={mode}"
        )
    return _computed(linalg_ops.qr, as_float(x), full_matrices=mode == "complete")


def solve(a: TensorLike, b: TensorLike) -> Tensor:
    """x with `a x = b`.

    Args:
      a: [..., m, m].
      b: [..., m] or [..., m, n].

    Example:
      >>> from meshflow.keras import ops
      >>> ops.solve([[2.0]], [[4.0]]).numpy().tolist()
      [[2.0]]
    """
    a, b = common(a, b, also=float)
    if len(b.shape) == len(a.shape) - 1:
        return _computed(linalg_ops.solve, a, b[..., None])[..., 0]
    return _computed(linalg_ops.solve, a, b)


def solve_triangular(a: TensorLike, b: TensorLike, lower: bool = False) -> Tensor:
    """x with `a x = b` for a triangle.

    Args:
      a: [..., m, m], of which one triangle is read.
      b: [..., m] or [..., m, n].
      lower: whether it is the lower triangle.

    Example:
      >>> from meshflow.keras import ops
      >>> ops.solve_triangular([[2.0]], [[4.0]]).numpy().tolist()
      [[2.0]]
    """
    a, b = common(a, b, also=float)
    if len(b.shape) == len(a.shape) - 1:
        return _computed(linalg_ops.triangular_solve, a, b[..., None], lower=lower)[..., 0]
    return _computed(linalg_ops.triangular_solve, a, b, lower=lower)


@op(same=("a", "b"), name="lstsq")
def _lstsq(a: TensorLike, b: TensorLike, rcond: Any) -> Any:
    return jnp.linalg.lstsq(a, b, rcond)[0]


@one_layer()
def lstsq(a: TensorLike, b: TensorLike, rcond: Any = None) -> Tensor:
    """x for which `|a x - b|` is least.

    Args:
      a: [m, n].
      b: [m] or [m, k].
      rcond: singular values below this share of the largest one count as 0.

    Example:
      >>> from meshflow.keras import ops
      >>> ops.lstsq([[1.0], [1.0]], [1.0, 3.0]).numpy().round(4).tolist()
      [2.0]
    """
    a, b = common(a, b, also=float)
    return _computed(_lstsq, a, b, rcond=rcond)


@op(same=(), name="svd")
def _svd(x: TensorLike, full_matrices: bool, compute_uv: bool) -> Any:
    found = jnp.linalg.svd(x, full_matrices, compute_uv)
    return tuple(found) if compute_uv else found


@one_layer()
def svd(
    x: TensorLike, full_matrices: bool = True, compute_uv: bool = True
) -> Tensor | tuple[Tensor, Tensor, Tensor]:
    """Singular values, and the vectors with them.

    Args:
      x: [..., m, n].
      full_matrices: whether the vectors make square matrices.
      compute_uv: whether vectors are returned.

    Returns:
      (u, s, v) with `x = u diag(s) v`, or the values alone.

    Example:
      >>> from meshflow.keras import ops
      >>> ops.svd([[2.0]], compute_uv=False).numpy().tolist()
      [2.0]
    """
    found = _computed(_svd, as_float(x), full_matrices=full_matrices, compute_uv=compute_uv)
    return tuple(found) if compute_uv else found


def jvp(
    fun: Callable[..., Any], primals: Any, tangents: Any, has_aux: bool = False
) -> tuple[Any, ...]:
    """A function's value and its change along a direction (forward differentiation).

    Args:
      fun: a function of tensors.
      primals: a list or tuple of its arguments.
      tangents: a direction for each of them.
      has_aux: whether `fun` returns (value, something else).

    Returns:
      (value, change), with what else it returned last.

    Example:
      >>> from meshflow.keras import ops
      >>> [float(v) for v in ops.jvp(lambda x: x * x, [ops.array(3.0)], [ops.array(1.0)])]
      [9.0, 6.0]
    """
    primals = nest.map_structure(tensor, tuple(primals))
    with ForwardAccumulator(primals, nest.map_structure(tensor, tuple(tangents))) as accumulator:
        found = fun(*primals)
        value, *aux = found if has_aux else (found,)
        change = accumulator.jvp(value)
    return (value, change, *aux)
