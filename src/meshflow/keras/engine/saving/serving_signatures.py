"""What `tf.saved_model` holds of a model: its calls as functions, and their signatures."""

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
from meshflow.core.values.specs import TensorSpec
from meshflow.core.values.tensor import Tensor
from meshflow.keras.engine.layer import shape_inference
from meshflow.keras.engine.saving.call_form import CallForm
from meshflow.keras.engine.training.host_preprocessing import HostPart
from meshflow.saved_model.calls import for_any_batch
from meshflow.saved_model.text import TextCall

# A model that is exported, with the specs that were asked for (None: as it was built).
_exported: contextvars.ContextVar[tuple[Any, Any] | None] = contextvars.ContextVar(
    "exported", default=None
)
_log = logging.getLogger("meshflow")

__all__ = [
    "call_specs",
    "exported",
    "input_specs",
    "save_spec",
    "saved_functions",
    "saved_signatures",
]


@contextlib.contextmanager
def exported(model: Any, specs: tuple[Any, ...] | None = None) -> Iterator[None]:
    """Models that are saved within have `serve`, what they predict, as a function and as a signature.

    Args:
      model: the one that is exported.
      specs: of its positional arguments; default as it was built.
    """
    if specs is not None and len(specs) > 1 and isinstance(input_specs(model), (list, tuple)):
        # A list of inputs is one argument of a functional model.
        specs = (list(specs),)
    token = _exported.set((model, specs))
    try:
        yield
    finally:
        _exported.reset(token)


def input_specs(model: Any) -> Any:
    """What a model takes as its first argument, with None for the size of the batch, or None while nobody knows.

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
    return nest.map_structure(for_any_batch, specs, _names(specs))


def call_specs(model: Any) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    """What a model takes: specs of positional arguments and of others by name, or None while nobody knows."""
    asked = _exported.get()
    if asked is not None and asked[0] is model and asked[1] is not None:
        return _named(asked[1], input_specs(model)), {}
    first = input_specs(model)
    if first is None:
        return None
    args, kwargs = model.__dict__.get("_more_specs", ((), {}))
    args, kwargs = nest.map_structure(_of_any_batch, (args, kwargs))
    return (first, *args), kwargs


def save_spec(model: Any, dynamic_batch: bool) -> tuple[list[Any], dict[str, Any]] | None:
    """`Model.save_spec`."""
    found = call_specs(model)
    graph = model._current_graph()
    if found is None or (graph is None and "_save_spec" not in model.__dict__):
        return None
    args, kwargs = found
    if dynamic_batch or graph is not None:
        return list(args), kwargs
    own = model._save_spec
    names = _names(own)
    fixed = nest.map_structure(lambda s, n: TensorSpec(s.shape, s.dtype, n), own, names)
    more, kwargs = model.__dict__.get("_more_specs", ((), {}))
    return [fixed, *more], kwargs


def _of_any_batch(spec: Any) -> Any:
    return None if spec is None else for_any_batch(spec, spec.name)


def _names(specs: Any) -> Any:
    """Names for the inputs of a subclassed model, as Keras 2 gives them: keys of a dictionary, or numbers."""
    if not isinstance(specs, Mapping):
        numbers = iter(range(1, len(nest.flatten(specs)) + 1))
        return nest.map_structure(lambda _: f"input_{next(numbers)}", specs)
    found = {}
    for key, entry in specs.items():
        if not nest.is_nested(entry):
            found[key] = str(key)
            continue
        numbers = iter(range(1, len(nest.flatten(entry)) + 1))
        found[key] = nest.map_structure(lambda _, n=numbers, k=key: f"{k}_{next(n)}", entry)
    return nest.pack_sequence_as(specs, nest.flatten(found))


def _named(specs: tuple[Any, ...], own: Any) -> tuple[Any, ...]:
    """Specs that were asked for; the first, where it says no names, has those of the model's inputs."""
    known = iter(nest.flatten(own))
    first = nest.map_structure(
        lambda s: TensorSpec(s.shape, s.dtype, s.name or getattr(next(known, None), "name", None)),
        specs[0],
    )
    return first, *specs[1:]


def saved_functions(model: Any) -> dict[str, list[tuple[Callable[..., Any], Any, Any]]]:
    """The model's calls: as when it predicts, and as when it is trained."""
    specs = call_specs(model)
    if specs is None:
        return {}
    form = CallForm.of(model, *specs)
    saved = _divided(model, form.call)
    found: dict[str, Any] = {
        "__call__": [(saved, form.arguments(training), {}) for training in (False, True)]
    }
    if _exported.get() is None:
        return found
    return found | {"serve": [(_divided(model, form.predict), form.arguments(), {})]}


def saved_signatures(model: Any) -> dict[str, Any]:
    """The model's prediction, by the names of its inputs and outputs."""
    specs = call_specs(model)
    if specs is None:
        return {}
    form = CallForm.of(model, *specs)

    @functools.wraps(form.predict)
    def predict(*args: Any) -> dict[str, Any]:
        outputs = form.predict(*args)
        if isinstance(outputs, dict):
            return outputs
        flat = nest.flatten(outputs)
        names = model.output_names or [f"output_{i}" for i in range(1, len(flat) + 1)]
        return dict(zip(names, flat, strict=True))

    signature: Any = (_divided(model, predict), form.arguments(), {})
    names = ["serving_default"] if _exported.get() is None else ["serving_default", "serve"]
    return dict.fromkeys(names, signature)


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
