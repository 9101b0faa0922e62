"""Calls of layers in a graph's configuration as Keras 2 writes them: lists of [layer, call, output, arguments]."""

from __future__ import annotations

from typing import Any

__all__ = ["CONSTANT", "KEEP_LISTS", "listed_call"]

# In the place of a layer's name: what follows the number is no tensor of the graph.
CONSTANT = "_CONSTANT_VALUE"
# Layers of ops: one tensor is not in a list, unless the op takes one.
KEEP_LISTS = frozenset({"TFOpLambda", "SlicingOpLambda", "ClassMethod", "InstanceMethod"})
# Dtypes that TensorFlow gives plain numbers; lists do not say theirs.
_PLAIN = frozenset({"float32", "int32", "bool"})
# Layers whose first states come after their input, in one list.
_WITH_STATES = frozenset(
    ["RNN", "SimpleRNN", "LSTM", "GRU", "Bidirectional", "ConvLSTM1D", "ConvLSTM2D", "ConvLSTM3D"]
)


class _Unsaid(Exception):
    """Keras 2 has no words for an argument."""


def listed_call(call: Any, class_name: str) -> Any:
    """A call in Keras 2's form, or None when that cannot say it.

    Args:
      call: a call in our form; others are returned unchanged.
      class_name: of the layer that is called.

    Example:
      >>> from meshflow.keras.engine.saving.keras2_calls import listed_call
      >>> call = {"args": [{"keras_tensor": ["x", 0, 0]}], "kwargs": {"axis": -1}}
      >>> listed_call(call, "Softmax")
      [['x', 0, 0, {'axis': -1}]]
      >>> listed_call(call, "TFOpLambda")
      ['x', 0, 0, {'axis': -1}]
    """
    if not isinstance(call, dict):
        return call
    try:
        return _listed(call, class_name)
    except _Unsaid:
        return None


def _listed(call: dict[str, Any], class_name: str) -> Any:
    args, kwargs = call["args"], dict(call["kwargs"])
    if len(args) != 1:
        return None
    (first,) = args
    parts: dict[str, Any] = first if isinstance(first, dict) else {}
    if class_name in KEEP_LISTS:
        settings = {key: _argument(value) for key, value in kwargs.items()} | call.get("said", {})
        several = "list" in parts or "tuple" in parts
        items = parts.get("list", parts.get("tuple", [first]))
        if not items or not _is_tensor(items[0]):
            # A list of numbers is one constant.
            return [CONSTANT, -1, _argument(first), settings]
        found = [_first_argument(item, settings) for item in items]
        return found if several else found[0]
    tensors = parts.get("list", [first])
    if "list" in parts and len(tensors) == 1:
        return None
    if class_name in _WITH_STATES and len(tensors) == 1:
        states = kwargs.pop("initial_state", None) or {}
        tensors = [*tensors, *(states.get("list", [states]) if states else [])]
    if not tensors or not all(map(_is_tensor, tensors)):
        return None
    settings = {key: _argument(value) for key, value in kwargs.items()}
    if class_name == "Bidirectional" and len(tensors) > 1:
        settings |= {"initial_state": None, "constants": None}
    return [[*t["keras_tensor"], settings] for t in tensors]


def _is_tensor(value: Any) -> bool:
    return isinstance(value, dict) and set(value) == {"keras_tensor"}


def _first_argument(value: Any, settings: dict[str, Any]) -> list[Any]:
    if _is_tensor(value):
        return [*value["keras_tensor"], settings]
    return [CONSTANT, -1, _argument(value), settings]


def _argument(value: Any) -> Any:
    """An argument without our marks: tensors as places, dtypes by name, and constants as lists of numbers."""
    if not isinstance(value, dict):
        return value
    if _is_tensor(value):
        return value["keras_tensor"]
    if set(value) == {"dtype"}:
        return value["dtype"]
    if "constant" in value and value.get("of") in _PLAIN:
        return value["constant"]
    for several in ("list", "tuple"):
        if several in value:
            return [_argument(v) for v in value[several]]
    if "mapping" in value:
        return {key: _argument(v) for key, v in value["mapping"].items()}
    if "ellipsis" in value:
        return {"class_name": "__ellipsis__", "config": {}}
    raise _Unsaid
