"""Calls of functions that a graph records: their arguments, and the inference of their results."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from meshflow.core.dispatch.composite import IndexedSlices, SparseTensor
from meshflow.core.runtime.errors import OpError
from meshflow.core.values import nest
from meshflow.core.values.composite import split_value
from meshflow.core.values.dtypes import DType
from meshflow.core.values.specs import TensorSpec
from meshflow.core.values.tensor import Tensor, read_tensor
from meshflow.core.variables.variable import Variable
from meshflow.environment.types import PyTree
from meshflow.keras.engine.layer.shape_inference import infer_op_outputs
from meshflow.keras.engine.symbolic.keras_tensor import KerasTensor
from meshflow.legacy.graph.execution import Body, Find, GraphRead, Run, state, suspend_recording
from meshflow.legacy.graph.operations import OwningGraph, SymbolicTensor

# Functions of a graph that it calls instead of recording a function, by the `id` of the latter.
graph_functions: dict[int, Callable[..., Any]] = {}


def replace_in_graphs(function: Callable[..., Any], own: Callable[..., Any]) -> None:
    """Make graphs call `own(graph, ...)` instead of recording a function, or one that it wraps."""
    wrapped: Any = function
    while wrapped is not None:
        graph_functions[id(wrapped)] = own
        wrapped = getattr(wrapped, "__wrapped__", None)


# Functions with functions as arguments, which a graph calls once.
_BRANCHES = ("cond", "case", "switch_case")
_SPARSE = (SparseTensor, IndexedSlices)
_CONTROL_FLOW = (*_BRANCHES, "while_loop", "map_fn", "scan", "foldl", "foldr", "vectorized_map")
# Ranks that replace an unknown one, in the order of the attempts.
_RANKS = (2, 1, 3, 4, 5, 0)
# Packages of functions that return the same results for the same arguments.
_PURE_PACKAGES = ("array", "casting", "math", "linalg", "nn", "strings")


class _SliceParts(NamedTuple):
    """A slice as a nested structure, because its bounds may be tensors."""

    start: Any
    stop: PyTree
    step: Any


class GraphCall:
    """A call of a function on graph tensors.

    Args:
      graph: The graph.
      function: The function.
      args: Positional arguments.
      kwargs: Keyword arguments.

    Attributes:
      inputs: The graph tensors that the call reads.
      variables: The variables that the call reads.
      result: Result of the inference, with composite tensors of placeholders.
    """

    def __init__(
        self,
        graph: OwningGraph,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> None:
        self._function = function
        arguments = nest.map_structure(_split_slice, (args, kwargs))
        self._arguments, self._split = arguments, nest.split_composites(arguments)
        takes_functions = getattr(function, "__name__", "") in _CONTROL_FLOW
        self._leaves = [
            Body(graph, leaf)
            if takes_functions and callable(leaf) and not isinstance(leaf, DType)
            else leaf
            for leaf in nest.flatten(self._split)
        ]
        self.inputs: list[SymbolicTensor] = []
        self.variables: list[Any] = []
        self.result: PyTree = None
        self._part_dtypes: list[list[DType]] = []
        self._add_inputs([leaf for leaf in self._leaves if isinstance(leaf, SymbolicTensor)])
        self._bodies = [leaf for leaf in self._leaves if isinstance(leaf, Body)]

    def _add_inputs(self, tensors: Sequence[SymbolicTensor]) -> None:
        self.inputs = list({id(t): t for t in (*self.inputs, *tensors)}.values())

    def run(self, find: Find, invents_sizes: bool = False) -> PyTree:
        """Call the function on the values that `find` returns for graph tensors."""

        def get_value(leaf: PyTree) -> Any:
            if isinstance(leaf, Body):
                return leaf.bind(find, invents_sizes)
            return find(leaf) if isinstance(leaf, SymbolicTensor) else leaf

        parts = nest.pack_sequence_as(self._split, [get_value(leaf) for leaf in self._leaves])
        args, kwargs = _join_slices(nest.join_composites(self._arguments, parts))
        while True:
            with contextlib.suppress(GraphRead):
                return self._function(*args, **kwargs)

    def compute(self, run: Run) -> Sequence[Any]:
        """Call the function on the values of a run, and return the tensors of its result."""
        result = self.run(run.find)
        if not any(self._part_dtypes):
            return list_tensors(result)
        return list_tensors(list(map(_expand_sizes, self._part_dtypes, nest.flatten(result))))

    def forget_result(self) -> None:
        """Forget the inferred result, except how its sparse tensors hold their dense shapes."""
        leaves = nest.flatten(self.result)
        self._part_dtypes = [_list_dtypes(leaf) for leaf in leaves]
        self.result = None

    def infer(self) -> tuple[list[KerasTensor], list[Tensor] | None]:
        """Infer the results, and find the tensors that functions among the arguments capture.

        Returns:
          The specs of the tensors of the result, and their values if they are constants, or None.
        """
        reads_state = any(isinstance(leaf, (Variable, Body)) for leaf in self._leaves)
        if all(t.is_constant for t in self.inputs) and not reads_state and self._is_pure():
            try:
                with suspend_recording(_get_constant):
                    self.result = self.run(_get_constant)
            except OpError as error:
                # An invalid value is reported by the session, an invalid shape by its inference.
                try:
                    return self._infer_specs(self.inputs), None
                except Exception:
                    raise error from None
            values = list_tensors(self.result)
            return [KerasTensor(TensorSpec(v.shape, v.dtype)) for v in values], values
        for body in self._bodies:
            if not body.is_built and self._calls_without_arguments():
                body.build((), {}, False)
        specs = self._infer_specs(self._list_symbolic())
        captures = [t for body in self._bodies for t in body.captures]
        num_inputs = len(self.inputs)
        self._add_inputs([*captures, *self._captured])
        if len(self.inputs) > num_inputs:
            specs = self._infer_specs(self._list_symbolic())
        return specs, None

    def _list_symbolic(self) -> list[SymbolicTensor]:
        return [t for t in self.inputs if not t.is_constant]

    def _calls_without_arguments(self) -> bool:
        return getattr(self._function, "__name__", "") in _BRANCHES

    def _is_pure(self) -> bool:
        if getattr(self._function, "is_recorded", False):
            return False
        package, _, module = str(getattr(self._function, "__module__", "")).partition(".ops.")
        return module.partition(".")[0] in _PURE_PACKAGES or (
            module == "" and package.endswith(".variables.indexing")
        )

    def _infer_specs(self, symbolic: list[SymbolicTensor]) -> list[KerasTensor]:
        """Infer the results for the shapes of some inputs."""
        symbols = [t.symbol for t in symbolic]
        self._captured: list[SymbolicTensor] = []
        invents_sizes = not all(s.shape.is_fully_defined() for s in symbols)

        def call(*values: PyTree) -> list[Any]:
            known = {id(t): v for t, v in zip(symbolic, values, strict=True)}

            def find(tensor: SymbolicTensor) -> Any:
                if id(tensor) in known:
                    return known[id(tensor)]
                return _get_constant(tensor) if tensor.is_constant else self._capture(tensor)

            with suspend_recording(find):
                self.result = self.run(find, invents_sizes)
                return list_tensors(self.result)

        with suspend_recording():
            saved, state.read_variables = state.read_variables, self.variables
            try:
                return list(infer_op_outputs(call, tuple(symbols), {}))
            finally:
                state.read_variables = saved

    def _capture(self, tensor: SymbolicTensor) -> Tensor:
        self._captured.append(tensor)
        sizes = [1 if n is None else n for n in tensor.shape.as_list()] if tensor.shape.rank else []
        if tensor.dtype.dtype == object:
            return Tensor(np.full(sizes, b"", object))
        return Tensor(jnp.zeros(sizes, tensor.dtype.dtype))


def fill_ranks(tensors: Sequence[SymbolicTensor]) -> Iterator[list[KerasTensor]]:
    """Iterate over the symbols of tensors, with the known rank of each attempt in place of unknown ones."""
    is_known = all(t.shape.rank is not None for t in tensors)
    for rank in _RANKS[:1] if is_known else _RANKS:
        yield [
            KerasTensor(TensorSpec([None] * rank, t.dtype)) if t.shape.rank is None else t.symbol
            for t in tensors
        ]


def list_tensors(result: PyTree) -> list[Tensor]:
    """Return the tensors of a result, with the parts of composite tensors."""
    return [
        leaf for leaf in map(_as_tensor, nest.flatten_parts(result)) if isinstance(leaf, Tensor)
    ]


def _list_dtypes(leaf: PyTree) -> list[DType]:
    return [part.dtype for part in split_value(leaf)] if isinstance(leaf, _SPARSE) else []


def _expand_sizes(dtypes: list[DType], value: PyTree) -> PyTree:
    """Return the parts of a sparse value with its dense shape, if the inference did not know the sizes."""
    if not isinstance(value, _SPARSE) or dtypes == _list_dtypes(value):
        return value
    return value.values, value.indices, value.dense_shape


def list_components(specs: PyTree, result: PyTree) -> list[Tensor]:
    """Return the tensors of a result with the structure of specs, in the order of the components of the specs."""
    tensors = []
    for spec, value in zip(nest.flatten(specs), nest.flatten_up_to(specs, result), strict=True):
        if nest.can_split(spec):
            tensors += list_components(spec._component_specs, spec._to_components(value))
        else:
            tensors += list_tensors(value)
    return tensors


def fill_result(result: PyTree, tensors: Sequence[Tensor]) -> PyTree:
    """Return a result with other tensors, in the order of `list_tensors`."""
    supply = iter(tensors)
    return nest.map_parts(
        lambda leaf: next(supply) if isinstance(_as_tensor(leaf), Tensor) else leaf, result
    )


def _as_tensor(leaf: PyTree) -> Any:
    """Return the tensor of an array, a number of NumPy or a variable, and other values unchanged."""
    if isinstance(leaf, (np.ndarray, np.generic)):
        return Tensor(np.asarray(leaf))
    return read_tensor(leaf)


def _get_constant(tensor: SymbolicTensor) -> Tensor:
    return Tensor(tensor.array)


def _split_slice(leaf: PyTree) -> Any:
    return _SliceParts(leaf.start, leaf.stop, leaf.step) if isinstance(leaf, slice) else leaf


def _join_slices(structure: PyTree) -> Any:
    if isinstance(structure, _SliceParts):
        return slice(*structure)
    if type(structure) in (list, tuple):
        return type(structure)(map(_join_slices, structure))
    if type(structure) is dict:
        return {key: _join_slices(value) for key, value in structure.items()}
    return structure
