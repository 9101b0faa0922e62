"""Flat programs of models, concrete functions and saved models, with named inputs and outputs."""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from meshflow.core.functions.concrete_function import ConcreteFunction
from meshflow.core.functions.function import Function
from meshflow.core.functions.signed_function import SignedFunction
from meshflow.core.runtime.errors import UnimplementedError
from meshflow.core.runtime.import_paths import get_public_package
from meshflow.core.tracing.trace import TensorSlot, TracedFunction
from meshflow.core.values import nest
from meshflow.core.values.dtypes import string
from meshflow.core.values.specs import TensorSpec
from meshflow.core.values.tensor import Tensor
from meshflow.deployment.equations import Program, flatten_jaxpr
from meshflow.deployment.patterns import fuse_patterns
from meshflow.environment.types import PyTree, StrPath
from meshflow.saved_model.loader import load_without_tensorrt
from meshflow.saved_model.programs.stablehlo import trace_for_export

if TYPE_CHECKING:
    from meshflow.core.variables.variable import Variable


@dataclasses.dataclass
class DeployableFunction:
    """Function that can be converted for another runtime.

    Attributes:
      name: name of the signature.
      traced: the traced function.
      inputs, outputs: names, in the order of the program.
      specs: specs of the inputs, with None for unknown sizes.
      order: indices of a model's outputs in the order in which the model returns them; the outputs
        of the program are sorted by name.
    """

    name: str
    traced: TracedFunction
    inputs: list[str]
    outputs: list[str]
    specs: list[TensorSpec]
    order: Sequence[int] = ()

    @functools.cached_property
    def program(self) -> Program:
        """Return the program as a function of its inputs only; variables are constants.

        Raises:
          UnimplementedError: if the function writes variables.
        """
        if self.traced.writes:
            names = ", ".join(sorted(v.name for v in self.traced.writes))
            raise UnimplementedError(
                f"{self.traced.name} writes the variables {names}: only functions without side effects can be converted."
            )
        return self.flatten_with_variables(())[0]

    def flatten_with_variables(
        self, variables: Sequence[Variable]
    ) -> tuple[Program, list[Variable], list[Variable]]:
        """Return the program as a function of its inputs and of variables.

        Args:
          variables: must include those that the function writes; other variables are constants.

        Returns:
          The program; the variables that are its inputs after the arguments; and those of which
          the new values are its outputs after the results.
        """
        inputs = {id(v) for v in variables}
        captures = self.traced.captures
        values = zip(captures, self.traced.get_captured_tensors(), strict=True)
        arrays = [None if id(c) in inputs else np.asarray(t.array) for c, t in values]
        program = fuse_patterns(flatten_jaxpr(self.traced.closed_jaxpr, arrays))
        return program, [c for c in captures if id(c) in inputs], self.traced.writes


def trace_model(model: Any, name: str = "serving_default") -> DeployableFunction:
    """Trace the prediction of a Keras model.

    Args:
      model: a built model.
      name: name of the signature.

    Raises:
      ValueError: if the model is not built.
    """
    signatures = model._saved_signatures()
    if not signatures:
        raise ValueError(
            f"Model {model.name} must be built or called before it is converted: its inputs are not known."
        )
    function, args, kwargs = next(iter(signatures.values()))
    _check_no_strings(model, _collect_specs(args, kwargs))
    traced = trace_for_export(function, args, kwargs, has_positive_sizes=True)
    deployable = _make_deployable(name, traced, _collect_specs(args, kwargs))
    names = list(model.output_names or ())
    if sorted(names) == sorted(deployable.outputs):
        deployable.order = [deployable.outputs.index(n) for n in names]
    return deployable


def _check_no_strings(model: Any, specs: list[TensorSpec]) -> None:
    strings = [spec.name for spec in specs if spec.dtype is string]
    if not strings:
        return
    hosts = [
        layer
        for layer in getattr(model, "layers", ())
        if any(getattr(inner, "runs_on_host", False) for inner in layer._flatten_layers())
    ]
    if not hosts:
        raise UnimplementedError(
            f"{model.name} has string inputs ({', '.join(map(str, strings))}), which LiteRT and ONNX do not support: "
            "convert a function of the tensors that the model computes from them."
        )
    *_, last = hosts
    names = ", ".join(f"{layer.name!r} ({type(layer).__name__})" for layer in hosts)
    raise UnimplementedError(
        f"{model.name} cannot be converted: its text is preprocessed on the host, in {names}, which LiteRT and ONNX do "
        f"not support. Convert the layers after it, tf.keras.Model(model.get_layer({last.name!r}).output, model.output), "
        "and pass the output of that layer to the converted model."
    )


def trace_concrete_function(
    function: SignedFunction, name: str | None = None
) -> DeployableFunction:
    """Trace a concrete function for export.

    Args:
      function: result of `tf.function(...).get_concrete_function`.
      name: name of the signature; default 'serving_default'.

    Raises:
      TypeError: if `function` is not a concrete function.
    """
    if not isinstance(function, SignedFunction):
        raise TypeError(
            f"Expected a concrete function, as tf.function(...).get_concrete_function(...) returns, got {function!r}."
        )
    args, kwargs = function.structured_input_signature
    deferred = getattr(function, "_function", None)
    if deferred is not None:
        converted = deferred._get_converted()

        def call(*args: Any, **kwargs: Any) -> Any:
            return deferred._call_python(converted, args, kwargs)

        traced = trace_for_export(call, args, kwargs, has_positive_sizes=True)
    elif isinstance(function, ConcreteFunction):
        traced = function.traced
    else:
        signature: Any = function
        traced = trace_for_export(signature, args, kwargs, has_positive_sizes=True)
    return _make_deployable(name or "serving_default", traced, _collect_specs(args, kwargs))


def trace_jax_function(
    function: Callable[..., Any], inputs: Sequence[tuple[str, Any]], name: str = "serving_default"
) -> DeployableFunction:
    """Trace a function of JAX arrays.

    Args:
      function: function of arrays that returns nested arrays.
      inputs: names of the positional arguments with arrays, or with their shapes and dtypes.
        float64, the default dtype of JAX arrays in Meshflow, becomes float32.
      name: name of the signature.
    """
    arrays = [value.array if isinstance(value, Tensor) else value for _, value in inputs]
    dtypes = [np.dtype(a.dtype) for a in arrays]
    dtypes = [np.dtype(np.float32) if d == np.float64 else d for d in dtypes]
    avals = [jax.ShapeDtypeStruct(np.shape(a), d) for a, d in zip(arrays, dtypes, strict=True)]
    closed, shapes = jax.make_jaxpr(function, return_shape=True)(*avals)
    leaves, tree = jax.tree.flatten(shapes)
    structure = jax.tree.unflatten(tree, map(TensorSlot, range(len(leaves))))
    traced = TracedFunction(name, closed, [], [], structure, len(leaves))
    specs = [TensorSpec(a.shape, a.dtype, n) for a, (n, _) in zip(avals, inputs, strict=True)]
    return _make_deployable(name, traced, specs)


def trace_saved_model(folder: StrPath, name: str = "serving_default") -> DeployableFunction:
    """Load a signature of a saved model for conversion.

    Args:
      folder: folder written by `Model.save` or `tf.saved_model.save`, here or in TensorFlow.
      name: name of the signature.

    Raises:
      OSError: if the folder contains no saved model.
      ValueError: if it has no such signature.
    """
    return trace_saved_signatures(folder, [name])[0]


def trace_saved_signatures(
    folder: StrPath, names: Sequence[str] | None = None
) -> list[DeployableFunction]:
    """Load signatures of a saved model that share its variables.

    Args:
      folder: as in `trace_saved_model`.
      names: names of the signatures; default all.

    Raises:
      OSError: if the folder contains no saved model.
      ValueError: if it has no signatures, or none of a given name.
    """
    folder = os.fspath(folder)
    if names is None or not list(names):
        # A model in a file has only its prediction.
        names = (
            ["serving_default"]
            if os.path.isfile(folder)
            else list(load_without_tensorrt(folder).signatures)
        )
    if list(names) == ["serving_default"]:
        # The layers of a Keras model keep more information than its saved functions.
        model = get_public_package().keras.models.load_model(folder, compile=False)
        if model._saved_signatures():
            return [trace_model(model)]
    if not names:
        raise ValueError(f"Only support at least one signature key. {folder} has none.")
    signatures = load_without_tensorrt(folder).signatures
    for name in names:
        if name not in signatures:
            raise ValueError(
                f"Invalid signature key {name!r}: {folder} has no signature {name!r}, only {sorted(signatures)}."
            )
    return [trace_concrete_function(signatures[name], name) for name in names]


def trace_source(source: Any, name: str = "serving_default") -> DeployableFunction:
    """Trace a model, a function, or a signature of a saved model.

    Args:
      source: a built model, a concrete function, a `tf.function` with an input signature, or the
        folder of a saved model.
      name: name of the signature, which must exist in a saved model.

    Raises:
      TypeError: if `source` is none of these, or a function without an input signature.
      OSError: if the folder contains no saved model.
      ValueError: if the model is not built, or the signature does not exist.
    """
    if isinstance(source, (str, os.PathLike)):
        return trace_saved_model(os.fspath(source), name)
    if hasattr(source, "_saved_signatures"):
        return trace_model(source, name)
    if isinstance(source, Function):
        if source.input_signature is None:
            raise TypeError(
                f"{source!r} has no input_signature: convert the result of its get_concrete_function(tf.TensorSpec(...))."
            )
        source = source.get_concrete_function()
    return trace_concrete_function(source, name)


def _collect_specs(args: PyTree, kwargs: PyTree) -> list[TensorSpec]:
    return [s for s in nest.flatten((args, kwargs)) if isinstance(s, TensorSpec)]


def _make_deployable(
    name: str, traced: TracedFunction, specs: list[TensorSpec]
) -> DeployableFunction:
    if traced.closed_jaxpr.effects or traced.iterator_captures or traced.infeeds:
        raise UnimplementedError(
            f"{traced.name} calls Python while it runs (py_function, print, a table, or an iterator), which no other "
            "runtime supports."
        )
    return DeployableFunction(
        name, traced, _make_input_names(specs), _make_output_names(traced), specs
    )


def _make_input_names(specs: list[TensorSpec]) -> list[str]:
    names: list[str] = []
    for i, spec in enumerate(specs):
        name = spec.name or f"args_{i}"
        names.append(name if name not in names else f"{name}_{i}")
    return names


def _make_output_names(traced: TracedFunction) -> list[str]:
    """Return the keys of a dictionary of results, else 'output_0', 'output_1', ..."""
    structure = traced.structure
    names = [f"output_{i}" for i in range(traced.num_results)]
    if isinstance(structure, Mapping):
        for key, value in structure.items():
            if isinstance(value, TensorSlot):
                names[value.index] = str(key)
    return names
