"""Comparison of gradients with finite differences."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from meshflow.core.gradients.tape import GradientTape
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.tensor import TensorLike
from meshflow.ops.array import stack
from meshflow.ops.math import imag, real

__all__ = ["compute_gradient", "find_max_error", "perturb", "view_as_reals"]


def compute_gradient(
    f: Callable[..., TensorLike], x: Sequence[TensorLike], delta: float | None = None
) -> tuple[tuple[np.ndarray, ...], tuple[np.ndarray, ...]]:
    """Compute Jacobians of a function by gradient tape and by central differences.

    Args:
      f: Function that takes tensors and returns a tensor.
      x: List of arguments.
      delta: Step of the differences; default 1/1024.

    Returns:
      (theoretical, numerical): tuples with one array [size of the result, size of the argument] for each
      argument. A complex element counts as two real ones.

    Raises:
      ValueError: If `x` is not a list.
      AssertionError: If an argument or the result has no floating-point or complex dtype.

    Example:
      >>> exact, numeric = tf.test.compute_gradient(tf.square, [tf.constant([3.0])])
      >>> float(exact[0][0, 0])
      6.0
    """
    if not isinstance(x, (list, tuple)):
        raise ValueError(
            f"`x` must be a list or tuple of values convertible to a Tensor, not a {type(x)}"
        )
    delta = 1.0 / 1024 if delta is None else delta
    arguments = [convert_to_tensor(v) for v in x]

    def run(i: int, value: np.ndarray) -> np.ndarray:
        values = [*arguments[:i], convert_to_tensor(value), *arguments[i + 1 :]]
        return view_as_reals(convert_to_tensor(f(*values)).numpy())

    with GradientTape(persistent=True) as tape:
        tape.watch(arguments)
        y = convert_to_tensor(f(*arguments))
        # The rows of a complex result are the gradients of its real and its imaginary part.
        target = stack([real(y), imag(y)], -1) if y.dtype.is_complex else y
    for index, tensor in enumerate([*arguments, y]):
        if not (tensor.dtype.is_floating or tensor.dtype.is_complex):
            name = f"argument {index}" if index < len(arguments) else "y"
            raise AssertionError(
                f"Cannot compute gradient for unsupported type {tensor.dtype.name} of {name}"
            )
    size = int(np.prod(target.shape.as_list(), dtype=int))
    exact, numeric = [], []
    for i, argument in enumerate(arguments):
        jacobian = tape.jacobian(target, argument, unconnected_gradients="zero")
        base = argument.numpy()
        shape = size, view_as_reals(base).size
        exact.append(view_as_reals(jacobian.numpy()).reshape(shape))
        columns = [
            (run(i, up) - run(i, down)) / np.asarray(2 * delta, target.dtype.as_numpy_dtype)
            for up, down in zip(perturb(base, delta), perturb(base, -delta), strict=True)
        ]
        empty = np.zeros(shape, exact[-1].dtype)
        numeric.append(np.stack(columns, 1).astype(empty.dtype) if columns else empty)
    return tuple(exact), tuple(numeric)


def view_as_reals(array: np.ndarray) -> np.ndarray:
    """Return the elements as a vector, with two real numbers for each complex one."""
    flat = np.ascontiguousarray(array).reshape(-1)
    return flat.view(flat.real.dtype) if flat.dtype.kind == "c" else flat


def perturb(array: np.ndarray, delta: float) -> Iterator[np.ndarray]:
    """Yield a copy of an array for each of its real numbers, in which that number is increased by `delta`."""
    for index in range(view_as_reals(array).size):
        copy = np.array(array, order="C")
        view_as_reals(copy)[index] += copy.real.dtype.type(delta)
        yield copy


def find_max_error(grad1: Sequence[np.ndarray], grad2: Sequence[np.ndarray]) -> float:
    """Return the largest absolute difference of the elements of two lists of arrays."""
    pairs = zip(grad1, grad2, strict=False)
    return max((float(np.max(np.abs(a - b))) for a, b in pairs if a.size or b.size), default=0)
