"""Stubs that replace, in a worker, the objects that cannot be sent to it.

A closure may refer to a large object of which it uses only a part, for example a trainer that holds
a model, the coordinator, locks and results. The parts that can be pickled are sent. The others are
replaced by stubs, which raise an error when they are used.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, NoReturn

from meshflow.core.runtime.errors import FailedPreconditionError, InvalidArgumentError
from meshflow.core.values.dtypes import as_dtype
from meshflow.core.values.shapes import TensorShape
from meshflow.core.variables.variable import VariableAggregation, VariableSynchronization
from meshflow.distribute.parameter_server.variables.hosted_variable import DescribedVariable
from meshflow.environment.types import Array


class CoordinatorOnly:
    """Base class of objects that are not sent to workers, which get stubs instead.

    Attributes:
      not_sendable_reason: Message of the error that a worker raises when it uses the object.
    """

    not_sendable_reason: ClassVar[str]


class StubUsedError(InvalidArgumentError, AttributeError):
    """A closure uses an object that could not be sent to its worker.

    The error is an `AttributeError` too, so `hasattr` returns False for all attributes of a stub.
    """


class ObjectStub:
    """Stub of any object. All operations on it raise `StubUsedError`.

    Args:
      message: Message of the error, which names the object and the reason.
    """

    def __init__(self, message: str) -> None:
        self.__dict__["_why"] = message

    def __getattr__(self, name: str) -> Any:
        # During `copy.copy`, a new stub has no attributes yet.
        raise StubUsedError(self.__dict__.get("_why", name))

    def _raise_error(self, *_: object, **__: object) -> NoReturn:
        raise StubUsedError(self._why)

    __call__ = __enter__ = __exit__ = __iter__ = __next__ = __len__ = _raise_error
    __getitem__ = __setitem__ = __contains__ = __setattr__ = _raise_error
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = _raise_error
    __truediv__ = __rtruediv__ = __matmul__ = __pow__ = __neg__ = __float__ = __int__ = _raise_error
    __lt__ = __le__ = __gt__ = __ge__ = _as_tensor = _raise_error

    def __repr__(self) -> str:
        return f"<absent: {self._why}>"


class VariableStub(DescribedVariable):
    """Stub of a variable that no parameter server hosts. Reading and writing it raises an error.

    Args:
      description: Description of the variable; see `describe_variable`.
      message: Message of the error.
    """

    def __init__(self, description: Mapping[str, Any], message: str) -> None:
        self._static_shape, self._dtype = (
            TensorShape(description["shape"]),
            as_dtype(description["dtype"]),
        )
        self._name, self._trainable = description["name"], description["trainable"]
        self._autocast, self._constraint, self._why = False, None, message
        self._synchronization = VariableSynchronization.AUTO
        self._aggregation = VariableAggregation.NONE

    @property
    def _value(self) -> Array:
        raise FailedPreconditionError(self._why)

    @_value.setter
    def _value(self, value: Array) -> None:
        raise FailedPreconditionError(self._why)
