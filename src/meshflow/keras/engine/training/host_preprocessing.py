"""Models with parts that run on the host: layers of text, and layers that need concrete values.

XLA has no strings. A graph is therefore split: the layers that use strings, and all their
predecessors, run as plain Python for each batch, and their results are inputs of the compiled rest.
A model that cannot be split runs completely as plain Python.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any, NamedTuple

import jax
import numpy as np

from meshflow.core.values import dtypes, nest
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.tensor import Tensor
from meshflow.core.values.withheld_text import WithheldTextError, check_text, make_withheld_text
from meshflow.environment.types import PyTree
from meshflow.keras.engine.graph.graph import LayerGraph, PrecomputedPart, get_graph
from meshflow.keras.engine.layer.helpers import remove_duplicates
from meshflow.keras.engine.layer.losses_and_metrics import flatten_layers
from meshflow.keras.engine.symbolic.keras_tensor import KerasTensor, Node
from meshflow.keras.engine.training.sparse_batches import (
    is_sparse,
    split_batch,
)
from meshflow.keras.engine.training.step import CompiledStep, as_tensors, is_text
from meshflow.ops.ragged.tensor import RaggedTensor


def needs_host(model: Any) -> bool:
    """Check whether a model has string inputs, or layers that need concrete values.

    Args:
      model: The model.
    """
    graph = get_graph(model)
    if graph is not None and any(t.dtype is dtypes.string for t in graph.flat_inputs):
        return True
    return _has_host_layer(model)


def _has_host_layer(layer: Any) -> bool:
    """Check whether a layer or one of its sublayers needs concrete values."""
    return any(map(runs_on_host, flatten_layers(layer)))


def runs_on_host(layer: object) -> bool:
    """Check whether a layer needs concrete values."""
    return bool(getattr(layer, "runs_on_host", False))


class HostPart:
    """The part of a graph that runs on the host.

    Args:
      graph: The graph.
      nodes: The calls of layers that run on the host, in order.
      rest: The other calls.

    Attributes:
      cut_tensors: The results of the part that the rest uses.
    """

    def __init__(self, graph: LayerGraph, nodes: list[Node], rest: list[Node]) -> None:
        self.graph, self.nodes, self.rest = graph, nodes, rest
        host_outputs = {id(t) for node in nodes for t in node.flat_outputs}
        used = [t for node in rest for t in node.keras_inputs] + graph.flat_outputs
        self.cut_tensors: list[KerasTensor] = remove_duplicates(
            [t for t in used if id(t) in host_outputs]
        )
        read = {id(t) for node in nodes for t in node.keras_inputs}
        self._inputs = [id(t) for t in graph.flat_inputs if id(t) in read]

    @classmethod
    def from_graph(cls, graph: LayerGraph) -> HostPart | None:
        """Return the part of a graph that must run on the host.

        Args:
          graph: The graph.

        Returns:
          The part, or None if it has trainable weights or strings remain in the rest, so that the
          graph cannot be split.
        """
        inputs = {id(t) for t in graph.flat_inputs}
        required: set[int] = set()
        for node in reversed(graph.nodes):
            is_input = any(id(t) in inputs for t in node.flat_outputs)
            uses_text = any(t.dtype is dtypes.string for t in node.keras_inputs)
            is_host_call = uses_text or _has_host_layer(node.layer)
            if not is_input and (is_host_call or any(id(t) in required for t in node.flat_outputs)):
                if node.layer.trainable_weights:
                    return None
                required.update(id(t) for t in [*node.flat_outputs, *node.keras_inputs])
        outputs = [t for node in graph.nodes for t in node.flat_outputs if id(t) in required]
        calls = {id(t.node) for t in outputs if id(t) not in inputs}
        part = cls(
            graph,
            [n for n in graph.nodes if id(n) in calls],
            [n for n in graph.nodes if id(n) not in calls],
        )
        has_strings = any(t.dtype is dtypes.string for t in part.cut_tensors)
        return None if has_strings else part

    def compute_values(self, inputs: PyTree) -> list[Any]:
        """Compute the tensors that the rest needs from the model's inputs."""
        values = self.graph.bind_inputs(inputs)
        self.graph.call_nodes(self.nodes, values)
        results = [values[id(t)] for t in self.cut_tensors]
        is_composite = lambda value: is_sparse(value) or isinstance(value, RaggedTensor)
        return [split_batch(v) if is_composite(v) else np.asarray(v.array) for v in results]

    @contextlib.contextmanager
    def substitute_values(self, tensors: list[Tensor], inputs: PyTree = None) -> Iterator[None]:
        """Run only the rest of the graph within this context, with the given results of the part.

        Args:
          tensors: Values of `cut_tensors`.
          inputs: Inputs that the values belong to; the graph computes all of its nodes for others.
            By default, the values are used for all inputs.
        """
        values = {id(t): v for t, v in zip(self.cut_tensors, tensors, strict=True)}
        given = {} if inputs is None else self.graph.find_sources(inputs)
        sources = {i: given[i] for i in self._inputs if given}
        before = self.graph.precomputed
        self.graph.precomputed = PrecomputedPart(values, self.rest, sources)
        try:
            yield
        finally:
            self.graph.precomputed = before


class FeaturesPart:
    """The lookups on the host of layers such as `DenseFeatures`, which take a model's inputs.

    Args:
      lookups: Each layer with the ids of the graph's inputs, by the names of its features.
      graph: The graph; None for a `Sequential` model, in which the first layer takes the inputs.
    """

    def __init__(self, lookups: list[tuple[Any, dict[str, int]]], graph: LayerGraph | None) -> None:
        self.lookups, self.graph = lookups, graph

    @classmethod
    def from_model(cls, model: Any, graph: LayerGraph | None) -> FeaturesPart | None:
        """Return the lookups of a model.

        Args:
          model: The model.
          graph: Its graph, or None.

        Returns:
          The lookups, or None if the model has no such layer, or has other layers that run on the
          host.
        """
        if graph is None:
            stack: list[Any] = list(model.layers) if hasattr(model, "_stack") else []
            first = stack[0] if stack else None
            if not hasattr(first, "compute_host_values") or any(map(_has_host_layer, stack[1:])):
                return None
            return cls([(first, {})], None)
        inputs = {id(t) for t in graph.flat_inputs}
        lookups = []
        for node in graph.nodes:
            if hasattr(node.layer, "compute_host_values"):
                names = {name: id(t) for name, t in node.args[0].items()}
                if not set(names.values()) <= inputs:
                    return None
                lookups.append((node.layer, names))
            elif _has_host_layer(node.layer) or any(
                t.dtype is dtypes.string for t in node.keras_inputs
            ):
                return None
        return cls(lookups, graph) if lookups else None

    def compute_values(self, inputs: PyTree) -> list[list[np.ndarray]]:
        """Compute the values that the layers need from the model's inputs."""
        if self.graph is None:
            return [layer.compute_host_values(inputs) for layer, _ in self.lookups]
        values = self.graph.bind_inputs(inputs)
        return [
            layer.compute_host_values({name: values[i] for name, i in names.items()})
            for layer, names in self.lookups
        ]

    @contextlib.contextmanager
    def substitute_values(self, values: list[Any], inputs: PyTree = None) -> Iterator[None]:
        """Call the layers with looked-up values within this context.

        Args:
          values: The values of each layer.
          inputs: Ignored: the layers use the values for all inputs.
        """
        del inputs
        with contextlib.ExitStack() as stack:
            for (layer, _), tensors in zip(self.lookups, values, strict=True):
                stack.enter_context(layer.substitute_values(tensors))
            yield


class HostValues(NamedTuple):
    """The results of a host part for the batch of a compiled step.

    Attributes:
      part: The part.
      values: Its results, which have a row for each example.
    """

    part: HostPart | FeaturesPart
    values: list[Any]


_current: ContextVar[HostValues | None] = ContextVar("host_values", default=None)


def get_host_values() -> HostValues | None:
    """Return the results of the host part of the step that is being traced, or None."""
    return _current.get()


class _TextPlaceholder:
    """Placeholder for strings in a batch of a compiled step; only their shape is known."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.shape = shape

    def _as_tensor(self) -> Tensor:
        return Tensor(make_withheld_text(self.shape))


jax.tree_util.register_pytree_node(
    _TextPlaceholder, lambda t: ((), t.shape), lambda shape, _: _TextPlaceholder(shape)
)


def _replace_text(leaf: PyTree) -> PyTree:
    return _TextPlaceholder(leaf.shape) if is_text(leaf) else leaf


def _restore_text(leaf: PyTree) -> PyTree:
    return convert_to_tensor(leaf) if isinstance(leaf, _TextPlaceholder) else leaf


class HostPreprocessingStep:
    """A step with a host part that runs before the compiled rest.

    Args:
      model: The model.
      function: The step, which takes a batch of tensors.
      name: Name of the step in profiles.

    Attributes:
      compiled: The compiled rest.
    """

    def __init__(self, model: Any, function: Callable[[Any], Any], name: str) -> None:
        self._model, self._function, self._name = model, function, name
        self._part: HostPart | FeaturesPart | None = None
        self._reads_text = False
        self.compiled = CompiledStep(self._run_rest, name, model.name)

    def __call__(self, batch: PyTree) -> Any:
        """Run one step on a structure of arrays."""
        graph = self._model._get_graph()
        if self._reads_text or not (isinstance(batch, (tuple, dict)) and batch):
            return self._function(as_tensors(batch))
        if self._part is None or self._part.graph is not graph:
            self._part = FeaturesPart.from_model(self._model, graph)
            if self._part is None and graph is not None:
                self._part = HostPart.from_graph(graph)
        if self._part is None:
            return self._function(as_tensors(batch))
        inputs = batch[0] if isinstance(batch, tuple) else batch
        try:
            values = self._part.compute_values(as_tensors(inputs))
        except ValueError:
            # The step may call the model on parts of the inputs.
            return self._run_as_python(batch)
        try:
            return self.compiled((values, nest.map_structure(_replace_text, batch)))
        except WithheldTextError:
            return self._run_as_python(batch)

    def _run_as_python(self, batch: PyTree) -> Any:
        """Run this step, and all later ones, as plain Python."""
        result = self._function(as_tensors(batch))
        self._reads_text = True
        warnings.warn(
            f"The {self._name} of {self._model.name!r} uses strings of its batch itself, so it runs as plain "
            "Python, which is slower. Call layers and functions of strings in the dataset's map instead.",
            stacklevel=3,
        )
        return result

    def _run_rest(self, arguments: tuple[PyTree, PyTree]) -> Any:
        values, batch = arguments
        assert self._part is not None
        token = _current.set(HostValues(self._part, list(values)))
        try:
            batch = nest.map_structure(_restore_text, batch)
            inputs = batch[0] if isinstance(batch, tuple) else batch
            with self._part.substitute_values(list(values), inputs):
                result = self._function(batch)
        finally:
            _current.reset(token)
        for leaf in nest.flatten_parts(result):
            if isinstance(leaf, Tensor) and leaf.dtype is dtypes.string:
                check_text(np.asarray(leaf.array), count=None)
        return result
