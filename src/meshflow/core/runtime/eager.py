"""Whether code runs eagerly or is being traced."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from meshflow.core.runtime.context import context


def executing_eagerly() -> bool:
    """Whether ops run at once, rather than being traced.

    Example:
      >>> import meshflow as tf
      >>> tf.executing_eagerly()
      True
    """
    return context.trace is None


def inside_function() -> bool:
    """Whether a `tf.function` is being traced.

    Example:
      >>> import meshflow as tf
      >>> f = tf.function(lambda: tf.inside_function())
      >>> tf.inside_function(), f().numpy().item()
      (False, True)
    """
    return context.trace is not None


@contextlib.contextmanager
def control_dependencies(control_inputs: Any) -> Iterator[None]:
    """Does nothing: ops run in program order already.

    Args:
      control_inputs: ignored.
    """
    yield
