"""`tf.compat.v1`: the few names of version 1 that training code written for version 2 uses."""

from __future__ import annotations

from typing import Any

import meshflow as _tf

__all__ = [
    "disable_eager_execution",
    "enable_eager_execution",
    "enable_v2_behavior",
    "logging",
    "set_random_seed",
]


def enable_v2_behavior() -> None:
    """Nothing: version 2's behaviour is the only one."""


def enable_eager_execution(*args: Any, **kwargs: Any) -> None:
    """Nothing: execution is eager."""


def disable_eager_execution() -> None:
    """Not available.

    Raises:
      NotImplementedError: always: graphs and sessions of version 1 do not exist here.
    """
    raise NotImplementedError("Graph mode of TensorFlow 1 is not supported; use tf.function.")


def set_random_seed(seed: int) -> None:
    """`tf.random.set_seed`."""
    _tf.random.set_seed(seed)


class logging:
    """Version 1's logging levels and functions, through Python's `logging`."""

    DEBUG, INFO, WARN, ERROR, FATAL = 10, 20, 30, 40, 50

    @staticmethod
    def set_verbosity(level: int) -> None:
        """Sets the level."""
        import logging as python_logging

        python_logging.getLogger("meshflow").setLevel(level)


def __getattr__(name: str) -> Any:
    if name.startswith("__") or not hasattr(_tf, name):
        raise AttributeError(
            f"tf.compat.v1.{name} is not supported: only names that exist in TensorFlow 2 are."
        )
    return getattr(_tf, name)
