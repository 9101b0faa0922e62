"""Matrix products, norms and transposes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from meshflow.core.dispatch.dispatch import op
from meshflow.core.dispatch.symbolic_calls import dispatch_composites
from meshflow.core.runtime.errors import InvalidValueError
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.shapes import TensorShape, are_different, can_be_equal
from meshflow.core.values.symbolic_sizes import may_be_zero
from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.ops.array import expand_dims, squeeze
from meshflow.ops.array.shaping import Axes, check_rank
from meshflow.ops.math import matmul
from meshflow.ops.math.elementwise import compute_magnitude

__all__ = ["adjoint", "einsum", "matrix_transpose", "matvec", "norm", "normalize", "trace"]


def check_matrices(op_name: str, *operands: jax.Array, is_square: bool = True) -> None:
    """Raise `InvalidArgumentError` unless operands are matrices [..., m, n], and the first one is square.

    Args:
      op_name: Name of the op, for the message.
      *operands: The operands.
      is_square: Whether the matrices of the first operand must be square.
    """
    for i, operand in enumerate(operands):
        if operand.ndim < 2:
            raise InvalidValueError(
                f"{op_name}: Input tensor {i} must have rank >= 2, got {operand.ndim}: In[{i}] ndims must be >= 2, and "
                f"shape {list(operand.shape)} must be at least rank 2. [Op:{op_name}]"
            )
    rows, columns = operands[0].shape[-2:]
    if is_square and not can_be_equal(rows, columns):
        raise InvalidValueError(
            f"{op_name}: Input matrix must be square, got shape {list(operands[0].shape)} (Dimensions must be equal). "
            f"[Op:{op_name}]"
        )


def check_system(op_name: str, matrix: jax.Array, rhs: jax.Array) -> None:
    """Raise unless matrices [..., n, n] and right-hand sides [..., n, k] make systems of equations."""
    check_matrices(op_name, matrix, rhs)
    if not can_be_equal(matrix.shape[-2], rhs.shape[-2]):
        raise InvalidValueError(
            f"{op_name}: Input matrix and rhs are incompatible: In[0] mismatch In[1] shape: {list(matrix.shape)} vs. "
            f"{list(rhs.shape)} (Dimensions must be equal). [Op:{op_name}]"
        )


def conjugate_transpose(x: jax.Array) -> jax.Array:
    """Swap the last two dimensions of an array and conjugate it."""
    return jnp.conj(jnp.swapaxes(x, -1, -2))


@op(name="einsum")
def _einsum(inputs: Sequence[TensorLike], equation: str) -> Tensor:
    sizes: dict[str, Any] = {}
    for term, array in zip(equation.partition("->")[0].split(","), inputs, strict=False):
        labels, ellipsis, others = term.partition("...")
        shape = array.shape if not ellipsis else array.shape[: len(labels)]
        rest = array.shape[array.ndim - len(others) :]
        for label, size in (*zip(labels, shape, strict=False), *zip(others, rest, strict=False)):
            # JAX broadcasts a size of 1, and does not compare sizes along a diagonal.
            if are_different(size, sizes.setdefault(label, size)):
                # The dispatcher adds the shapes of the operands.
                raise ValueError(
                    f"Expected dimension {sizes[label]} of label {label!r}, but got {size}."
                )
    return jnp.einsum(equation, *inputs)


@dispatch_composites
def einsum(equation: str, *inputs: Any, **kwargs: object) -> Tensor:
    """Compute sums of products over dimensions by Einstein's convention.

    Args:
      equation: Dimensions of the inputs and the result, such as 'ij,jk->ik'.
      *inputs: Tensors of one dtype.
      **kwargs: `optimize` and `name`; ignored.

    Example:
      >>> tf.einsum("i,i->", [1.0, 2.0], [3.0, 4.0]).numpy()
      np.float32(11.0)
    """
    if not isinstance(equation, str):
        raise TypeError(f"tf.einsum: the equation must be a string, got {equation!r:.100}.")
    terms, arrow, result = equation.replace(" ", "").partition("->")
    if (
        arrow
        and "..." in terms
        and "..." not in result
        and _have_ellipsis_dimensions(terms, inputs)
    ):
        raise InvalidValueError(
            f"tf.einsum: the result of {equation!r} has no ellipsis, so it would lose the dimensions of the ellipsis."
        )
    return _einsum(list(inputs), equation.replace(" ", ""))


def _have_ellipsis_dimensions(terms: str, inputs: Sequence[Any]) -> bool:
    for term, operand in zip(terms.split(","), inputs, strict=False):
        tensor = operand if hasattr(operand, "shape") else convert_to_tensor(operand)
        rank = TensorShape(tensor.shape).rank
        if "..." in term and rank is not None and rank > len(term.replace("...", "")):
            return True
    return False


@dispatch_composites
def matvec(
    a: TensorLike,
    b: TensorLike,
    transpose_a: bool = False,
    adjoint_a: bool = False,
    **kwargs: object,
) -> Tensor:
    """Multiply matrices [..., m, n] by vectors [..., n].

    Args:
      a: Matrices [..., m, n].
      b: Vectors [..., n].
      transpose_a: Whether to transpose `a` first.
      adjoint_a: Whether to conjugate and transpose `a` first.
      **kwargs: Further arguments of `tf.matmul`; ignored.

    Example:
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


def _check_norm(order: str | float, axis: Axes) -> None:
    """Raise TensorFlow's ValueError if the arguments do not define a norm."""
    if isinstance(axis, (list, tuple)):
        are_integers = all(isinstance(a, (int, np.integer)) for a in axis)
        if len(axis) != 2 or not are_integers or axis[0] == axis[1]:
            raise InvalidValueError(
                f"'axis' must be None, an integer, or a tuple of 2 unique integers, got {axis!r}"
            )
        if order not in _MATRIX_NORMS:
            raise InvalidValueError(
                f"'ord' must be a supported matrix norm in {list(_MATRIX_NORMS)}, got {order}"
            )
    elif order != "euclidean" and not (isinstance(order, (int, float)) and order > 0):
        raise InvalidValueError(f"'ord' must be a supported vector norm, got {order}")


@op(kinds="ifc")
def norm(
    tensor: TensorLike,
    ord: Any = "euclidean",
    axis: Axes = None,
    keepdims: bool = False,
    name: str | None = None,
) -> Tensor:
    """Compute norms of vectors or matrices.

    The result has the shape of the argument without the dimensions of `axis`; `keepdims` keeps them
    with size 1.

    Args:
      tensor: A tensor.
      ord: 'euclidean', 1, 2 or inf; for vectors also another positive number, for matrices also
        'fro'.
      axis: A dimension (vectors), a pair (matrices), or None for the flattened tensor.
      keepdims: Whether to keep the reduced dimensions with size 1.
      name: Ignored.

    Returns:
      Tensor of the same dtype; with ord 'euclidean' or 2 also if it is complex, as in TensorFlow.

    Raises:
      InvalidArgumentError: If `ord` does not define a norm, such as 0 or -inf, or the axes are
        invalid. It is also a ValueError. Integers have norms of order 1 and inf only.

    Example:
      >>> print(tf.norm([[3.0, 4.0], [0.0, 5.0]], axis=1).numpy(), tf.norm([3.0, -4.0], ord=1).numpy())
      [5. 5.] 7.0
    """
    _check_norm(ord, axis)
    is_vector = not isinstance(axis, tuple) or len(axis) == 1
    is_integer = tensor.dtype.kind in "iu"
    if is_integer and ord not in (1, float("inf")):
        raise InvalidValueError(
            f"norm: input #0 has dtype {tensor.dtype}, expected a floating-point type or a complex type for "
            f"ord={ord!r}. Use tf.cast to convert it."
        )
    if ord in ("euclidean", "fro") or (ord == 2 and is_vector):
        norms = jnp.sqrt(jnp.sum(jnp.square(jnp.abs(tensor)), axis=axis, keepdims=keepdims))
        return norms.astype(tensor.dtype)
    if not is_vector:
        norms = jnp.linalg.norm(tensor, ord, axis, keepdims)
        return norms.astype(tensor.dtype) if is_integer else norms
    magnitudes = compute_magnitude(tensor)
    if ord == float("inf"):
        smallest = jnp.iinfo(tensor.dtype).min if is_integer else -jnp.inf
        initial = smallest if any(map(may_be_zero, tensor.shape)) else None
        return jnp.max(magnitudes, axis=axis, keepdims=keepdims, initial=initial)
    if ord == 1:
        return jnp.sum(magnitudes, axis=axis, keepdims=keepdims, dtype=magnitudes.dtype)
    return jnp.sum(magnitudes**ord, axis=axis, keepdims=keepdims) ** (1 / ord)


@dispatch_composites
def normalize(
    tensor: TensorLike, ord: str | float = "euclidean", axis: Axes = None, name: str | None = None
) -> tuple[Tensor, Tensor]:
    """Divide tensors by their norms; the arguments are those of `norm`.

    Returns:
      The normalized tensor, and the norms, which have size 1 along `axis`.

    Example:
      >>> unit, norm = tf.linalg.normalize([3.0, 4.0])
      >>> print(unit.numpy().round(3), norm.numpy())
      [0.6 0.8] [5.]
    """
    tensor = convert_to_tensor(tensor)
    norms = norm(tensor, ord, axis, True)
    return tensor / norms, norms


@op(kinds="ifc")
def trace(x: TensorLike, name: str | None = None) -> Tensor:
    """Compute the sums [...] of the main diagonals of matrices [..., m, n].

    Example:
      >>> tf.linalg.trace([[1, 2], [3, 4]]).numpy().item()
      5
    """
    check_rank(x, 2, "trace")
    return jnp.trace(x, axis1=-2, axis2=-1, dtype=x.dtype)


def _check_transposable(a: jax.Array) -> None:
    if a.ndim < 2:
        raise InvalidValueError(
            f"Argument `a` should be a (batch) matrix with rank >= 2, got shape {list(a.shape)}."
        )


@op
def matrix_transpose(a: TensorLike, name: str | None = None, conjugate: bool = False) -> Tensor:
    """Transpose matrices (..., m, n) to (..., n, m), and conjugate them if `conjugate` is true.

    Example:
      >>> tf.linalg.matrix_transpose(tf.zeros([5, 2, 3])).shape
      TensorShape([5, 3, 2])
    """
    _check_transposable(a)
    return conjugate_transpose(a) if conjugate else jnp.swapaxes(a, -1, -2)


@op
def adjoint(matrix: TensorLike, name: str | None = None) -> Tensor:
    """Compute the conjugate transposes of matrices [..., m, n].

    Example:
      >>> tf.linalg.adjoint([[1 + 2j, 3j]]).numpy().tolist()
      [[(1-2j)], [-3j]]
    """
    _check_transposable(matrix)
    return conjugate_transpose(matrix)
