"""`tf.linalg`: factorizations, solves, norms, diagonals."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from meshflow.core.convert import convert_to_tensor
from meshflow.core.dispatch import op
from meshflow.core.dtypes import as_dtype
from meshflow.core.errors import InvalidArgumentError, InvalidValueError
from meshflow.core.tensor import Tensor, TensorLike
from meshflow.ops.array import eye
from meshflow.ops.diagonal import (
    band_part,
    diag,
    diag_part,
    set_diag,
    tensor_diag,
    tensor_diag_part,
)
from meshflow.ops.math import cross, global_norm, l2_normalize, matmul, tensordot

__all__ = [
    "adjoint",
    "band_part",
    "cholesky",
    "cholesky_solve",
    "cross",
    "det",
    "diag",
    "diag_part",
    "eig",
    "eigh",
    "eigvals",
    "eigvalsh",
    "einsum",
    "expm",
    "eye",
    "global_norm",
    "inv",
    "l2_normalize",
    "logdet",
    "lstsq",
    "matmul",
    "matrix_rank",
    "matrix_transpose",
    "matvec",
    "norm",
    "normalize",
    "pinv",
    "qr",
    "set_diag",
    "slogdet",
    "solve",
    "sqrtm",
    "svd",
    "tensor_diag",
    "tensor_diag_part",
    "tensordot",
    "trace",
    "triangular_solve",
]


@op(name="einsum")
def _einsum(inputs: Sequence[TensorLike], equation: str) -> Tensor:
    return jnp.einsum(equation, *inputs)


def einsum(equation: str, *inputs: Any, **kwargs: Any) -> Tensor:
    """Products of tensors summed by Einstein's convention.

    Args:
      equation: such as 'ij,jk->ik'.
      *inputs: tensors of one dtype.
      **kwargs: `optimize` and `name` are accepted and ignored.

    Returns:
      A tensor.

    Example:
      >>> import meshflow as tf
      >>> tf.einsum("i,i->", [1.0, 2.0], [3.0, 4.0]).numpy()
      np.float32(11.0)
    """
    return _einsum(list(inputs), equation.replace(" ", ""))


def matvec(
    a: TensorLike, b: TensorLike, transpose_a: bool = False, adjoint_a: bool = False, **kwargs: Any
) -> Tensor:
    """Matrix times vector: [..., m, n] with [..., n]."""
    from meshflow.ops.array import expand_dims, squeeze

    return squeeze(
        matmul(
            a, expand_dims(convert_to_tensor(b), -1), transpose_a=transpose_a, adjoint_a=adjoint_a
        ),
        -1,
    )


def _h(x: Any) -> Any:
    return jnp.conj(jnp.swapaxes(x, -1, -2))


def _lower(x: Any) -> Any:
    """The self-adjoint matrix with the lower triangle of `x`: the part that is read, and has a gradient."""
    return jnp.tril(x) + _h(jnp.tril(x, -1))


@op(kinds="fc", name="inv")
def _inv(input: TensorLike, adjoint: bool) -> Tensor:
    return jnp.linalg.inv(_h(input) if adjoint else input)


def inv(input: TensorLike, adjoint: bool = False, name: str | None = None) -> Tensor:
    """Inverses of matrices.

    Args:
      input: square matrices [..., n, n].
      adjoint: whether those of the adjoint matrices are wanted.
      name: ignored.

    Raises:
      InvalidArgumentError: eagerly, for a singular matrix.
    """
    return _regular(_inv(input, adjoint), "Input is not invertible. [Op:MatrixInverse]", input)


def _regular(result: Any, message: str, *operands: Any) -> Any:
    """The result, unless finite operands gave numbers that are not: then a matrix was singular."""
    if isinstance(result, Tensor) and not isinstance(result._value, jax.core.Tracer):
        arrays = [convert_to_tensor(o)._value for o in operands]
        finite = [bool(jnp.all(jnp.isfinite(a))) for a in (result._value, *arrays)]
        if not finite[0] and all(finite[1:]):
            raise InvalidArgumentError(message)
    return result


@op(kinds="fc")
def det(input: TensorLike, name: str | None = None) -> Tensor:
    """Determinants of matrices."""
    return jnp.linalg.det(input)


@op(kinds="fc", name="slogdet")
def _slogdet(input: TensorLike) -> Any:
    sign, logarithm = jnp.linalg.slogdet(input)
    return sign, logarithm.astype(input.dtype)


def slogdet(input: TensorLike, name: str | None = None) -> Any:
    """Signs and logarithms of the absolute determinants."""
    return _slogdet(input)


@op(kinds="fc")
def logdet(matrix: TensorLike, name: str | None = None) -> Tensor:
    """Logarithms of determinants of positive definite matrices."""
    return 2 * jnp.sum(
        jnp.log(jnp.real(jnp.diagonal(jnp.linalg.cholesky(matrix), axis1=-2, axis2=-1))), axis=-1
    )


@op(kinds="fc")
def cholesky(input: TensorLike, name: str | None = None) -> Tensor:
    """Lower triangular factors of positive definite matrices."""
    return jnp.linalg.cholesky(input)


@op(kinds="fc")
def cholesky_solve(chol: TensorLike, rhs: TensorLike, name: str | None = None) -> Tensor:
    """Solutions of `chol @ chol^H @ x = rhs`."""
    first = jax.lax.linalg.triangular_solve(chol, rhs, left_side=True, lower=True)
    return jax.lax.linalg.triangular_solve(
        chol, first, left_side=True, lower=True, transpose_a=True, conjugate_a=True
    )


@op(kinds="fc", name="solve")
def _solve(matrix: TensorLike, rhs: TensorLike, adjoint: bool) -> Tensor:
    if matrix.ndim != rhs.ndim:
        raise InvalidValueError("All input tensors must have the same rank. [Op:MatrixSolve]")
    return jnp.linalg.solve(_h(matrix) if adjoint else matrix, rhs)


def solve(
    matrix: TensorLike, rhs: TensorLike, adjoint: bool = False, name: str | None = None
) -> Tensor:
    """Solutions of `matrix @ x = rhs`.

    Args:
      matrix: square matrices [..., n, n].
      rhs: right sides [..., n, k].
      adjoint: whether the equations are those of the adjoint matrices.
      name: ignored.

    Raises:
      InvalidArgumentError: for different ranks; eagerly, for a singular matrix.
    """
    found = _solve(matrix, rhs, adjoint)
    return _regular(found, "Input matrix is not invertible. [Op:MatrixSolve]", matrix, rhs)


@op(kinds="fc")
def triangular_solve(
    matrix: TensorLike,
    rhs: TensorLike,
    lower: bool = True,
    adjoint: bool = False,
    name: str | None = None,
) -> Tensor:
    """Solutions with triangular matrices."""
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
    """Least-squares solutions of `matrix @ x = rhs`."""
    if l2_regularizer or (fast and matrix.shape[-2] >= matrix.shape[-1]):
        gram = _h(matrix) @ matrix + l2_regularizer * jnp.eye(matrix.shape[-1], dtype=matrix.dtype)
        return jnp.linalg.solve(gram, _h(matrix) @ rhs)
    return jnp.linalg.pinv(matrix) @ rhs


@op(kinds="fc", name="qr")
def _qr(input: TensorLike, full_matrices: bool) -> Any:
    return tuple(jnp.linalg.qr(input, mode="complete" if full_matrices else "reduced"))


def qr(input: TensorLike, full_matrices: bool = False, name: str | None = None) -> Any:
    """Orthogonal and upper triangular factors (q, r)."""
    return _qr(input, full_matrices)


@op(kinds="fc", name="svd")
def _svd(tensor: TensorLike, full_matrices: bool, compute_uv: bool) -> Any:
    if not compute_uv:
        return jnp.linalg.svd(tensor, compute_uv=False)
    u, s, vh = jnp.linalg.svd(tensor, full_matrices=full_matrices)
    return s, u, _h(vh)


def svd(
    tensor: TensorLike,
    full_matrices: bool = False,
    compute_uv: bool = True,
    name: str | None = None,
) -> Any:
    """Singular values and vectors: (s, u, v) with `tensor = u @ diag(s) @ v^H`."""
    return _svd(tensor, full_matrices, compute_uv)


@op(kinds="fc", name="eigh")
def _eigh(tensor: TensorLike) -> Any:
    return tuple(jnp.linalg.eigh(_lower(tensor)))


def eigh(tensor: TensorLike, name: str | None = None) -> Any:
    """Eigenvalues (rising) and eigenvectors of self-adjoint matrices."""
    return _eigh(tensor)


@op(kinds="fc")
def eigvalsh(tensor: TensorLike, name: str | None = None) -> Tensor:
    """Eigenvalues of self-adjoint matrices."""
    return jnp.linalg.eigvalsh(_lower(tensor))


@op(kinds="fc", name="eig")
def _eig(tensor: TensorLike) -> Any:
    return tuple(jnp.linalg.eig(tensor))


def eig(tensor: TensorLike, name: str | None = None) -> Any:
    """Complex eigenvalues and eigenvectors (on CPU)."""
    return _eig(tensor)


@op(kinds="fc")
def eigvals(tensor: TensorLike, name: str | None = None) -> Tensor:
    """Complex eigenvalues (on CPU)."""
    return jnp.linalg.eigvals(tensor)


@op(kinds="fc")
def norm(
    tensor: TensorLike,
    ord: Any = "euclidean",
    axis: Any = None,
    keepdims: bool = False,
    name: str | None = None,
) -> Tensor:
    """Norms of vectors or matrices.

    Args:
      tensor: a tensor.
      ord: 'euclidean', 'fro', 1, 2, inf, or another positive number.
      axis: a dimension (vectors), a pair (matrices), or None for the whole tensor as one vector.
      keepdims: whether dimensions stay, with size 1.
      name: ignored.

    Returns:
      Tensor of the same dtype; complex too, with ord 'euclidean', as TensorFlow has it.
    """
    if isinstance(ord, (int, float)) and ord <= 0:
        raise ValueError(f"'ord' must be a positive number or a supported name, got {ord}.")
    if ord in ("euclidean", "fro"):
        found = jnp.sqrt(jnp.sum(jnp.square(jnp.abs(tensor)), axis=axis, keepdims=keepdims))
        return found.astype(tensor.dtype)
    if axis is None:
        result = jnp.linalg.norm(tensor.reshape(-1), ord)
        return result.reshape((1,) * tensor.ndim) if keepdims else result
    return jnp.linalg.norm(tensor, ord, axis, keepdims)


def normalize(
    tensor: TensorLike, ord: Any = "euclidean", axis: Any = None, name: str | None = None
) -> Any:
    """Tensors divided by their norms, and the norms."""
    tensor = convert_to_tensor(tensor)
    norms = norm(tensor, ord, axis, True)
    return tensor / norms, norms


@op(kinds="ifc")
def trace(x: TensorLike, name: str | None = None) -> Tensor:
    """Sums of the main diagonals."""
    return jnp.trace(x, axis1=-2, axis2=-1, dtype=x.dtype)


@op
def matrix_transpose(a: TensorLike, name: str | None = None, conjugate: bool = False) -> Tensor:
    """The last two dimensions exchanged."""
    return _h(a) if conjugate else jnp.swapaxes(a, -1, -2)


@op
def adjoint(matrix: TensorLike, name: str | None = None) -> Tensor:
    """Conjugate transposes."""
    return _h(matrix)


@op(kinds="fc")
def expm(input: TensorLike, name: str | None = None) -> Tensor:
    """Matrix exponentials."""
    return jax.scipy.linalg.expm(input)


def _t(x: Any) -> Any:
    return jnp.swapaxes(x, -1, -2)


@jax.custom_vjp
def _sylvester(a: Any, b: Any, c: Any) -> Any:
    """The solution x of `a @ x + x @ b = c`."""
    return jax.scipy.linalg.solve_sylvester(a, b, c).astype(c.dtype)


def _sylvester_forward(a: Any, b: Any, c: Any) -> Any:
    x = _sylvester(a, b, c)
    return x, (a, b, x)


def _sylvester_backward(residuals: Any, g: Any) -> Any:
    a, b, x = residuals
    part = _sylvester(_t(a), _t(b), g)
    return -part @ _t(x), -_t(x) @ part, part


_sylvester.defvjp(_sylvester_forward, _sylvester_backward)


@jax.custom_vjp
def _sqrtm(matrix: Any) -> Any:
    root = jnp.vectorize(jax.scipy.linalg.sqrtm, signature="(n,n)->(n,n)")(matrix)
    return root if jnp.iscomplexobj(matrix) else jnp.real(root).astype(matrix.dtype)


def _sqrtm_forward(matrix: Any) -> Any:
    root = _sqrtm(matrix)
    return root, root


def _sqrtm_backward(root: Any, g: Any) -> Any:
    # From root @ root = matrix: root @ d(root) + d(root) @ root = d(matrix).
    return (_sylvester(_t(root), _t(root), g),)


_sqrtm.defvjp(_sqrtm_forward, _sqrtm_backward)


@op(kinds="fc")
def sqrtm(input: TensorLike, name: str | None = None) -> Tensor:
    """Matrix square roots (of positive results, real input gives real output); on CPU."""
    return _sqrtm(input)


@op(kinds="fc")
def pinv(a: TensorLike, rcond: Any = None, name: str | None = None) -> Tensor:
    """Moore-Penrose inverses."""
    return jnp.linalg.pinv(a, rtol=rcond)


@op(kinds="fc", differentiable=False, name="matrix_rank")
def _matrix_rank(a: TensorLike, tol: Any) -> Tensor:
    return jnp.linalg.matrix_rank(a, tol).astype(jnp.int32)


def matrix_rank(a: TensorLike, tol: Any = None, name: str | None = None) -> Tensor:
    """Numbers of singular values above a tolerance."""
    a = convert_to_tensor(a)
    if len(a.shape) < 2:
        raise ValueError(f"matrix_rank: a must have at least 2 dimensions, got shape {a.shape}.")
    return _matrix_rank(a, tol)


_ = as_dtype
