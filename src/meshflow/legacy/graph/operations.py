"""Operations of a graph, and the symbolic tensors that are their results."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

import numpy as np

from meshflow.core.config import graph_mode
from meshflow.core.runtime.context import GraphRecorder, context
from meshflow.core.runtime.errors import OperatorNotAllowedInGraphError, ValueNeededError
from meshflow.core.values.dtypes import DType
from meshflow.core.values.shapes import ShapeLike, TensorShape
from meshflow.core.values.specs import TensorSpec
from meshflow.core.values.tensor import Tensor
from meshflow.core.variables.indexing import getitem
from meshflow.core.variables.random_streams import SeedStream
from meshflow.environment.types import PyTree
from meshflow.keras.engine.symbolic.keras_tensor import KerasTensor
from meshflow.ops.operators import install_operators

# Types of operations in TensorFlow, where these are not the name of the function in camel case.
_TYPES = dict(
    pair.split("=")
    for pair in [
        "add=AddV2",
        "argmax=ArgMax",
        "argmin=ArgMin",
        "assign=AssignVariableOp",
        "assign_add=AssignAddVariableOp",
        "assign_sub=AssignSubVariableOp",
        "concat=ConcatV2",
        "constant=Const",
        "conv2d=Conv2D",
        "conv3d=Conv3D",
        "div=RealDiv",
        "divide=RealDiv",
        "floordiv=FloorDiv",
        "floormod=FloorMod",
        "gather=GatherV2",
        "getitem=StridedSlice",
        "group=NoOp",
        "inv=MatrixInverse",
        "join=StringJoin",
        "logical_or_bitwise_and=LogicalAnd",
        "logical_or_bitwise_not=LogicalNot",
        "logical_or_bitwise_or=LogicalOr",
        "logical_or_bitwise_xor=LogicalAnd",
        "matmul=MatMul",
        "multiply=Mul",
        "negative=Neg",
        "normal=RandomStandardNormal",
        "read_variable=ReadVariableOp",
        "reduce_all=All",
        "reduce_any=Any",
        "reduce_max=Max",
        "reduce_mean=Mean",
        "reduce_min=Min",
        "reduce_prod=Prod",
        "reduce_sum=Sum",
        "reverse=ReverseV2",
        "shuffle=RandomShuffle",
        "stack=Pack",
        "subtract=Sub",
        "top_k=TopKV2",
        "truediv=RealDiv",
        "truncated_normal=TruncatedNormal",
        "uniform=RandomUniform",
        "unstack=Unpack",
        "where=SelectV2",
    ]
)
# Names of operations in TensorFlow, where these are not the type. Python's operators pass their own names.
_NAMES = dict(
    pair.split("=")
    for pair in [
        "add=Add",
        "avg_pool2d=AvgPool2D",
        "boolean_mask=boolean_mask",
        "clip_by_value=clip_by_value",
        "concat=concat",
        "cond=cond",
        "div=div",
        "divide=truediv",
        "dropout=dropout",
        "einsum=einsum",
        "embedding_lookup=embedding_lookup",
        "eye=eye",
        "floordiv=floordiv",
        "getitem=strided_slice",
        "l2_normalize=l2_normalize",
        "linspace=linspace",
        "map_fn=map",
        "max_pool2d=MaxPool2d",
        "meshgrid=meshgrid",
        "moments=moments",
        "norm=norm",
        "normal=random_normal",
        "one_hot=one_hot",
        "ones=ones",
        "ones_like=ones_like",
        "range=range",
        "reduce_logsumexp=ReduceLogSumExp",
        "saturate_cast=saturate_cast",
        "sigmoid_cross_entropy_with_logits=logistic_loss",
        "softmax_cross_entropy_with_logits=softmax_cross_entropy_with_logits",
        "split=split",
        "stack=stack",
        "transpose=transpose",
        "truediv=truediv",
        "truncated_normal=truncated_normal",
        "uniform=random_uniform",
        "unstack=unstack",
        "while_loop=while",
        "zeros=zeros",
        "zeros_like=zeros_like",
    ]
)
# Image functions that TensorFlow composes in a name scope of this name.
_NAMES |= {
    name: name
    for name in [
        "central_crop",
        "crop_to_bounding_box",
        "pad_to_bounding_box",
        "random_flip_left_right",
        "random_flip_up_down",
        "resize_with_crop_or_pad",
    ]
}


def get_operation_type(function: Callable[..., Any]) -> str:
    """Return the type of the operations that call a function, in camel case."""
    name = _get_name(function)
    return _TYPES.get(name) or "".join(p[:1].upper() + p[1:] for p in name.split("_"))


def get_operation_name(function: Callable[..., Any]) -> str:
    """Return the default name of the operations that call a function."""
    return _NAMES.get(_get_name(function)) or get_operation_type(function)


def _get_name(function: Callable[..., Any]) -> str:
    return str(getattr(function, "__name__", type(function).__name__)).strip("_")


class RunningSession(Protocol):
    """Interface of a session that computes tensors of its graph."""

    graph: OwningGraph
    # Streams of random operations by operation, draw, and seeds.
    random_streams: dict[tuple[int | None, ...], SeedStream]

    def run(self, fetches: PyTree, feed_dict: PyTree = None) -> PyTree:
        """Compute tensors, with the values of others."""

    def hold_variables(self) -> contextlib.AbstractContextManager[None]:
        """Return a context in which the variables keep the values of the session."""


class OwningGraph(GraphRecorder, Protocol):
    """Interface of a graph for its operations and variables; see `graph.Graph`."""

    # The session that set the values of the variables.
    session: RunningSession | None

    def add_operation(self, operation: Operation) -> int:
        """Add an operation, and return its number in the order of creation."""

    def name_operation(self, name: str) -> str:
        """Return a unique name below the current name scope."""

    def record(
        self,
        function: Callable[..., Any],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
        name: str | None = None,
    ) -> PyTree:
        """Record a call as an operation with a name."""

    def record_source(
        self,
        function: Callable[..., PyTree],
        specs: PyTree,
        name: str,
        inputs: Sequence[SymbolicTensor] = (),
    ) -> PyTree:
        """Record a call on tensors that is not traced; its result has the structure and the specs `specs`."""

    def record_body(self) -> contextlib.AbstractContextManager[list[Operation]]:
        """Return a context that adds operations to a list instead of the graph."""

    def as_default(self) -> contextlib.AbstractContextManager[OwningGraph]:
        """Return a context in which calls add operations to the graph."""

    def is_learning_phase(self, tensor: SymbolicTensor) -> bool:
        """Check whether a tensor is the learning phase."""


class Operation(graph_mode.Operation):
    """Call of a function in a graph.

    Attributes:
      graph: The graph.
      name: Unique name in the graph.
      type: Name of the kind of operation.
      inputs: Symbolic tensors that the call reads.
      control_inputs: Operations that run before this one.
      outputs: Symbolic tensors among the results.
    """

    graph: OwningGraph
    name: str
    type: str
    inputs: Sequence[SymbolicTensor]
    control_inputs: list[Operation]
    outputs: list[SymbolicTensor]
    # Tensors and variables with respect to which the operation computes gradients.
    sources: Sequence[Any] = ()
    # Variables that the operation reads, in addition to its inputs.
    variables: Sequence[Any] = ()

    def __init__(
        self,
        graph: OwningGraph,
        name: str,
        type: str,
        compute: Callable[[Any], Sequence[Any]],
        inputs: Sequence[SymbolicTensor],
        control_inputs: Sequence[Operation] = (),
    ) -> None:
        self.graph, self.name, self.type = graph, name, type
        # Function of a `Run` that returns the values of the outputs.
        self.compute = compute
        self.inputs, self.control_inputs = tuple(inputs), list(control_inputs)
        for tensor in self.inputs:
            if tensor.graph is not graph:
                raise ValueError(
                    f"{tensor} must be from the same graph as the operation {name!r} that reads it."
                )
        self.outputs = []
        self.number = graph.add_operation(self)
        self._device = context.device

    @property
    def op_def(self) -> Operation:
        """Return the operation itself, which has the attribute `name`."""
        return self

    @property
    def node_def(self) -> Operation:
        """Return the operation itself, which has the attributes `name` and `op`."""
        return self

    @property
    def op(self) -> str:
        """Return the type, as the message `NodeDef` names it."""
        return self.type

    @property
    def device(self) -> str:
        """Return the name of the device that was requested, or an empty string."""
        return "" if self._device is None else str(self._device)

    def values(self) -> tuple[SymbolicTensor, ...]:
        """Return the outputs."""
        return tuple(self.outputs)

    def run(self, feed_dict: PyTree = None, session: RunningSession | None = None) -> None:
        """Run the operation in a session, by default the default one."""
        find_session(session, self.graph).run(self, feed_dict)

    def _add_control_input(self, operation: Operation) -> None:
        self.control_inputs.append(operation)

    def add_output(
        self, spec: KerasTensor | TensorSpec, value: Tensor | None = None
    ) -> SymbolicTensor:
        """Add a result with the shape and dtype of a spec, and the value of a constant."""
        symbol = spec if isinstance(spec, KerasTensor) else KerasTensor(spec)
        tensor = SymbolicTensor(self, len(self.outputs), symbol, value)
        self.outputs.append(tensor)
        return tensor

    def __repr__(self) -> str:
        return f"<tf.Operation {self.name!r} type={self.type}>"


class SymbolicTensor(Tensor):
    """Symbolic tensor of a graph.

    Args:
      op: The operation that computes the tensor.
      value_index: Index among the outputs of the operation.
      symbol: Its shape and dtype.
      value: Its value if it is a constant, or None.
    """

    __slots__ = ("_readers", "op", "symbol", "value_index")

    def __init__(
        self, op: Operation, value_index: int, symbol: KerasTensor, value: Tensor | None
    ) -> None:
        self.op, self.value_index, self.symbol = op, value_index, symbol
        self._owner = None
        self._readers: list[Operation] = []
        if value is not None:
            self._value = value.array

    @property
    def graph(self) -> OwningGraph:
        """Return the graph of the tensor."""
        return self.op.graph

    @property
    def _is_in_graph(self) -> bool:  # type: ignore[override]
        return not _has_value(self)

    @property
    def is_constant(self) -> bool:
        """Return whether the value is known."""
        return _has_value(self)

    @property
    def dtype(self) -> DType:
        """Return the dtype of the elements."""
        return self.symbol.dtype

    @property
    def shape(self) -> TensorShape:
        """Return the static shape."""
        return self.symbol.shape

    @property
    def ndim(self) -> int | None:  # type: ignore[override]
        """Return the number of dimensions, or None."""
        return self.shape.rank

    @property
    def name(self) -> str:
        """Return the name of the operation and the index, such as `"add:0"`."""
        return f"{self.op.name}:{self.value_index}"

    @property
    def device(self) -> str:
        """Return the name of the device that was requested, or an empty string."""
        return self.op.device

    def consumers(self) -> list[Operation]:
        """Return the operations that read the tensor."""
        return list(self._readers)

    def add_reader(self, operation: Operation) -> None:
        """Add an operation that reads the tensor."""
        self._readers.append(operation)

    def set_shape(self, shape: ShapeLike) -> None:
        """Merge a shape into the static shape.

        Raises:
          ValueError: If the shapes are incompatible.
        """
        merged = self.shape.merge_with(shape)
        self.symbol = KerasTensor(TensorSpec(merged, self.dtype))

    def eval(self, feed_dict: PyTree = None, session: RunningSession | None = None) -> PyTree:
        """Return the value in a session, by default the default one."""
        return find_session(session, self.graph).run(self, feed_dict)

    def find_known_value(self) -> np.ndarray | None:
        """Return the value of a constant, or None."""
        return np.asarray(self._value) if self.is_constant else None

    def require_value(self, use: str) -> np.ndarray:
        """Return the value of a constant; raise an error for other tensors.

        Raises:
          ValueNeededError: If the tensor is no constant.
        """
        if not self.is_constant:
            raise ValueNeededError(
                f"The value of {self!r} is needed as {use}, but only known when a session runs it. Use tf.cond, "
                "tf.while_loop or tf.where."
            )
        return np.asarray(self._value)

    @property
    def numpy(self) -> Any:
        """Raise an `AttributeError`: a session computes the value."""
        raise AttributeError(f"{self!r} has no numpy(): it is symbolic. Use Session.run or eval().")

    def _require_python_value(self, use: str) -> np.ndarray:
        raise OperatorNotAllowedInGraphError(
            f"Using a symbolic `tf.Tensor` ({self.name}) as {use} is not allowed in a graph: a session computes its value. "
            "Use tf.cond, tf.while_loop or tf.where."
        )

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        raise NotImplementedError(
            f"Cannot convert a symbolic tf.Tensor ({self.name}) to a numpy array. Use Session.run or eval()."
        )

    def __len__(self) -> int:
        raise TypeError(
            f"len is not well defined for a symbolic Tensor ({self.name}). Please call `x.shape` rather than `len(x)` for "
            "shape information."
        )

    def __iter__(self) -> Iterator[Tensor]:
        size = self.shape[0] if self.shape.rank else None
        if size is None:
            raise OperatorNotAllowedInGraphError(
                f"Iterating over a symbolic `tf.Tensor` ({self.name}) with an unknown first dimension is not allowed in a "
                "graph."
            )
        return iter([self[i] for i in range(size)])

    def __format__(self, spec: str) -> str:
        return str(self)

    def __reduce__(self) -> NoReturn:
        raise TypeError(f"{self!r} is symbolic, and cannot be pickled.")

    def __str__(self) -> str:
        return f'Tensor("{self.name}", shape={_format_shape(self.shape)}, dtype={self.dtype.name})'

    def __repr__(self) -> str:
        return (
            f"<tf.Tensor '{self.name}' shape={_format_shape(self.shape)} dtype={self.dtype.name}>"
        )

    if not TYPE_CHECKING:

        def __getattr__(self, name):
            if name == "_value":
                self.require_value("an array")
            return super().__getattr__(name)


_find_slot = Tensor.__dict__["_value"].__get__


def _has_value(tensor: SymbolicTensor) -> bool:
    try:
        _find_slot(tensor)
    except AttributeError:
        return False
    return True


def _format_shape(shape: TensorShape) -> str:
    if shape.rank is None:
        return "<unknown>"
    sizes = ", ".join("?" if n is None else str(n) for n in shape.as_list())
    return f"({sizes},)" if shape.rank == 1 else f"({sizes})"


# Returns the session that a method runs in; `sessions` sets it.
_find_session: list[Callable[[], Any]] = []


def register_default_session(find: Callable[[], Any]) -> None:
    """Register the function that returns the default session, or None."""
    _find_session[:] = [find]


def find_session(session: RunningSession | None, graph: OwningGraph) -> RunningSession:
    """Return a session, or the default one, which must be one of a graph."""
    found = session if session is not None else _find_session[0]()
    if found is None:
        raise ValueError(
            "Cannot evaluate tensor using `eval()`: No default session is registered. Use `with "
            "sess.as_default()` or pass an explicit session to `eval(session=sess)`"
        )
    if found.graph is not graph:
        raise ValueError(
            "Cannot use the default session to evaluate tensor: the tensor's graph is different from the "
            "session's graph. Pass an explicit session to `eval(session=sess)`."
        )
    return found


def _index(tensor: SymbolicTensor, key: PyTree) -> Any:
    graph = tensor.graph if context.graph is None else context.graph
    return graph.call(getitem, (tensor, key), {})


SymbolicTensor.__getitem__ = _index  # type: ignore[method-assign, assignment]
install_operators(SymbolicTensor)
# As in TensorFlow, tensors of graphs are compared by identity.
for _name, _method in (
    ("__eq__", lambda self, other: self is other),
    ("__ne__", lambda self, other: self is not other),
    ("__hash__", object.__hash__),
):
    setattr(SymbolicTensor, _name, _method)
