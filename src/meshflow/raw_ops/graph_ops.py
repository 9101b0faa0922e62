"""Raw ops that the ops of TensorFlow's graphs compute, which Meshflow has for SavedModels."""

from __future__ import annotations

import functools
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import numpy as np

from meshflow.core.dispatch.dispatch import apply
from meshflow.core.dispatch.operation import Op
from meshflow.core.dispatch.symbolic_calls import record_in_graph
from meshflow.core.runtime.errors import UnimplementedError
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.dtypes import DType
from meshflow.core.values.shapes import TensorShape
from meshflow.core.values.tensor import Tensor
from meshflow.saved_model.graph.format.node_attributes import GraphNode, HostRequired
from meshflow.saved_model.graph.ops.tensor_lists import TENSOR_LIST_OPS, TensorList
from meshflow.saved_model.graph.reading.interpreter import (
    ARRAY_FUNCTION_OPS,
    HOST_ONLY_OPS,
    OUTPUT_COUNTS,
)

OP_FUNCTIONS = {**ARRAY_FUNCTION_OPS, **HOST_ONLY_OPS}

# Inputs of at most this many integers, such as axes, determine the program.
_MAX_STATIC_SIZE = 1024


class _CallNode(GraphNode):
    """Node of a single call.

    Args:
      op: Name of the op.
      attributes: Attributes by name.
    """

    def __init__(self, op: str, attributes: Mapping[str, Any]) -> None:
        self.name, self.op, self.inputs, self.control_inputs = op, op, [], []
        self._attributes, self.cache = dict(attributes), {}
        self.proto: Any = _NoAttributes


class _NoAttributes:
    """Placeholder for the message of a node without attributes."""

    attr: dict[str, Any] = {}


def _encode_attribute(value: Any) -> Hashable:
    """Convert an attribute to the form that graphs have: bytes, enumerations and lists, here as tuples."""
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, DType):
        return value.as_datatype_enum
    if isinstance(value, TensorShape):
        return tuple(value)
    if isinstance(value, (list, tuple)):
        return tuple(map(_encode_attribute, value))
    return value


def _to_static_input(value: Tensor) -> Hashable | None:
    """Return an input with known integers as a hashable value, otherwise None."""
    array = value._value
    if (
        isinstance(array, np.ndarray)
        and array.dtype.kind in "ib"
        and array.size <= _MAX_STATIC_SIZE
    ):
        return array.tobytes(), array.dtype, array.shape
    return None


@functools.cache
def _make_op(name: str) -> Op:
    function = OP_FUNCTIONS[name]

    def call(operands: Sequence[Any], static: tuple[Any, ...]) -> Any:
        attributes, layout = static
        arrays = iter(operands)
        inputs = [
            next(arrays) if entry is None else np.frombuffer(entry[0], entry[1]).reshape(entry[2])
            for entry in layout
        ]
        lists = {k: list(v) if isinstance(v, tuple) else v for k, v in attributes}
        try:
            return function(_CallNode(name, lists), *inputs)
        except HostRequired:
            raise UnimplementedError(
                f"tf.raw_ops.{name}: an argument that determines shapes must be a constant inside of a tf.function."
            ) from None

    return Op(name, call)


@record_in_graph
def run_graph_op(name: str, inputs: Sequence[Any], attributes: Mapping[str, Any]) -> Any:
    """Run an op.

    Args:
      name: Name of the op.
      inputs: Its inputs, flat.
      attributes: Its attributes by name.

    Returns:
      A tensor, or a list of tensors and of lists of tensors.

    Raises:
      UnimplementedError: If a traced value determines a shape.
    """
    results = _run(name, inputs, attributes)
    if name == "RaggedGather":
        return [results[1:], results[0]]
    if name in OUTPUT_COUNTS:
        size = attributes[OUTPUT_COUNTS[name]]
        if name == "SparseSplit":
            return [results[k : k + size] for k in range(0, len(results), size)]
        return [results[:size], results[size]]
    return results


def _run(name: str, inputs: Sequence[Any], attributes: Mapping[str, Any]) -> Any:
    if name in TENSOR_LIST_OPS:
        return _run_list_op(name, inputs, attributes)
    tensors = [convert_to_tensor(x) for x in inputs]
    encoded = {k: _encode_attribute(v) for k, v in attributes.items()}
    if any(t.dtype.name == "string" for t in tensors) or name in HOST_ONLY_OPS:
        lists = {k: list(v) if isinstance(v, tuple) else v for k, v in encoded.items()}
        outputs = OP_FUNCTIONS[name](
            _CallNode(name, lists), *(np.asarray(t.numpy()) for t in tensors)
        )
        return (
            [Tensor(o) for o in outputs] if isinstance(outputs, (list, tuple)) else Tensor(outputs)
        )
    layout = tuple(_to_static_input(t) for t in tensors)
    operands = [t for t, entry in zip(tensors, layout, strict=True) if entry is None]
    return apply(_make_op(name), operands, (tuple(sorted(encoded.items())), layout))


def _run_list_op(name: str, inputs: Sequence[Any], attributes: Mapping[str, Any]) -> Any:
    """Run an op of lists of tensors, which have no gradients."""

    def get_value(x: Any) -> Any:
        if isinstance(x, TensorList):
            return x
        tensor = convert_to_tensor(x)
        return tensor.numpy() if tensor.dtype.name == "string" else tensor.array

    values = list(map(get_value, inputs))
    encoded = {k: _encode_attribute(v) for k, v in attributes.items()}
    outputs = OP_FUNCTIONS[name](_CallNode(name, encoded), *values)
    wrap = lambda o: o if isinstance(o, TensorList) else Tensor(o)
    return [wrap(o) for o in outputs] if isinstance(outputs, list) else wrap(outputs)
