"""What `tf.saved_model` holds of a model: its calls as functions, and their signatures."""

from __future__ import annotations

import contextlib
import contextvars
import logging
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from meshflow.core.autograph.status import switched
from meshflow.core.values import nest
from meshflow.core.values.dtypes import as_dtype, string
from meshflow.core.values.specs import TensorSpec
from meshflow.core.values.tensor import Tensor
from meshflow.keras.engine.layer import shape_inference
from meshflow.keras.engine.training.host_preprocessing import HostPart
from meshflow.saved_model.calls import for_any_batch
from meshflow.saved_model.text import TextCall

# Whether what is saved is to be served, by a function of that name.
_exported: contextvars.ContextVar[bool] = contextvars.ContextVar("exported", default=False)
_log = logging.getLogger("meshflow")

__all__ = ["exported", "input_specs", "saved_functions", "saved_signatures"]


@contextlib.contextmanager
def exported() -> Iterator[None]:
    """Models that are saved within have `serve`, what they predict, as a function and as a signature."""
    token = _exported.set(True)
    try:
        yield
    finally:
        _exported.reset(token)


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
        with switched(True):
            return model(inputs, training=training)

    def serve(inputs: Any) -> Any:
        return call(inputs)

    saved = _divided(model, call)
    found: dict[str, Any] = {
        "__call__": [(saved, (specs, training), {}) for training in (False, True)]
    }
    return found | ({"serve": [(_divided(model, serve), (specs,), {})]} if _exported.get() else {})


def saved_signatures(model: Any) -> dict[str, Any]:
    """The model's prediction, by the names of its inputs and outputs."""
    specs = input_specs(model)
    if specs is None:
        return {}

    def predict(inputs: Any) -> dict[str, Any]:
        with switched(True):
            outputs = model(inputs, training=False)
        if isinstance(outputs, dict):
            return outputs
        flat = nest.flatten(outputs)
        names = model.output_names or [f"output_{i}" for i in range(1, len(flat) + 1)]
        return dict(zip(names, flat, strict=True))

    signature: Any = (_divided(model, predict), (specs,), {})
    return {
        name: signature for name in ("serving_default", *(["serve"] if _exported.get() else []))
    }


def _divided(model: Any, function: Callable[..., Any]) -> Any:
    """A model's call, or where it begins with layers of strings, these as steps and the rest."""
    graph = model._current_graph()
    if graph is None or all(t.dtype is not string for t in graph.flat_inputs):
        return function
    part = HostPart.of(graph)
    try:
        steps = [] if part is None else [_steps_to(t, graph) for t in part.cut]
    except NotImplementedError as error:
        _log.info("%s is saved call by call: it has %s", model.name, error)
        return function
    if part is None or not steps:
        return function

    def rest(results: Any, inputs: Any, *training: Any) -> Any:
        flat = iter(graph.flat_inputs)
        given = nest.map_structure(lambda t: _blank(next(flat)) if t is None else t, inputs)
        with part.given(results):
            return function(given, *training)

    specs = [TensorSpec([None, *t.shape[1:]], t.dtype) for t in part.cut]
    return TextCall(steps, specs, rest, function)


def _steps_to(tensor: Any, graph: Any) -> tuple[int, list[list[Any]]]:
    """The input that a symbolic tensor is made of, with what is done to it.

    Raises:
      NotImplementedError: for layers whose steps files cannot hold, naming the layer.
    """
    steps: list[list[Any]] = []
    inputs = [id(t) for t in graph.flat_inputs]
    while id(tensor) not in inputs:
        layer, given = tensor.node.layer, tensor.node.keras_inputs
        if len(given) != 1 or not hasattr(layer, "exported_steps"):
            kind = type(layer).__name__
            raise NotImplementedError(f"layer {layer.name} ({kind}), which runs on the host")
        (tensor,) = given
        steps = [*layer.exported_steps(len(tensor.shape)), *steps]
    return inputs.index(id(tensor)), steps


def _blank(tensor: Any) -> Tensor:
    """Strings in place of an input that is not looked at."""
    blank: np.ndarray = np.empty([1 if n is None else n for n in tensor.shape], object)
    blank.fill(b"")
    return Tensor(blank)
