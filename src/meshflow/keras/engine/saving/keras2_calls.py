"""Calls of layers in a graph's configuration in the form of Keras 2.

A call is a list of [layer, call, output, arguments] entries.
"""

from __future__ import annotations

from typing import Any

from meshflow.environment.types import Json

# Takes the position of a layer's name before -1 and a constant, which is not a tensor of the graph.
CONSTANT_MARKER = "_CONSTANT_VALUE"
# Layers that wrap ops: a single tensor is written without an outer list, unless the op takes a
# list.
OP_LAYERS = frozenset(
    {"TFOpLambda", "SlicingOpLambda", "ClassMethod", "InstanceMethod", "InstanceProperty"}
)
# Dtypes that TensorFlow assigns to Python numbers; the lists do not hold the dtype of a constant.
_IMPLICIT_DTYPES = frozenset({"float32", "int32", "bool"})
# Layers that receive their initial states in one list after their input.
_STATEFUL_LAYERS = frozenset(
    ["RNN", "SimpleRNN", "LSTM", "GRU", "Bidirectional", "ConvLSTM1D", "ConvLSTM2D", "ConvLSTM3D"]
)


class _InexpressibleError(Exception):
    """Keras 2's form cannot express an argument."""


def to_keras2_call(call: Json, class_name: str) -> Json:
    """Convert a call to Keras 2's form.

    Args:
      call: A call in Meshflow's form; other forms are returned unchanged.
      class_name: Class of the layer that is called.

    Returns:
      Lists and dictionaries, or None if Keras 2's form cannot express the call.

    Example:
      >>> from meshflow.keras.engine.saving.keras2_calls import to_keras2_call
      >>> call = {"args": [{"keras_tensor": ["x", 0, 0]}], "kwargs": {"axis": -1}}
      >>> to_keras2_call(call, "Softmax")
      [['x', 0, 0, {'axis': -1}]]
      >>> to_keras2_call(call, "TFOpLambda")
      ['x', 0, 0, {'axis': -1}]
    """
    if not isinstance(call, dict):
        return call
    try:
        return _convert_call(call, class_name)
    except _InexpressibleError:
        return None


def _convert_call(call: dict[str, Any], class_name: str) -> Json:
    args, kwargs = call["args"], dict(call["kwargs"])
    if len(args) != 1:
        return None
    (first,) = args
    parts: dict[str, Any] = first if isinstance(first, dict) else {}
    if class_name in OP_LAYERS:
        settings = {key: _convert_argument(value) for key, value in kwargs.items()} | call.get(
            "said", {}
        )
        is_list = "list" in parts or "tuple" in parts
        items = parts.get("list", parts.get("tuple", [first]))
        if not items or not _is_tensor(items[0]):
            # A list of numbers is one constant.
            return [CONSTANT_MARKER, -1, _convert_argument(first), settings]
        arguments = [_convert_first_argument(item, settings) for item in items]
        return arguments if is_list else arguments[0]
    tensors = parts.get("list", [first])
    if "list" in parts and len(tensors) == 1:
        return None
    if class_name in _STATEFUL_LAYERS and len(tensors) == 1:
        states = kwargs.pop("initial_state", None) or {}
        tensors = [*tensors, *(states.get("list", [states]) if states else [])]
    if not tensors or not all(map(_is_tensor, tensors)):
        return None
    settings = {key: _convert_argument(value) for key, value in kwargs.items()}
    if class_name == "Bidirectional" and len(tensors) > 1:
        settings |= {"initial_state": None, "constants": None}
    return [[*t["keras_tensor"], settings] for t in tensors]


def _is_tensor(value: Json) -> bool:
    return isinstance(value, dict) and set(value) == {"keras_tensor"}


def _convert_first_argument(value: Json, settings: dict[str, Any]) -> list[Json]:
    if _is_tensor(value):
        return [*value["keras_tensor"], settings]
    return [CONSTANT_MARKER, -1, _convert_argument(value), settings]


def _convert_argument(value: Json) -> Json:
    """Convert an argument: tensors to [layer, call, output], dtypes to names, constants to numbers."""
    if not isinstance(value, dict):
        return value
    if _is_tensor(value):
        return value["keras_tensor"]
    if set(value) == {"dtype"}:
        return value["dtype"]
    if "constant" in value and value.get("of") in _IMPLICIT_DTYPES:
        return value["constant"]
    for sequence in ("list", "tuple"):
        if sequence in value:
            return [_convert_argument(v) for v in value[sequence]]
    if "mapping" in value:
        return {key: _convert_argument(v) for key, v in value["mapping"].items()}
    if "ellipsis" in value:
        return {"class_name": "__ellipsis__", "config": {}}
    raise _InexpressibleError
