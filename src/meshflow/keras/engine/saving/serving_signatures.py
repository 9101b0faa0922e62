"""The functions and signatures of a model that SavedModels hold."""

from __future__ import annotations

import contextlib
import contextvars
import functools
import logging
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from meshflow.core.values import nest
from meshflow.core.values.dtypes import as_dtype, string
from meshflow.core.values.specs import TensorSpec, TypeSpec
from meshflow.core.values.tensor import Tensor
from meshflow.environment.types import PyTree
from meshflow.keras.engine.graph.graph import LayerGraph, get_graph
from meshflow.keras.engine.layer import shape_inference
from meshflow.keras.engine.layer.losses_and_metrics import (
    adds_losses_or_metrics,
    record_added_metrics,
)
from meshflow.keras.engine.saving.positional_call import PositionalCall
from meshflow.keras.engine.symbolic.keras_tensor import KerasTensor
from meshflow.keras.engine.training.host_preprocessing import HostPart
from meshflow.saved_model.host_steps.text_steps import TextFunction
from meshflow.saved_model.saving.function_discovery import relax_batch_size

# The model that is being exported, with the requested specs (None: those that it was built with).
_export_request: contextvars.ContextVar[tuple[Any, Any] | None] = contextvars.ContextVar(
    "exported", default=None
)
_log = logging.getLogger("meshflow")

# Function of a SavedModel from which a model without its class has losses and metrics.
LOSSES_FUNCTION = "call_and_return_losses_and_metrics"


@contextlib.contextmanager
def export_scope(model: Any, specs: tuple[Any, ...] | None = None) -> Iterator[None]:
    """Save a model with its prediction, `serve`, as a function and a signature within this context.

    Args:
      model: The model that is exported.
      specs: Specs of its positional arguments. Default: those that it was built with.
    """
    if specs is not None and len(specs) > 1 and isinstance(find_input_specs(model), (list, tuple)):
        # A list of inputs is a single argument of a functional model.
        specs = (list(specs),)
    token = _export_request.set((model, specs))
    try:
        yield
    finally:
        _export_request.reset(token)


def find_input_specs(model: Any) -> PyTree:
    """Return the specs of a model's first argument, with None as the batch size.

    Args:
      model: The model.

    Returns:
      A `TensorSpec` with a name, the spec of a composite tensor, or a nested structure of them. None if
      the model is not built.
    """
    graph = get_graph(model)
    if graph is not None:
        specs = nest.map_structure(_make_input_spec, graph.inputs)
        is_inferred = not getattr(model, "_is_input_declared", True)
        return nest.map_structure(relax_batch_size, specs) if is_inferred else specs
    specs = model.__dict__.get("_save_spec")
    if specs is None and model._build_input_shape is not None:
        dtype = as_dtype(model.compute_dtype or "float32")
        specs = shape_inference.map_shapes(lambda s: TensorSpec(s, dtype), model._build_input_shape)
    if specs is None:
        return None
    return nest.map_structure(relax_batch_size, specs, _make_input_names(specs))


def _make_input_spec(tensor: KerasTensor) -> TypeSpec:
    if tensor.is_composite:
        return tensor.type_spec
    return TensorSpec(tensor.shape, tensor.dtype, tensor.node.layer.name)


def find_call_specs(model: Any) -> tuple[tuple[PyTree, ...], dict[str, Any]] | None:
    """Return the specs of a model's arguments: of positional ones, and of keyword arguments by name.

    Returns:
      The specs, or None if the model is not built.
    """
    request = _export_request.get()
    if request is not None and request[0] is model and request[1] is not None:
        return _add_names(request[1], find_input_specs(model)), {}
    first = find_input_specs(model)
    if first is None:
        return None
    args, kwargs = model.__dict__.get("_more_specs", ((), {}))
    args, kwargs = nest.map_structure(relax_batch_size, (args, kwargs))
    return (first, *args), kwargs


def get_save_spec(model: Any, dynamic_batch: bool) -> tuple[list[Any], dict[str, Any]] | None:
    """Return the result of `Model.save_spec`."""
    specs = find_call_specs(model)
    graph = get_graph(model)
    if specs is None or (graph is None and "_save_spec" not in model.__dict__):
        return None
    args, kwargs = specs
    if dynamic_batch or graph is not None:
        return list(args), kwargs
    first = model._save_spec
    names = _make_input_names(first)
    fixed = nest.map_structure(_rename_spec, first, names)
    rest, kwargs = model.__dict__.get("_more_specs", ((), {}))
    return [fixed, *rest], kwargs


def _make_input_names(specs: PyTree) -> PyTree:
    """Return names for the inputs of a subclassed model, as Keras 2 chooses them.

    The names are the keys of a dictionary, or `input_1`, `input_2` and so on.
    """
    if not isinstance(specs, Mapping):
        indices = iter(range(1, len(nest.flatten(specs)) + 1))
        return nest.map_structure(lambda _: f"input_{next(indices)}", specs)
    names = {}
    for key, entry in specs.items():
        if not nest.is_nested(entry):
            names[key] = str(key)
            continue
        indices = iter(range(1, len(nest.flatten(entry)) + 1))
        names[key] = nest.map_structure(lambda _, n=indices, k=key: f"{k}_{next(n)}", entry)
    return nest.pack_sequence_as(specs, nest.flatten(names))


def _rename_spec(spec: TypeSpec, name: str | None) -> TypeSpec:
    is_named = isinstance(spec, TensorSpec)
    return TensorSpec(spec.shape, spec.dtype, name) if is_named else spec


def _add_names(specs: tuple[PyTree, ...], inputs: PyTree) -> tuple[PyTree, ...]:
    """Give unnamed specs of the first argument the names of the model's inputs."""
    named_specs = iter(nest.flatten(inputs))
    first = nest.map_structure(
        lambda s: _rename_spec(
            s, getattr(s, "name", None) or getattr(next(named_specs, None), "name", None)
        ),
        specs[0],
    )
    return first, *specs[1:]


def make_saved_functions(model: Any) -> dict[str, list[tuple[Callable[..., Any], Any, Any]]]:
    """Return the model's calls for a SavedModel: for prediction, and for training."""
    specs = find_call_specs(model)
    if specs is None:
        return {}
    form = PositionalCall.from_arguments(model, *specs)
    function = _split_at_text(model, form.call)
    functions: dict[str, Any] = {
        "__call__": [(function, form.get_arguments(training), {}) for training in (False, True)]
    }
    if _export_request.get() is None:
        if adds_losses_or_metrics(model):
            losses = _split_at_text(model, _make_call_with_losses(model, form.call))
            functions[LOSSES_FUNCTION] = [
                (losses, form.get_arguments(training), {}) for training in (False, True)
            ]
        return functions
    return functions | {"serve": [(_split_at_text(model, form.predict), form.get_arguments(), {})]}


def _make_call_with_losses(model: Any, call: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function of the outputs, the losses, and the values of metrics by their names."""

    @functools.wraps(call)
    def call_with_losses(*args: PyTree) -> tuple[PyTree, list[Any], dict[str, Tensor]]:
        with record_added_metrics() as metrics:
            outputs = call(*args)
        return outputs, list(model.losses), metrics

    return call_with_losses


def make_saved_signatures(model: Any) -> dict[str, Any]:
    """Return the model's prediction as signatures, which name its inputs and outputs."""
    specs = find_call_specs(model)
    if specs is None:
        return {}
    form = PositionalCall.from_arguments(model, *specs)

    @functools.wraps(form.predict)
    def predict(*args: PyTree) -> dict[str, Any]:
        outputs = form.predict(*args)
        if isinstance(outputs, dict):
            return outputs
        flat = nest.flatten(outputs)
        names = model.output_names or [f"output_{i}" for i in range(1, len(flat) + 1)]
        return dict(zip(names, flat, strict=True))

    signature: Any = (_split_at_text(model, predict), form.get_arguments(), {})
    names = ["serving_default"] if _export_request.get() is None else ["serving_default", "serve"]
    return dict.fromkeys(names, signature)


def _split_at_text(model: Any, function: Callable[..., Any]) -> Callable[..., Any] | TextFunction:
    """Split a model's call that starts with layers of strings into steps of text processing and the rest.

    Returns:
      A `TextFunction`, or `function` if the model has no such layers, or cannot be split.
    """
    graph = get_graph(model)
    if graph is None or all(t.dtype is not string for t in graph.flat_inputs):
        return function
    if any(t.is_composite for t in graph.flat_inputs):
        return function
    part = HostPart.from_graph(graph)
    try:
        steps = [] if part is None else [_collect_text_steps(t, graph) for t in part.cut_tensors]
    except NotImplementedError as error:
        _log.info(
            "Model %s is saved without separate text processing, because it has %s.",
            model.name,
            error,
        )
        return function
    if part is None or not steps:
        return function

    def rest(results: PyTree, inputs: PyTree, *training: PyTree) -> PyTree:
        flat = iter(graph.flat_inputs)
        args = nest.map_structure(
            lambda t: _make_blank_strings(next(flat)) if t is None else t, inputs
        )
        with part.substitute_values(results):
            return function(args, *training)

    specs = [TensorSpec([None, *t.shape[1:]], t.dtype) for t in part.cut_tensors]
    return TextFunction(steps, specs, rest, function)


def _collect_text_steps(tensor: KerasTensor, graph: LayerGraph) -> tuple[int, list[list[Any]]]:
    """Return the index of the input that a symbolic tensor depends on, and the steps from it.

    Raises:
      NotImplementedError: if files cannot hold the steps of a layer; the message names the layer.
    """
    steps: list[list[Any]] = []
    inputs = [id(t) for t in graph.flat_inputs]
    while id(tensor) not in inputs:
        layer, layer_inputs = tensor.node.layer, tensor.node.keras_inputs
        if len(layer_inputs) != 1 or not hasattr(layer, "exported_steps"):
            class_name = type(layer).__name__
            raise NotImplementedError(f"layer {layer.name} ({class_name}), which runs on the host")
        (tensor,) = layer_inputs
        steps = [*layer.exported_steps(len(tensor.shape)), *steps]
    return inputs.index(id(tensor)), steps


def _make_blank_strings(tensor: KerasTensor) -> Tensor:
    """Return empty strings in place of an input that is not used."""
    blank: np.ndarray = np.empty([1 if n is None else n for n in tensor.shape], object)
    blank.fill(b"")
    return Tensor(blank)
