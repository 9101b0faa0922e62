"""Products of matrices, their norms and transposes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp

from meshflow.core.dispatch.dispatch import op
from meshflow.core.runtime.errors import InvalidValueError
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.ops.array import expand_dims, squeeze
from meshflow.ops.math import matmul
from meshflow.ops.math.elementwise import magnitude

__all__ = [
    "adjoint",
    "einsum",
    "matrix_transpose",
    "matvec",
    "norm",
    "normalize",
    "trace",
]


def conjugate_transpose(x: Any) -> Any:
    """The last two dimensions of an array swapped, and its numbers conjugated."""
    return jnp.conj(jnp.swapaxes(x, -1, -2))


@op(name="einsum")
def _einsum(inputs: Sequence[TensorLike], equation: str) -> Tensor:
    return jnp.einsum(equation, *inputs)


def einsum(equation: str, *inputs: Any, **kwargs: Any) -> Tensor:
    """Products of tensors summed by Einstein's convention.

    The shapes are those that the equation says.

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
    return squeeze(
        matmul(
            a, expand_dims(convert_to_tensor(b), -1), transpose_a=transpose_a, adjoint_a=adjoint_a
        ),
        -1,
    )


_MATRIX_NORMS = ("euclidean", "fro", 1, 2, float("inf"))


def _check_norm(order: Any, axis: Any) -> None:
    """Raises TensorFlow's ValueErrors for what is no norm."""
    if isinstance(axis, (list, tuple)):
        if len(axis) != 2 or axis[0] == axis[1]:
            raise InvalidValueError(
                f"'axis' must be None, an integer, or a tuple of 2 unique integers, got {axis!r}"
            )
        if order not in _MATRIX_NORMS:
            raise InvalidValueError(
                f"'ord' must be a supported matrix norm in {list(_MATRIX_NORMS)}, got {order}"
            )
    elif order != "euclidean" and not (isinstance(order, (int, float)) and order > 0):
        raise InvalidValueError(f"'ord' must be a supported vector norm, got {order}")


@op(kinds="fc")
def norm(
    tensor: TensorLike,
    ord: Any = "euclidean",
    axis: Any = None,
    keepdims: bool = False,
    name: str | None = None,
) -> Tensor:
    """Norms of vectors or matrices.

    The result has the shape of the argument without the dimensions of `axis`; with `keepdims` these stay with size
    1.

    Args:
      tensor: a tensor.
      ord: 'euclidean', 1, 2, inf, for vectors another positive number, for matrices 'fro'.
      axis: a dimension (vectors), a pair (matrices), or None for the whole tensor as one vector.
      keepdims: whether dimensions stay, with size 1.
      name: ignored.

    Returns:
      Tensor of the same dtype; complex too, with ord 'euclidean', as TensorFlow has it.

    Raises:
      InvalidArgumentError: for another `ord`, such as 0 or -inf, which are no norms, and for other axes.
        It is a ValueError, too.

    Example:
      >>> import meshflow as tf
      >>> print(tf.norm([[3.0, 4.0], [0.0, 5.0]], axis=1).numpy(), tf.norm([3.0, -4.0], ord=1).numpy())
      [5. 5.] 7.0
    """
    _check_norm(ord, axis)
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
) -> tuple[Tensor, Tensor]:
    """Tensors divided by their norms, and the norms; arguments as in `norm`.

    The first result has the shape of the argument; the norms have size 1 along `axis`.

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

    From (..., m, n) to (..., n, m).

    Example:
      >>> import meshflow as tf
      >>> tf.linalg.matrix_transpose(tf.zeros([5, 2, 3])).shape
      TensorShape([5, 3, 2])
    """
    return conjugate_transpose(a) if conjugate else jnp.swapaxes(a, -1, -2)


@op
def adjoint(matrix: TensorLike, name: str | None = None) -> Tensor:
    """Conjugate transposes of matrices [..., m, n].

    Example:
      >>> import meshflow as tf
      >>> tf.linalg.adjoint([[1 + 2j, 3j]]).numpy().tolist()
      [[(1-2j)], [-3j]]
    """
    return conjugate_transpose(matrix)
