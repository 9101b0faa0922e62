"""Variables of a graph, which get their values when a session runs their initializers."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from meshflow.core.runtime.context import ActiveTrace, context
from meshflow.core.runtime.errors import FailedPreconditionError
from meshflow.core.tracing.trace import init_scope
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.dtypes import DType, DTypeLike, as_dtype
from meshflow.core.values.shapes import TensorShape
from meshflow.core.values.specs import TensorSpec
from meshflow.core.values.tensor import Tensor
from meshflow.core.variables.indexing import getitem
from meshflow.core.variables.variable import Variable
from meshflow.environment.types import Array, PyTree
from meshflow.keras.initializers import Initializer
from meshflow.legacy.graph.execution import Run, state, suspend_recording
from meshflow.legacy.graph.operations import Operation, OwningGraph, SymbolicTensor, find_session


class GraphVariable(Variable):
    """Variable of a graph.

    Args:
      graph: The graph.
      initial_value: A value or tensor, or a function that returns one and is called when the initializer runs.
      dtype: The dtype; by default that of the initial value.
      name: Name; a number makes it unique in the graph.
      **kwargs: Other arguments of `tf.Variable`.
    """

    _in_graph_mode = True
    # Whether a read computes the initial value if no session has done so, as for the weights of Keras layers.
    initializes_on_read = False
    # Whether a session initializes it, too: the states of random streams, which TensorFlow does not have.
    initializes_in_sessions = False

    def __new__(cls, *args: PyTree, **kwargs: PyTree) -> GraphVariable:
        """Create the variable without variable creators, which have been called already."""
        saved, context.variable_creators = context.variable_creators, []
        try:
            return super().__new__(cls)  # type: ignore[return-value]
        finally:
            context.variable_creators = saved

    def __init__(self, *args: PyTree, **kwargs: PyTree) -> None:
        # Python calls the constructor again with the arguments of `tf.Variable`.
        if "_value" not in self.__dict__:
            self._create(*args, **kwargs)

    def _create(
        self,
        graph: OwningGraph,
        initial_value: PyTree = None,
        dtype: DTypeLike | None = None,
        name: str | None = None,
        **kwargs: PyTree,
    ) -> None:
        self.graph = graph
        kind = None if dtype is None else as_dtype(dtype)
        if initial_value is None:
            raise ValueError("initial_value must be specified.")
        unique = graph.unique_name(name.rstrip("/") if name else "Variable")

        def compute(initial_value: PyTree) -> Tensor:
            with warnings.catch_warnings():
                # The inference of the shape calls an initializer of Keras, too.
                warnings.filterwarnings("ignore", ".*being called multiple times")
                value = initial_value() if callable(initial_value) else initial_value
            return convert_to_tensor(value, dtype=kind)

        spec = _find_initial_spec(initial_value, kind)
        op_name = f"{unique}/Initializer/initial_value/"
        with graph.control_dependencies(None):
            if spec is None:
                result = graph.record(compute, (initial_value,), name=op_name)
            else:
                result = graph.record_source(lambda: compute(initial_value), spec, op_name)
        self._initial_value: SymbolicTensor = result
        shape = kwargs.pop("shape", None)
        validates = kwargs.pop("validate_shape", True)
        static = TensorShape(shape if shape is not None else result.shape if validates else None)
        if validates and not static.is_fully_defined() and shape is None:
            raise ValueError(
                f"initial_value must have a shape specified: variable {unique} has an initial value of shape "
                f"{result.shape}."
            )
        if validates and not static.is_compatible_with(result.shape):
            raise ValueError(
                f"The initial value's shape {result.shape} is not compatible with the shape {static} of variable {unique}."
            )
        self._set_blank(unique, static, result.dtype, validate_shape=validates, **kwargs)
        with graph.control_dependencies(None):
            self._initializer: Operation = graph.record(
                initialize, (self, result), name=f"{unique}/Assign/"
            ).op
            handle = Operation(graph, unique, "VarHandleOp", lambda run: [self._as_tensor()], ())
        self._handle = handle.add_output(result.symbol)

    def _set_blank(self, name: str, shape: TensorShape, dtype: DType, **kwargs: PyTree) -> None:
        """Create the state of a variable without a value."""
        sizes = [1 if n is None else n for n in (shape.as_list() if shape.rank else [])]
        self._blank = jax.ShapeDtypeStruct(tuple(sizes), _get_stored_dtype(dtype.dtype))
        scopes, context.name_scopes = context.name_scopes, []
        try:
            with suspend_recording():
                super().__init__(self._blank, name=name, **kwargs)
        finally:
            context.name_scopes = scopes
        self._static_shape, self._dtype = shape, dtype

    # ---- values ----------------------------------------------------------------------------

    @property
    def is_set(self) -> bool:
        """Return whether the variable has a value."""
        return type(self._value) is not jax.ShapeDtypeStruct

    @property
    def has_no_value(self) -> bool:
        """Return False: an initializer gives the variable a value, so that its slots need initializers, too."""
        return False

    def _can_initialize(self) -> bool:
        return self.initializes_in_sessions or (self.initializes_on_read and state.find is None)

    def _current(self) -> Array:
        if not self.is_set:
            if self._can_initialize():
                self.set_initial_value()
            else:
                self.check_set()
        return super()._current()

    def check_set(self) -> None:
        """Check that the variable has a value.

        Raises:
          FailedPreconditionError: If no session has run its initializer.
        """
        if not self.is_set:
            raise FailedPreconditionError(
                f"Could not find variable {self._name}: attempting to use an uninitialized value. Run "
                "tf.compat.v1.global_variables_initializer() in the session first."
            )

    def _read_in_trace(self, trace: ActiveTrace) -> Tensor:
        if state.read_variables is not None:
            state.read_variables.append(self)
        if not self.is_set and self._can_initialize():
            with init_scope():
                self.set_initial_value()
        return super()._read_in_trace(trace)

    def replace_initial_value(self, compute: Callable[[], Tensor], name: str) -> None:
        """Replace the initial value by the result of a function, which the initializer calls.

        Args:
          compute: The function.
          name: Name of the operation.
        """
        spec = TensorSpec(self._static_shape, self._dtype)
        with self.graph.control_dependencies(None):
            self._initial_value = self.graph.record_source(compute, spec, name)
            self._initializer = self.graph.record(
                initialize, (self, self._initial_value), name=f"{name}/Assign/"
            ).op

    def set_initial_value(self) -> None:
        """Compute the initial value now."""
        with suspend_recording():
            self._write(Run({}).find(self._initial_value))

    def get_stored(self) -> Array:
        """Return the array of the value."""
        return self._value

    def reset(self, value: PyTree = None) -> None:
        """Set the stored value, or remove it."""
        self._value = self._blank if value is None else value

    def _write(self, value: Tensor) -> None:
        if context.trace is None and not self.is_set:
            array = value.array
            self._value = np.zeros(0) if array.dtype != object else array
        super()._write(value)

    def _as_tensor(self) -> Tensor:
        if context.graph is not None and context.trace is None:
            tensor: Tensor = context.graph.call(read_variable, (self,), {})
            return tensor
        return super()._as_tensor()

    _read = _as_tensor

    def __getitem__(self, key: PyTree) -> Tensor:
        """Return an element or slice, whose `assign` writes it."""
        if context.graph is None or context.trace is not None:
            return Variable.__getitem__(self, key)
        graph = context.graph
        element: Tensor = graph.call(getitem, (self._as_tensor(), key), {})
        element._assign_slice = lambda value, name=None, **_: graph.call(
            assign_slice, (self, key, value), {"name": name}
        )
        return element

    def _as_graph_element(self) -> SymbolicTensor:
        return self._handle

    @property
    def op(self) -> Operation:  # type: ignore[override]
        """Return the operation that holds the variable."""
        return self._handle.op

    @property
    def handle(self) -> Any:
        """Return the variable itself; there are no separate resource handles."""
        return self

    @property
    def initializer(self) -> Operation:  # type: ignore[override]
        """Return the operation that sets the initial value."""
        return self._initializer

    @property
    def initial_value(self) -> Tensor:
        """Return the tensor of the initial value."""
        return self._initial_value

    def initialized_value(self) -> Tensor:
        """Return the value, or the initial value if no session has run the initializer."""
        value: Tensor = self.graph.record(_read_or_initialize, (self, self._initial_value))
        return value

    def is_initialized(self, name: str | None = None) -> Tensor:
        """Return whether the variable has a value, as a tensor."""
        result: Tensor = self.graph.record(_is_initialized, (self,), name=name)
        return result

    def eval(self, session: Any = None) -> PyTree:
        """Return the value in a session, by default the default one."""
        return find_session(session, self.graph).run(self)

    def load(self, value: PyTree, session: Any = None) -> None:
        """Set the value in a session."""
        found = find_session(session, self.graph)
        with suspend_recording(), found.hold_variables():
            self._write(self._check_value(value, "load a value"))

    def __hash__(self) -> int:
        return id(self)

    def __eq__(self, other: object) -> bool:  # type: ignore[override]
        return self is other

    def __ne__(self, other: object) -> bool:  # type: ignore[override]
        return self is not other

    def __iter__(self) -> Any:
        raise TypeError("'Variable' object is not iterable.")

    def __bool__(self) -> bool:
        return bool(self._as_tensor())

    def __repr__(self) -> str:
        return f"<tf.Variable '{self.name}' shape={self._static_shape} dtype={self._dtype.name}>"


class ImportedVariable(GraphVariable):
    """Variable of an imported graph, which operations of that graph initialize.

    Args:
      graph: The graph.
      name: Name of the operation that holds the variable.
      kind: Type of that operation.
      shape: The shape.
      dtype: The dtype.
    """

    def _create(  # type: ignore[override]
        self, graph: OwningGraph, name: str, kind: str, shape: TensorShape, dtype: DType
    ) -> None:
        self.graph = graph
        self._set_blank(name, shape, dtype)
        handle = Operation(graph, name, kind, lambda run: [self._as_tensor()], ())
        self._handle = handle.add_output(TensorSpec(shape, dtype))


def _find_initial_spec(initial_value: PyTree, dtype: DType | None) -> TensorSpec | None:
    """Return the spec of the result of one of Keras's initializers, so that it is not drawn to infer its shape."""
    if not isinstance(initial_value, functools.partial):
        return None
    create, kind = initial_value.func, initial_value.keywords.get("dtype", dtype)
    is_known = isinstance(create, Initializer) and type(create).__module__.startswith("meshflow.")
    if not is_known or kind is None or len(initial_value.args) != 1:
        return None
    return TensorSpec(initial_value.args[0], kind)


def _get_stored_dtype(dtype: np.dtype) -> Any:
    return np.dtype(np.float32) if dtype.kind == "O" else dtype


def read_variable(variable: GraphVariable) -> Tensor:
    """Return the value of a variable."""
    return variable._as_tensor()


def assign_slice(
    variable: GraphVariable, key: PyTree, value: PyTree, name: str | None = None
) -> Tensor:
    """Write an element or slice of a variable, and return the new value of the variable."""
    Variable.__getitem__(variable, key).assign(value)
    return read_variable(variable)


def initialize(variable: GraphVariable, value: PyTree) -> Tensor:
    """Set the initial value of a variable, and return it."""
    if context.trace is None:
        variable._write(value)
    return value


def _read_or_initialize(variable: GraphVariable, value: Tensor) -> Tensor:
    return variable._as_tensor() if variable.is_set else value


def _is_initialized(variable: GraphVariable) -> Tensor:
    return Tensor(np.array(variable.is_set))


def _record_method(name: str) -> Callable[..., Any]:
    """Return a method that a graph records. One that writes returns the new value of the variable."""
    method = getattr(Variable, name)

    def call(self: GraphVariable, *args: PyTree, **kwargs: PyTree) -> Any:
        if context.graph is None or context.trace is not None:
            return method(self, *args, **kwargs)
        return context.graph.call(write, (self, *args), kwargs)

    def write(self: GraphVariable, *args: PyTree, **kwargs: PyTree) -> Tensor | None:
        result = method(self, *args, **kwargs)
        return self._as_tensor() if isinstance(result, Variable) else result

    call.__name__ = write.__name__ = name
    call.__doc__ = f"Call `tf.Variable.{name}` when a session runs the operation that is returned."
    return call


for _name in (
    *("assign", "assign_add", "assign_sub", "batch_scatter_update", "gather_nd", "sparse_read"),
    *(f"scatter_{n}" for n in ("add", "sub", "update", "max", "min", "mul", "div")),
    *(f"scatter_nd_{n}" for n in ("add", "sub", "update", "max", "min")),
):
    setattr(GraphVariable, _name, _record_method(_name))
