"""`tf.Graph`: operations, names and collections."""

from __future__ import annotations

import collections
import contextlib
import contextvars
import functools
import importlib
import inspect
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Self

import numpy as np

from meshflow.core.config.graph_mode import GraphBase
from meshflow.core.dispatch import symbolic_calls
from meshflow.core.runtime.context import context
from meshflow.core.runtime.errors import (
    InaccessibleTensorError,
    InvalidArgumentError,
    InvalidValueError,
)
from meshflow.core.runtime.name_scopes import name_scope
from meshflow.core.tracing.trace import init_scope
from meshflow.core.values import nest
from meshflow.core.values.dtypes import DTypeLike, as_dtype, bool_, int32
from meshflow.core.values.shapes import ShapeLike, TensorShape
from meshflow.core.values.specs import TensorSpec
from meshflow.core.values.tensor import Tensor
from meshflow.core.variables.variable import Variable
from meshflow.environment.types import PyTree
from meshflow.keras.settings import learning_phase_scope
from meshflow.legacy.graph.calls import (
    GraphCall,
    fill_result,
    graph_functions,
    list_components,
    replace_in_graphs,
)
from meshflow.legacy.graph.execution import GraphRead, Run, state, suspend_recording
from meshflow.legacy.graph.gradients import compute_jacobian, differentiate_watched
from meshflow.legacy.graph.operations import (
    Operation,
    SymbolicTensor,
    find_session,
    get_operation_name,
    get_operation_type,
)
from meshflow.legacy.graph.variables import GraphVariable
from meshflow.ops import python_function
from meshflow.ops.array import inspection


class _GraphType(type):
    """Type of `Graph`; the graphs of functions are instances of `tf.Graph`, too."""

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, GraphBase)


class Graph(GraphBase, metaclass=_GraphType):
    """Graph of TensorFlow 1: operations that a session runs.

    In a block with `as_default`, each call of a public function adds an operation, and returns symbolic tensors.

    Example:
      >>> with tf.Graph().as_default(), tf.compat.v1.Session() as session:
      ...     x = tf.compat.v1.placeholder(tf.float32, [None])
      ...     session.run(2 * x, feed_dict={x: [1.0, 2.0]})
      array([2., 4.], dtype=float32)
    """

    def reset(self) -> None:
        """Remove all operations, names and collections."""
        super().reset()
        self._operations: list[Operation] = []
        self._by_name: dict[str, Operation] = {}
        self._variables: list[Any] = []
        self._variable_collections: Iterable[object] | None = None
        self._recorded: list[list[Operation]] = []
        self._control_inputs: list[list[Operation]] = [[]]
        self._num_operations = 0
        # Whether the variables that are created are weights of a layer.
        self.is_calling_layer = False
        self._name_scopes: list[str] = []
        self.finalized = False
        # The session that set the values of the variables.
        self.session: Any = None
        # Runs of the graph in the order of their requests, and the number of active ones by thread.
        self.turns = threading.Condition()
        self.requests: collections.deque[object] = collections.deque()
        self.active_runs: collections.Counter[int] = collections.Counter()
        # The session that Keras uses.
        self.keras_session: Any = None
        self._learning_phase: SymbolicTensor | None = None
        # The current variable scope; see `legacy.compat.variables`.
        self.variable_scope: Any = None

    @property
    def version(self) -> int:
        """Return the number of operations that the graph has had."""
        return self._num_operations

    @contextlib.contextmanager
    def as_default(self) -> Iterator[Self]:
        """Return a context in which calls add operations to the graph."""
        _import_datasets()
        token = _default_graph.set(self)
        saved = context.graph, context.variable_creators, context.name_scopes, context.name_counts
        context.graph, context.name_scopes = self, self._name_scopes
        context.variable_creators = [*context.variable_creators, self.create_variable]
        try:
            yield self
        finally:
            context.graph, context.variable_creators, context.name_scopes, context.name_counts = (
                saved
            )
            _default_graph.reset(token)

    @contextlib.contextmanager
    def use_session(self, session: Any = None) -> Iterator[None]:
        """Run a block at once on the values that variables have in a session, by default the default one.

        Raises:
          RuntimeError: If there is no session of this graph.
        """
        try:
            found = find_session(session, self)
        except ValueError as error:
            raise RuntimeError(
                "The values of a graph's variables are in a session. Please create a session of this graph, for "
                "example by `with tf.compat.v1.Session():`, or pass it as the argument `session`."
            ) from error
        with suspend_recording(), found.hold_variables():
            yield

    # ---- operations ------------------------------------------------------------------------

    def call(
        self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> PyTree:
        """Record a call of a function, and return its result with symbolic tensors.

        A call without a tensor in its result returns the operation.
        """
        own = graph_functions.get(id(function))
        if own is not None:
            return own(self, *args, **kwargs)
        name = kwargs.get("name")
        if name is None and (position := _find_name_position(function)) < len(args):
            name = args[position]
        return self.record(function, args, kwargs, name if isinstance(name, str) else None)

    def record(
        self,
        function: Callable[..., Any],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
        name: str | None = None,
    ) -> PyTree:
        """Record a call as an operation with a name; see `call`."""
        kwargs = kwargs or {}
        call = GraphCall(self, function, args, kwargs)
        try:
            specs, values = call.infer()
        except InvalidArgumentError as error:
            if isinstance(error, ValueError):
                raise
            # Errors of shapes are those of a graph that is built.
            raise InvalidValueError(str(error)) from error
        kind = get_operation_type(function)
        compute = _make_constant_source(values) if values and not call.inputs else call.compute
        operation = self._make_operation(
            name or get_operation_name(function), kind, compute, call.inputs
        )
        operation.variables = call.variables
        constants: Sequence[Tensor | None] = values or [None] * len(specs)
        tensors = [operation.add_output(s, v) for s, v in zip(specs, constants, strict=True)]
        result = fill_result(call.result, tensors)
        call.forget_result()
        return result if tensors else operation

    def _make_operation(
        self,
        name: str,
        kind: str,
        compute: Callable[[Run], Sequence[Any]],
        inputs: Sequence[SymbolicTensor] = (),
    ) -> Operation:
        """Add an operation with a unique name that runs after the control inputs of the open contexts."""
        operation = Operation(
            self, self.name_operation(name), kind, compute, inputs, self._control_inputs[-1]
        )
        for tensor in inputs:
            tensor.add_reader(operation)
        return operation

    def record_effect(
        self, function: Callable[..., Any], args: tuple[Any, ...], name: str
    ) -> Operation:
        """Record a call without results, which is not traced."""
        return self.add_call(GraphCall(self, function, args, {}), name)

    def add_call(self, call: GraphCall, name: str) -> Operation:
        """Add an operation that runs a call, without outputs."""
        return self._make_operation(name, name.rpartition("/")[2], call.compute, call.inputs)

    def call_layer(self, layer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> PyTree:
        """Record the call of a Keras layer, and create its weights as variables of the graph."""
        saved, self.is_calling_layer = self.is_calling_layer, True
        try:
            return self.record(layer, args, kwargs, layer.name)
        finally:
            self.is_calling_layer = saved

    def initialize_weights(self) -> None:
        """Set the initial values of the weights of Keras layers that have no values."""
        for variable in self._variables:
            if variable.initializes_on_read and not variable.is_set:
                variable.set_initial_value()

    def differentiate(
        self,
        target: PyTree,
        sources: PyTree,
        output_gradients: PyTree,
        unconnected_gradients: PyTree,
        watches: Callable[[object], bool],
    ) -> PyTree:
        """Record the gradients that a tape computes; see `gradients.differentiate_watched`."""
        return differentiate_watched(
            self, target, sources, output_gradients, unconnected_gradients, watches
        )

    def compute_jacobian(
        self, target: PyTree, sources: PyTree, unconnected_gradients: PyTree, is_batch: bool = False
    ) -> PyTree:
        """Record the gradients of each element of a target; see `gradients.compute_jacobian`."""
        return compute_jacobian(self, target, sources, unconnected_gradients, is_batch)

    def record_source(
        self,
        function: Callable[..., PyTree],
        specs: PyTree,
        name: str,
        inputs: Sequence[SymbolicTensor] = (),
    ) -> PyTree:
        """Record a call on tensors that is not traced; its result has the structure and the specs `specs`."""

        def compute(run: Run) -> Sequence[Any]:
            return list_components(specs, function(*map(run.find, inputs)))

        operation = self._make_operation(name, name.rpartition("/")[2], compute, inputs)
        parts = nest.map_structure(operation.add_output, nest.split_composites(specs))
        return nest.join_composites(specs, parts)

    def make_constant(self, value: Tensor, name: str | None = None) -> SymbolicTensor:
        """Add a constant."""
        operation = Operation(
            self, self.name_operation(name or "Const"), "Const", _make_constant_source([value]), ()
        )
        return operation.add_output(TensorSpec(value.shape, value.dtype), value)

    def make_placeholder(
        self, dtype: DTypeLike, shape: ShapeLike = None, name: str | None = None
    ) -> SymbolicTensor:
        """Add a tensor that a session must feed."""
        kind, sizes = as_dtype(dtype), TensorShape(shape)
        full_name = self.name_operation(name or "Placeholder")

        def raise_error(run: Run) -> Sequence[Any]:
            raise InvalidArgumentError(
                f"You must feed a value for placeholder tensor '{full_name}' with dtype {kind.name} and shape "
                f"{sizes}: pass it in feed_dict of Session.run."
            )

        operation = Operation(self, full_name, "Placeholder", raise_error, ())
        return operation.add_output(TensorSpec(sizes, kind))

    @property
    def learning_phase(self) -> SymbolicTensor:
        """Return the tensor that a session feeds to run layers as in training."""
        if self._learning_phase is None:
            with self.as_default(), self.control_dependencies(None), name_scope(""):
                name = self.name_operation("keras_learning_phase")
                value = Tensor(np.asarray(False))
                operation = Operation(self, name, "PlaceholderWithDefault", lambda run: [value], ())
                self._learning_phase = operation.add_output(TensorSpec([], bool_))
        return self._learning_phase

    def is_learning_phase(self, tensor: SymbolicTensor) -> bool:
        """Check whether a tensor is the learning phase."""
        return tensor is self._learning_phase

    def scope_fed_learning_phase(
        self, values: Mapping[int, Tensor]
    ) -> contextlib.AbstractContextManager[None]:
        """Return a context in which layers use the learning phase that a session feeds."""
        value = values.get(id(self._learning_phase))
        return contextlib.nullcontext() if value is None else learning_phase_scope(int(value))

    def group(self, inputs: Iterable[Any], name: str | None = None) -> Operation:
        """Add an operation without effect that runs after others."""
        with self.control_dependencies(inputs):
            return self._make_operation(name or "group_deps", "NoOp", lambda run: ())

    @contextlib.contextmanager
    def control_dependencies(self, control_inputs: PyTree) -> Iterator[None]:
        """Return a context whose operations run after the control inputs.

        Args:
          control_inputs: Operations, tensors or variables; None to ignore those of enclosing contexts.
        """
        added = [] if control_inputs is None else find_operations(control_inputs)
        outer = [] if control_inputs is None else self._control_inputs[-1]
        self._control_inputs.append([*outer, *added])
        try:
            yield
        finally:
            self._control_inputs.pop()

    @contextlib.contextmanager
    def record_body(self) -> Iterator[list[Operation]]:
        """Return a context that adds operations to a list instead of the graph."""
        operations: list[Operation] = []
        saved, context.graph = context.graph, self
        saved_find, state.find = state.find, None
        token = _default_graph.set(self)
        self._recorded.append(operations)
        self._control_inputs.append([])
        try:
            yield operations
        finally:
            self._control_inputs.pop()
            self._recorded.pop()
            context.graph, state.find = saved, saved_find
            _default_graph.reset(token)

    def add_operation(self, operation: Operation) -> int:
        """Add an operation, and return its number in the order of creation.

        Raises:
          RuntimeError: If the graph is finalized.
        """
        if self.finalized:
            raise RuntimeError("Graph is finalized and cannot be modified.")
        self._num_operations += 1
        (self._recorded[-1] if self._recorded else self._operations).append(operation)
        self._by_name[operation.name] = operation
        return self._num_operations

    def finalize(self) -> None:
        """Make the graph read-only."""
        self.finalized = True

    def as_graph_def(
        self,
        from_version: object = None,
        add_shapes: bool = False,
        use_pybind11_proto: bool = False,
    ) -> Any:
        """Return a `GraphDef` that describes the operations; see `describe_graph`. The arguments are ignored."""
        return _import_definitions().describe_graph(self)

    @property
    def graph_def_versions(self) -> Any:
        """Return the version of the format of `as_graph_def`."""
        return self.as_graph_def().versions

    def import_graph_def(self, *args: Any, **kwargs: Any) -> Any:
        """Add the nodes of a `GraphDef`; see `tf.import_graph_def`."""
        return _import_definitions().import_graph_def(self, *args, **kwargs)

    def get_operations(self) -> list[Operation]:
        """Return the operations in the order of their creation."""
        return list(self._operations)

    def get_operation_by_name(self, name: str) -> Operation:
        """Return the operation with a name.

        Raises:
          KeyError: If there is none.
        """
        if not isinstance(name, str):
            raise TypeError(f"Operation names are strings (or similar), not {type(name).__name__}.")
        if name not in self._by_name:
            raise KeyError(f"The name {name!r} refers to an Operation not in the graph.")
        return self._by_name[name]

    def get_tensor_by_name(self, name: str) -> SymbolicTensor:
        """Return the tensor with a name such as `"add:0"`.

        Raises:
          ValueError: If the name has no index.
          KeyError: If there is no such tensor.
        """
        if not isinstance(name, str):
            raise TypeError(f"Tensor names are strings (or similar), not {type(name).__name__}.")
        operation_name, colon, index = name.rpartition(":")
        if not colon or not index.isdigit():
            raise ValueError(
                f"The name {name!r} looks like an (invalid) Operation name, not a Tensor. Tensor names must be of the "
                'form "<op_name>:<output_index>".'
            )
        operation = self._by_name.get(operation_name)
        if operation is None or int(index) >= len(operation.outputs):
            raise KeyError(
                f"The name {name!r} refers to a Tensor which does not exist. The operation, {operation_name!r}, does "
                "not exist in the graph or has fewer outputs."
            )
        return operation.outputs[int(index)]

    def as_graph_element(
        self, obj: PyTree, allow_tensor: bool = True, allow_operation: bool = True
    ) -> Any:
        """Return the tensor or operation of the graph that an object refers to.

        Args:
          obj: Tensor, operation, variable or name.
          allow_tensor: Whether a tensor may be returned.
          allow_operation: Whether an operation may be returned.

        Raises:
          TypeError: If the object is of another type.
          ValueError: If the object belongs to another graph.
          KeyError: If there is no object of the name.
        """
        if isinstance(obj, str):
            if ":" in obj and allow_tensor:
                return self.get_tensor_by_name(obj)
            if ":" not in obj and allow_operation:
                return self.get_operation_by_name(obj)
            if allow_tensor:
                return self.get_tensor_by_name(obj)
            raise ValueError(f"Name {obj!r} appears to refer to a Tensor, not an Operation.")
        element = obj._as_graph_element() if hasattr(obj, "_as_graph_element") else obj
        is_tensor = isinstance(element, SymbolicTensor) and allow_tensor
        if not is_tensor and not (isinstance(element, Operation) and allow_operation):
            kinds = " or ".join(
                n for n, b in (("Tensor", allow_tensor), ("Operation", allow_operation)) if b
            )
            raise TypeError(f"Can not convert a {type(obj).__name__} into a {kinds}.")
        if element.graph is not self:
            kind = "Tensor" if is_tensor else "Operation"
            raise ValueError(f"{kind} {element} is not an element of this graph.")
        return element

    # ---- names -----------------------------------------------------------------------------

    def name_scope(self, name: str | None) -> contextlib.AbstractContextManager[str]:
        """Return a context that prefixes the names of operations."""
        return name_scope(name or "")

    def name_operation(self, name: str) -> str:
        """Return a unique name below the current name scope; one that ends with a slash is complete."""
        if name.endswith("/"):
            return self.unique_name(name[:-1], in_scope=False)
        return self.unique_name(name)

    def device(self, device_name_or_function: object) -> contextlib.AbstractContextManager[Any]:
        """Return a context for operations on a device, which has no effect."""
        return contextlib.nullcontext()

    def colocate_with(
        self, op: object, ignore_existing: bool = False
    ) -> contextlib.AbstractContextManager[None]:
        """Return a context without effect."""
        return contextlib.nullcontext()

    def is_feedable(self, tensor: object) -> bool:
        """Return whether a session may feed a tensor."""
        return True

    def is_fetchable(self, tensor_or_op: PyTree) -> bool:
        """Return whether a session may fetch a tensor or operation."""
        return True

    def list_variables(self) -> list[Any]:
        """Return all variables, in the order of their creation."""
        return list(self._variables)

    def add_variable(self, variable: GraphVariable) -> None:
        """Add a variable, for which sessions hold values."""
        self._variables.append(variable)

    # ---- variables and collections -----------------------------------------------------------

    @contextlib.contextmanager
    def set_variable_collections(self, names: Iterable[object] | None) -> Iterator[None]:
        """Add the variables created in a context to these collections, by default to that of all variables."""
        saved, self._variable_collections = self._variable_collections, names
        try:
            yield
        finally:
            self._variable_collections = saved

    def create_variable(self, next_creator: Callable[..., Variable], **kwargs: PyTree) -> Variable:
        """Create a variable, and add it to collections."""
        if self.is_calling_layer and context.graph is None:
            # The call of the layer is traced to infer its results.
            saved, context.graph = context.graph, self
            self.is_calling_layer = False
            try:
                with init_scope(), self.control_dependencies(None):
                    return self.create_variable(next_creator, **kwargs)
            finally:
                context.graph, self.is_calling_layer = saved, True
        if context.trace is not None or context.graph is not self:
            # A variable that a traced function creates belongs only to the function.
            return next_creator(**kwargs)
        variable = GraphVariable(self, **kwargs)
        self._variables.append(variable)
        names = self._variable_collections
        trainable = ["trainable_variables"] if variable.trainable else []
        self.add_to_collections(
            [*(["variables"] if names is None else names), *trainable], variable
        )
        return variable


def _import_definitions() -> Any:
    # Protocol messages belong to a higher layer, and need an optional package.
    return importlib.import_module("meshflow.legacy.graph.definitions")


def _import_datasets() -> None:
    """Import the module that makes datasets accept graph tensors; it imports this one."""
    importlib.import_module("meshflow.legacy.compat.data")


@functools.lru_cache(maxsize=4096)
def _find_name_position(function: Callable[..., Any]) -> int:
    """Return the position of the parameter `name`, or a large number."""
    try:
        return list(inspect.signature(function).parameters).index("name")
    except (TypeError, ValueError):
        return sys.maxsize


def _make_constant_source(values: list[Tensor]) -> Callable[[Run], Sequence[Any]]:
    return lambda run: values


def find_operations(values: PyTree) -> list[Operation]:
    """Return the operations that compute a nested structure of operations, tensors and variables."""
    if isinstance(values, (Operation, Tensor)):
        values = [values]
    found = []
    for leaf in nest.flatten_parts(list(values) if not isinstance(values, dict) else values):
        element = leaf._as_graph_element() if hasattr(leaf, "_as_graph_element") else leaf
        if isinstance(element, SymbolicTensor):
            found.append(element.op)
        elif isinstance(element, Operation):
            found.append(element)
    return found


_root_graph = Graph()
_default_graph: contextvars.ContextVar[Graph | None] = contextvars.ContextVar("graph", default=None)


def get_default_graph() -> Graph:
    """Return the graph of the innermost context, or one for all other code."""
    return _default_graph.get() or _root_graph


def set_eager_execution(value: bool) -> None:
    """Run calls of this thread at once, or record them in the graph of code without a graph of its own."""
    if value:
        context.graph = None
        context.variable_creators = []
    elif context.graph is None:
        _import_datasets()
        context.graph = _root_graph
        context.variable_creators = [_root_graph.create_variable]


def has_explicit_graph() -> bool:
    """Check whether calls are recorded in a graph, and no function is traced."""
    return context.graph is not None and context.trace is None


class FuncGraph(Graph):
    """Graph in which libraries record a function, for example to infer the shapes of its results.

    Args:
      name: Name of the graph.

    Example:
      >>> with tf.__internal__.FuncGraph("scratch").as_default():
      ...     tf.square(tf.compat.v1.placeholder(tf.float32, [None, 2])).shape
      TensorShape([None, 2])
    """

    building_function = True

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name
        self.inputs: list[Tensor] = []
        self.outputs: list[Tensor] = []


def _call_on_graph_tensors(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> PyTree:
    """Call a function on graph tensors: record the call, or use the values of the current run."""
    if context.graph is not None and context.trace is None:
        return context.graph.call(function, args, kwargs)
    leaves = nest.flatten_parts((args, kwargs))
    tensor = next((v for v in leaves if isinstance(v, SymbolicTensor)), None)
    if tensor is None:
        return NotImplemented
    if state.find is not None:
        find = state.find
        if context.trace is not None and _mark_functions(leaves):
            raise GraphRead
        args, kwargs = nest.map_parts(
            lambda v: find(v) if isinstance(v, SymbolicTensor) else v, (args, kwargs)
        )
        return function(*args, **kwargs)
    if context.trace is not None:
        raise InaccessibleTensorError(
            f"{tensor} belongs to a version 1 graph, so a function that is called outside of the graph cannot use it. Pass "
            "its value as an argument."
        )
    with tensor.graph.as_default():
        return tensor.graph.call(function, args, kwargs)


def _mark_functions(leaves: Iterable[object]) -> bool:
    """Mark the functions that are traced as readers of graph tensors; return whether there are any."""
    if all(v.is_constant for v in leaves if isinstance(v, SymbolicTensor)):
        return False
    scope, is_marked = context.trace, False
    while scope is not None:
        if scope.function is not None:
            scope.function.reads_graph = is_marked = True
        scope = scope.parent
    return is_marked


def _return_tensors(
    graph: Graph, tensors: Iterable[Any], control_inputs: PyTree = None, name: str | None = None
) -> list[Any]:
    """Return tensors that are computed after all of them; see `tf.tuple`."""
    found = list(tensors)
    with graph.control_dependencies([t for t in (*found, control_inputs) if t is not None]):
        return [t if t is None else inspection.identity(t) for t in found]


replace_in_graphs(
    inspection.group, lambda graph, *inputs, name=None, **_: graph.group(inputs, name)
)
replace_in_graphs(inspection.no_op, lambda graph, name=None: graph.group((), name or "NoOp"))
replace_in_graphs(inspection.tuple, _return_tensors)


def _ensure_shape(graph: Graph, x: PyTree, shape: ShapeLike, name: str | None = None) -> Tensor:
    """Record `tf.ensure_shape`; the result has the shape, also if the inference fails for invented ranks."""
    result: SymbolicTensor = graph.record(inspection.ensure_shape, (x, shape), name=name)
    result.set_shape(shape)
    return result


replace_in_graphs(inspection.ensure_shape, _ensure_shape)


def _fold_shape(function: Callable[..., Any]) -> None:
    """Record the calls of a function of shapes; its result is a constant if the static shape suffices."""

    def record(
        graph: Graph,
        input: Any,
        out_type: DTypeLike = int32,
        name: str | None = None,
    ) -> Any:
        arguments: tuple[Any, ...] = (input, out_type)
        if function is inspection.rank:
            # The second parameter of `tf.rank` is the name.
            arguments, name = (input,), out_type if isinstance(out_type, str) else name
        is_recorded = isinstance(input, (SymbolicTensor, Variable))
        shape = input.shape if is_recorded else TensorShape(None)
        is_known = function is inspection.rank or shape.is_fully_defined()
        if is_known and shape.rank is not None:
            zeros = np.broadcast_to(np.float32(0), [n or 0 for n in shape.as_list()])
            with suspend_recording():
                value = function(zeros, *arguments[1:])
            return graph.make_constant(value, name or function.__name__.title())
        return graph.record(function, arguments, name=name)

    replace_in_graphs(function, record)


for _function in (inspection.shape, inspection.size, inspection.rank):
    _fold_shape(_function)


def _record_python_function(function: Callable[..., Any]) -> None:
    """Record the calls of a function that calls Python, with results of the declared dtypes."""

    def record(
        graph: Graph, func: Any = None, inp: Any = None, Tout: Any = None, **options: PyTree
    ) -> Any:
        if func is None:
            # Without a function, the result is a decorator.
            return lambda decorated: lambda *args: record(graph, decorated, args, Tout, **options)
        name = options.pop("name", None)
        specs = nest.map_structure(_make_result_spec, Tout)
        call = GraphCall(graph, function, (func, inp, Tout), options)
        operation = graph.add_call(call, name or "PyFunc")
        results = nest.map_structure(operation.add_output, specs)
        return results if operation.outputs else operation

    replace_in_graphs(function, record)


def _make_result_spec(result: PyTree) -> TensorSpec:
    return result if isinstance(result, TensorSpec) else TensorSpec(None, as_dtype(result))


_record_python_function(python_function.py_function)
_record_python_function(python_function.numpy_function)
symbolic_calls.register_symbolic_type(SymbolicTensor, _call_on_graph_tensors)
