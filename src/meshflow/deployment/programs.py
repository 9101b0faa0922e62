"""The programs of models, concrete functions and saved models, with the names of what they take and return."""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from meshflow.core.functions.concrete_function import ConcreteFunction, Signed
from meshflow.core.functions.function import Function
from meshflow.core.runtime.errors import UnimplementedError
from meshflow.core.runtime.import_paths import public_face
from meshflow.core.tracing.trace import Slot, Traced
from meshflow.core.values import nest
from meshflow.core.values.dtypes import string
from meshflow.core.values.specs import TensorSpec
from meshflow.core.values.tensor import Tensor
from meshflow.deployment.equations import Program, flattened
from meshflow.deployment.idioms import with_idioms
from meshflow.saved_model.loading import load_as_saved
from meshflow.saved_model.programs import traced_for_export

__all__ = [
    "Deployable",
    "of_anything",
    "of_concrete_function",
    "of_jax_function",
    "of_model",
    "of_saved_model",
    "of_saved_signatures",
]


@dataclasses.dataclass
class Deployable:
    """A function to be written for another runtime.

    Attributes:
      name: of its signature.
      traced: the function.
      inputs, outputs: names, in the order of the program's.
      specs: of the inputs, None for sizes that vary.
      order: of a model's outputs, which are sorted by name, the places in the order in which it gives them.
    """

    name: str
    traced: Traced
    inputs: list[str]
    outputs: list[str]
    specs: list[TensorSpec]
    order: Sequence[int] = ()

    @functools.cached_property
    def program(self) -> Program:
        """What it computes of its inputs alone.

        Raises:
          UnimplementedError: when it writes variables.
        """
        if self.traced.writes:
            names = ", ".join(sorted(v.name for v in self.traced.writes))
            raise UnimplementedError(
                f"{self.traced.name} writes the variables {names}: only functions of their inputs can be converted."
            )
        return self.with_variables(())[0]

    def with_variables(self, variables: Sequence[Any]) -> tuple[Program, list[Any], list[Any]]:
        """What it computes of its inputs and of some variables; the others are constants.

        Args:
          variables: among them those that it writes.

        Returns:
          (a program, the variables that are its inputs after the arguments, those whose new values are its results
          after the others).
        """
        kept = {id(v) for v in variables}
        captures = self.traced.captures
        values = zip(captures, self.traced.captured_tensors(), strict=True)
        known = [None if id(c) in kept else np.asarray(t._value) for c, t in values]
        program = with_idioms(flattened(self.traced.closed, known))
        return program, [c for c in captures if id(c) in kept], self.traced.writes


def of_model(model: Any, name: str = "serving_default") -> Deployable:
    """What a Keras model predicts.

    Args:
      model: a built model.
      name: the signature's.

    Raises:
      ValueError: when the model has not been built.
    """
    found = model._saved_signatures()
    if not found:
        raise ValueError(
            f"Model {model.name} must be built or called before it is converted: its inputs are not known."
        )
    function, args, kwargs = next(iter(found.values()))
    _refuse_text(model, _specs(args, kwargs))
    traced = traced_for_export(function, args, kwargs)
    made = _deployable(name, traced, _specs(args, kwargs))
    given = list(model.output_names or ())
    if sorted(given) == sorted(made.outputs):
        made.order = [made.outputs.index(n) for n in given]
    return made


def _refuse_text(model: Any, specs: list[TensorSpec]) -> None:
    text = [spec.name for spec in specs if spec.dtype is string]
    if not text:
        return
    hosts = [
        layer
        for layer in getattr(model, "layers", ())
        if any(getattr(inner, "runs_on_host", False) for inner in layer._flatten_layers())
    ]
    if not hosts:
        raise UnimplementedError(
            f"{model.name} takes strings ({', '.join(map(str, text))}), which LiteRT and ONNX do not compute with: "
            "convert a function of what it makes of them."
        )
    *_, last = hosts
    names = ", ".join(f"{layer.name!r} ({type(layer).__name__})" for layer in hosts)
    raise UnimplementedError(
        f"{model.name} cannot be converted as a whole: text is worked on by the host, in {names}, which LiteRT and ONNX "
        f"have nothing for. Convert what follows, tf.keras.Model(model.get_layer({last.name!r}).output, model.output), "
        "and give that what the layer makes of your text."
    )


def of_concrete_function(function: Any, name: str | None = None) -> Deployable:
    """What a concrete function computes.

    Args:
      function: of `tf.function(...).get_concrete_function`.
      name: the signature's; default 'serving_default'.

    Raises:
      TypeError: for what is none.
    """
    if not isinstance(function, Signed):
        raise TypeError(
            f"Expected a concrete function, as tf.function(...).get_concrete_function(...) gives, got {function!r}."
        )
    args, kwargs = function.structured_input_signature
    later = getattr(function, "_function", None)
    if later is not None:
        converted = later._converted()

        def call(*args: Any, **kwargs: Any) -> Any:
            return later._call_python(converted, args, kwargs)

        traced = traced_for_export(call, args, kwargs)
    elif isinstance(function, ConcreteFunction):
        traced = function.traced
    else:
        signature: Any = function
        traced = traced_for_export(signature, args, kwargs)
    return _deployable(name or "serving_default", traced, _specs(args, kwargs))


def of_jax_function(
    function: Callable[..., Any],
    inputs: Sequence[tuple[str, Any]],
    name: str = "serving_default",
) -> Deployable:
    """What a function of JAX computes.

    Args:
      function: of arrays; gives nested arrays.
      inputs: names and arrays, or their shapes and dtypes, of its positional arguments; float64, which arrays of JAX are
        here unless told otherwise, is taken as float32.
      name: the signature's.
    """
    arrays = [value._value if isinstance(value, Tensor) else value for _, value in inputs]
    dtypes = [np.dtype(a.dtype) for a in arrays]
    kept = [np.dtype(np.float32) if d == np.float64 else d for d in dtypes]
    given = [jax.ShapeDtypeStruct(np.shape(a), d) for a, d in zip(arrays, kept, strict=True)]
    closed, shapes = jax.make_jaxpr(function, return_shape=True)(*given)
    leaves, tree = jax.tree.flatten(shapes)
    structure = jax.tree.unflatten(tree, map(Slot, range(len(leaves))))
    traced = Traced(name, closed, [], [], structure, len(leaves))
    specs = [TensorSpec(a.shape, a.dtype, n) for a, (n, _) in zip(given, inputs, strict=True)]
    return _deployable(name, traced, specs)


def of_saved_model(folder: Any, name: str = "serving_default") -> Deployable:
    """What a signature of a saved model computes.

    Args:
      folder: of `Model.save` or `tf.saved_model.save`, here or in TensorFlow.
      name: the signature.

    Raises:
      OSError: when nothing was saved there.
      ValueError: for a signature that is not there.
    """
    return of_saved_signatures(folder, [name])[0]


def of_saved_signatures(folder: Any, names: Sequence[str] | None = None) -> list[Deployable]:
    """What signatures of a saved model compute, on the same variables.

    Args:
      folder: as in `of_saved_model`.
      names: of the signatures; default all.

    Raises:
      OSError: when nothing was saved in the folder.
      ValueError: for a signature that is not there, and when there are none.
    """
    if names is None or not list(names):
        # The file of a model has what it predicts.
        names = (
            ["serving_default"]
            if os.path.isfile(folder)
            else list(load_as_saved(folder).signatures)
        )
    if list(names) == ["serving_default"]:
        # A model of layers gives more than the functions that were saved of it.
        model = public_face().keras.models.load_model(folder, compile=False)
        if model._saved_signatures():
            return [of_model(model)]
    if not names:
        raise ValueError(f"Only support at least one signature key. {folder} has none.")
    signatures = load_as_saved(folder).signatures
    for name in names:
        if name not in signatures:
            raise ValueError(
                f"Invalid signature key {name!r}: {folder} has no signature {name!r}, only {sorted(signatures)}."
            )
    return [of_concrete_function(signatures[name], name) for name in names]


def of_anything(source: Any, name: str = "serving_default") -> Deployable:
    """What a model, a function or a saved model computes.

    Args:
      source: a built model, a concrete function, a `tf.function` with an input signature, or the folder of a saved
        model.
      name: of a saved model the signature; else what the signature is called.

    Raises:
      TypeError: for anything else, and for a function whose arguments are not known.
      OSError: when nothing was saved in a folder.
      ValueError: for a model that has not been built, and for a signature that is not there.
    """
    if isinstance(source, (str, os.PathLike)):
        return of_saved_model(os.fspath(source), name)
    if hasattr(source, "_saved_signatures"):
        return of_model(source, name)
    if isinstance(source, Function):
        if source.input_signature is None:
            raise TypeError(
                f"{source!r} has no input_signature: convert what its get_concrete_function(tf.TensorSpec(...)) gives."
            )
        source = source.get_concrete_function()
    return of_concrete_function(source, name)


def _specs(args: Any, kwargs: Any) -> list[TensorSpec]:
    return [s for s in nest.flatten((args, kwargs)) if isinstance(s, TensorSpec)]


def _deployable(name: str, traced: Traced, specs: list[TensorSpec]) -> Deployable:
    if traced.closed.effects or traced.iterator_captures or traced.infeeds:
        raise UnimplementedError(
            f"{traced.name} calls Python while it runs (py_function, print, a table, or an iterator), which no other "
            "runtime can."
        )
    return Deployable(name, traced, _input_names(specs), _output_names(traced), specs)


def _input_names(specs: list[TensorSpec]) -> list[str]:
    names: list[str] = []
    for i, spec in enumerate(specs):
        name = spec.name or f"args_{i}"
        names.append(name if name not in names else f"{name}_{i}")
    return names


def _output_names(traced: Traced) -> list[str]:
    """Keys of a dictionary, or 'output_0' and so on."""
    structure = traced.structure
    names = [f"output_{i}" for i in range(traced.count)]
    if isinstance(structure, Mapping):
        for key, value in structure.items():
            if isinstance(value, Slot):
                names[value.index] = str(key)
    return names
