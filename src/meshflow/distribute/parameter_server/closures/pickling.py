"""Pickling of closures for other processes.

Hosted variables, the strategy and iterators are pickled as persistent ids, which the other process
resolves to its own objects. Objects that cannot be pickled are sent as ids of stubs; see the module
`stubs`.
"""

from __future__ import annotations

import functools
import io
import pickle
import sys
from collections.abc import Callable, Mapping, Sequence
from types import FunctionType, MappingProxyType, MethodType, ModuleType
from typing import Any, NamedTuple, Protocol, TypeAlias

from meshflow.core.functions.function import Function
from meshflow.core.runtime.errors import InvalidArgumentError
from meshflow.core.variables.variable import Variable, get_full_name
from meshflow.distribute.parameter_server.closures.program_modules import find_unimportable_modules
from meshflow.distribute.parameter_server.closures.remote_values import PerWorkerIterator
from meshflow.distribute.parameter_server.closures.stubs import (
    CoordinatorOnly,
    ObjectStub,
    VariableStub,
)
from meshflow.distribute.parameter_server.variables.hosted_variable import (
    HostedVariable,
    Optimizer,
    explain_unshared,
)
from meshflow.distribute.strategy import Strategy
from meshflow.environment import optional_packages

# Functions that return the objects of persistent ids, by the first item of the id: "variable",
# "iterator", "strategy".
Resolvers: TypeAlias = Mapping[str, Callable[..., Any]]


class OptimizerKeys(Protocol):
    """Strategy that assigns keys to optimizers; see `ParameterServerStrategy.get_optimizer_key`."""

    def get_optimizer_key(self, optimizer: Optimizer) -> int:
        """Return the key of an optimizer in all processes."""


def _load_cloudpickle() -> ModuleType:
    message = "Parameter servers in other processes need the package cloudpickle"
    return optional_packages.import_extra("cloudpickle", "ray", message)


@functools.cache
def _define_pickler() -> type[Any]:
    class ClosurePickler(_load_cloudpickle().Pickler):  # type: ignore[misc]
        strategy: OptimizerKeys | None = None
        stubs: Mapping[int, str] = MappingProxyType({})

        def persistent_id(self, obj: object) -> tuple[Any, ...] | None:
            message = self.stubs.get(id(obj))
            return (
                ("absent", message)
                if message is not None
                else _make_persistent_id(obj, self.strategy)
            )

    return ClosurePickler


def dumps_function(
    function: Callable[..., Any], strategy: OptimizerKeys, description: str = "the closure"
) -> bytes:
    """Pickle a function.

    Functions and classes of the program's modules that workers cannot import are pickled by value;
    see `program_modules`.

    Args:
      function: The function.
      strategy: The strategy.
      description: Description of the function for error messages.

    Raises:
      InvalidArgumentError: See `dumps`.
    """
    for module in find_unimportable_modules(strategy):
        _load_cloudpickle().register_pickle_by_value(module)
    return dumps(function, strategy, description)


def dumps(
    value: object,
    strategy: OptimizerKeys | None = None,
    description: str = "the closure",
    arrays: list[pickle.PickleBuffer] | None = None,
    recipient: str = "a worker",
) -> bytes:
    """Pickle a closure, its arguments, its result, or an optimizer.

    Args:
      value: The object.
      strategy: The strategy, which assigns keys to the optimizers in the object, or None.
      description: Description of the object for error messages.
      arrays: List to which the bytes of arrays are appended, for `loads`. By default, they are part
        of the pickle.
      recipient: Description of the recipient for error messages.

    Raises:
      InvalidArgumentError: If a part of the object cannot be pickled. The message names the part.
    """
    stubs: dict[int, str] = {}

    def dump_part(
        part: object, buffer_callback: Callable[[pickle.PickleBuffer], Any] | None = None
    ) -> bytes:
        out = io.BytesIO()
        pickler = _define_pickler()(out, protocol=5, buffer_callback=buffer_callback)
        pickler.strategy, pickler.stubs = strategy, stubs
        pickler.dump(part)
        return out.getvalue()

    # Each failure replaces one more object by a stub, until the rest can be pickled.
    while True:
        buffers: list[pickle.PickleBuffer] = []
        try:
            data = dump_part(value, None if arrays is None else buffers.append)
        except Exception as error:
            culprit = _find_unpicklable(_Part(description, value), dump_part, error)
            if not culprit.is_optional or id(culprit.value) in stubs:
                raise InvalidArgumentError(culprit.format_error(recipient)) from error
            stubs[id(culprit.value)] = culprit.format_error(recipient)
        else:
            if arrays is not None:
                arrays.extend(buffers)
            return data


def _make_persistent_id(obj: object, strategy: OptimizerKeys | None) -> tuple[Any, ...] | None:
    """Return the persistent id of an object, or None to pickle the object by value."""
    if isinstance(obj, HostedVariable):
        return "variable", obj.key, describe_variable(obj)
    if strategy is not None and isinstance(obj, Variable):
        message = explain_unshared(obj)
        if message is not None:
            return "absent_variable", describe_variable(obj), message
    if isinstance(obj, CoordinatorOnly):
        return "absent", obj.not_sendable_reason
    if isinstance(obj, PerWorkerIterator):
        return "iterator", obj.key
    if isinstance(obj, Strategy):
        return ("strategy",)
    if strategy is not None and hasattr(type(obj), "apply_gradients") and hasattr(obj, "_slots"):
        # The optimizer is pickled by value, but with a key by which a worker can request its slots.
        strategy.get_optimizer_key(obj)
    return None


def describe_variable(variable: Variable) -> dict[str, Any]:
    """Return the attributes of a variable from which another process creates its own object."""
    return {
        "servers": getattr(variable, "servers", ()),
        "name": get_full_name(variable),
        "shape": tuple(variable.shape),
        "dtype": variable.dtype.name,
        "trainable": variable.trainable,
        "autocast": variable._autocast,
        "synchronization": variable.synchronization,
        "aggregation": variable.aggregation,
    }


class _ClosureUnpickler(pickle.Unpickler):
    resolve: Resolvers

    def persistent_load(self, persistent_id: tuple[Any, ...]) -> object:
        kind, *arguments = persistent_id
        return (_STUBS.get(kind) or self.resolve[kind])(*arguments)


_STUBS: dict[str, Callable[..., Any]] = {"absent": ObjectStub, "absent_variable": VariableStub}


def loads(data: bytes, resolve: Resolvers, arrays: Sequence[Any] = ()) -> Any:
    """Load an object that `dumps` has pickled.

    Args:
      data: The pickle.
      resolve: Functions that return the objects of persistent ids, by kind.
      arrays: The bytes of arrays that are not part of the pickle.
    """
    unpickler = _ClosureUnpickler(io.BytesIO(data), buffers=arrays)
    unpickler.resolve = resolve
    return unpickler.load()


class _Part(NamedTuple):
    """A part of an object that is pickled.

    Attributes:
      path: Expression of the part, for error messages.
      value: The part.
      function: Name of the function that refers to it, or "".
      is_optional: Whether it is an attribute of an object of which the closure may use only other
        attributes.
      reason: The exception raised when it was pickled.
    """

    path: str
    value: Any
    function: str = ""
    is_optional: bool = False
    reason: BaseException | None = None

    def make_child(self, suffix: str, value: object, is_optional: bool = False) -> _Part:
        """Return a part of this part."""
        return self._replace(
            path=self.path + suffix, value=value, is_optional=self.is_optional or is_optional
        )

    def format_error(self, recipient: str) -> str:
        """Return the message for a part that cannot be pickled."""
        name = f"{self.path!r}, which {self.function} refers to," if self.function else self.path
        return (
            f"{name} cannot be sent to {recipient}: {type(self.value).__name__} object, {self.reason}. Create it where it "
            "is needed, or remove the reference to it from functions and results."
        )


def _find_unpicklable(
    part: _Part, dump_part: Callable[[object], bytes], error: BaseException, depth: int = 8
) -> _Part:
    """Return the innermost part that cannot be pickled, with the reason."""
    for child in _list_children(part) if depth else ():
        try:
            dump_part(child.value)
        except Exception as reason:
            return _find_unpicklable(child, dump_part, reason, depth - 1)
    return part._replace(reason=error)


def _list_children(part: _Part) -> list[_Part]:
    value = part.value
    if isinstance(value, Function):
        value = value.python_function
    if isinstance(value, FunctionType):
        cells = zip(value.__code__.co_freevars, value.__closure__ or (), strict=True)
        captured = {name: cell.cell_contents for name, cell in cells}
        names = value.__code__.co_names
        referenced = {n: value.__globals__[n] for n in names if n in value.__globals__}
        return [_Part(name, v, value.__name__, part.is_optional)
                for name, v in {**referenced, **captured}.items()
                if not isinstance(v, (ModuleType, type))]  # fmt: skip
    if isinstance(value, dict):
        return [part.make_child(f"[{key!r}]", v) for key, v in value.items()]
    if isinstance(value, (list, tuple)):
        return [part.make_child(f"[{i}]", v) for i, v in enumerate(value)]
    if isinstance(value, functools.partial):
        fields = ("func", "args", "keywords")
        return [part.make_child(f".{name}", getattr(value, name)) for name in fields]
    if isinstance(value, MethodType):
        return [_Part("self", value.__self__, value.__name__, part.is_optional)]
    if hasattr(value, "__self__"):
        return [part.make_child(".__self__", value.__self__)]
    attributes = getattr(value, "__dict__", None)
    # An object of Python's standard library, such as a queue, does not work without one of its
    # attributes.
    is_standard = type(value).__module__.partition(".")[0] in sys.stdlib_module_names
    if is_standard or not isinstance(attributes, dict):
        return []
    return [part.make_child(f".{name}", v, is_optional=True) for name, v in attributes.items()]
