"""Names of TensorFlow's graph mode that have no effect here, and logging; graphs are in `legacy.graph`."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

from meshflow.core.values.tensor import Tensor

F = TypeVar("F", bound=Callable[..., Any])


class AggregationMethod:
    """Methods of adding gradients. They have no effect, because XLA chooses the method."""

    ADD_N = 0
    DEFAULT = 0
    EXPERIMENTAL_TREE = 1
    EXPERIMENTAL_ACCUMULATE_N = 2


# Functions of the gradients of graph ops by the type; None for ops without a gradient.
_gradients: dict[str, Callable[..., Any] | None] = {}


class RegisterGradient:
    """Decorator that registers the gradient of a type of graph ops.

    Programs of Meshflow consist of JAX primitives, so the registry has no effect; use `tf.custom_gradient`.

    Args:
      op_type: Type of the ops.

    Raises:
      TypeError: If the type is not a string.
      KeyError: If a function decorated before has the same type.

    Example:
      >>> @tf.RegisterGradient("Rounded")
      ... def pass_through(op, gradient):
      ...     return gradient
      >>> pass_through(None, 3)
      3
    """

    def __init__(self, op_type: str) -> None:
        if not isinstance(op_type, str):
            raise TypeError(f"op_type must be a string, got {op_type!r}.")
        self._op_type = op_type

    def __call__(self, f: F) -> F:
        """Register a function, and return it."""
        if self._op_type in _gradients:
            raise KeyError(f"Registering two gradient with name '{self._op_type}'!")
        _gradients[self._op_type] = f
        return f


def no_gradient(op_type: str) -> None:
    """Declare that a type of graph ops has no gradient; see `RegisterGradient`.

    Args:
      op_type: Type of the ops.

    Raises:
      TypeError: If the type is not a string.
    """
    RegisterGradient(op_type)
    _gradients[op_type] = None


def timestamp(name: str | None = None) -> Tensor:
    """Return the seconds since 1970 as a float64 scalar; in a compiled function, the time of tracing."""
    return Tensor(np.array(time.time(), np.float64))


def get_logger() -> logging.Logger:
    """Return the logger of the package.

    Example:
      >>> tf.get_logger().isEnabledFor(40)  # errors
      True
    """
    return logging.getLogger("meshflow")
