"""Queries for eager execution and tracing."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from meshflow.core.runtime.context import GraphRecorder, context


def executing_eagerly() -> bool:
    """Check whether ops run immediately rather than being traced.

    Example:
      >>> tf.executing_eagerly()
      True
    """
    return context.trace is None and context.graph is None


@contextlib.contextmanager
def leave_graph() -> Iterator[None]:
    """Run calls in a block at once, instead of recording them in a version 1 graph."""
    graph, context.graph = context.graph, None
    try:
        yield
    finally:
        context.graph = graph


def inside_function() -> bool:
    """Check whether a `tf.function` is being traced.

    Example:
      >>> f = tf.function(lambda: tf.inside_function())
      >>> tf.inside_function(), f().numpy().item()
      (False, True)
    """
    return context.trace is not None


def use_session(
    graph: GraphRecorder | None = None, session: object = None
) -> contextlib.AbstractContextManager[None]:
    """Return a context that runs calls at once on the values in a session, if there is a version 1 graph.

    Args:
      graph: The graph. Default: the current one.
      session: The session. Default: the default one.

    Raises:
      RuntimeError: If there is a graph, but no session for it.
    """
    graph = context.graph if graph is None and context.trace is None else graph
    return contextlib.nullcontext() if graph is None else graph.use_session(session)


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
