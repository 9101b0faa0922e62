"""Datasets with tensors of a graph as arguments: recorded calls, which an iterator repeats when a session initializes it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import FunctionType
from typing import Any

import numpy as np

from meshflow.core.tracing.trace import init_scope
from meshflow.core.values import nest
from meshflow.core.values.composite import CompositeTensor, split_value
from meshflow.core.values.tensor import Tensor
from meshflow.data import structure
from meshflow.data.dataset import Dataset
from meshflow.environment.types import PyTree
from meshflow.legacy.graph.execution import Find, suspend_recording
from meshflow.legacy.graph.graph import get_default_graph
from meshflow.legacy.graph.operations import SymbolicTensor

# Sizes that replace unknown ones in the two inferences of the spec of the elements.
_SIZES = (2, 3)


class GraphDataset:
    """Dataset with arguments that a session computes, such as placeholders.

    It has the methods of `tf.data.Dataset`.

    Args:
      function: Class, function or method that creates a dataset.
      args: Positional arguments, which may contain graph tensors and other `GraphDataset`s.
      kwargs: Keyword arguments.
    """

    def __init__(
        self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        self._function, self._args, self._kwargs = function, args, kwargs
        inputs = [t for leaf in nest.flatten((args, kwargs)) for t in _list_inputs(leaf)]
        self.inputs: list[SymbolicTensor] = list({id(t): t for t in inputs}.values())
        # An error of the arguments is raised where the dataset is created.
        self.element_spec = nest.map_structure(
            lambda a, b: a.most_specific_compatible_type(b), *map(self._infer_spec, _SIZES)
        )

    def build(self, find: Find) -> Dataset:
        """Create the dataset for the values that a function finds for graph tensors."""

        def get_value(leaf: PyTree) -> Any:
            if isinstance(leaf, GraphDataset):
                return leaf.build(find)
            if isinstance(leaf, CompositeTensor) and _list_inputs(leaf):
                return leaf.join_parts([get_value(part) for part in split_value(leaf)])
            return find(leaf) if isinstance(leaf, SymbolicTensor) else leaf

        args, kwargs = nest.map_structure(get_value, (self._args, self._kwargs))
        dataset: Dataset = self._function(*args, **kwargs)
        return dataset

    def options(self) -> Any:
        """Return the options of the dataset."""
        return self._build_example(_SIZES[0]).options()

    def record_result(self) -> PyTree:
        """Record the computation of a result that is no dataset, such as that of `reduce`."""

        def compute(*values: Tensor) -> PyTree:
            found = {id(t): value for t, value in zip(self.inputs, values, strict=True)}
            return self.build(lambda tensor: found[id(tensor)])

        return get_default_graph().record_source(
            compute, self.element_spec, self._function.__name__, self.inputs
        )

    def _infer_spec(self, size: int) -> PyTree:
        example = self._build_example(size)
        self.is_dataset = isinstance(example, Dataset)
        if self.is_dataset:
            return example.element_spec
        return structure.infer_spec(structure.to_arrays(example))

    def _build_example(self, size: int) -> Any:
        def make_value(tensor: SymbolicTensor) -> Tensor:
            if tensor.is_constant:
                return Tensor(tensor.array)
            sizes = tensor.shape.as_list() if tensor.shape.rank is not None else []
            shape = [size if n is None else n for n in sizes]
            if tensor.dtype.dtype == object:
                return Tensor(np.full(shape, b"", object))
            # Scalars are sizes of batches and buffers, which are positive.
            return Tensor(np.full(shape, size, tensor.dtype.dtype))

        with init_scope(), suspend_recording():
            return self.build(make_value)

    def __getattr__(self, name: str) -> Any:
        """Return a method of `tf.data.Dataset` that records its calls."""
        method = getattr(Dataset, name, None)
        if name.startswith("_") or not callable(method):
            raise AttributeError(f"A dataset with tensors of a graph has no attribute {name!r}.")
        if not isinstance(vars(_find_owner(name))[name], FunctionType):
            return method
        return functools.partial(method, self)


def _list_inputs(leaf: PyTree) -> list[SymbolicTensor]:
    """Return the graph tensors of an argument, with those of composite tensors and of datasets."""
    if isinstance(leaf, GraphDataset):
        return leaf.inputs
    parts = split_value(leaf) if isinstance(leaf, CompositeTensor) else [leaf]
    return [part for part in parts if isinstance(part, SymbolicTensor)]


def _has_inputs(args: tuple[PyTree, ...], kwargs: dict[str, PyTree]) -> bool:
    leaves = nest.flatten((args, kwargs))
    return any(isinstance(leaf, GraphDataset) or _list_inputs(leaf) for leaf in leaves)


def _find_owner(name: str) -> type:
    return next(base for base in Dataset.__mro__ if name in vars(base))


def _record_calls(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that records calls with graph tensors as a `GraphDataset`."""

    @functools.wraps(function)
    def call(*args: PyTree, **kwargs: PyTree) -> object:
        if _has_inputs(args, kwargs):
            recorded = GraphDataset(function, args, kwargs)
            return recorded if recorded.is_dataset else recorded.record_result()
        return function(*args, **kwargs)

    return call


def _create(cls: type, *args: PyTree, **kwargs: PyTree) -> object:
    """Create a dataset of a class, such as `tf.data.TFRecordDataset`."""
    if _has_inputs(args, kwargs):
        return GraphDataset(cls, args, kwargs)
    return object.__new__(cls)


def _record_methods() -> None:
    """Make the methods of datasets accept graph tensors, once graphs of version 1 are used."""
    for base in Dataset.__mro__:
        if not base.__module__.startswith("meshflow.data"):
            continue
        for name, member in list(vars(base).items()):
            is_static = isinstance(member, staticmethod)
            function = member.__func__ if is_static else member
            if not name.startswith("_") and isinstance(function, FunctionType):
                recorded = _record_calls(function)
                setattr(base, name, staticmethod(recorded) if is_static else recorded)
    Dataset.__new__ = _create  # type: ignore[assignment, method-assign]


_record_methods()
