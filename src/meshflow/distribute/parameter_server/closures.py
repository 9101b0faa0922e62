"""Closures for other processes: pickles in which hosted variables, the strategy and iterators are names."""

from __future__ import annotations

import functools
import io
import pickle
from collections.abc import Callable, Mapping, Sequence
from types import FunctionType, ModuleType
from typing import Any

from meshflow.core.functions.function import Function
from meshflow.core.runtime.errors import FailedPreconditionError, InvalidArgumentError
from meshflow.distribute.parameter_server.hosting import HostedVariable, check_shared
from meshflow.distribute.parameter_server.remote_values import PerWorkerIterator
from meshflow.distribute.strategy import Strategy
from meshflow.environment import extras

__all__ = ["dumps", "loads"]


def _cloudpickle() -> Any:
    message = "Parameter servers in other processes need the package cloudpickle"
    return extras.load("cloudpickle", "ray", message)


@functools.cache
def _pickler() -> Any:
    class Pickler(_cloudpickle().Pickler):  # type: ignore[misc]
        strategy: Any = None

        def persistent_id(self, obj: Any) -> Any:
            return _name_of(obj, self.strategy)

    return Pickler


def dumps(
    value: Any,
    strategy: Any = None,
    what: str = "the closure",
    arrays: list[pickle.PickleBuffer] | None = None,
) -> bytes:
    """A pickle of a closure, of arguments, or of an optimizer.

    Args:
      value: what to pickle.
      strategy: the strategy; it hears of the optimizers that are met.
      what: what it is, for errors.
      arrays: where the bytes of arrays are put, for `loads`; None for in the pickle.

    Raises:
      InvalidArgumentError: naming what cannot be pickled.
    """
    apart = None if arrays is None else arrays.append

    def dumped(part: Any, apart: Any = None) -> bytes:
        out = io.BytesIO()
        pickler = _pickler()(out, protocol=5, buffer_callback=apart)
        pickler.strategy = strategy
        pickler.dump(part)
        return out.getvalue()

    try:
        return dumped(value, apart)
    except FailedPreconditionError:
        raise
    except Exception as error:
        path, culprit, reason = _culprit(value, what, dumped, error)
        raise InvalidArgumentError(
            f"{path} cannot be sent to a worker: {type(culprit).__name__} object, {reason}. Make it inside the function, or "
            "keep it out of what the function refers to."
        ) from error


def _name_of(obj: Any, strategy: Any) -> Any:
    if isinstance(obj, HostedVariable):
        return "variable", obj.key, described(obj)
    if strategy is not None:
        check_shared(obj)
    if isinstance(obj, PerWorkerIterator):
        return "iterator", obj._key
    if isinstance(obj, Strategy):
        return ("strategy",)
    if strategy is not None and hasattr(type(obj), "apply_gradients") and hasattr(obj, "_slots"):
        # By value, but with a key by which a worker can ask for its slots.
        strategy.key_of(obj)
    return None


def described(variable: HostedVariable) -> dict[str, Any]:
    """What a process needs to have its own object for a hosted variable."""
    return {
        "servers": variable.servers,
        "name": variable._name,
        "shape": variable._shape,
        "dtype": variable.dtype.name,
        "trainable": variable._trainable,
        "autocast": variable._autocast,
        "synchronization": variable._synchronization,
        "aggregation": variable._aggregation,
    }


class _Unpickler(pickle.Unpickler):
    resolve: Mapping[str, Callable[..., Any]]

    def persistent_load(self, name: Any) -> Any:
        return self.resolve[name[0]](*name[1:])


def loads(
    data: bytes, resolve: Mapping[str, Callable[..., Any]], arrays: Sequence[Any] = ()
) -> Any:
    """What `dumps` was given.

    Args:
      data: the pickle.
      resolve: what gives the objects of names: "variable", "iterator", "strategy".
      arrays: the bytes of arrays that were put apart.
    """
    unpickler = _Unpickler(io.BytesIO(data), buffers=arrays)
    unpickler.resolve = resolve
    return unpickler.load()


def _culprit(
    value: Any, path: str, dumped: Callable[[Any], bytes], error: BaseException, depth: int = 6
) -> tuple[str, Any, BaseException]:
    """The innermost part that cannot be pickled: how it is reached, itself, and why."""
    for name, part in _parts(value, path):
        try:
            dumped(part)
        except Exception as reason:
            return (
                _culprit(part, name, dumped, reason, depth - 1) if depth else (name, part, reason)
            )
    return path, value, error


def _parts(value: Any, path: str) -> list[tuple[str, Any]]:
    if isinstance(value, Function):
        value = value.python_function
    if isinstance(value, FunctionType):
        cells = zip(value.__code__.co_freevars, value.__closure__ or (), strict=True)
        inner = {name: cell.cell_contents for name, cell in cells}
        names = {n: value.__globals__[n] for n in value.__code__.co_names if n in value.__globals__}
        found = {**names, **inner}
        return [(f"{name!r}, which {value.__name__} refers to,", v) for name, v in found.items()
                if not isinstance(v, (ModuleType, type))]  # fmt: skip
    if isinstance(value, dict):
        return [(f"{path}[{key!r}]", part) for key, part in value.items()]
    if isinstance(value, (list, tuple)):
        return [(f"{path}[{i}]", part) for i, part in enumerate(value)]
    if hasattr(value, "__self__"):
        return [(f"{path}.__self__", value.__self__)]
    own = getattr(value, "__dict__", {})
    return [(f"{path}.{name}", part) for name, part in own.items()] if isinstance(own, dict) else []
