"""Matrix functions: the exponential, the logarithm and the square root."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from meshflow.core.dispatch.dispatch import op
from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.ops.linalg.products import check_matrices

__all__ = ["expm", "logm", "sqrtm"]


@op(kinds="fc")
def expm(input: TensorLike, name: str | None = None) -> Tensor:
    """Compute the exponentials of square matrices [..., n, n].

    Example:
      >>> tf.linalg.expm([[0.0, 1.0], [0.0, 0.0]]).numpy().round(3).tolist()
      [[1.0, 1.0], [0.0, 1.0]]
    """
    check_matrices("expm", input)
    return jax.scipy.linalg.expm(input)


def _transpose(x: jax.Array) -> jax.Array:
    return jnp.swapaxes(x, -1, -2)


@jax.custom_vjp
def _solve_sylvester(a: jax.Array, b: jax.Array, c: jax.Array) -> jax.Array:
    """Solve `a @ x + x @ b = c`."""
    return jax.scipy.linalg.solve_sylvester(a, b, c).astype(c.dtype)


def _sylvester_forward(
    a: jax.Array, b: jax.Array, c: jax.Array
) -> tuple[jax.Array, tuple[jax.Array, ...]]:
    x = _solve_sylvester(a, b, c)
    return x, (a, b, x)


def _sylvester_backward(residuals: tuple[jax.Array, ...], g: jax.Array) -> tuple[jax.Array, ...]:
    a, b, x = residuals
    part = _solve_sylvester(_transpose(a), _transpose(b), g)
    return -part @ _transpose(x), -_transpose(x) @ part, part


_solve_sylvester.defvjp(_sylvester_forward, _sylvester_backward)


@jax.custom_vjp
def _sqrtm(matrix: jax.Array) -> jax.Array:
    root = jnp.vectorize(jax.scipy.linalg.sqrtm, signature="(n,n)->(n,n)")(matrix)
    if jnp.iscomplexobj(matrix) or not jnp.iscomplexobj(root):
        return root
    largest = jnp.max(jnp.abs(root), (-2, -1), keepdims=True, initial=0)
    tolerance = 1e3 * jnp.finfo(matrix.dtype).eps * largest
    is_real = jnp.all(jnp.abs(root.imag) <= tolerance, (-2, -1), keepdims=True)
    return jnp.where(is_real, root.real, jnp.nan).astype(matrix.dtype)


def _sqrtm_forward(matrix: jax.Array) -> tuple[jax.Array, jax.Array]:
    root = _sqrtm(matrix)
    return root, root


def _sqrtm_backward(root: jax.Array, g: jax.Array) -> tuple[jax.Array]:
    # The derivative of root @ root = matrix is root @ d(root) + d(root) @ root = d(matrix).
    return (_solve_sylvester(_transpose(root), _transpose(root), g),)


_sqrtm.defvjp(_sqrtm_forward, _sqrtm_backward)


@op(kinds="fc")
def sqrtm(input: TensorLike, name: str | None = None) -> Tensor:
    """Compute the square roots of matrices [..., n, n], on CPUs only.

    Real matrices have a real result, which is NaN if the principal square root is complex.

    Example:
      >>> tf.linalg.sqrtm([[4.0, 0.0], [0.0, 9.0]]).numpy().round(3).tolist()
      [[2.0, 0.0], [0.0, 3.0]]
    """
    check_matrices("sqrtm", input)
    return _sqrtm(input)


@op(kinds="c", differentiable=False)
def logm(input: TensorLike, name: str | None = None) -> Tensor:
    """Compute the principal logarithms of complex square matrices [..., n, n], on the host.

    Example:
      >>> tf.linalg.logm(tf.linalg.expm([[0j, 1], [0, 0]])).numpy().round(3).real.tolist()
      [[0.0, 1.0], [0.0, 0.0]]
    """
    check_matrices("logm", input)
    result = jax.ShapeDtypeStruct(input.shape, input.dtype)

    def compute(matrices: np.ndarray) -> np.ndarray:
        import scipy.linalg  # noqa: PLC0415  # The import takes 0.2 seconds.

        logarithm = np.vectorize(scipy.linalg.logm, signature="(n,n)->(n,n)")
        return np.asarray(logarithm(matrices), input.dtype)

    return jax.pure_callback(compute, result, input, vmap_method="sequential")
