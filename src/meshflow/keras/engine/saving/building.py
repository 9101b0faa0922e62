"""How a model was built, in a file: what makes the weights of a model whose layers come with its first call."""

from __future__ import annotations

from typing import Any

from meshflow.core.values import nest
from meshflow.core.values.specs import TensorSpec
from meshflow.keras import settings
from meshflow.keras.engine.layer import shape_inference

__all__ = ["build", "describe"]


def describe(specs: Any) -> Any:
    """Specs of a model's inputs as JSON can hold them.

    Args:
      specs: a `TensorSpec`, a structure of them, or None.

    Returns:
      Lists, dictionaries and text; None for None, and for specs that `build` could not make again.
    """
    if isinstance(specs, TensorSpec):
        if specs.shape.rank is None:
            return None
        return {"TensorSpec": [specs.shape.as_list(), specs.dtype.name]}
    if isinstance(specs, dict):
        parts: Any = {key: describe(value) for key, value in specs.items()}
        return {"dict": parts} if all(isinstance(key, str) for key in specs) else None
    if type(specs) in (list, tuple):
        return {type(specs).__name__: [describe(value) for value in specs]}
    return None


def _specs(described: Any) -> Any:
    """The specs that `describe` described."""
    ((kind, value),) = described.items()
    if kind == "TensorSpec":
        return TensorSpec(*value)
    if kind == "dict":
        return {key: _specs(part) for key, part in value.items()}
    return {"list": list, "tuple": tuple}[kind](_specs(part) for part in value)


def build(model: Any, described: Any, shape: Any) -> None:
    """Makes a model's weights, by its first call's inputs where a file tells of them.

    Args:
      model: the model.
      described: what `describe` gave, or None.
      shape: the shape, or structure of shapes, that the model was built for, or None.

    Raises:
      ValueError: when the model's `call` fails.
    """
    if model.built:
        return
    if described is not None:
        try:
            _call(model, _specs(described))
            return
        except Exception:
            # Sparse and ragged inputs have shapes too; some models can only be built.
            if not shape:
                raise
    if not shape:
        return
    if model._builds_by_shape:
        model.build(shape)
        return
    # A user's own `build` makes layers, which have their weights after a call only.
    kind = settings.floatx()
    _call(model, shape_inference.map_shapes(lambda s: TensorSpec(s, kind), shape))


def _call(model: Any, specs: Any) -> None:
    """Calls a model on symbolic inputs, which leaves no node in a graph."""
    try:
        model.compute_output_signature(specs)
    except Exception as error:
        shown = nest.map_structure(lambda s: (s.shape, s.dtype.name), specs)
        raise ValueError(
            f"Model {model.name} cannot be built for its inputs {shown}, as it was when it was saved: {error}"
        ) from error
