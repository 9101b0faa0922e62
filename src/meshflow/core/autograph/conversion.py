"""`convert`: from any callable to one in which tensors may decide control flow."""

from __future__ import annotations

import ast
import functools
from collections.abc import Callable
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

from meshflow.core.autograph import compiler, policy, status, tracebacks

# The module that converted code calls `ag__`.
_runtime: list[ModuleType] = []


def use_runtime(module: ModuleType) -> None:
    """Has converted code call the functions of `module`."""
    _runtime[:] = [module]


def convert(fn: Callable[..., Any]) -> Callable[..., Any]:
    """The converted form of a function given to `tf.function`.

    While it runs, AutoGraph is on: functions that it calls are converted as well, and so are the
    ones that Meshflow calls on its behalf.

    Args:
      fn: a function, method, lambda, `functools.partial` or callable object.

    Returns:
      A callable with the same arguments. Where conversion is impossible (no source, a generator)
      it runs `fn` as it is.

    Example:
      >>> from meshflow.core.autograph import convert
      >>> convert(lambda x: 1 if x > 0 else -1)(5)
      1
    """
    target = _plain_function(fn)
    if target is not None:
        policy.opt_in(target)
    converted = resolve(fn)

    @functools.wraps(fn, updated=())
    def run(*args: Any, **kwargs: Any) -> Any:
        with status.switched(True):
            try:
                return converted(*args, **kwargs)
            except Exception as error:
                error.__traceback__ = tracebacks.filtered(error.__traceback__)
                raise

    run.ag_do_not_convert = True  # type: ignore[attr-defined]
    return run


def resolve(fn: Any) -> Any:
    """The converted form of a callable, or the callable itself when there is none."""
    kind = type(fn)
    if kind is FunctionType:
        return _function(fn)
    if kind is MethodType:
        inner = fn.__func__
        if type(inner) is not FunctionType:
            return fn
        converted = _function(inner)
        return fn if converted is inner else MethodType(converted, fn.__self__)
    if kind is BuiltinFunctionType or isinstance(fn, type):
        return fn
    if isinstance(fn, functools.partial):
        inner = resolve(fn.func)
        return fn if inner is fn.func else functools.partial(inner, *fn.args, **fn.keywords)
    call = getattr(kind, "__call__", None)  # noqa: B004 - the method itself is wanted
    if type(call) is FunctionType:
        converted = _function(call)
        return fn if converted is call else MethodType(converted, fn)
    return fn


def convert_if_enabled(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Converts a function of the user's when AutoGraph is on in this thread.

    For the parts of Meshflow that call back: layers, `tf.map_fn`, strategies.
    """
    return resolve(fn) if status.is_enabled() else fn


def _function(fn: FunctionType) -> FunctionType:
    if compiler.is_converted(fn) or not policy.is_convertible(fn):
        return fn
    code = compiler.converted_code(fn)
    if code is None:
        status.log.debug("%s is not converted: %s", fn.__qualname__, compiler.reason(fn))
        return fn
    # Made again each time, in microseconds: kept beside `fn`, its closure would keep what `fn` is part of for ever.
    return compiler.rebuild(fn, code, _runtime[0])


def _plain_function(fn: Any) -> FunctionType | None:
    while isinstance(fn, functools.partial):
        fn = fn.func
    fn = getattr(fn, "__func__", fn)
    return fn if type(fn) is FunctionType else None


def to_code(
    entity: Callable[..., Any], recursive: bool = True, experimental_optional_features: Any = None
) -> str:
    """The Python source that a function is converted to.

    Args:
      entity: a function, a method or a `tf.function`.
      recursive: accepted; called functions are always converted when they are called.
      experimental_optional_features: ignored.

    Returns:
      Source text, for reading: it refers to AutoGraph's runtime as `ag__`.

    Raises:
      ValueError: when the function cannot be converted.

    Example:
      >>> import meshflow as tf
      >>> def f(x):
      ...     return not x
      >>> print(tf.autograph.to_code(f))  # doctest: +SKIP
      def f(x):
          return ag__.not_(x)
    """
    del recursive, experimental_optional_features
    target = _plain_function(getattr(entity, "python_function", entity))
    if target is None:
        raise ValueError(f"to_code takes a Python function, got {entity!r}.")
    try:
        return ast.unparse(compiler.transformed(target))
    except compiler.ConversionError as error:
        raise ValueError(f"{target.__qualname__} cannot be converted: {error}.") from error


def to_graph(
    entity: Callable[..., Any], recursive: bool = True, experimental_optional_features: Any = None
) -> Callable[..., Any]:
    """The converted form of a function, for use inside traced code.

    Args:
      entity: a function or a `tf.function`.
      recursive: accepted; called functions are always converted.
      experimental_optional_features: ignored.

    Returns:
      A callable with the same arguments.

    Example:
      >>> import meshflow as tf
      >>> tf.autograph.to_graph(lambda x: x + 1)(1)
      2
    """
    del recursive, experimental_optional_features
    return convert(getattr(entity, "python_function", entity))
