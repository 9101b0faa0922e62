"""The input specs that a model was built with, as JSON, and the building of a model from them.

A subclassed model creates its weights in its first call. A file therefore records the specs of that
call's inputs, so that the loaded model can create the same weights.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from meshflow.core.values import nest
from meshflow.core.values.specs import TensorSpec
from meshflow.environment.types import Json, PyTree
from meshflow.keras import settings
from meshflow.keras.engine.layer import shape_inference

if TYPE_CHECKING:
    from meshflow.keras.engine.layer.base_layer import Layer


def serialize_specs(specs: PyTree) -> Json:
    """Convert the specs of a model's inputs to JSON values.

    Args:
      specs: A `TensorSpec`, a nested structure of them, or None.

    Returns:
      Lists, dictionaries and strings. None for None, and for specs that `build_model` could not
      restore.
    """
    if isinstance(specs, TensorSpec):
        if specs.shape.rank is None:
            return None
        return {"TensorSpec": [specs.shape.as_list(), specs.dtype.name]}
    if isinstance(specs, dict):
        entries: Any = {key: serialize_specs(value) for key, value in specs.items()}
        return {"dict": entries} if all(isinstance(key, str) for key in specs) else None
    if type(specs) in (list, tuple):
        return {type(specs).__name__: [serialize_specs(value) for value in specs]}
    return None


def _deserialize_specs(serialized: Json) -> PyTree:
    """Restore the specs from the result of `serialize_specs`."""
    ((kind, value),) = serialized.items()
    if kind == "TensorSpec":
        return TensorSpec(*value)
    if kind == "dict":
        return {key: _deserialize_specs(entry) for key, entry in value.items()}
    return {"list": list, "tuple": tuple}[kind](_deserialize_specs(entry) for entry in value)


def build_model(model: Any, serialized: Json, shape: PyTree) -> None:
    """Create a model's weights, if possible by a call on inputs with the recorded specs.

    Args:
      model: The model. A model that is built already does not change.
      serialized: Result of `serialize_specs`, or None.
      shape: Shape (or structure of shapes) that the model was built with, or None.

    Raises:
      ValueError: if the model's `call` fails.
    """
    if model.built:
        return
    if serialized is not None:
        try:
            _call_on_specs(model, _deserialize_specs(serialized))
            return
        except Exception:
            # The shape may still work: sparse and ragged inputs have shapes too, and some models
            # can only be built by `build`.
            if not shape:
                raise
    if not shape:
        return
    if model._builds_by_shape:
        model.build(shape)
        return
    # A user-defined `build` may create layers that create their weights only when they are called.
    dtype = settings.floatx()
    _call_on_specs(model, shape_inference.map_shapes(lambda s: TensorSpec(s, dtype), shape))


def _call_on_specs(model: Layer, specs: PyTree) -> None:
    """Call a model on symbolic inputs without adding a node to a graph."""
    try:
        model.compute_output_signature(specs)
    except Exception as error:
        inputs = nest.map_structure(lambda s: (s.shape, s.dtype.name), specs)
        raise ValueError(
            f"Model {model.name} cannot be built for its inputs {inputs}, as it was when it was saved: {error}"
        ) from error
