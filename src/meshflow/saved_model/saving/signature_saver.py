"""Saving of signatures: functions that take tensors by name, to serve a model."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from meshflow.core.functions.function import Function
from meshflow.core.functions.signed_function import SignedFunction
from meshflow.core.runtime.errors import UnimplementedError
from meshflow.core.values import nest
from meshflow.core.values.specs import TensorSpec
from meshflow.environment.types import PyTree
from meshflow.saved_model.host_steps.plan import SavedProgram
from meshflow.saved_model.host_steps.text_steps import TextFunction
from meshflow.saved_model.manifest.composite_values import (
    ComponentFunction,
    ComponentSpec,
    UnsavableError,
)
from meshflow.saved_model.manifest.restored_objects import RestoredObject
from meshflow.saved_model.manifest.saved_objects import SavedObjects
from meshflow.saved_model.programs.restored_functions import AlternativeDispatcher
from meshflow.saved_model.saving.function_discovery import (
    FunctionCall,
    iterate_functions,
    iterate_signatures,
    list_specs,
    make_argument_names,
    name_results,
)
from meshflow.saved_model.saving.function_saver import FunctionSaver

DEFAULT_SIGNATURE = "serving_default"
_log = logging.getLogger("meshflow")
_SignatureFunction: TypeAlias = Function | SignedFunction | FunctionCall


class SignatureSaver:
    """Signatures of an object to be saved.

    Args:
      objects: Objects that can be reached from the root.
      functions: Functions of the objects, which have already been added.

    Attributes:
      entries: Entry of each signature in the manifest, by name.
      programs: Program of each signature, for the writer of TensorFlow's graphs.
    """

    def __init__(self, objects: SavedObjects, functions: FunctionSaver) -> None:
        self._objects, self._functions = objects, functions
        self.entries: dict[str, Any] = {}
        self.programs: dict[str, SavedProgram] = {}
        # A function with several names is traced once.
        self._by_function: dict[int, dict[str, Any]] = {}

    def add(self, signatures: Any) -> None:
        """Add the signatures that were passed to `save`, or the default signature for None."""
        if signatures is None:
            for name, function in self._find_default_signatures().items():
                try:
                    self._add_signature(name, function)
                except (UnimplementedError, UnsavableError) as error:
                    _log.warning(
                        "tf.saved_model.save: the signature %s is not saved: %s", name, error
                    )
            return
        if not isinstance(signatures, Mapping):
            signatures = {DEFAULT_SIGNATURE: signatures}
        for name, function in signatures.items():
            if not isinstance(name, str):
                raise TypeError(
                    f"tf.saved_model.save: names of signatures must be strings, got {name!r}."
                )
            if not _has_fixed_signature(function):
                raise _make_signature_error(name, function)
            try:
                self._add_signature(name, function)
            except UnsavableError as error:
                raise ValueError(
                    f"tf.saved_model.save: signature {name!r} takes or returns a non-Tensor value: {error}."
                ) from None

    def _add_signature(self, name: str, function: _SignatureFunction) -> None:
        entry = self._by_function.get(id(function)) or self._make_entry(name, function)
        self._by_function[id(function)] = self.entries[name] = entry
        self.programs[name] = self._functions.programs_by_entry[id(entry)]

    def _find_default_signatures(self) -> dict[str, Any]:
        if hasattr(self._objects.root, "_saved_signatures"):
            return self._objects.root._saved_signatures()
        if isinstance(self._objects.root, RestoredObject):
            return dict(self._objects.root.signatures)
        functions = dict(iterate_functions(self._objects.root))
        if "_default_save_signature" in functions:
            return {DEFAULT_SIGNATURE: functions["_default_save_signature"]}
        single_signature = [f for f in functions.values() if len(list(iterate_signatures(f))) == 1]
        saved_entries = [
            f for f in self._functions.entries if f["owner"] == 0 and f["alternatives"]
        ]
        if len(single_signature) != 1 or len(saved_entries) != 1:
            return {}
        arguments = [
            s
            for s in nest.flatten(next(iterate_signatures(single_signature[0]))[1:])
            if s is not None
        ]
        return (
            {DEFAULT_SIGNATURE: single_signature[0]}
            if all(isinstance(s, TensorSpec) for s in arguments)
            else {}
        )

    def _make_entry(self, name: str, function: _SignatureFunction) -> dict[str, Any]:
        calls = [function] if isinstance(function, tuple) else list(iterate_signatures(function))
        if len(calls) != 1:
            raise _make_signature_error(name, function)
        call, args, kwargs = calls[0]
        components = ComponentFunction(call, args, kwargs)
        leaves, specs = nest.flatten(components.arguments), list_specs(*components.arguments)
        # The signature of a concrete function may contain Python values, which are bound.
        num_bound = len(leaves) - len(specs) if not isinstance(function, SignedFunction) else 0
        if num_bound:
            raise ValueError(
                f"tf.saved_model.save: the arguments of signature {name!r} must be tensors, got {leaves}."
            )
        names = make_argument_names(args, kwargs, function)

        def call_by_name(**tensors: Any) -> dict[str, Any]:
            remaining = iter([tensors[n] for n in names])
            ordered = [next(remaining) if isinstance(v, TensorSpec) else v for v in leaves]
            positional, named = nest.pack_sequence_as(components.arguments, ordered)
            return name_results(components.call(*positional, **named))

        named_specs = {
            n: ComponentSpec(s, s.first, n)
            if isinstance(s, ComponentSpec)
            else TensorSpec(s.shape, s.dtype, n)
            for n, s in zip(names, specs, strict=True)
        }
        entry = self._functions.add_renamed_program(name, function, (args, kwargs), named_specs)
        if entry is not None:
            return entry
        named_call: Any = call_by_name
        if isinstance(call, TextFunction):
            named_call = _name_tensors(call, names, (args, kwargs))
        return self._functions.add_single_program(name, named_call, (), named_specs)


def _make_signature_error(name: str, function: object) -> ValueError:
    return ValueError(
        f"tf.saved_model.save: Expected a TensorFlow function for which to generate signature {name!r}, got "
        f"{function!r}. Pass a tf.function with an input_signature, or a concrete function: "
        "function.get_concrete_function(tf.TensorSpec(...))."
    )


def _has_fixed_signature(function: object) -> bool:
    """Check whether a function defines the tensors that it takes, independently of earlier calls."""
    if not isinstance(function, Function):
        return True
    return function.input_signature is not None or isinstance(
        function.python_function, AlternativeDispatcher
    )


def _name_tensors(call: TextFunction, names: list[str], structure: PyTree) -> TextFunction:
    """Convert a function of strings to one with named arguments and results."""
    order = sorted(names)

    def rest(results: Sequence[Any], **tensors: Any) -> dict[str, Any]:
        positional, named = nest.pack_sequence_as(structure, [tensors[n] for n in names])
        return name_results(call.rest(results, *positional, **named))

    steps = [(order.index(names[index]), steps) for index, steps in call.steps]
    return TextFunction(steps, call.specs, rest, rest)
