"""Thread-local state of the dispatcher: the innermost trace, active tapes, name scopes and devices.

Every public op reads this state, so it is one thread-local object with plain attributes.
"""

from __future__ import annotations

import collections
import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import numpy as np


class Recorder(Protocol):
    """Interface of objects that record ops while these run: gradient tapes and forward accumulators."""

    def watches(self, tensor: Any) -> bool:
        """Check whether ops on this tensor must be recorded."""

    def is_watching(self, tensors: Sequence[Any]) -> bool:
        """Check whether at least one of the tensors is watched."""

    def variable_read(self, variable: Any, value: Any) -> None:
        """Handle the read of a variable; `value` is the tensor that the read returned."""

    def record(self, node: Any) -> None:
        """Record an op that has a watched operand."""


class Tracing(Protocol):
    """Interface of a trace in progress for modules below the tracing engine; see `TraceContext`."""

    sources: list[Any]
    created: list[Any]
    iterator_captures: list[Any]
    infeeds: list[tuple[Any, Any]]
    taken: list[tuple[Any, Any]]
    offered: dict[int, list[Any]]
    last_fed: dict[int, Any]
    once: bool
    repeats: bool
    branch: bool
    runs: bool
    random_ops: int
    initializes: bool

    @property
    def parent(self) -> Tracing | None:
        """Return the enclosing trace, or None."""

    @property
    def writes(self) -> dict[int, Any]:
        """Return the variables written so far, by `id`."""

    def value_of(self, tensor: Any) -> Any:
        """Return the array that represents a tensor in this trace."""

    def read(self, variable: Any) -> Any:
        """Return the current value of a variable in this trace."""

    def write(self, variable: Any, value: Any) -> None:
        """Set the value of a variable for the rest of this trace."""

    def initialize(self) -> None:
        """Record that the program sets the initial value of a variable."""


class ShapeProbe(Protocol):
    """Source of placeholder values for a trace that only determines shapes."""

    def value(self, tensor: Any) -> np.ndarray:
        """Return a placeholder array for a traced tensor, which has no value."""


class Context(threading.local):
    """Thread-local state of the dispatcher.

    Attributes:
      trace: The innermost trace in progress, or None in eager mode.
      tapes: Gradient tapes and forward accumulators that record at this trace level, outermost
        first.
      outer_tapes: Whether a tape of an enclosing level needs the gradient of ops at this level.
      name_scopes: Open name scopes, outermost first.
      name_counts: How often each name was used for objects, while these are counted separately:
        during the trace of a function or the call of a layer on symbolic tensors. None to use the
        counts of the process.
      device: The device string of the innermost `tf.device`, or None.
      variable_creators: Functions called instead of the constructor of `tf.Variable`, outermost
        first.
      place_output: Moves the outputs of eager ops and functions to a default mesh, or None.
      can_run_eagerly: Whether the traced function may also run as plain Python; ops request this by
        an exception.
      computes_on_host: Whether NumPy may compute ops on host arrays; the results are then host
        arrays.
      emulates_graph: Whether plain Python runs instead of a function that TensorFlow would compile.
      autocast_dtype: The dtype to which reads of Keras variables are cast inside a mixed-precision
        layer, or None.
      host_recorder: Records the operations of a map function on strings and images while it is
        inspected, or None.
      exporting: Whether the trace is exported for a machine without Python; assertions are then
        omitted.
      value_probe: Supplies placeholder values while only shapes are determined, or None.
      replica_program: Identity of the replica function that is being traced, or None.
      worker_closure: The closure that a parameter-server worker runs, in which the worker has its
        own copies of hosted variables, or None.
      in_shard_region: Whether each device computes the traced code on its own shard, where layouts
        have no effect.
      label_layer: Returns the scope that assigns equations to a layer, or None.
      override_read: Returns the tensor that a trace reads instead of a variable's own value, or
        None; see `MeshStrategy`.
      on_first_batch: Called with the model and its first batch instead of starting the training, or
        None.
      shapes_only: Whether weights are created without values, for models that are planned but not
        run.
      num_replicas: Number of replicas that take part in a step; set by distribution strategies.
    """

    def __init__(self) -> None:
        self.trace: Tracing | None = None
        self.tapes: list[Recorder] = []
        self.outer_tapes = False
        self.names: list[str] = []
        self.numbers: collections.Counter[str] | None = None
        self.device: Any = None
        self.variable_creators: list[Any] = []
        self.placing: Callable[[Any], Any] | None = None
        self.falls_back = False
        self.on_host = False
        self.stands_in = False
        self.autocast: Any = None
        self.recording: Any = None
        self.exporting = False
        self.probe: ShapeProbe | None = None
        self.replicas: Any = None
        self.closure: Any = None
        self.on_parts = False
        self.labels: Callable[[Any], contextlib.AbstractContextManager[None]] | None = None
        self.reading: Callable[[Any], Any] | None = None
        self.reached: Callable[[Any, Any], None] | None = None
        self.shapes_only = False
        self.num_replicas = 1


context = Context()

# This lock is held from the read of variables until they are written again, outside of traces.
# Threads may share variables, and a program takes over (donates) the buffers of the variables that
# it writes, so no other thread may read them in between.
writing = threading.RLock()


def alone() -> contextlib.AbstractContextManager[object]:
    """Return a context manager that holds the variable lock.

    It does nothing while a function is traced.
    """
    return writing if context.trace is None else contextlib.nullcontext()


@contextlib.contextmanager
def fresh_names() -> Iterator[None]:
    """Count the names of objects made inside from zero, like TensorFlow does for each graph."""
    saved = context.numbers
    if saved is None:
        context.numbers = collections.Counter()
    try:
        yield
    finally:
        context.numbers = saved


@contextlib.contextmanager
def standing_in() -> Iterator[None]:
    """Mark that plain Python runs instead of a function that TensorFlow would compile."""
    saved, context.stands_in = context.stands_in, True
    try:
        yield
    finally:
        context.stands_in = saved


@contextlib.contextmanager
def as_stored() -> Iterator[None]:
    """Read variables in their own dtype, also inside a mixed-precision layer."""
    saved, context.autocast = context.autocast, None
    try:
        yield
    finally:
        context.autocast = saved
