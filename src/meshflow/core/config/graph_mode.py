"""Names of TensorFlow's graph mode that programs for version 2 still mention, and logging."""

from __future__ import annotations

import logging
import time

import numpy as np

from meshflow.core.values.tensor import Tensor


class AggregationMethod:
    """Ways of adding gradients; accepted, XLA adds as it likes."""

    ADD_N = 0
    DEFAULT = 0
    EXPERIMENTAL_TREE = 1
    EXPERIMENTAL_ACCUMULATE_N = 2


class RegisterGradient:
    """Not available: ops have no global registry of gradients.

    Raises:
      NotImplementedError: always.
    """

    def __init__(self, op_type: str) -> None:
        raise NotImplementedError(
            f"tf.RegisterGradient({op_type!r}) is not available: use tf.custom_gradient."
        )


class Graph:
    """Not available: functions are traced to JAX's jaxprs; the class exists for `isinstance` checks.

    Raises:
      NotImplementedError: when one is made.
    """

    def __init__(self) -> None:
        raise NotImplementedError("tf.Graph is not available: use tf.function.")


class Operation:
    """Ops are functions here, without objects of their own; the class exists for `isinstance` checks."""


def timestamp(name: str | None = None) -> Tensor:
    """Seconds since 1970, a float64 scalar; in a compiled function the time of tracing."""
    return Tensor(np.array(time.time(), np.float64))


def get_logger() -> logging.Logger:
    """The logger of the package.

    Example:
      >>> import meshflow as tf
      >>> tf.get_logger().isEnabledFor(40)  # errors
      True
    """
    return logging.getLogger("meshflow")
