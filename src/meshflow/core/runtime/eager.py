"""Queries for eager execution and tracing."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from meshflow.core.runtime.context import context


def executing_eagerly() -> bool:
    """Check whether ops run immediately rather than being traced.

    Example:
      >>> tf.executing_eagerly()
      True
    """
    return context.trace is None and context.graph is None


def inside_function() -> bool:
    """Check whether a `tf.function` is being traced.

    Example:
      >>> f = tf.function(lambda: tf.inside_function())
      >>> tf.inside_function(), f().numpy().item()
      (False, True)
    """
    return context.trace is not None


@contextlib.contextmanager
def control_dependencies(control_inputs: object) -> Iterator[None]:
    """Run the operations of a version 1 graph after others; elsewhere, ops already run in program order.

    Args:
      control_inputs: Operations and tensors of the graph.
    """
    recorder = context.graph if context.trace is None else None
    with (
        contextlib.nullcontext()
        if recorder is None
        else recorder.control_dependencies(control_inputs)
    ):
        yield
