"""Variables that parameter servers host, and what a worker's closure writes for them.

A `HostedVariable` is one object for the coordinator's program and for closures. Outside of closures, reading and
writing it go to its server. Inside (`context.closure` is set) it is the worker's own copy: reading gives the value of
the last pull, and what is written is seen by the rest of the closure only. What the servers are to do is written to
*outboxes*, ordinary variables for a trace, so that nested functions, branches and loops need nothing of their own; when
the function has returned the worker sends them.
"""

from __future__ import annotations

import contextlib
import math
import re
import threading
from collections.abc import Iterator, Sequence
from typing import Any, Protocol, Self

import numpy as np

from meshflow.core.dispatch.composite import IndexedSlices
from meshflow.core.dispatch.dispatch import apply
from meshflow.core.dispatch.operation import Op
from meshflow.core.runtime.context import as_stored, context
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.dtypes import as_dtype
from meshflow.core.values.shapes import TensorShape
from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.core.variables.random import STATE_NAME
from meshflow.core.variables.variable import Variable, VariableAggregation, VariableSynchronization

__all__ = ["DescribedVariable", "HostedVariable", "Outbox", "Outboxes"]

# A server's name among devices.
_TASK = re.compile(r"/job:ps(?:/replica:\d+)?/task:(\d+)")


class Home(Protocol):
    """Where hosted variables are, for who is no closure: the strategy's cluster."""

    def read(self, variable: HostedVariable) -> Any:
        """The present value, an array."""

    def write(self, variable: HostedVariable, value: Any) -> None:
        """Replaces the value."""

    def add(self, variable: HostedVariable, delta: Any) -> None:
        """Adds to the value, where it is."""


# From so many bytes on the memory of gradients is used again.
_LARGE = 1 << 20

# The key in the memo of `copy.deepcopy` of what makes other variables of hosted ones, by their keys.
RESOLVE = "meshflow.hosted"


class _Placing(threading.local):
    servers: tuple[int, ...] | None = None


_placing = _Placing()


@contextlib.contextmanager
def placed_on(servers: Sequence[int]) -> Iterator[None]:
    """Variables made inside are hosted by these servers."""
    saved, _placing.servers = _placing.servers, tuple(servers)
    try:
        yield
    finally:
        _placing.servers = saved


def wanted_servers() -> tuple[int, ...] | None:
    """Where a variable made now is to be hosted, as `placed_on` or `tf.device` says; None for anywhere."""
    if _placing.servers is not None:
        return _placing.servers
    task = _TASK.match(str(context.device))
    return None if task is None else (int(task[1]),)


class DescribedVariable(Variable):
    """A variable that is known by its description, without asking for its value."""

    @property
    def _shape(self) -> tuple[int, ...]:
        return tuple(self._static_shape.as_list())

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return len(self._shape)


class HostedVariable(DescribedVariable):
    """A variable whose value is on a parameter server; made by `tf.Variable` in the strategy's scope.

    Attributes:
      key: its number, the same in all processes.
      servers: the numbers of the servers that have it: one, or all for the state that optimizers share.
    """

    key: int
    servers: tuple[int, ...]
    _home: Home | None = None
    # Set while the constructor computes the initial value.
    _first: Any = None

    @property
    def _value(self) -> Any:
        closure = context.closure
        if closure is not None:
            return closure.value(self)
        return self._first if self._home is None else self._home.read(self)

    @_value.setter
    def _value(self, value: Any) -> None:
        closure = context.closure
        if closure is not None:
            closure.values[self.key] = value
        elif self._home is None:
            self.__dict__["_value"] = True  # tells `Variable.__init__` that it has run
            self._first = value
        else:
            self._home.write(self, value)

    def settle(self, key: int, servers: Sequence[int], home: Home) -> Any:
        """Gives the variable its place; its initial value, for the servers.

        Args:
          key: its number.
          servers: the servers that have it.
          home: where it is read and written.
        """
        first, self._first = self._first, None
        self.key, self.servers, self._home = key, tuple(servers), home
        return first

    @property
    def device(self) -> str:
        """The first server that has it, by TensorFlow's name."""
        return f"/job:ps/replica:0/task:{self.servers[0]}/device:CPU:0"

    def _as_tensor(self) -> Tensor:
        tensor = super()._as_tensor()
        closure = context.closure
        later = 0 if closure is None else closure.steps_before(self)
        return tensor + later if later else tensor

    def _train(self, value: Tensor) -> None:
        closure = context.closure
        if closure is not None and self._trainable and not closure.silent:
            # What others do meanwhile counts too. Slots are not added up: second moments would become negative.
            with as_stored():
                outboxes(self).added.assign_add(value - self._as_tensor())
            self._write(value)
        else:
            self._set(value)

    def _current(self) -> Any:
        return self._value  # a server is waited for without the lock of this process's variables

    def _set(self, value: Tensor) -> None:
        closure = context.closure
        if closure is not None and not closure.silent:
            closure.note_set(self)
            outboxes(self).set(value)
        super()._set(value)

    def _update(self, op: Op, delta: TensorLike, method: str) -> Self:
        closure = context.closure
        if closure is None and context.trace is None and self._home is not None:
            tensor = self._checked(delta, method)
            if not self._fits(tensor):
                raise ValueError(
                    f"Cannot {method} a value of shape {tensor.shape} to variable {self.name} of shape "
                    f"{self._static_shape}."
                )
            self._home.add(self, (tensor if op.name == "assign_add" else -tensor)._value)
            return self
        super()._update(op, delta, method)
        if closure is not None and not closure.silent:
            outboxes(self).add(op, delta, method)
        return self

    def _fits(self, delta: Tensor) -> bool:
        try:
            return np.broadcast_shapes(tuple(delta._value.shape), self._shape) == self._shape
        except ValueError:
            return False

    def _scatter_rows(self, op: Op, indices: Any, updates: Any) -> Self:
        closure = context.closure
        if closure is None or closure.silent or op.name not in ("scatter_add", "scatter_sub"):
            return super()._scatter_rows(op, indices, updates)
        values = self._checked(updates, "scatter")
        with as_stored():
            self._write(apply(op, (self._as_tensor(), convert_to_tensor(indices), values)))
        outboxes(self).added._scatter_rows(op, indices, values)
        return self

    @contextlib.contextmanager
    def _beside(self) -> Iterator[None]:
        with placed_on(self.servers):
            yield

    def __deepcopy__(self, memo: dict[Any, Any]) -> Any:
        if RESOLVE in memo:
            return memo[RESOLVE](self.key)
        raise TypeError(
            f"{self.name} is hosted by parameter servers and cannot be copied: make another variable in the "
            "strategy's scope, as with tf.keras.models.clone_model."
        )

    def __reduce__(self) -> Any:
        raise TypeError(f"{self.name} is hosted by parameter servers and cannot be pickled.")

    def __repr__(self) -> str:
        if context.trace is None and context.closure is None:
            return super().__repr__()
        return f"<tf.Variable '{self.name}' shape={self._static_shape} dtype={self._dtype.name}>"


class Outbox(DescribedVariable):
    """What a closure wrote for a server: of the closure that runs in the thread.

    Args:
      owner: the boxes that it is one of.
      shape: the shape.
      dtype: the dtype.
      name: a name, for profiles.
    """

    # What is there before is not looked at.
    _write_only = True

    def __init__(self, owner: Any, shape: Sequence[int], dtype: Any, name: str) -> None:
        self.owner = owner
        # Whether programs are given memory for it, and the server that reads it there.
        self.spared, self.server = False, 0
        self._static_shape, self._dtype, self._name = (
            TensorShape(tuple(shape)),
            as_dtype(dtype),
            name,
        )
        # Where there must be something before, small ones begin with the same zeros.
        self._is_lent = self.nbytes < _LARGE
        self._trainable = self._autocast = False
        self._constraint = None
        self._synchronization = VariableSynchronization.AUTO
        self._aggregation = VariableAggregation.NONE

    @property
    def nbytes(self) -> int:
        """How many bytes it has."""
        return math.prod(self._shape) * self._dtype.size

    @property
    def _value(self) -> Any:
        return context.closure.outgoing(self)

    @_value.setter
    def _value(self, value: Any) -> None:
        context.closure.outboxes[id(self)] = self, value


class Outboxes:
    """What closures write for one variable: a new value, whether there is one, and what is added afterwards.

    Args:
      variable: the variable.
    """

    def __init__(self, variable: HostedVariable) -> None:
        self.variable = variable
        shape, dtype, name = variable._shape, variable.dtype, variable._name
        self.value = Outbox(self, shape, dtype, f"{name}/set")
        self.is_set = Outbox(self, (), "int32", f"{name}/is_set")
        self.added = Outbox(self, shape, dtype, f"{name}/added")

    def set(self, value: Tensor) -> None:
        """Notes that the variable gets a value; what was added before counts no more."""
        self.value._write(value)
        self.is_set._write(Tensor(np.int32(1)))
        self.added._write(Tensor(np.zeros(self.variable._shape, self.variable.dtype.dtype)))

    def add(self, op: Op, delta: TensorLike, method: str) -> None:
        """Notes that something is added or subtracted."""
        self.added._update(op, delta, method)


class GradientBoxes:
    """What one call of `apply_gradients` gives: gradients, and how often the call was made.

    Args:
      optimizer: the optimizer's key.
      pairs: pairs (gradient, variable).

    Attributes:
      has_slots: whether the optimizer has some.
    """

    has_slots = False

    def __init__(self, optimizer: int, pairs: Sequence[tuple[Any, HostedVariable]]) -> None:
        self.optimizer = optimizer
        self.variables = [v for _, v in pairs]
        self.boxes = [self._like(g, v) for g, v in pairs]
        self.count = Outbox(self, (), "int32", "gradients/count")

    def _like(self, gradient: Any, variable: HostedVariable) -> list[Outbox]:
        name = f"{variable._name}/gradient"
        made = [Outbox(self, p._value.shape, p.dtype, name) for p in _parts(gradient)]
        for box in made:
            # The memory of an earlier gradient is given to the program: fresh pages cost more than filling them.
            box._write_only = box._is_lent
            box.spared, box.server = not box._is_lent, variable.servers[0]
        return made

    def put(self, gradients: Sequence[Any]) -> None:
        """Writes the gradients of a call."""
        for gradient, boxes in zip(gradients, self.boxes, strict=True):
            for box, part in zip(boxes, _parts(gradient), strict=True):
                box._write(part)
        self.count.assign_add(1)


def not_shared(value: Any) -> str | None:
    """What is wrong with a closure that refers to a variable which no server has; None for anything else.

    Args:
      value: anything.
    """
    shared = (HostedVariable, Outbox)
    if isinstance(value, Variable) and not isinstance(value, shared) and value._name != STATE_NAME:
        return (
            f"A closure refers to the variable {value.name}, which was not made in the scope of the "
            "ParameterServerStrategy: workers would each have their own. Make it in `strategy.scope()`."
        )
    return None


def _parts(gradient: Any) -> list[Tensor]:
    if isinstance(gradient, IndexedSlices):
        return [gradient.values, gradient.indices]
    return [convert_to_tensor(gradient)]


def kind_of(
    optimizer: int, pairs: Sequence[tuple[Any, HostedVariable]], turn: int
) -> tuple[Any, ...]:
    """What the boxes of two calls of `apply_gradients` may differ in."""
    shapes = (tuple((p._value.shape, p.dtype.name) for p in _parts(g)) for g, _ in pairs)
    return optimizer, turn, *((v.key, s) for (_, v), s in zip(pairs, shapes, strict=True))


def outboxes(variable: HostedVariable) -> Outboxes:
    """The outboxes of a variable, for all closures of this process."""
    found = variable.__dict__.get("_outboxes")
    if found is None:
        found = variable.__dict__.setdefault("_outboxes", Outboxes(variable))
    return found


def gradient_boxes(
    optimizer: int, pairs: Sequence[tuple[Any, HostedVariable]], turn: int = 0
) -> GradientBoxes:
    """The outboxes of a call of `apply_gradients`, for all closures of this process.

    Args:
      optimizer: the optimizer's key.
      pairs: pairs (gradient, variable).
      turn: how many calls the function had made before.
    """
    known = pairs[0][1].__dict__.setdefault("_gradient_boxes", {})
    kind = kind_of(optimizer, pairs, turn)
    if kind not in known:
        known.setdefault(kind, GradientBoxes(optimizer, pairs))
    return known[kind]
