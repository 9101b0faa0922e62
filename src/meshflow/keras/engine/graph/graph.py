"""Graph of layer calls between symbolic inputs and outputs: order, execution, node indices."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any, NamedTuple

from meshflow.core.values import dtypes, nest
from meshflow.core.values.shapes import TensorShape
from meshflow.core.values.tensor import Tensor
from meshflow.core.values.withheld_text import find_text_source
from meshflow.environment.types import PyTree
from meshflow.keras.engine.layer.base_layer import Layer
from meshflow.keras.engine.layer.helpers import remove_duplicates
from meshflow.keras.engine.symbolic.input_spec import are_sizes_compatible
from meshflow.keras.engine.symbolic.keras_tensor import KerasTensor, Node
from meshflow.ops import array, math


class PrecomputedPart(NamedTuple):
    """Results of a part of a graph for the inputs of one batch.

    Attributes:
      values: The results by tensor id.
      rest: The nodes that remain to be called.
      sources: What identifies the inputs that the results depend on, as of `Graph.find_sources`.
    """

    values: dict[int, Any]
    rest: list[Node]
    sources: dict[int, int]


class LayerGraph:
    """Executable graph of layer calls from symbolic inputs to symbolic outputs.

    Args:
      name: Name of the model, for error messages.
      inputs: Structure of symbolic inputs, each created by `Input`.
      outputs: Structure of symbolic outputs.

    Attributes:
      nodes: Layer calls in topological order.
      layers: Layers in the order of Keras: by depth, then those of attached calls.
      attached: Results of calls that are computed with the outputs, such as losses between layers.
      precomputed: While host preprocessing computes a part of the graph, its results; None otherwise.

    Raises:
      ValueError: If an output cannot be computed from the inputs.
    """

    def __init__(self, name: str, inputs: PyTree, outputs: PyTree) -> None:
        self.name = name
        self.precomputed: PrecomputedPart | None = None
        self.inputs = inputs
        self.outputs = outputs
        self.flat_inputs: list[KerasTensor] = nest.flatten(inputs)
        self.flat_outputs: list[KerasTensor] = nest.flatten(outputs)
        _check_symbolic(name, "inputs", self.flat_inputs)
        _check_symbolic(name, "outputs", self.flat_outputs)
        if len({id(t) for t in self.flat_inputs}) != len(self.flat_inputs):
            raise ValueError(
                "The list of inputs passed to the model contains the same input multiple times. All inputs should "
                f"only appear once. Received inputs={inputs}"
            )
        self.nodes = self._sort_nodes()
        self.layers = self._order_layers()
        self.attached: list[KerasTensor] = []

    def attach(self, tensors: Sequence[KerasTensor]) -> None:
        """Compute further tensors whenever the outputs are computed, for the effects of their layers.

        Args:
          tensors: Symbolic tensors that depend on the inputs. Those that are computed already are
            ignored.

        Raises:
          ValueError: If a tensor cannot be computed from the inputs.
        """
        included = {id(node) for node in self.nodes}
        for tensor in tensors:
            if id(tensor.node) in included:
                continue
            branch = LayerGraph(self.name, self.inputs, [tensor])
            layers = remove_duplicates([*self.layers, *branch.layers])
            _check_unique_names(layers)
            nodes = [node for node in branch.nodes if id(node) not in included]
            self.nodes, self.layers = [*self.nodes, *nodes], layers
            self.attached.append(tensor)
            included.update(map(id, nodes))

    def _sort_nodes(self) -> list[Node]:
        """Return the nodes in topological order.

        The search is iterative, because graphs can be deeper than Python's recursion limit.
        """
        input_ids = {id(t) for t in self.flat_inputs}
        done: set[int] = set()
        order: list[Node] = []
        for output in self.flat_outputs:
            stack: list[tuple[KerasTensor, bool]] = [(output, False)]
            while stack:
                tensor, expanded = stack.pop()
                node = tensor.node
                if id(node) in done:
                    continue
                if expanded or id(tensor) in input_ids:
                    done.add(id(node))
                    order.append(node)
                elif node.is_input:
                    raise ValueError(
                        f"Graph disconnected: cannot obtain value for tensor {tensor!r} at layer "
                        f'"{node.layer.name}". It is an Input that is not among the inputs of model "{self.name}".'
                    )
                else:
                    stack.append((tensor, True))
                    stack.extend((t, False) for t in reversed(node.keras_inputs))
        return order

    def _order_layers(self) -> list[Layer]:
        """Sort layers by depth; ties keep the order in which Keras reaches them from the outputs."""
        depth = self.compute_depths()
        by_layer: dict[int, int] = {}
        for node in self.nodes:
            by_layer[id(node.layer)] = max(by_layer.get(id(node.layer), 0), depth[id(node)])
        for tensor in self.flat_inputs:
            # Keras lists unused inputs right before the outputs.
            by_layer.setdefault(id(tensor.node.layer), 0)
        layers = remove_duplicates(
            [t.node.layer for t in self.flat_inputs] + [n.layer for n in self.nodes]
        )
        ranks = self._rank_layers_from_outputs()
        _check_unique_names(layers)
        return sorted(layers, key=lambda layer: (-by_layer[id(layer)], ranks.get(id(layer), -1)))

    def compute_depths(self) -> dict[int, int]:
        """Map the id of each node to the number of calls between it and the outputs."""
        depth: dict[int, int] = {}
        users: dict[int, list[Node]] = {}
        for node in self.nodes:
            for tensor in node.keras_inputs if not self._produces_input(node) else ():
                users.setdefault(id(tensor.node), []).append(node)
        for node in reversed(self.nodes):
            depth[id(node)] = max((depth[id(u)] + 1 for u in users.get(id(node), [])), default=0)
        return depth

    def _rank_layers_from_outputs(self) -> dict[int, int]:
        """Map the id of each layer to its rank in a backward traversal from the outputs."""
        ranks: dict[int, int] = {}
        done: set[int] = set()
        pending = list(reversed(self.flat_outputs))
        while pending:
            node = pending.pop().node
            if id(node) in done:
                continue
            done.add(id(node))
            ranks.setdefault(id(node.layer), len(ranks))
            if not self._produces_input(node):
                pending.extend(reversed(node.keras_inputs))
        return ranks

    def index_calls(self) -> dict[int, int]:
        """Map the id of each node to its index among the calls of its layer within this graph."""
        included = {id(n) for n in self.nodes}
        indices: dict[int, int] = {}
        for layer in self.layers:
            calls = [n for n in layer.inbound_nodes if id(n) in included]
            indices.update({id(n): i for i, n in enumerate(calls)})
        for tensor in self.flat_inputs:
            indices.setdefault(id(tensor.node), 0)
        return indices

    def get_tensors_by_key(self) -> dict[tuple[str, int, int], KerasTensor]:
        """Return the tensors by their configuration key: (layer name, node index, tensor index)."""
        indices = self.index_calls()
        nodes = [*self.nodes, *(t.node for t in self.flat_inputs)]
        return {
            (node.layer.name, indices[id(node)], i): tensor
            for node in nodes
            for i, tensor in enumerate(node.flat_outputs)
        }

    def _produces_input(self, node: Node) -> bool:
        input_ids = {id(t) for t in self.flat_inputs}
        return any(id(o) in input_ids for o in node.flat_outputs)

    def run(self, inputs: PyTree, training: object = None, mask: PyTree = None) -> PyTree:
        """Compute the outputs by calling the layers in order.

        Args:
          inputs: Tensors with the structure of the inputs, a list, or a dictionary by input name.
          training: Ignored; layers read the mode of the enclosing call.
          mask: Ignored; masks travel with the tensors.
        """
        part, nodes = self.precomputed, self.nodes
        if part is not None and part.sources.items() <= self.find_sources(inputs).items():
            # The rest of the graph does not use strings.
            values, nodes = self.bind_inputs(inputs, fits_text=False), part.rest
            values.update(part.values)
        else:
            values = self.bind_inputs(inputs)
        self.call_nodes(nodes, values)
        return nest.map_structure(lambda t: values[id(t)], self.outputs)

    def bind_inputs(self, inputs: PyTree, fits_text: bool = True) -> dict[int, Any]:
        """Map the ids of the symbolic inputs to the given values, fitted in rank and dtype.

        Args:
          inputs: The values.
          fits_text: Whether strings are fitted, too.
        """
        pairs = zip(self.flat_inputs, self.flatten_inputs(inputs), strict=True)
        return {
            id(t): v if t.dtype is dtypes.string and not fits_text else fit_input(t, v, self.name)
            for t, v in pairs
        }

    def find_sources(self, inputs: PyTree) -> dict[int, int]:
        """Map the ids of the symbolic inputs to the ids of objects that identify the given values."""
        pairs = zip(self.flat_inputs, self.flatten_inputs(inputs), strict=True)
        return {id(t): id(find_text_source(getattr(v, "_value", v))) for t, v in pairs}

    def call_nodes(self, nodes: list[Node], values: dict[int, Any]) -> None:
        """Call the layers of nodes in order and add their results to `values`."""
        for node in nodes:
            if all(id(o) in values for o in node.flat_outputs):
                continue
            args, kwargs = node.get_arguments(values)
            results = nest.flatten(node.layer(*args, **kwargs))
            # A layer with its own `__call__` may return only some of the outputs.
            for symbolic, result in zip(
                node.flat_outputs, [r for r in results if r is not None], strict=False
            ):
                values[id(symbolic)] = result

    def flatten_inputs(self, inputs: PyTree) -> list[Any]:
        """Flatten inputs in the order of the graph's inputs; dictionaries are matched by name."""
        if isinstance(inputs, dict):
            if isinstance(self.inputs, dict):
                names = [n for n, _ in sorted(self.inputs.items())]
            else:
                names = [t.node.layer.name for t in self.flat_inputs]
            missing = [n for n in names if n not in inputs]
            if missing:
                raise ValueError(
                    f'Missing data for input "{missing[0]}" of model {self.name!r}. You passed a data dictionary '
                    f"with keys {sorted(inputs)}. Expected the following keys: {names}"
                )
            if len(inputs) > len(names):
                warnings.warn(
                    f"Input dict contained keys {[n for n in inputs if n not in names]} which did not match any model "
                    "input. They will be ignored by the model.",
                    stacklevel=2,
                )
            inputs = [inputs[n] for n in names]
        flat = nest.flatten(inputs)
        if len(flat) != len(self.flat_inputs):
            raise ValueError(
                f'Layer "{self.name}" expects {len(self.flat_inputs)} input(s), but it received {len(flat)} input '
                f"tensors. Inputs received: {inputs}"
            )
        return flat


def _check_unique_names(layers: Sequence[Layer]) -> None:
    names: set[str] = set()
    for layer in layers:
        if layer.name in names:
            raise ValueError(
                f'The name "{layer.name}" is used 2 times in the model. All layer names should be unique.'
            )
        names.add(layer.name)


def _check_symbolic(name: str, role: str, tensors: Sequence[object]) -> None:
    for tensor in tensors:
        if not isinstance(tensor, KerasTensor):
            raise ValueError(
                f"{role.capitalize()} of model {name!r} must be symbolic tensors: `tf.keras.Input` or results of "
                f"layer calls on it. Received: {tensor!r} (of type {type(tensor).__name__})"
            )


def fit_input(reference: KerasTensor, value: Any, model: str) -> Any:
    """Adapt a value to the rank and dtype of its symbolic input.

    As in Keras, a last axis of size one is added or removed if the rank differs by one.
    """
    if not isinstance(value, Tensor):
        return value

    mask = getattr(value, "_keras_mask", None)
    expected_rank, rank = reference.shape.rank, value.ndim
    fitted = value
    if expected_rank is not None and rank == expected_rank + 1 and value.shape[-1] == 1:
        fitted = array.squeeze(value, axis=-1)
    elif expected_rank is not None and rank == expected_rank - 1 and reference.shape[-1] == 1:
        fitted = array.expand_dims(value, axis=-1)
    if fitted.dtype is not reference.dtype and fitted.dtype is not dtypes.string:
        fitted = math.cast(fitted, reference.dtype)
    if expected_rank is not None and not are_sizes_compatible(
        reference.shape.as_list()[1:], TensorShape(fitted.shape).as_list()[1:]
    ):
        raise ValueError(
            f'Input 0 of layer "{model}" is incompatible with the layer: expected shape='
            f"{tuple(reference.shape)}, found shape={tuple(TensorShape(value.shape))}"
        )
    if mask is not None and fitted is not value:
        fitted._keras_mask = mask
    return fitted


def get_graph(layer: Any) -> LayerGraph | None:
    """Return the graph of a functional or sequential model; None for other layers and models."""
    find = getattr(layer, "_get_graph", None)
    return None if find is None else find()
