"""Tracebacks of user code, without the frames of Meshflow and JAX.

`tf.debugging.disable_traceback_filtering()` and `JAX_TRACEBACK_FILTERING=off`, JAX's own switch, keep
all frames.
"""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable
from types import TracebackType
from typing import ParamSpec, TypeVar

import jax

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")

_PACKAGE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
_HIDDEN_PATHS = (
    _PACKAGE + os.sep,
    os.path.dirname(os.path.abspath(jax.__file__)) + os.sep,
    os.path.abspath(contextlib.__file__),
)
# Start of the second line of the note that JAX adds to errors in functions that it traces.
_JAX_NOTE = "For simplicity, JAX has removed its internal frames"


def is_filtering() -> bool:
    """Check whether tracebacks hide internal frames."""
    # JAX defines its options at run time.
    return jax.config.jax_traceback_filtering != "off"  # type: ignore[attr-defined]


def hide_frames(error: BaseException) -> None:
    """Remove internal frames from the traceback of an error, except the one that raised it.

    JAX's note about its own removed frames is removed, too.

    Args:
      error: The error, which is changed.
    """
    if not is_filtering():
        return
    error.__traceback__ = filter_traceback(error.__traceback__)
    notes = getattr(error, "__notes__", None)
    if notes:
        notes[:] = [note for note in notes if _JAX_NOTE not in note]


def filter_traceback(traceback: TracebackType | None) -> TracebackType | None:
    """Return a traceback without internal frames, except the innermost one."""
    if not is_filtering():
        return traceback
    entries: list[TracebackType] = []
    while traceback is not None:
        is_hidden = traceback.tb_frame.f_code.co_filename.startswith(_HIDDEN_PATHS)
        if not is_hidden or traceback.tb_next is None:
            entries.append(traceback)
        traceback = traceback.tb_next
    result: TracebackType | None = None
    for entry in reversed(entries):
        result = TracebackType(result, entry.tb_frame, entry.tb_lasti, entry.tb_lineno)
    return result


def hide_frames_of_errors(
    function: Callable[Parameters, Result],
) -> Callable[Parameters, Result]:
    """Make a public function raise errors without internal frames."""

    @functools.wraps(function)
    def public(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
        try:
            return function(*args, **kwargs)
        except Exception as error:
            hide_frames(error)
            raise

    return public
