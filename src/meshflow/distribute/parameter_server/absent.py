"""What stands in a worker for what stays with the coordinator: it says so when it is used.

Closures refer to whole objects, such as a trainer that holds the coordinator, locks and results beside its model. What they
use of it is sent; the rest only has to be there.
"""

from __future__ import annotations

from typing import Any

from meshflow.core.runtime.errors import FailedPreconditionError, InvalidArgumentError
from meshflow.core.values.dtypes import as_dtype
from meshflow.core.values.shapes import TensorShape
from meshflow.core.variables.variable import VariableAggregation, VariableSynchronization
from meshflow.distribute.parameter_server.hosting import DescribedVariable

__all__ = ["Absent", "AbsentError", "AbsentVariable"]


class AbsentError(InvalidArgumentError, AttributeError):
    """A closure uses what could not be sent to its worker; `hasattr` takes it for an answer."""


class Absent:
    """Stands for any object; whatever is done with it raises.

    Args:
      why: what it is, and why it is not there.
    """

    def __init__(self, why: str) -> None:
        self.__dict__["_why"] = why

    def __getattr__(self, name: str) -> Any:
        # A copy that is just made has nothing yet.
        raise AbsentError(self.__dict__.get("_why", name))

    def _use(self, *_: Any, **__: Any) -> Any:
        raise AbsentError(self._why)

    __call__ = __enter__ = __exit__ = __iter__ = __next__ = __len__ = _use
    __getitem__ = __setitem__ = __contains__ = __setattr__ = _use
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = _use
    __truediv__ = __rtruediv__ = __matmul__ = __pow__ = __neg__ = __float__ = __int__ = _use
    __lt__ = __le__ = __gt__ = __ge__ = _as_tensor = _use

    def __repr__(self) -> str:
        return f"<absent: {self._why}>"


class AbsentVariable(DescribedVariable):
    """Stands for a variable of the coordinator's own, which no server has; reading and writing it raises.

    Args:
      about: what describes it; see `closures.described`.
      why: the error's message.
    """

    def __init__(self, about: dict[str, Any], why: str) -> None:
        self._static_shape, self._dtype = TensorShape(about["shape"]), as_dtype(about["dtype"])
        self._name, self._trainable = about["name"], about["trainable"]
        self._autocast, self._constraint, self._why = False, None, why
        self._synchronization = VariableSynchronization.AUTO
        self._aggregation = VariableAggregation.NONE

    @property
    def _value(self) -> Any:
        raise FailedPreconditionError(self._why)

    @_value.setter
    def _value(self, value: Any) -> None:
        raise FailedPreconditionError(self._why)
