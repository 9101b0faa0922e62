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
from meshflow.ops.math.elementwise import magnitude

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
    """Matrix times vector: [..., m, n] with [..., n].

    Args:
      a: matrices [..., m, n].
      b: vectors [..., n].
      transpose_a: whether `a` is transposed first.
      adjoint_a: whether `a` is conjugated and transposed first.
      **kwargs: what `tf.matmul` takes besides.

    Example:
      >>> import meshflow as tf
      >>> print(tf.linalg.matvec([[1, 2], [3, 4]], [10, 1]).numpy())
      [12 34]
    """
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

    Example:
      >>> import meshflow as tf
      >>> tf.linalg.inv([[2.0, 0.0], [0.0, 4.0]]).numpy().tolist()
      [[0.5, 0.0], [0.0, 0.25]]
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
    """Determinants [...] of matrices [..., n, n].

    Example:
      >>> import meshflow as tf
      >>> print(tf.linalg.det([[1.0, 2.0], [3.0, 4.0]]).numpy().round(3))
      -2.0
    """
    return jnp.linalg.det(input)


@op(kinds="fc", name="slogdet")
def _slogdet(input: TensorLike) -> Any:
    sign, logarithm = jnp.linalg.slogdet(input)
    return sign, logarithm.astype(input.dtype)


def slogdet(input: TensorLike, name: str | None = None) -> Any:
    """Signs and logarithms of the absolute determinants of matrices [..., n, n], both [...].

    Example:
      >>> import meshflow as tf
      >>> sign, log = tf.linalg.slogdet([[0.0, 1.0], [1.0, 0.0]])
      >>> sign.numpy().item(), log.numpy().item()
      (-1.0, 0.0)
    """
    return _slogdet(input)


@op(kinds="fc")
def logdet(matrix: TensorLike, name: str | None = None) -> Tensor:
    """Logarithms [...] of determinants of positive definite matrices [..., n, n].

    Example:
      >>> import meshflow as tf
      >>> print(tf.exp(tf.linalg.logdet([[2.0, 0.0], [0.0, 3.0]])).numpy().round(3))
      6.0
    """
    return 2 * jnp.sum(
        jnp.log(jnp.real(jnp.diagonal(jnp.linalg.cholesky(matrix), axis1=-2, axis2=-1))), axis=-1
    )


@op(kinds="fc")
def cholesky(input: TensorLike, name: str | None = None) -> Tensor:
    """Lower triangular factors of positive definite matrices [..., n, n].

    Example:
      >>> import meshflow as tf
      >>> tf.linalg.cholesky([[4.0, 2.0], [2.0, 10.0]]).numpy().round(3).tolist()
      [[2.0, 0.0], [1.0, 3.0]]
    """
    return jnp.linalg.cholesky(input)


@op(kinds="fc")
def cholesky_solve(chol: TensorLike, rhs: TensorLike, name: str | None = None) -> Tensor:
    """Solutions of `chol @ chol^H @ x = rhs` for right sides [..., n, k]; `chol` is what `cholesky` gives.

    Example:
      >>> import meshflow as tf
      >>> chol = tf.linalg.cholesky([[4.0, 0.0], [0.0, 9.0]])
      >>> tf.linalg.cholesky_solve(chol, [[8.0], [9.0]]).numpy().round(3).tolist()
      [[2.0], [1.0]]
    """
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

    Example:
      >>> import meshflow as tf
      >>> tf.linalg.solve([[2.0, 0.0], [1.0, 1.0]], [[4.0], [5.0]]).numpy().round(3).tolist()
      [[2.0], [3.0]]
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
    """Solutions with triangular matrices.

    Args:
      matrix: square matrices [..., n, n]; the other triangle is not read.
      rhs: right sides [..., n, k].
      lower: whether the lower triangle counts.
      adjoint: whether the equations are those of the adjoint matrices.
      name: ignored.

    Example:
      >>> import meshflow as tf
      >>> tf.linalg.triangular_solve([[2.0, 99.0], [1.0, 1.0]], [[4.0], [5.0]]).numpy().round(3).tolist()
      [[2.0], [3.0]]
    """
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
    """Least-squares solutions of `matrix @ x = rhs`.

    Args:
      matrix: matrices [..., m, n].
      rhs: right sides [..., m, k].
      l2_regularizer: weight of the squared norm of the solution.
      fast: whether the normal equations are solved, which is less exact.
      name: ignored.

    Example:
      >>> import meshflow as tf
      >>> ones = tf.ones([3, 1])
      >>> tf.linalg.lstsq(ones, [[1.0], [2.0], [6.0]]).numpy().round(3).item()  # the mean
      3.0
    """
    if l2_regularizer or (fast and matrix.shape[-2] >= matrix.shape[-1]):
        gram = _h(matrix) @ matrix + l2_regularizer * jnp.eye(matrix.shape[-1], dtype=matrix.dtype)
        return jnp.linalg.solve(gram, _h(matrix) @ rhs)
    return jnp.linalg.pinv(matrix) @ rhs


@op(kinds="fc", name="qr")
def _qr(input: TensorLike, full_matrices: bool) -> Any:
    return tuple(jnp.linalg.qr(input, mode="complete" if full_matrices else "reduced"))


def qr(input: TensorLike, full_matrices: bool = False, name: str | None = None) -> Any:
    """Orthogonal and upper triangular factors (q, r) of matrices [..., m, n]; `q` is square only when asked for.

    Example:
      >>> import meshflow as tf
      >>> q, r = tf.linalg.qr([[0.0, 1.0], [2.0, 0.0], [0.0, 0.0]])
      >>> q.shape, tf.abs(r).numpy().round(3).tolist()
      (TensorShape([3, 2]), [[2.0, 0.0], [0.0, 1.0]])
    """
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


def eigh(tensor: TensorLike, name: str | None = None) -> Any:
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


def eig(tensor: TensorLike, name: str | None = None) -> Any:
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

    Example:
      >>> import meshflow as tf
      >>> print(tf.norm([[3.0, 4.0], [0.0, 5.0]], axis=1).numpy(), tf.norm([3.0, -4.0], ord=1).numpy())
      [5. 5.] 7.0
    """
    if isinstance(ord, (int, float)) and ord <= 0:
        raise ValueError(f"'ord' must be a positive number or a supported name, got {ord}.")
    if ord in ("euclidean", "fro"):
        found = jnp.sqrt(jnp.sum(jnp.square(jnp.abs(tensor)), axis=axis, keepdims=keepdims))
        return found.astype(tensor.dtype)
    if isinstance(axis, tuple) and len(axis) > 1:
        return jnp.linalg.norm(tensor, ord, axis, keepdims)
    sizes = magnitude(tensor)
    if ord == float("inf"):
        return jnp.max(sizes, axis=axis, keepdims=keepdims)
    if ord == 1:
        return jnp.sum(sizes, axis=axis, keepdims=keepdims)
    return jnp.sum(sizes**ord, axis=axis, keepdims=keepdims) ** (1 / ord)


def normalize(
    tensor: TensorLike, ord: Any = "euclidean", axis: Any = None, name: str | None = None
) -> Any:
    """Tensors divided by their norms, and the norms; arguments as in `norm`.

    Example:
      >>> import meshflow as tf
      >>> unit, norm = tf.linalg.normalize([3.0, 4.0])
      >>> print(unit.numpy().round(3), norm.numpy())
      [0.6 0.8] [5.]
    """
    tensor = convert_to_tensor(tensor)
    norms = norm(tensor, ord, axis, True)
    return tensor / norms, norms


@op(kinds="ifc")
def trace(x: TensorLike, name: str | None = None) -> Tensor:
    """Sums [...] of the main diagonals of matrices [..., m, n].

    Example:
      >>> import meshflow as tf
      >>> tf.linalg.trace([[1, 2], [3, 4]]).numpy().item()
      5
    """
    return jnp.trace(x, axis1=-2, axis2=-1, dtype=x.dtype)


@op
def matrix_transpose(a: TensorLike, name: str | None = None, conjugate: bool = False) -> Tensor:
    """The last two dimensions exchanged, and complex numbers conjugated if wanted.

    Example:
      >>> import meshflow as tf
      >>> tf.linalg.matrix_transpose(tf.zeros([5, 2, 3])).shape
      TensorShape([5, 3, 2])
    """
    return _h(a) if conjugate else jnp.swapaxes(a, -1, -2)


@op
def adjoint(matrix: TensorLike, name: str | None = None) -> Tensor:
    """Conjugate transposes of matrices [..., m, n].

    Example:
      >>> import meshflow as tf
      >>> tf.linalg.adjoint([[1 + 2j, 3j]]).numpy().tolist()
      [[(1-2j)], [-3j]]
    """
    return _h(matrix)


@op(kinds="fc")
def expm(input: TensorLike, name: str | None = None) -> Tensor:
    """Matrix exponentials of square matrices [..., n, n].

    Example:
      >>> import meshflow as tf
      >>> tf.linalg.expm([[0.0, 1.0], [0.0, 0.0]]).numpy().round(3).tolist()
      [[1.0, 1.0], [0.0, 1.0]]
    """
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
    """Matrix square roots (of positive results, real input gives real output); on CPU.

    Example:
      >>> import meshflow as tf
      >>> tf.linalg.sqrtm([[4.0, 0.0], [0.0, 9.0]]).numpy().round(3).tolist()
      [[2.0, 0.0], [0.0, 3.0]]
    """
    return _sqrtm(input)


@op(kinds="fc")
def pinv(a: TensorLike, rcond: Any = None, name: str | None = None) -> Tensor:
    """Moore-Penrose inverses.

    Args:
      a: matrices [..., m, n].
      rcond: singular values below it times the largest count as 0; default from the dtype and the sizes.
      name: ignored.

    Example:
      >>> import meshflow as tf
      >>> tf.linalg.pinv([[2.0, 0.0], [0.0, 0.0]]).numpy().round(3).tolist()
      [[0.5, 0.0], [0.0, 0.0]]
    """
    return jnp.linalg.pinv(a, rtol=rcond)


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


_ = as_dtype
