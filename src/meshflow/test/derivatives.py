"""Derivatives computed in two ways."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from meshflow.core.gradients.tape import GradientTape
from meshflow.core.values.convert import convert_to_tensor

__all__ = ["compute_gradient"]


def compute_gradient(
    f: Callable[..., Any], x: Any, delta: float | None = None
) -> tuple[tuple[np.ndarray, ...], tuple[np.ndarray, ...]]:
    """Jacobians of a function, by gradient tape and by central differences.

    Args:
      f: takes tensors, returns a tensor.
      x: list of arguments.
      delta: step of the differences; default 1/1024.

    Returns:
      (theoretical, numerical): tuples of arrays [size of the result, size of the argument].

    Raises:
      ValueError: when `x` is not a list.

    Example:
      >>> import meshflow as tf
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
    for which, argument in enumerate(arguments):
        found = tape.jacobian(y, argument, unconnected_gradients="zero")
        exact.append(found.numpy().reshape(size, -1))
        base = argument.numpy()
        columns = []
        for position in np.ndindex(*base.shape):
            sides = []
            for sign in (1, -1):
                moved = base.copy()
                moved[position] += sign * delta
                values = [*arguments[:which], convert_to_tensor(moved), *arguments[which + 1 :]]
                sides.append(np.asarray(convert_to_tensor(f(*values)).numpy()).reshape(-1))
            columns.append((sides[0] - sides[1]) / (2 * delta))
        numeric.append(np.stack(columns, 1) if columns else np.zeros((size, 0), base.dtype))
    return tuple(exact), tuple(numeric)
