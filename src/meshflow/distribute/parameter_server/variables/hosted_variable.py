"""Variables on parameter servers, and the outboxes to which closures write their changes.

A `HostedVariable` is one object for the coordinator's program and for closures. Outside closures,
reads and writes access its server. Inside a closure (`context.worker_closure` is set) the variable is the
worker's own copy: a read returns the value of the last pull, and only the rest of the closure sees
a write. The changes for the servers are written to *outboxes*. These are ordinary variables for a
trace, so nested functions, branches and loops need no special support. The worker sends them when
the function has returned.
"""

from __future__ import annotations

import contextlib
import math
import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NoReturn, Protocol, Self, TypeAlias

import numpy as np

from meshflow.core.dispatch.composite import IndexedSlices
from meshflow.core.dispatch.dispatch import apply
from meshflow.core.dispatch.operation import Op
from meshflow.core.runtime.context import context, suspend_autocast
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.dtypes import DTypeLike, as_dtype
from meshflow.core.values.shapes import TensorShape
from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.core.variables.random_streams import STATE_NAME
from meshflow.core.variables.variable import (
    Variable,
    VariableAggregation,
    VariableSynchronization,
    get_full_name,
    get_value_shape,
)
from meshflow.environment.types import Array, ArrayLike

# A Keras optimizer. Its class is in a higher layer, and parameter servers use its private
# attributes.
Optimizer: TypeAlias = Any
# A gradient that a closure passes to `apply_gradients`.
Gradient: TypeAlias = TensorLike | IndexedSlices

# The name of a server's device.
_SERVER_DEVICE = re.compile(r"/job:ps(?:/replica:\d+)?/task:(\d+)")


class VariableHost(Protocol):
    """Cluster that hosts variables, for reads and writes outside closures."""

    def read(self, variable: HostedVariable) -> Array:
        """Return the current value."""

    def write(self, variable: HostedVariable, value: ArrayLike) -> None:
        """Replace the value."""

    def add(self, variable: HostedVariable, delta: ArrayLike) -> None:
        """Add to the value on the server."""


class ClosureContext(Protocol):
    """Closure that runs in this thread, as hosted variables see it; see `RunningClosure`.

    Attributes:
      is_silent: Whether writes are the worker's copy of a step that servers take.
      values: The values that the closure sees, by variable key.
      outboxes: The outboxes that the closure has written, with their values, by `id`.
    """

    is_silent: bool
    values: dict[int, Array]
    outboxes: dict[int, tuple[Outbox, Array]]

    def get_value(self, variable: HostedVariable) -> Array:
        """Return the value of a variable that the closure sees."""

    def get_outbox_value(self, box: Outbox) -> Array:
        """Return the value of an outbox."""

    def check_assignment(self, variable: HostedVariable) -> None:
        """Check that a variable can be assigned."""

    def count_pending_steps(self, variable: HostedVariable) -> int:
        """Return the number of optimizer steps to add to the value of a step counter."""


def _current_closure() -> ClosureContext | None:
    closure: ClosureContext | None = context.worker_closure
    return closure


# Programs reuse the memory of earlier gradients if they have at least this many bytes.
_MIN_REUSED_BYTES = 1 << 20

# Key in the memo of `copy.deepcopy`, for the function that returns a copy's variable for the key of
# a hosted variable.
RESOLVE_KEY = "meshflow.hosted"


class _Placement(threading.local):
    servers: tuple[int, ...] | None = None


_placement = _Placement()


@contextlib.contextmanager
def place_on_servers(servers: Sequence[int]) -> Iterator[None]:
    """Host the variables that are created in this context on the given servers."""
    saved, _placement.servers = _placement.servers, tuple(servers)
    try:
        yield
    finally:
        _placement.servers = saved


def get_requested_servers() -> tuple[int, ...] | None:
    """Return the servers that `place_on_servers` or `tf.device` selects, or None for any server."""
    if _placement.servers is not None:
        return _placement.servers
    task = _SERVER_DEVICE.match(str(context.device))
    return None if task is None else (int(task[1]),)


class DescribedVariable(Variable):
    """Variable with a shape and dtype that are known without its value."""

    @property
    def _shape(self) -> tuple[int, ...]:
        return tuple(self._static_shape.as_list())

    @property
    def ndim(self) -> int:
        """Return the number of dimensions."""
        return len(self._shape)


class HostedVariable(DescribedVariable):
    """Variable that is stored on a parameter server.

    `tf.Variable` creates it in the scope of the strategy.

    Attributes:
      key: Id of the variable in all processes.
      servers: Indices of the servers that host the variable: one, or all for the state that
        optimizers share.
    """

    key: int
    servers: tuple[int, ...]
    _host: VariableHost | None = None
    # The initial value, until the variable is on a server.
    _initial_value: Any = None

    @property
    def _value(self) -> Array:
        closure = _current_closure()
        if closure is not None:
            return closure.get_value(self)
        return self._initial_value if self._host is None else self._host.read(self)

    @_value.setter
    def _value(self, value: Array) -> None:
        closure = _current_closure()
        if closure is not None:
            closure.values[self.key] = value
        elif self._host is None:
            self.__dict__["_value"] = True  # tells `Variable.__init__` that the value is set
            self._initial_value = value
        else:
            self._host.write(self, value)

    def attach(self, key: int, servers: Sequence[int], host: VariableHost) -> Array:
        """Attach the variable to its servers and return its initial value, which they need.

        Args:
          key: Id of the variable.
          servers: Indices of the servers that host it.
          host: Cluster for reads and writes.
        """
        initial_value, self._initial_value = self._initial_value, None
        self.key, self.servers, self._host = key, tuple(servers), host
        return initial_value

    def apply_description(self, description: Mapping[str, Any]) -> None:
        """Set the attributes that `describe_variable` returned in another process."""
        self._static_shape = TensorShape(description["shape"])
        self._dtype, self._name = as_dtype(description["dtype"]), description["name"]
        self._trainable, self._autocast = description["trainable"], description["autocast"]
        self._synchronization = description["synchronization"]
        self._aggregation, self._constraint = description["aggregation"], None

    @property
    def device(self) -> str:
        """Return the device name of the first server that hosts the variable, as in TensorFlow."""
        return f"/job:ps/replica:0/task:{self.servers[0]}/device:CPU:0"

    def _as_tensor(self) -> Tensor:
        tensor = super()._as_tensor()
        closure = _current_closure()
        num_steps = 0 if closure is None else closure.count_pending_steps(self)
        return tensor + num_steps if num_steps else tensor

    def _train(self, value: Tensor) -> None:
        closure = _current_closure()
        if closure is not None and self._trainable and not closure.is_silent:
            # The server adds the difference, so updates by other workers count too. Slots are set
            # instead, because sums of differences could make second moments negative.
            with suspend_autocast():
                get_outboxes(self).added.assign_add(value - self._as_tensor())
            self._write(value)
        else:
            self._set(value)

    def _current(self) -> Array:
        return (
            self._value
        )  # The lock of this process's variables is not needed while a server answers.

    def _set(self, value: Tensor) -> None:
        closure = _current_closure()
        if closure is not None and not closure.is_silent:
            closure.check_assignment(self)
            get_outboxes(self).set(value)
        super()._set(value)

    def _update(self, op: Op, delta: TensorLike, method: str) -> Self:
        closure = _current_closure()
        if closure is None and context.trace is None and self._host is not None:
            tensor = self._check_value(delta, method)
            if not self._can_add(tensor):
                raise ValueError(
                    f"Cannot {method} a value of shape {tensor.shape} to variable {self.name} of shape "
                    f"{self._static_shape}."
                )
            self._host.add(self, (tensor if op.name == "assign_add" else -tensor).array)
            return self
        super()._update(op, delta, method)
        if closure is not None and not closure.is_silent:
            get_outboxes(self).add(op, delta, method)
        return self

    def _can_add(self, delta: Tensor) -> bool:
        try:
            return np.broadcast_shapes(tuple(delta.array.shape), self._shape) == self._shape
        except ValueError:
            return False

    def _scatter_rows(self, op: Op, indices: TensorLike, updates: TensorLike) -> Self:
        closure = _current_closure()
        if closure is None or closure.is_silent or op.name not in ("scatter_add", "scatter_sub"):
            return super()._scatter_rows(op, indices, updates)
        values = self._check_value(updates, "scatter")
        with suspend_autocast():
            self._write(apply(op, (self._as_tensor(), convert_to_tensor(indices), values)))
        get_outboxes(self).added._scatter_rows(op, indices, values)
        return self

    @contextlib.contextmanager
    def _colocation_scope(self) -> Iterator[None]:
        with place_on_servers(self.servers):
            yield

    def __deepcopy__(self, memo: dict[Any, Any]) -> Any:
        if RESOLVE_KEY in memo:
            return memo[RESOLVE_KEY](self.key)
        raise TypeError(
            f"{self.name} is hosted by parameter servers and cannot be copied: create another variable in the strategy's "
            "scope, for example with tf.keras.models.clone_model."
        )

    def __reduce__(self) -> NoReturn:
        raise TypeError(f"{self.name} is hosted by parameter servers and cannot be pickled.")

    def __repr__(self) -> str:
        if context.trace is None and context.worker_closure is None:
            return super().__repr__()
        return f"<tf.Variable '{self.name}' shape={self._static_shape} dtype={self._dtype.name}>"


class Outbox(DescribedVariable):
    """Variable to which the closure of this thread writes changes for a server.

    Args:
      owner: The group of outboxes to which this one belongs.
      shape: Shape of the variable.
      dtype: Dtype of the variable.
      name: Name of the variable, for profiles.
    """

    # Programs need not read the value before they write it.
    _write_only = True

    def __init__(
        self,
        owner: VariableOutboxes | GradientOutboxes,
        shape: Sequence[int],
        dtype: DTypeLike,
        name: str,
    ) -> None:
        self.owner = owner
        # Whether programs write the value to memory of the worker's pool, and the index of the
        # server that receives it.
        self.is_pooled, self.server_id = False, 0
        self._static_shape, self._dtype, self._name = (
            TensorShape(tuple(shape)),
            as_dtype(dtype),
            name,
        )
        # Programs that need an earlier value get zeros, which small outboxes of one shape share.
        self._is_lent = self.nbytes < _MIN_REUSED_BYTES
        self._trainable = self._autocast = False
        self._constraint = None
        self._synchronization = VariableSynchronization.AUTO
        self._aggregation = VariableAggregation.NONE

    @property
    def nbytes(self) -> int:
        """Return the size of the value in bytes."""
        return math.prod(self._shape) * self._dtype.size

    @property
    def _value(self) -> Array:
        closure: ClosureContext = context.worker_closure
        return closure.get_outbox_value(self)

    @_value.setter
    def _value(self, value: Array) -> None:
        context.worker_closure.outboxes[id(self)] = self, value


class VariableOutboxes:
    """The outboxes of one variable: a new value, whether there is one, and a value to add to it.

    Args:
      variable: The variable.
    """

    def __init__(self, variable: HostedVariable) -> None:
        self.variable = variable
        shape, dtype, name = get_value_shape(variable), variable.dtype, get_full_name(variable)
        self.value = Outbox(self, shape, dtype, f"{name}/set")
        self.is_set = Outbox(self, (), "int32", f"{name}/is_set")
        self.added = Outbox(self, shape, dtype, f"{name}/added")

    def set(self, value: Tensor) -> None:
        """Write a new value, which replaces earlier additions."""
        self.value._write(value)
        self.is_set._write(Tensor(np.int32(1)))
        self.added._write(
            Tensor(np.zeros(get_value_shape(self.variable), self.variable.dtype.dtype))
        )

    def add(self, op: Op, delta: TensorLike, method: str) -> None:
        """Add a value, or subtract it."""
        self.added._update(op, delta, method)


class GradientOutboxes:
    """The outboxes of a call of `apply_gradients`: gradients, and a counter of executions.

    Args:
      optimizer: Key of the optimizer.
      pairs: Pairs of a gradient and its variable.

    Attributes:
      has_slots: Whether the optimizer has slots.
    """

    has_slots = False

    def __init__(self, optimizer: int, pairs: Sequence[tuple[Gradient, HostedVariable]]) -> None:
        self.optimizer = optimizer
        self.variables = [v for _, v in pairs]
        self.boxes = [self._create_outboxes(g, v) for g, v in pairs]
        self.count = Outbox(self, (), "int32", "gradients/count")

    def _create_outboxes(self, gradient: Gradient, variable: HostedVariable) -> list[Outbox]:
        name = f"{get_full_name(variable)}/gradient"
        outboxes = [Outbox(self, p.array.shape, p.dtype, name) for p in _get_components(gradient)]
        for box in outboxes:
            # The program gets the memory of an earlier gradient, because fresh pages cost more than
            # filling mapped ones.
            is_lent = box._write_only = box._is_lent
            box.is_pooled, box.server_id = not is_lent, variable.servers[0]
        return outboxes

    def write_gradients(self, gradients: Sequence[Gradient]) -> None:
        """Write the gradients of one execution of the call."""
        for gradient, boxes in zip(gradients, self.boxes, strict=True):
            for box, part in zip(boxes, _get_components(gradient), strict=True):
                box._write(part)
        self.count.assign_add(1)


def explain_unshared(value: object) -> str | None:
    """Return an error message if a value is a variable that no server hosts, else None.

    A closure cannot refer to such a variable.

    Args:
      value: Any object.
    """
    shared = (HostedVariable, Outbox)
    if (
        isinstance(value, Variable)
        and not isinstance(value, shared)
        and get_full_name(value) != STATE_NAME
    ):
        return (
            f"A closure refers to the variable {value.name}, which was not made in the scope of the "
            "ParameterServerStrategy, so each worker would have its own. Create it in `strategy.scope()`."
        )
    return None


def _get_components(gradient: Gradient) -> list[Tensor]:
    if isinstance(gradient, IndexedSlices):
        return [gradient.values, gradient.indices]
    return [convert_to_tensor(gradient)]


def make_outbox_key(
    optimizer: int, pairs: Sequence[tuple[Gradient, HostedVariable]], call_index: int
) -> tuple[Any, ...]:
    """Return a key that is equal for calls of `apply_gradients` that can share their outboxes."""
    shapes = (tuple((p.array.shape, p.dtype.name) for p in _get_components(g)) for g, _ in pairs)
    return optimizer, call_index, *((v.key, s) for (_, v), s in zip(pairs, shapes, strict=True))


def get_outboxes(variable: HostedVariable) -> VariableOutboxes:
    """Return the outboxes of a variable, which all closures of this process share."""
    group = variable.__dict__.get("_outboxes")
    if group is None:
        group = variable.__dict__.setdefault("_outboxes", VariableOutboxes(variable))
    return group


def get_gradient_outboxes(
    optimizer: int, pairs: Sequence[tuple[Gradient, HostedVariable]], call_index: int = 0
) -> GradientOutboxes:
    """Return the outboxes of a call of `apply_gradients`, shared by all closures of this process.

    Args:
      optimizer: Key of the optimizer.
      pairs: Pairs of a gradient and its variable.
      call_index: Number of earlier calls in the function.
    """
    groups = pairs[0][1].__dict__.setdefault("_gradient_boxes", {})
    key = make_outbox_key(optimizer, pairs, call_index)
    if key not in groups:
        groups.setdefault(key, GradientOutboxes(optimizer, pairs))
    return groups[key]
