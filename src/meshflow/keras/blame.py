"""Errors that say where they come from: in which file, in which layer of a model."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator

__all__ = ["within"]

# What a damaged configuration makes Python raise.
_DAMAGE = (LookupError, AttributeError, ArithmeticError, AssertionError, RecursionError)
_NO_USERS = sys.stdlib_module_names | {"meshflow", "h5py", "numpy", "jax", "jaxlib"}


@contextlib.contextmanager
def within(what: str) -> Iterator[None]:
    """Has errors raised inside name what they are about.

    What is raised by code of users stays as it is.

    Args:
      what: what is read, such as the path of a file.

    Raises:
      ValueError: in the place of errors that only a damaged configuration makes.

    Example:
      >>> import meshflow as tf
      >>> from meshflow.keras.blame import within
      >>> with within("m.keras"):
      ...     tf.keras.layers.deserialize({"class_name": "Dense", "config": {}})
      Traceback (most recent call last):
      ...
      ValueError: m.keras: The configuration of a Dense is damaged: ...
    """
    try:
        yield
    except _DAMAGE as error:
        if _is_users(error):
            raise
        raise ValueError(f"{what} is damaged: {error!r}.") from error
    except (ValueError, TypeError, NotImplementedError) as error:
        plain = len(error.args) == 1 and isinstance(error.args[0], str)
        if plain and what not in error.args[0] and not _is_users(error):
            error.args = (f"{what}: {error.args[0]}",)
        raise


def _is_users(error: BaseException) -> bool:
    """Whether an error was raised by a function of neither this package nor a library."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    name = "" if trace is None else str(trace.tb_frame.f_globals.get("__name__", ""))
    return name.partition(".")[0] not in _NO_USERS
