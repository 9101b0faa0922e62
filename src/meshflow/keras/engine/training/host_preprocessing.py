"""Models parts of which run on the host: text, and layers that need known values.

XLA has no strings. A graph is divided: the layers that work on strings, and all that comes before them, run as
plain Python for each batch; what they give is an input of the compiled rest. A model that cannot be divided
runs as plain Python altogether.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np

from meshflow.core.values import dtypes, nest
from meshflow.core.values.tensor import Tensor
from meshflow.keras.engine.graph.graph import Graph
from meshflow.keras.engine.layer.helpers import unique
from meshflow.keras.engine.symbolic.keras_tensor import KerasTensor, Node
from meshflow.keras.engine.training.step import CompiledStep, as_tensors, is_text

__all__ = ["HostedStep", "needs_host"]


def needs_host(model: Any) -> bool:
    """Whether a model has inputs of strings, or layers that need known values."""
    graph = model._current_graph()
    if graph is not None and any(t.dtype is dtypes.string for t in graph.flat_inputs):
        return True
    return any(_runs_on_host(layer) for layer in model._flatten_layers())


def _runs_on_host(layer: Any) -> bool:
    return bool(getattr(layer, "runs_on_host", False))


class HostPart:
    """The calls of a graph that run on the host.

    Args:
      graph: the graph.
      nodes: those calls, in order.
      rest: the other calls.

    Attributes:
      cut: what the rest needs of them.
    """

    def __init__(self, graph: Graph, nodes: list[Node], rest: list[Node]) -> None:
        self.graph, self.nodes, self.rest = graph, nodes, rest
        made = {id(t) for node in nodes for t in node.flat_outputs}
        used = [t for node in rest for t in node.keras_inputs] + graph.flat_outputs
        self.cut: list[KerasTensor] = unique([t for t in used if id(t) in made])

    @classmethod
    def of(cls, graph: Graph) -> HostPart | None:
        """The part of a graph, None when the graph cannot be divided: training would change the part."""
        inputs = {id(t) for t in graph.flat_inputs}
        wanted: set[int] = set()
        for node in reversed(graph.nodes):
            given = any(id(t) in inputs for t in node.flat_outputs)
            layers = node.layer._flatten_layers()
            text = any(t.dtype is dtypes.string for t in node.keras_inputs)
            own = text or any(_runs_on_host(layer) for layer in layers)
            if not given and (own or any(id(t) in wanted for t in node.flat_outputs)):
                if node.layer.trainable_weights:
                    return None
                wanted.update(id(t) for t in [*node.flat_outputs, *node.keras_inputs])
        outputs = [t for node in graph.nodes for t in node.flat_outputs if id(t) in wanted]
        calls = {id(t.node) for t in outputs if id(t) not in inputs}
        part = cls(
            graph,
            [n for n in graph.nodes if id(n) in calls],
            [n for n in graph.nodes if id(n) not in calls],
        )
        strings = any(t.dtype is dtypes.string for t in part.cut)
        return None if strings else part

    def values(self, inputs: Any) -> list[np.ndarray]:
        """What the rest needs, for inputs of the model."""
        values = self.graph.input_values(inputs)
        self.graph.call_nodes(self.nodes, values)
        return [np.asarray(values[id(t)]._value) for t in self.cut]

    @contextlib.contextmanager
    def given(self, tensors: list[Tensor]) -> Iterator[None]:
        """While the graph runs its rest only, with the part's results as given."""
        known = {id(t): v for t, v in zip(self.cut, tensors, strict=True)}
        self.graph.given = known, self.rest
        try:
            yield
        finally:
            self.graph.given = None


class FeaturesPart:
    """What layers that take a model's inputs, such as `DenseFeatures`, look up on the host.

    Args:
      lookups: each layer, with the inputs of the graph by the names of its features.
      graph: the graph; None for a `Sequential`, whose first layer takes the inputs themselves.
    """

    def __init__(self, lookups: list[tuple[Any, dict[str, int]]], graph: Graph | None) -> None:
        self.lookups, self.graph = lookups, graph

    @classmethod
    def of(cls, model: Any, graph: Graph | None) -> FeaturesPart | None:
        """The part of a model, None when it has no such layer or works on text elsewhere too."""
        if graph is None:
            stack: list[Any] = list(model.layers) if hasattr(model, "_stack") else []
            first = stack[0] if stack else None
            others = [inner for layer in stack[1:] for inner in layer._flatten_layers()]
            if not hasattr(first, "host_values") or any(map(_runs_on_host, others)):
                return None
            return cls([(first, {})], None)
        inputs = {id(t) for t in graph.flat_inputs}
        lookups = []
        for node in graph.nodes:
            if hasattr(node.layer, "host_values"):
                names = {name: id(t) for name, t in node.args[0].items()}
                if not set(names.values()) <= inputs:
                    return None
                lookups.append((node.layer, names))
            elif any(map(_runs_on_host, node.layer._flatten_layers())) or any(
                t.dtype is dtypes.string for t in node.keras_inputs
            ):
                return None
        return cls(lookups, graph) if lookups else None

    def values(self, inputs: Any) -> list[list[np.ndarray]]:
        """What the layers need, for inputs of the model."""
        if self.graph is None:
            return [layer.host_values(inputs) for layer, _ in self.lookups]
        known = self.graph.input_values(inputs)
        return [
            layer.host_values({name: known[i] for name, i in names.items()})
            for layer, names in self.lookups
        ]

    @contextlib.contextmanager
    def given(self, found: list[Any]) -> Iterator[None]:
        """While the layers are called with what was looked up."""
        with contextlib.ExitStack() as stack:
            for (layer, _), tensors in zip(self.lookups, found, strict=True):
                stack.enter_context(layer.given(tensors))
            yield


class _Text:
    """Stands for strings in a batch of a compiled step; only their shape is known."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.shape = shape


jax.tree_util.register_pytree_node(_Text, lambda t: ((), t.shape), lambda shape, _: _Text(shape))


def _without_text(leaf: Any) -> Any:
    return _Text(leaf.shape) if is_text(leaf) else leaf


def _with_text(leaf: Any) -> Any:
    if not isinstance(leaf, _Text):
        return leaf
    blank: np.ndarray = np.empty(leaf.shape, object)
    blank.fill(b"")
    return Tensor(blank)


class HostedStep:
    """A step whose host part runs before the compiled rest.

    Args:
      model: the model.
      function: the step, called with a batch of tensors.
      name: the name in profiles.

    Attributes:
      compiled: the compiled rest.
    """

    def __init__(self, model: Any, function: Callable[[Any], Any], name: str) -> None:
        self._model, self._function = model, function
        self._part: HostPart | FeaturesPart | None = None
        self.compiled = CompiledStep(self._rest, name)

    def __call__(self, batch: Any) -> Any:
        """Runs one step on a structure of arrays."""
        graph = self._model._current_graph()
        if not (isinstance(batch, (tuple, dict)) and batch):
            return self._function(as_tensors(batch))
        if self._part is None or self._part.graph is not graph:
            self._part = FeaturesPart.of(self._model, graph)
            if self._part is None and graph is not None:
                self._part = HostPart.of(graph)
        if self._part is None:
            return self._function(as_tensors(batch))
        inputs = batch[0] if isinstance(batch, tuple) else batch
        values = self._part.values(as_tensors(inputs))
        return self.compiled((values, nest.map_structure(_without_text, batch)))

    def _rest(self, given: Any) -> Any:
        values, batch = given
        part: Any = self._part
        with part.given(list(values)):
            return self._function(nest.map_structure(_with_text, batch))
