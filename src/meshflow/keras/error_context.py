"""Error messages that name the file or layer in which an error occurred."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator

from meshflow.core.runtime.errors import OpError

# A damaged configuration makes Python raise these errors.
_DAMAGE_ERRORS = (LookupError, AttributeError, ArithmeticError, AssertionError, RecursionError)
_LIBRARY_MODULES = sys.stdlib_module_names | {"meshflow", "h5py", "numpy", "jax", "jaxlib"}


@contextlib.contextmanager
def prefix_errors(subject: str) -> Iterator[None]:
    """Prefix the messages of errors that are raised in a `with` block.

    Errors that are raised by user code do not change.

    Args:
      subject: The file or layer that is read, for example a path.

    Raises:
      ValueError: Instead of an error that only a damaged configuration can cause.

    Example:
      >>> from meshflow.keras.error_context import prefix_errors
      >>> with prefix_errors("m.keras"):
      ...     tf.keras.layers.deserialize({"class_name": "Dense", "config": {}})
      Traceback (most recent call last):
      ...
      ValueError: m.keras: The configuration of a Dense is damaged: ...
    """
    try:
        yield
    except _DAMAGE_ERRORS as error:
        if _is_raised_by_user_code(error):
            raise
        raise ValueError(f"{subject} is damaged: {error!r}.") from error
    except (ValueError, TypeError, NotImplementedError) as error:
        has_text = len(error.args) == 1 and isinstance(error.args[0], str)
        if has_text and subject not in error.args[0] and not _is_raised_by_user_code(error):
            error.args = (f"{subject}: {error.args[0]}",)
            if isinstance(error, OpError):
                error.message = error.args[0]
        raise


def _is_raised_by_user_code(error: BaseException) -> bool:
    """Check whether an error was raised outside this package and the libraries that it uses."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    name = "" if trace is None else str(trace.tb_frame.f_globals.get("__name__", ""))
    return name.partition(".")[0] not in _LIBRARY_MODULES
