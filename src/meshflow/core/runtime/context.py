"""What is going on in this thread: the innermost trace, the active tapes, name scopes and devices.

Every public op looks here, so the state is one thread-local object with plain attributes.
"""

from __future__ import annotations

import collections
import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol


class Recorder(Protocol):
    """What is told of the ops that run: gradient tapes and forward accumulators."""

    def watches(self, tensor: Any) -> bool:
        """Whether ops on this tensor are to be recorded."""

    def is_watching(self, tensors: Sequence[Any]) -> bool:
        """Whether it watches any of the tensors."""

    def variable_read(self, variable: Any, value: Any) -> None:
        """Called with the tensor whenever a variable is read."""

    def record(self, node: Any) -> None:
        """Called with each op that has a watched operand."""


class Tracing(Protocol):
    """A function that is being traced, as those see it who lie below the tracing engine; see `TraceContext`."""

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
        """The enclosing trace."""

    @property
    def writes(self) -> dict[int, Any]:
        """The variables written so far, by identity."""

    def value_of(self, tensor: Any) -> Any:
        """The array that stands for a tensor in this trace."""

    def read(self, variable: Any) -> Any:
        """The current value of a variable in this trace."""

    def write(self, variable: Any, value: Any) -> None:
        """Makes `value` the variable's value for the rest of this trace."""

    def initialize(self) -> None:
        """Notes that the program gives an initial value."""


class ShapeProbe(Protocol):
    """What makes up values while only shapes are wanted."""

    def value(self, tensor: Any) -> Any:
        """An array in place of a traced tensor's unknown value."""


class Context(threading.local):
    """Thread-local state of the dispatcher.

    Attributes:
      trace: the innermost trace being recorded, or None in eager mode.
      tapes: gradient tapes and forward accumulators that record at this trace level, outermost first.
      outer_tapes: True when a tape of an enclosing level must be able to see through this one.
      names: the stack of open name scopes.
      numbers: how often names were given to objects, where these are counted anew: while a function is
        traced, or a layer called on symbolic tensors. None for the program's own count.
      device: the device string of the innermost `tf.device`, or None.
      variable_creators: functions called in place of `tf.Variable`'s constructor, outermost first.
      placing: moves the arrays that eager ops and functions give, onto a default mesh, or None.
      falls_back: whether what is traced can as well run as plain Python, which ops may ask for by an error.
      on_host: whether ops on host arrays may be computed by NumPy, which gives host arrays.
      stands_in: whether plain Python runs in place of a function that TensorFlow would compile.
      autocast: the dtype that Keras variables are read as inside a mixed-precision layer, or None.
      recording: keeps what a map function does with strings and images while it is looked at, or None.
      exporting: whether what is traced is saved, for a machine without Python: assertions are left out.
      probe: makes up values while only shapes are wanted, or None.
      replicas: what tells the replica function being traced from other programs, or None.
      closure: what a worker of parameter servers runs, in which hosted variables are its own copies, or None.
      on_parts: whether what is traced is computed by each device on its part, where layouts say nothing.
      labels: gives the scope in which what a layer computes is noted as its own, or None.
      reading: gives what a trace reads in place of a variable's own value, or None; see `MeshStrategy`.
      reached: told of the model and the first batch where training would begin, which then does not; or None.
      shapes_only: whether weights are made without values, as in models that are planned and not run.
      num_replicas: how many replicas take part in a step; distribution strategies say so.
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

# Held from reading variables until they are written again, outside of traces: threads may share variables,
# and the buffers of those that a program writes are given to it, so nobody may read them meanwhile.
writing = threading.RLock()


def alone() -> contextlib.AbstractContextManager[Any]:
    """No other thread writes variables inside; nothing to wait for while a function is traced."""
    return writing if context.trace is None else contextlib.nullcontext()


@contextlib.contextmanager
def fresh_names() -> Iterator[None]:
    """Objects made inside are numbered from the beginning, as those of one graph are in TensorFlow."""
    saved = context.numbers
    if saved is None:
        context.numbers = collections.Counter()
    try:
        yield
    finally:
        context.numbers = saved


@contextlib.contextmanager
def standing_in() -> Iterator[None]:
    """Plain Python runs inside in place of a function that TensorFlow would compile."""
    saved, context.stands_in = context.stands_in, True
    try:
        yield
    finally:
        context.stands_in = saved


@contextlib.contextmanager
def as_stored() -> Iterator[None]:
    """Variables are read in their own dtype inside, also while a mixed-precision layer is running."""
    saved, context.autocast = context.autocast, None
    try:
        yield
    finally:
        context.autocast = saved
