"""`tf.compat.v1.Session`, which programs for TensorFlow 2 create to set options of GPUs.

Execution remains eager: `run` returns the values that tensors have. Placeholders do not exist.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from types import TracebackType
from typing import Self

from meshflow.core.config.session_config import ConfigProto
from meshflow.core.runtime.errors import NotAvailableError
from meshflow.core.values import nest
from meshflow.environment.types import PyTree
from meshflow.legacy.compat.public_package import tf

__all__ = ["InteractiveSession", "Session", "get_default_session", "get_session", "set_session"]

_sessions: list[Session] = []


class Session:
    """Session of TensorFlow 1, which returns the values of eager execution.

    Args:
      target: Ignored.
      graph: Ignored.
      config: Settings; memory of GPUs is always allocated when it is needed.

    Example:
      >>> config = tf.compat.v1.ConfigProto()
      >>> config.gpu_options.allow_growth = True
      >>> session = tf.compat.v1.Session(config=config)
      >>> session.run([tf.constant(1) + 1])
      [np.int32(2)]
    """

    def __init__(self, target: str = "", graph: object = None, config: ConfigProto | None = None) -> None:  # fmt: skip
        self._config, self._defaults = config, contextlib.ExitStack()

    def run(self, fetches: PyTree, feed_dict: object = None, *_: object) -> PyTree:
        """Return the values of a structure of tensors.

        Raises:
          NotAvailableError: If values of placeholders are passed, which do not exist.
        """
        if feed_dict:
            raise NotAvailableError(
                "Session.run: feed_dict sets placeholders, which belong to TensorFlow 1's graph mode. Call a "
                "tf.function with the values."
            )
        return nest.map_structure(
            lambda x: x.numpy() if tf.is_tensor(x) or isinstance(x, tf.Variable) else x, fetches
        )

    @contextlib.contextmanager
    def as_default(self) -> Iterator[Self]:
        """Return a context in which `get_default_session` returns the session."""
        _sessions.append(self)
        try:
            yield self
        finally:
            _sessions.remove(self)

    def close(self) -> None:
        """Do nothing: a session has no resources."""

    def __enter__(self) -> Self:
        self._defaults.enter_context(self.as_default())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:  # fmt: skip
        self._defaults.close()


class InteractiveSession(Session):
    """`Session` that is not used as a context."""


def get_default_session() -> Session | None:
    """Return the session of the innermost context, or None."""
    return _sessions[-1] if _sessions else None


def get_session(op_input_list: object = ()) -> Session:
    """Return the default session, or a new one."""
    return get_default_session() or Session()


def set_session(session: Session) -> None:
    """Do nothing: Keras needs no session."""
