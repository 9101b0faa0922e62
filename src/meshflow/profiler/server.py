"""`tf.profiler.experimental.server`: lets others take profiles of this process."""

from __future__ import annotations

from typing import Any

import jax

from meshflow.core.runtime.errors import AlreadyExistsError

__all__ = ["start"]

# One for the life of the process: JAX ends it when nobody holds it.
_server: Any = None


def start(port: int) -> None:
    """Begins to answer requests for profiles, such as those of `client.trace` and TensorBoard.

    Args:
      port: where to listen.

    Raises:
      AlreadyExistsError: when this process answers such requests already.

    Example:
      >>> import meshflow as tf
      >>> callable(tf.profiler.experimental.server.start)
      True
    """
    global _server
    if _server is not None:
        raise AlreadyExistsError("tf.profiler.experimental.server: this process has a server.")
    _server = jax.profiler.start_server(port)
