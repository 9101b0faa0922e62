"""The graph of layer calls between symbolic inputs and outputs: order, execution, configuration."""

from __future__ import annotations

import warnings
from typing import Any

from meshflow.core.values import dtypes, nest
from meshflow.core.values.shapes import TensorShape
from meshflow.core.values.tensor import Tensor
from meshflow.keras.engine.layer.base_layer import Layer
from meshflow.keras.engine.layer.helpers import unique
from meshflow.keras.engine.symbolic.input_spec import sizes_agree
from meshflow.keras.engine.symbolic.keras_tensor import KerasTensor, Node
from meshflow.ops import array, math


class Graph:
    """A runnable graph.

    Args:
      name: the model's name, for errors.
      inputs: structure of symbolic inputs, each made by `Input`.
      outputs: structure of symbolic outputs.

    Attributes:
      nodes: layer calls in an order in which each comes after what it needs.
      layers: the layers, in the order Keras lists them (by depth).

    Raises:
      ValueError: when an output cannot be computed from the inputs.
    """

    def __init__(self, name: str, inputs: Any, outputs: Any) -> None:
        self.name = name
        # Values that are known already and the calls that are left, while a part ran elsewhere.
        self.given: tuple[dict[int, Any], list[Node]] | None = None
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
        self.nodes = self._sort()
        self.layers = self._order_layers()

    def _sort(self) -> list[Node]:
        """Nodes in topological order, found without recursion: graphs can be thousands deep."""
        given = {id(t) for t in self.flat_inputs}
        done: set[int] = set()
        order: list[Node] = []
        for output in self.flat_outputs:
            stack: list[tuple[Any, bool]] = [(output, False)]
            while stack:
                tensor, expanded = stack.pop()
                node = tensor.node
                if id(node) in done:
                    continue
                if expanded or id(tensor) in given:
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
        """Layers from inputs to outputs by depth; ties in the order in which Keras comes to them from the outputs."""
        depth: dict[int, int] = {}
        users: dict[int, list[Node]] = {}
        for node in self.nodes:
            for tensor in node.keras_inputs if not self._is_given(node) else ():
                users.setdefault(id(tensor.node), []).append(node)
        for node in reversed(self.nodes):
            depth[id(node)] = max((depth[id(u)] + 1 for u in users.get(id(node), [])), default=0)
        by_layer: dict[int, int] = {}
        for node in self.nodes:
            by_layer[id(node.layer)] = max(by_layer.get(id(node.layer), 0), depth[id(node)])
        for tensor in self.flat_inputs:
            # Inputs that nothing is made of come right before the outputs.
            by_layer.setdefault(id(tensor._keras_history.layer), 0)
        layers = unique(
            [t._keras_history.layer for t in self.flat_inputs] + [n.layer for n in self.nodes]
        )
        met = self._met_from_outputs()
        names: dict[str, Layer] = {}
        for layer in layers:
            if layer.name in names:
                raise ValueError(
                    f'The name "{layer.name}" is used 2 times in the model. All layer names should be unique.'
                )
            names[layer.name] = layer
        return sorted(layers, key=lambda layer: (-by_layer[id(layer)], met.get(id(layer), -1)))

    def _met_from_outputs(self) -> dict[int, int]:
        """The place of each layer, by its id, when calls are followed from the outputs backwards."""
        met: dict[int, int] = {}
        done: set[int] = set()
        waiting = list(reversed(self.flat_outputs))
        while waiting:
            node = waiting.pop().node
            if id(node) in done:
                continue
            done.add(id(node))
            met.setdefault(id(node.layer), len(met))
            if not self._is_given(node):
                waiting.extend(reversed(node.keras_inputs))
        return met

    def call_numbers(self) -> dict[int, int]:
        """Each call's number among its layer's calls that belong to the graph, by the call's id."""
        included = {id(n) for n in self.nodes}
        numbers: dict[int, int] = {}
        for layer in self.layers:
            calls = [n for n in layer._inbound_nodes if id(n) in included]
            numbers.update({id(n): i for i, n in enumerate(calls)})
        for tensor in self.flat_inputs:
            numbers.setdefault(id(tensor.node), 0)
        return numbers

    def tensors_by_place(self) -> dict[tuple[Any, ...], KerasTensor]:
        """The tensors by what configurations call them: (layer, number of the call, number of the output)."""
        numbers = self.call_numbers()
        nodes = [*self.nodes, *(t.node for t in self.flat_inputs)]
        return {
            (node.layer.name, numbers[id(node)], i): tensor
            for node in nodes
            for i, tensor in enumerate(node.flat_outputs)
        }

    def _is_given(self, node: Node) -> bool:
        ids = {id(t) for t in self.flat_inputs}
        return any(id(o) in ids for o in node.flat_outputs)

    def run(self, inputs: Any, training: Any = None, mask: Any = None) -> Any:
        """Calls the layers in order on tensors for the inputs."""
        values, nodes = self.input_values(inputs), self.nodes
        if self.given is not None:
            known, nodes = self.given
            values.update(known)
        self.call_nodes(nodes, values)
        return nest.map_structure(lambda t: values[id(t)], self.outputs)

    def input_values(self, inputs: Any) -> dict[int, Any]:
        """Values by id of the symbolic inputs."""
        given = zip(self.flat_inputs, self.flatten_inputs(inputs), strict=True)
        return {id(reference): fit_input(reference, value, self.name) for reference, value in given}

    def call_nodes(self, nodes: list[Node], values: dict[int, Any]) -> None:
        """Calls layers in order, and adds what they give to the values."""
        for node in nodes:
            if all(id(o) in values for o in node.flat_outputs):
                continue
            args, kwargs = node.arguments(values)
            results = nest.flatten(node.layer(*args, **kwargs))
            for symbolic, result in zip(
                node.flat_outputs, [r for r in results if r is not None], strict=True
            ):
                values[id(symbolic)] = result

    def flatten_inputs(self, inputs: Any) -> list[Any]:
        """The inputs in the order of the graph's; dictionaries by name.

        Raises:
          ValueError: when a name is missing or the number differs.
        """
        if isinstance(inputs, dict):
            if isinstance(self.inputs, dict):
                names = [n for n, _ in sorted(self.inputs.items())]
            else:
                names = [t._keras_history.layer.name for t in self.flat_inputs]
            missing = [n for n in names if n not in inputs]
            if missing:
                raise ValueError(
                    f"Missing data for input {missing[0]!r} of model {self.name!r}. You passed a data dictionary "
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


def _check_symbolic(name: str, what: str, tensors: list[Any]) -> None:
    for tensor in tensors:
        if not isinstance(tensor, KerasTensor):
            raise ValueError(
                f"{what.capitalize()} of model {name!r} must be symbolic tensors: `tf.keras.Input` or results of "
                f"layer calls on it. Received: {tensor!r} (of type {type(tensor).__name__})"
            )


def fit_input(reference: KerasTensor, value: Any, model: str) -> Any:
    """A value with the rank and dtype of its symbolic input.

    A missing or superfluous last dimension of size one is added or dropped, as Keras does.
    """
    if not isinstance(value, Tensor):
        return value

    mask = getattr(value, "_keras_mask", None)
    want, have = reference.shape.rank, value.ndim
    fitted = value
    if want is not None and have == want + 1 and value.shape[-1] == 1:
        fitted = array.squeeze(value, axis=-1)
    elif want is not None and have == want - 1 and reference.shape[-1] == 1:
        fitted = array.expand_dims(value, axis=-1)
    if fitted.dtype is not reference.dtype and fitted.dtype is not dtypes.string:
        fitted = math.cast(fitted, reference.dtype)
    if not sizes_agree(reference.shape.as_list()[1:], TensorShape(fitted.shape).as_list()[1:]):
        raise ValueError(
            f'Input 0 of layer "{model}" is incompatible with the layer: expected shape='
            f"{tuple(reference.shape)}, found shape={tuple(TensorShape(value.shape))}"
        )
    if mask is not None and fitted is not value:
        fitted._keras_mask = mask
    return fitted
