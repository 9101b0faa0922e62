"""What `tf.saved_model` holds of a model: its calls as functions, and their signatures."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from meshflow.core.values import nest
from meshflow.core.values.dtypes import as_dtype
from meshflow.core.values.specs import TensorSpec
from meshflow.keras.engine.layer import shape_inference
from meshflow.saved_model.calls import for_any_batch

__all__ = ["input_specs", "saved_functions", "saved_signatures"]


def input_specs(model: Any) -> Any:
    """What a model takes, with None for the size of the batch, or None while nobody knows.

    Args:
      model: the model.

    Returns:
      A `TensorSpec`, or a structure of them, with names.
    """
    graph = model._current_graph()
    if graph is not None:
        specs = nest.map_structure(
            lambda t: TensorSpec(t.shape, t.dtype, t._keras_history.layer.name), graph.inputs
        )
        met = not getattr(model, "_declared_input", True)
        return nest.map_structure(lambda s: for_any_batch(s, s.name), specs) if met else specs
    specs = model.__dict__.get("_save_spec")
    if specs is None and model._build_input_shape is not None:
        kind = as_dtype(model.compute_dtype or "float32")
        specs = shape_inference.map_shapes(lambda s: TensorSpec(s, kind), model._build_input_shape)
    if specs is None:
        return None
    names = iter(range(1, len(nest.flatten(specs)) + 1))
    return nest.map_structure(lambda s: for_any_batch(s, f"input_{next(names)}"), specs)


def saved_functions(model: Any) -> dict[str, list[tuple[Callable[..., Any], Any, Any]]]:
    """The model's calls: as when it predicts, and as when it is trained."""
    specs = input_specs(model)
    if specs is None:
        return {}

    def call(inputs: Any, training: bool = False) -> Any:
        return model(inputs, training=training)

    return {"__call__": [(call, (specs, training), {}) for training in (False, True)]}


def saved_signatures(model: Any) -> dict[str, Any]:
    """The model's prediction, by the names of its inputs and outputs."""
    specs = input_specs(model)
    if specs is None:
        return {}

    def predict(inputs: Any) -> dict[str, Any]:
        outputs = model(inputs, training=False)
        if isinstance(outputs, dict):
            return outputs
        flat = nest.flatten(outputs)
        names = model.output_names or [f"output_{i}" for i in range(1, len(flat) + 1)]
        return dict(zip(names, flat, strict=True))

    return {"serving_default": (predict, (specs,), {})}
