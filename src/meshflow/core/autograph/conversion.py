"""Conversion of callables, so that tensors can control their branches and loops."""

from __future__ import annotations

import ast
import functools
from collections.abc import Callable
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

from meshflow.core.autograph import compiler, policy, status
from meshflow.core.runtime import tracebacks

# The module that converted code refers to as `ag__`.
_runtime: list[ModuleType] = []


def set_runtime(module: ModuleType) -> None:
    """Set the module that converted code calls."""
    _runtime[:] = [module]


def convert(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Convert a function that was passed to `tf.function`.

    While the result runs, AutoGraph is on: functions that it calls, and functions that Meshflow
    calls on its behalf, are converted, too.

    Args:
      fn: A function, method, lambda, `functools.partial` or callable object.

    Returns:
      A callable with the same arguments, which runs `fn` unchanged if that cannot be converted.

    Example:
      >>> from meshflow.core.autograph import convert
      >>> convert(lambda x: 1 if x > 0 else -1)(5)
      1
    """
    target = _unwrap_function(fn)
    if target is not None:
        policy.opt_in_package(target)
    converted = convert_callable(fn)

    @functools.wraps(fn, updated=())
    def run(*args: Any, **kwargs: Any) -> Any:
        with status.override_status(True):
            try:
                return converted(*args, **kwargs)
            except Exception as error:
                tracebacks.hide_frames(error)
                raise

    run.ag_do_not_convert = True  # type: ignore[attr-defined]
    return run


def convert_callable(fn: Any) -> Any:
    """Return the converted form of a callable, or the callable itself if it is not converted."""
    fn_type = type(fn)
    if fn_type is FunctionType:
        return _convert_function(fn)
    if fn_type is MethodType:
        inner = fn.__func__
        if type(inner) is not FunctionType:
            return fn
        converted = _convert_function(inner)
        return fn if converted is inner else MethodType(converted, fn.__self__)
    if fn_type is BuiltinFunctionType or isinstance(fn, type):
        return fn
    if isinstance(fn, functools.partial):
        inner = convert_callable(fn.func)
        return fn if inner is fn.func else functools.partial(inner, *fn.args, **fn.keywords)
    call = getattr(fn_type, "__call__", None)  # noqa: B004 - this looks up the method itself
    if type(call) is FunctionType:
        converted = _convert_function(call)
        return fn if converted is call else MethodType(converted, fn)
    return fn


def convert_if_enabled(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Convert a user's function if AutoGraph is on in this thread.

    The parts of Meshflow that call user functions (layers, `tf.map_fn`, strategies) use it.
    """
    return convert_callable(fn) if status.is_enabled() else fn


def _convert_function(fn: FunctionType) -> FunctionType:
    if compiler.is_converted(fn) or not policy.is_convertible(fn):
        return fn
    code = compiler.get_converted_code(fn)
    if code is None:
        status.log.debug(
            "%s is not converted: %s", fn.__qualname__, compiler.get_failure_reason(fn)
        )
        return fn
    # The function is rebuilt for each call, which takes microseconds. A cached function would keep
    # its closure, and the objects that own `fn`, alive forever.
    return compiler.make_function(fn, code, _runtime[0])


def _unwrap_function(fn: Callable[..., Any]) -> FunctionType | None:
    while isinstance(fn, functools.partial):
        fn = fn.func
    fn = getattr(fn, "__func__", fn)
    return fn if type(fn) is FunctionType else None


def to_code(
    entity: Callable[..., Any], recursive: bool = True, experimental_optional_features: Any = None
) -> str:
    """Return the Python source to which a function is converted.

    Args:
      entity: A function, a method or a `tf.function`.
      recursive: Ignored; called functions are always converted when they are called.
      experimental_optional_features: Ignored.

    Returns:
      The source text, for reading only: it refers to AutoGraph's runtime as `ag__`.

    Raises:
      ValueError: If the function cannot be converted.

    Example:
      >>> def f(x):
      ...     return not x
      >>> print(tf.autograph.to_code(f))  # doctest: +SKIP
      def f(x):
          return ag__.not_(x)
    """
    del recursive, experimental_optional_features
    target = _unwrap_function(getattr(entity, "python_function", entity))
    if target is None:
        raise ValueError(f"to_code takes a Python function, got {entity!r}.")
    try:
        return ast.unparse(compiler.transform_function(target))
    except compiler.ConversionError as error:
        raise ValueError(f"{target.__qualname__} cannot be converted: {error}.") from error


def to_graph(
    entity: Callable[..., Any], recursive: bool = True, experimental_optional_features: Any = None
) -> Callable[..., Any]:
    """Return the converted form of a function, for use inside traced code.

    Args:
      entity: A function or a `tf.function`.
      recursive: Ignored; called functions are always converted.
      experimental_optional_features: Ignored.

    Returns:
      A callable with the same arguments.

    Example:
      >>> tf.autograph.to_graph(lambda x: x + 1)(1)
      2
    """
    del recursive, experimental_optional_features
    return convert(getattr(entity, "python_function", entity))
