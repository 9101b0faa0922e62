"""Comparison of gradients with finite differences."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from meshflow.core.gradients.tape import GradientTape
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.tensor import TensorLike

__all__ = ["compute_gradient"]


def compute_gradient(
    f: Callable[..., TensorLike], x: Sequence[TensorLike], delta: float | None = None
) -> tuple[tuple[np.ndarray, ...], tuple[np.ndarray, ...]]:
    """Compute Jacobians of a function by gradient tape and by central differences.

    Args:
      f: Function that takes tensors and returns a tensor.
      x: List of arguments.
      delta: Step of the differences; default 1/1024.

    Returns:
      (theoretical, numerical): tuples with one array [size of the result, size of the argument] for
      each
      argument.

    Raises:
      ValueError: If `x` is not a list.

    Example:
      >>> exact, numeric = tf.test.compute_gradient(tf.square, [tf.constant([3.0])])
      >>> float(exact[0][0, 0])
      6.0
    """
    if not isinstance(x, (list, tuple)):
        raise ValueError(f"`x` must be a list of arguments, got {type(x).__name__}.")
    delta = 1.0 / 1024 if delta is None else delta
    arguments = [convert_to_tensor(v) for v in x]
    with GradientTape(persistent=True) as tape:
        tape.watch(arguments)
        y = convert_to_tensor(f(*arguments))
    size = int(np.prod(y.shape.as_list(), dtype=int))
    exact, numeric = [], []
    for i, argument in enumerate(arguments):
        jacobian = tape.jacobian(y, argument, unconnected_gradients="zero")
        exact.append(jacobian.numpy().reshape(size, -1))
        base = argument.numpy()
        columns = []
        for position in np.ndindex(*base.shape):
            results = []
            for sign in (1, -1):
                shifted = base.copy()
                shifted[position] += sign * delta
                values = [*arguments[:i], convert_to_tensor(shifted), *arguments[i + 1 :]]
                results.append(np.asarray(convert_to_tensor(f(*values)).numpy()).reshape(-1))
            columns.append((results[0] - results[1]) / (2 * delta))
        numeric.append(np.stack(columns, 1) if columns else np.zeros((size, 0), base.dtype))
    return tuple(exact), tuple(numeric)
