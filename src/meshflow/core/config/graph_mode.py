"""Names of TensorFlow's graph mode that programs for version 2 still use, and logging."""

from __future__ import annotations

import logging
import time

import numpy as np

from meshflow.core.values.tensor import Tensor


class AggregationMethod:
    """Methods of adding gradients. They have no effect, because XLA chooses the method."""

    ADD_N = 0
    DEFAULT = 0
    EXPERIMENTAL_TREE = 1
    EXPERIMENTAL_ACCUMULATE_N = 2


class RegisterGradient:
    """A placeholder that raises an error: there is no global registry of gradients.

    Raises:
      NotImplementedError: Always.
    """

    def __init__(self, op_type: str) -> None:
        raise NotImplementedError(
            f"tf.RegisterGradient({op_type!r}) is not available: use tf.custom_gradient."
        )


class Graph:
    """A placeholder for `isinstance` checks: functions are traced to jaxprs instead.

    Raises:
      NotImplementedError: At construction.
    """

    def __init__(self) -> None:
        raise NotImplementedError("tf.Graph is not available: use tf.function.")


class Operation:
    """A placeholder for `isinstance` checks: ops are functions and have no objects."""


def timestamp(name: str | None = None) -> Tensor:
    """Return the seconds since 1970 as a float64 scalar; in a compiled function, the time of tracing."""
    return Tensor(np.array(time.time(), np.float64))


def get_logger() -> logging.Logger:
    """Return the logger of the package.

    Example:
      >>> import meshflow as tf
      >>> tf.get_logger().isEnabledFor(40)  # errors
      True
    """
    return logging.getLogger("meshflow")
