"""Tracebacks of user code, without the frames of Meshflow and JAX.

`tf.debugging.disable_traceback_filtering()` and `JAX_TRACEBACK_FILTERING=off`, JAX's own switch, keep
all frames.
"""

from __future__ import annotations

import dis
import functools
import os
from collections.abc import Callable
from types import CodeType, FunctionType, ModuleType, TracebackType
from typing import Any, ParamSpec, TypeVar

import jax
import numpy as np

from meshflow.core.runtime.errors import InvalidValueError

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")
Instance = TypeVar("Instance")

_PACKAGE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))) + os.sep
_HIDDEN_PATHS = (_PACKAGE, os.path.dirname(os.path.abspath(jax.__file__)) + os.sep)
# Numerical libraries with errors about arguments that do not name Meshflow's functions.
_LIBRARIES = tuple(
    os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(np.__file__))), name, "")
    for name in ("numpy", "scipy")
)
_STANDARD_LIBRARY = os.path.dirname(os.path.abspath(os.__file__)) + os.sep
# Start of the second line of the note that JAX adds to errors in functions that it traces.
_JAX_NOTE = "For simplicity, JAX has removed its internal frames"
# Code of the functions that `hide_frames_of_functions` does not replace.
_boundaries: set[CodeType | None] = set()
# Special methods of public classes that users call.
_SPECIAL_METHODS = ("__init__", "__call__", "__getitem__", "__setitem__", "__iter__", "__next__")


def is_filtering() -> bool:
    """Check whether tracebacks hide internal frames."""
    # JAX defines its options at run time.
    return jax.config.jax_traceback_filtering != "off"  # type: ignore[attr-defined]


def hide_frames(error: BaseException) -> None:
    """Remove internal frames from the traceback of an error, except the one that raised it.

    The errors that it is chained to are filtered as well, and not shown if they only have internal
    frames and were not raised `from`. JAX's notes about its own removed frames are removed.

    Args:
      error: The error, which is changed.
    """
    if not is_filtering():
        return
    seen: set[int] = set()
    shown: BaseException | None = error
    while shown is not None and id(shown) not in seen:
        seen.add(id(shown))
        shown.__traceback__ = filter_traceback(shown.__traceback__)
        notes = getattr(shown, "__notes__", None)
        if notes:
            notes[:] = [note for note in notes if _JAX_NOTE not in note]
        context = shown.__context__
        if context is not None and not _has_user_frames(context.__traceback__):
            shown.__suppress_context__ = True
        shown = shown.__cause__ or (None if shown.__suppress_context__ else context)


def is_raised_by_user(error: BaseException) -> bool:
    """Check whether a `raise` statement outside of Meshflow and JAX raised an error, except type checks.

    `TypeError` and `AssertionError` are excluded: code may check that sizes are integers.
    """
    if error.__traceback__ is None or isinstance(error, (TypeError, AssertionError)):
        return False
    path, is_raise = _find_origin(error.__traceback__)
    return is_raise and not path.startswith((*_HIDDEN_PATHS, _STANDARD_LIBRARY))


def _find_origin(traceback: TracebackType) -> tuple[str, bool]:
    """Return the file of the innermost frame, and whether a `raise` statement ended it."""
    while traceback.tb_next is not None:
        traceback = traceback.tb_next
    code = traceback.tb_frame.f_code
    return code.co_filename, code.co_code[traceback.tb_lasti] == dis.opmap["RAISE_VARARGS"]


def explain_error(error: Exception, name: str) -> Exception:
    """Remove internal frames from an error, and replace it by TensorFlow's error if it is incidental.

    Python, NumPy and JAX raise incidental errors for arguments that they cannot handle, for example for
    a size that is a string. Neither a `raise` statement of Meshflow nor code of the user, such as a
    function that the public function calls, raises them.

    Args:
      error: The error that a public function raised.
      name: The function's name.

    Returns:
      An `InvalidArgumentError` that is a `ValueError` and a `TypeError` as well; `error` itself if it
      is not incidental, or if the call does not match the function's signature. Its cause is `error`
      unless tracebacks are filtered.
    """
    is_replaced = _is_incidental(error)
    hide_frames(error)
    if not is_replaced:
        return error
    explained = InvalidValueError(f"{name}: {error}")
    explained.__cause__ = None if is_filtering() else error
    return explained


def _is_incidental(error: Exception) -> bool:
    """Check whether Python, NumPy or JAX raised an error about an argument inside a public function."""
    kind, traceback = type(error), error.__traceback__
    argument_errors = TypeError, ValueError, IndexError, OverflowError
    is_plain = kind in argument_errors or (
        kind.__module__.startswith("numpy.") and issubclass(kind, argument_errors)
    )
    is_of_none = kind is AttributeError and str(error).startswith(
        "'NoneType' object has no attribute"
    )
    if not (is_plain or is_of_none) or traceback is None or traceback.tb_next is None:
        return False
    path, is_raise = _find_origin(traceback)
    internal_paths = *_HIDDEN_PATHS, *_LIBRARIES
    is_explained = is_raise if path.startswith(_PACKAGE) else not path.startswith(internal_paths)
    return not is_explained and not _has_user_frames(traceback, internal_paths)


def filter_traceback(traceback: TracebackType | None) -> TracebackType | None:
    """Return a traceback without internal frames, except the innermost one."""
    if not is_filtering():
        return traceback
    entries: list[TracebackType] = []
    internal: TracebackType | None = None  # the last entry of Meshflow after the user's last one
    while traceback is not None:
        path = traceback.tb_frame.f_code.co_filename
        # The standard library is internal where Meshflow or JAX calls it.
        is_called = internal is not None and _is_standard_library(path)
        if not is_called and not path.startswith(_HIDDEN_PATHS):
            entries.append(traceback)
            internal = None
        elif internal is None or path.startswith(_PACKAGE):
            internal = traceback
        traceback = traceback.tb_next
    result: TracebackType | None = None
    for entry in reversed(entries if internal is None else [*entries, internal]):
        result = TracebackType(result, entry.tb_frame, entry.tb_lasti, entry.tb_lineno)
    return result


def _has_user_frames(
    traceback: TracebackType | None, internal: tuple[str, ...] = _HIDDEN_PATHS
) -> bool:
    while traceback is not None:
        path = traceback.tb_frame.f_code.co_filename
        if not (path.startswith(internal) or _is_standard_library(path)):
            return True
        traceback = traceback.tb_next
    return False


def _is_standard_library(path: str) -> bool:
    return path.startswith(_STANDARD_LIBRARY) and "site-packages" not in path


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

    return mark_boundary(public)


def mark_boundary(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """Record that `hide_frames_of_functions` does not replace functions with this code.

    They hide the frames of their errors, or are recognized by their identity.
    """
    _boundaries.add(getattr(function, "__code__", None))
    return function


def hide_frames_of_functions(namespace: dict[str, Any]) -> None:
    """Make the public functions of a module raise errors without internal frames.

    Functions that do so, such as ops, are not changed. Its module `experimental` is included.

    Args:
      namespace: The attributes of the module.
    """
    for name, function in list(namespace.items()):
        if name == "experimental" and isinstance(function, ModuleType):
            hide_frames_of_functions(vars(function))
        if name.startswith("_") or not isinstance(function, FunctionType):
            continue
        if function.__code__ not in _boundaries and function.__module__.startswith("meshflow."):
            namespace[name] = _make_public(function)


@functools.cache
def _make_public(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the form of a function that all public modules have in common."""

    @functools.wraps(function)
    def public(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except Exception as error:
            explained = explain_error(error, function.__name__)
            if explained is error:
                raise
            raise explained from explained.__cause__

    return mark_boundary(public)


def hide_frames_of_methods(cls: type[Instance]) -> type[Instance]:
    """Make the public methods of a class raise errors without internal frames."""
    for name, member in list(vars(cls).items()):
        if name.startswith("_") and name not in _SPECIAL_METHODS:
            continue
        kind = type(member) if isinstance(member, (classmethod, staticmethod)) else None
        function = member.__func__ if kind is not None else member
        if isinstance(function, FunctionType):
            public = hide_frames_of_errors(function)
            setattr(cls, name, public if kind is None else kind(public))
    return cls


def explain_errors_of_methods(cls: type[Instance]) -> type[Instance]:
    """Make the public methods of a class raise TensorFlow's errors instead of incidental ones."""
    for name, member in list(vars(cls).items()):
        if not name.startswith("_") and isinstance(member, FunctionType):
            setattr(cls, name, _make_public(member))
    return cls
