"""Thread-local state of the dispatcher: the innermost trace, active tapes, name scopes and devices.

Every public op reads this state, so it is one thread-local object with plain attributes.
"""

from __future__ import annotations

import collections
import contextlib
import threading
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any, Protocol, Self

import numpy as np

from meshflow.environment.types import PyTree


class Recorder(Protocol):
    """Interface of objects that record ops while these run: gradient tapes and forward accumulators."""

    def watches(self, tensor: Any) -> bool:
        """Check whether ops on this tensor must be recorded."""

    def is_watching(self, tensors: Sequence[Any]) -> bool:
        """Check whether at least one of the tensors is watched."""

    def record_read(self, variable: Any, value: Any) -> None:
        """Handle the read of a variable; `value` is the tensor that the read returned."""

    def record(self, node: Any) -> None:
        """Record an op that has a watched operand."""


class CallCopier(Protocol):
    """Interface of the equations of earlier calls; see `RepeatedCalls`."""

    def run(
        self,
        function: Callable[[], PyTree],
        key: Hashable,
        *operands: PyTree,
        pullback: PyTree = None,
    ) -> PyTree:
        """Call a function of arrays, or copy the equations of an equal call."""

    def clear(self) -> None:
        """Forget all calls."""


class ActiveTrace(Protocol):
    """Interface of a trace in progress for modules below the tracing engine; see `TraceContext`."""

    repeated_calls: CallCopier
    sources: list[Any]
    created: list[Any]
    iterator_captures: list[Any]
    infeeds: list[tuple[Any, Any]]
    borrowed_elements: list[tuple[Any, Any]]
    returned_elements: dict[int, list[Any]]
    infeed_tokens: dict[int, Any]
    runs_once_per_call: bool
    is_loop_body: bool
    is_branch: bool
    function: PyTree
    runs_immediately: bool
    num_random_ops: int
    sets_initial_values: bool

    @property
    def parent(self) -> ActiveTrace | None:
        """Return the enclosing trace, or None."""

    @property
    def writes(self) -> dict[int, Any]:
        """Return the variables written so far, by `id`."""

    def lookup(self, tensor: Any) -> Any:
        """Return the array that represents a tensor in this trace."""

    def read(self, variable: Any) -> Any:
        """Return the current value of a variable in this trace."""

    def write(self, variable: Any, value: Any) -> None:
        """Set the value of a variable for the rest of this trace."""

    def record_call(self, op: Any, values: Sequence[Any], outputs: Any) -> None:
        """Record the call of an op."""

    def label_call(self, outputs: Any, label: Any) -> None:
        """Set the name of the node of the call that returned `outputs`."""

    def mark_initialization(self) -> None:
        """Record that the program sets the initial value of a variable."""


class GraphRecorder(Protocol):
    """Interface of a version 1 graph, which records calls instead of running them; see `legacy.graph`."""

    def call(
        self, function: Callable[..., PyTree], args: tuple[PyTree, ...], kwargs: dict[str, PyTree]
    ) -> PyTree:
        """Record a call, and return its symbolic result."""

    def record_effect(
        self, function: Callable[..., Any], args: tuple[Any, ...], name: str
    ) -> PyTree:
        """Record a call without results, which is not traced."""

    def call_layer(
        self, layer: PyTree, args: tuple[PyTree, ...], kwargs: dict[str, PyTree]
    ) -> PyTree:
        """Record the call of a Keras layer, and create its weights in the graph."""

    def initialize_weights(self) -> None:
        """Set the initial values of the weights of Keras layers that have no values."""

    def differentiate(
        self,
        target: PyTree,
        sources: PyTree,
        output_gradients: PyTree,
        unconnected_gradients: PyTree,
        watches: Callable[[object], bool],
    ) -> PyTree:
        """Record the gradients that a tape computes; see `GradientTape.gradient`."""

    def compute_jacobian(
        self, target: PyTree, sources: PyTree, unconnected_gradients: PyTree, is_batch: bool = False
    ) -> PyTree:
        """Record the gradients of each element of a target."""

    def make_constant(self, value: PyTree, name: str | None = None) -> PyTree:
        """Return a symbolic tensor with a known value."""

    def control_dependencies(
        self, control_inputs: PyTree
    ) -> contextlib.AbstractContextManager[None]:
        """Return a context whose operations run after the control inputs."""

    def unique_name(self, name: str) -> str:
        """Return a unique name below the current name scope."""

    def use_session(self, session: object = None) -> contextlib.AbstractContextManager[None]:
        """Return a context that runs calls at once, on the values in a session, by default the default one."""


class ValueProbe(Protocol):
    """Source of placeholder values for a trace that only determines shapes."""

    invents_sizes: bool
    invented_size: int
    used: bool

    def make_value(self, tensor: Any) -> np.ndarray:
        """Return a placeholder array for a traced tensor, which has no value."""


class BatchGradients(Protocol):
    """Replaces the gradients of a share of a batch; see `StepShares`."""

    trace_number: int

    def reduce_gradients(
        self,
        tape: Any,
        targets: Sequence[Any],
        seeds: Sequence[Any],
        sources: Sequence[Any],
        gradients: Sequence[Any],
    ) -> list[Any]:
        """Return the gradients of the batch, given those of a share."""

    def add_custom_gradient(self, is_linear: bool) -> None:
        """Note a custom gradient, and whether it is proportional to that of its result."""


class SizeSource(Protocol):
    """Sizes that replace unknown ones in a trace that only determines shapes.

    While `size` is None, only the shapes of the results of Python functions are recorded.
    """

    size: int | None
    specs: list[Any]

    def make_result(self, spec: Any) -> Any:
        """Return a placeholder for the next result of a Python function."""

    def refine_array(self, array: Any, shape: Any) -> Any:
        """Return the array, or one of the declared shape if the probe sizes contradict it."""

    def retry_op(
        self, name: str, run: Callable[[Any], Any], operands: Sequence[Any], static: Any
    ) -> Any:
        """Determine the result of an op whose operands the probe sizes made incompatible, or None."""


class UnknownSizes(Protocol):
    """Source of symbols for sizes that depend on values; see `SizeScope`."""

    num_unknown: int
    anchors: list[Any]

    def add_unknown(self, varies: bool = False) -> Any:
        """Return a new symbol, for a size that may vary between the iterations of a loop."""

    def assume_zero(self, difference: Any) -> bool:
        """Assume that a size is zero; return whether it may depend on values and this was not disproved."""

    def is_known(self, size: Any) -> bool:
        """Check whether a size does not depend on values."""


_thread_states: list[threading.local] = []


class ThreadState(threading.local):
    """Attributes that each thread has on its own, and that a thread for a part of a computation inherits."""

    def __new__(cls) -> Self:
        """Create the state and register it for `copy_thread_state`."""
        state = super().__new__(cls)
        _thread_states.append(state)
        return state


def copy_thread_state() -> Callable[[], None]:
    """Copy the state of this thread, and return a function that enters the copy in another thread."""
    copies = [
        {k: v[:] if isinstance(v, list) else v for k, v in vars(s).items()} for s in _thread_states
    ]

    def enter() -> None:
        for state, values in zip(_thread_states, copies, strict=False):
            vars(state).update(values)

    return enter


class Context(ThreadState):
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
      graph: The version 1 graph that records calls while no function is traced, or None.
      place_output: Moves the outputs of eager ops and functions to a default mesh, or None.
      can_run_eagerly: Whether the traced function may also run as plain Python; ops request this by
        an exception.
      computes_on_host: Whether NumPy may compute ops on host arrays; the results are then host
        arrays.
      in_element_function: Whether the function of a dataset runs, which may use tensors as NumPy's
        arrays.
      emulates_graph: Whether plain Python runs instead of a function that TensorFlow would compile.
      autocast_dtype: The dtype to which reads of Keras variables are cast inside a mixed-precision
        layer, or None.
      host_recorder: Records the operations of a map function on strings and images while it is
        inspected, or None.
      has_symbolic_sizes: Whether the trace has symbols in place of some sizes.
      unknown_sizes: Creates symbols for sizes that depend on values, if the traced program runs op by op;
        otherwise None.
      exporting: Whether the trace is exported for a machine without Python; assertions are then
        recorded or omitted.
      num_omitted_assertions: Number of assertions that traces for export have omitted.
      value_probe: Supplies placeholder values while only shapes are determined, or None.
      size_probe: Supplies sizes for unknown shapes while only shapes are determined, or None.
      replica_program: Identity of the replica function that is being traced, or None.
      worker_closure: The closure that a parameter-server worker runs, in which the worker has its
        own copies of hosted variables, or None.
      in_shard_region: Whether each device computes the traced code on its own shard, where layouts
        have no effect.
      label_layer: Returns the scope that assigns equations to a layer, or None.
      label_op: Returns the scope that assigns equations to a public op, or None.
      override_read: Returns the tensor that a trace reads instead of a variable's own value, or
        None; see `MeshStrategy`.
      batch_gradients: Replaces the gradients of a tape, of a share of a batch, by those of the batch, or
        None.
      on_first_batch: Called with the model and its first batch instead of starting the training, or
        None.
      overwritten_values: The variables that were assigned, and their values before, by id; None if these are not
        restored. See `restore_variables`.
      shapes_only: Whether weights are created without values, for models that are planned but not
        run.
      num_replicas: Number of replicas that take part in a step; set by distribution strategies.
    """

    def __init__(self) -> None:
        self.trace: ActiveTrace | None = None
        self.tapes: list[Recorder] = []
        self.outer_tapes = False
        self.name_scopes: list[str] = []
        self.name_counts: collections.Counter[str] | None = None
        self.device: Any = None
        self.variable_creators: list[Any] = []
        self.graph: GraphRecorder | None = None
        self.place_output: Callable[[Any], Any] | None = None
        self.can_run_eagerly = False
        self.computes_on_host = False
        self.in_element_function = False
        self.emulates_graph = False
        self.autocast_dtype: Any = None
        self.host_recorder: Any = None
        self.has_symbolic_sizes = False
        self.unknown_sizes: UnknownSizes | None = None
        self.exporting = False
        self.num_omitted_assertions = 0
        self.value_probe: ValueProbe | None = None
        self.size_probe: SizeSource | None = None
        self.replica_program: Any = None
        self.worker_closure: Any = None
        self.in_shard_region = False
        self.label_layer: Callable[[Any], contextlib.AbstractContextManager[None]] | None = None
        self.label_op: Callable[[Any], contextlib.AbstractContextManager[None]] | None = None
        self.override_read: Callable[[Any], Any] | None = None
        self.batch_gradients: BatchGradients | None = None
        self.on_first_batch: Callable[[Any, Any], None] | None = None
        self.overwritten_values: dict[int, tuple[Any, Any]] | None = None
        self.shapes_only = False
        self.num_replicas = 1


context = Context()

# This lock is held from the read of variables until they are written again, outside of traces.
# Threads may share variables, and a program takes over (donates) the buffers of the variables that
# it writes, so no other thread may read them in between.
variable_lock = threading.RLock()


def lock_variables() -> contextlib.AbstractContextManager[object]:
    """Return a context manager that holds the variable lock.

    It does nothing while a function is traced.
    """
    return variable_lock if context.trace is None else contextlib.nullcontext()


@contextlib.contextmanager
def fresh_name_scope() -> Iterator[None]:
    """Count the names of objects made inside from zero, like TensorFlow does for each graph."""
    saved = context.name_counts
    if saved is None:
        context.name_counts = collections.Counter()
    try:
        yield
    finally:
        context.name_counts = saved


@contextlib.contextmanager
def emulate_graph() -> Iterator[None]:
    """Mark that plain Python runs instead of a function that TensorFlow would compile."""
    saved, context.emulates_graph = context.emulates_graph, True
    try:
        yield
    finally:
        context.emulates_graph = saved


@contextlib.contextmanager
def suspend_autocast() -> Iterator[None]:
    """Read variables in their own dtype, also inside a mixed-precision layer."""
    saved, context.autocast_dtype = context.autocast_dtype, None
    try:
        yield
    finally:
        context.autocast_dtype = saved
