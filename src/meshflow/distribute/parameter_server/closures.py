"""Closures for other processes: pickles in which hosted variables, the strategy and iterators are names.

What an object refers to and cannot be sent is a name too, of what stands for it there and raises when it is used.
"""

from __future__ import annotations

import functools
import io
import pickle
import sys
from collections.abc import Callable, Mapping, Sequence
from types import FunctionType, MappingProxyType, MethodType, ModuleType
from typing import Any, NamedTuple

from meshflow.core.functions.function import Function
from meshflow.core.runtime.errors import InvalidArgumentError
from meshflow.core.variables.variable import Variable
from meshflow.distribute.parameter_server.absent import Absent, AbsentVariable
from meshflow.distribute.parameter_server.hosting import HostedVariable, not_shared
from meshflow.distribute.parameter_server.program_modules import not_to_be_imported
from meshflow.distribute.parameter_server.remote_values import PerWorkerIterator
from meshflow.distribute.strategy import Strategy
from meshflow.environment import extras

__all__ = ["dumps", "dumps_function", "loads"]


def _cloudpickle() -> Any:
    message = "Parameter servers in other processes need the package cloudpickle"
    return extras.load("cloudpickle", "ray", message)


@functools.cache
def _pickler() -> Any:
    class Pickler(_cloudpickle().Pickler):  # type: ignore[misc]
        strategy: Any = None
        left: Mapping[int, str] = MappingProxyType({})

        def persistent_id(self, obj: Any) -> Any:
            why = self.left.get(id(obj))
            return _name_of(obj, self.strategy) if why is None else ("absent", why)

    return Pickler


def dumps_function(function: Any, strategy: Any, what: str = "the closure") -> bytes:
    """A pickle of a function, with all that it refers to in the program's modules that a worker is not to import.

    Args:
      function: the function.
      strategy: the strategy.
      what: what it is, for errors.

    Raises:
      InvalidArgumentError: see `dumps`.
    """
    for module in not_to_be_imported(strategy):
        _cloudpickle().register_pickle_by_value(module)
    return dumps(function, strategy, what)


def dumps(
    value: Any,
    strategy: Any = None,
    what: str = "the closure",
    arrays: list[pickle.PickleBuffer] | None = None,
    to: str = "a worker",
) -> bytes:
    """A pickle of a closure, of arguments, of a result, or of an optimizer.

    Args:
      value: what to pickle.
      strategy: the strategy; it hears of the optimizers that are met.
      what: what it is, for errors.
      arrays: where the bytes of arrays are put, for `loads`; None for in the pickle.
      to: who gets it, for errors.

    Raises:
      InvalidArgumentError: naming what cannot be pickled.
    """
    left: dict[int, str] = {}

    def dumped(part: Any, apart: Any = None) -> bytes:
        out = io.BytesIO()
        pickler = _pickler()(out, protocol=5, buffer_callback=apart)
        pickler.strategy, pickler.left = strategy, left
        pickler.dump(part)
        return out.getvalue()

    while True:
        found: list[pickle.PickleBuffer] = []
        try:
            data = dumped(value, None if arrays is None else found.append)
        except Exception as error:
            culprit = _culprit(_Part(what, value), dumped, error)
            if not culprit.spared or id(culprit.value) in left:
                raise InvalidArgumentError(culprit.told(to)) from error
            left[id(culprit.value)] = culprit.told(to)
        else:
            if arrays is not None:
                arrays.extend(found)
            return data


def _name_of(obj: Any, strategy: Any) -> Any:
    if isinstance(obj, HostedVariable):
        return "variable", obj.key, described(obj)
    if strategy is not None and (wrong := not_shared(obj)) is not None:
        return "absent_variable", described(obj), wrong
    if (stays := getattr(type(obj), "_stays_with_coordinator", None)) is not None:
        return "absent", stays
    if isinstance(obj, PerWorkerIterator):
        return "iterator", obj._key
    if isinstance(obj, Strategy):
        return ("strategy",)
    if strategy is not None and hasattr(type(obj), "apply_gradients") and hasattr(obj, "_slots"):
        # By value, but with a key by which a worker can ask for its slots.
        strategy.key_of(obj)
    return None


def described(variable: Variable) -> dict[str, Any]:
    """What a process needs to have its own object for a variable."""
    return {
        "servers": getattr(variable, "servers", ()),
        "name": variable._name,
        "shape": tuple(variable.shape),
        "dtype": variable.dtype.name,
        "trainable": variable._trainable,
        "autocast": variable._autocast,
        "synchronization": variable._synchronization,
        "aggregation": variable._aggregation,
    }


class _Unpickler(pickle.Unpickler):
    resolve: Mapping[str, Callable[..., Any]]

    def persistent_load(self, name: Any) -> Any:
        kind, *known = name
        return (_ABSENT.get(kind) or self.resolve[kind])(*known)


_ABSENT: dict[str, Callable[..., Any]] = {"absent": Absent, "absent_variable": AbsentVariable}


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


class _Part(NamedTuple):
    """A part of what is sent.

    Attributes:
      path: how it is reached.
      value: the part.
      function: the name of the function that refers to it, if one does.
      spared: whether it is part of an object, of which the closure may use other parts.
      reason: why it cannot be pickled.
    """

    path: str
    value: Any
    function: str = ""
    spared: bool = False
    reason: BaseException | None = None

    def inner(self, suffix: str, value: Any, spared: bool = False) -> _Part:
        """A part of this one."""
        return self._replace(path=self.path + suffix, value=value, spared=self.spared or spared)

    def told(self, to: str) -> str:
        """What is wrong with it."""
        named = f"{self.path!r}, which {self.function} refers to," if self.function else self.path
        return (
            f"{named} cannot be sent to {to}: {type(self.value).__name__} object, {self.reason}. Make it where it is "
            "needed, or keep it out of what functions refer to and return."
        )


def _culprit(
    part: _Part, dumped: Callable[[Any], bytes], error: BaseException, depth: int = 8
) -> _Part:
    """The innermost part that cannot be pickled, and why."""
    for inner in _parts(part) if depth else ():
        try:
            dumped(inner.value)
        except Exception as reason:
            return _culprit(inner, dumped, reason, depth - 1)
    return part._replace(reason=error)


def _parts(part: _Part) -> list[_Part]:
    value = part.value
    if isinstance(value, Function):
        value = value.python_function
    if isinstance(value, FunctionType):
        cells = zip(value.__code__.co_freevars, value.__closure__ or (), strict=True)
        inner = {name: cell.cell_contents for name, cell in cells}
        names = {n: value.__globals__[n] for n in value.__code__.co_names if n in value.__globals__}
        found = {**names, **inner}
        return [_Part(name, v, value.__name__, part.spared) for name, v in found.items()
                if not isinstance(v, (ModuleType, type))]  # fmt: skip
    if isinstance(value, dict):
        return [part.inner(f"[{key!r}]", v) for key, v in value.items()]
    if isinstance(value, (list, tuple)):
        return [part.inner(f"[{i}]", v) for i, v in enumerate(value)]
    if isinstance(value, functools.partial):
        return [part.inner(f".{n}", getattr(value, n)) for n in ("func", "args", "keywords")]
    if isinstance(value, MethodType):
        return [_Part("self", value.__self__, value.__name__, part.spared)]
    if hasattr(value, "__self__"):
        return [part.inner(".__self__", value.__self__)]
    own = getattr(value, "__dict__", None)
    # Without one of its parts, an object of Python's own library, such as a queue, is nothing.
    whole = type(value).__module__.partition(".")[0] in sys.stdlib_module_names
    if whole or not isinstance(own, dict):
        return []
    return [part.inner(f".{name}", v, spared=True) for name, v in own.items()]
