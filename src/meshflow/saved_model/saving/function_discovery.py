"""Discovery of the functions of an object, and of the signatures for which each is saved."""

from __future__ import annotations

import inspect
import itertools
import logging
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from meshflow.checkpoint.object_graph import Trackable
from meshflow.core.dispatch.composite import SparseTensorSpec
from meshflow.core.functions.function import Function
from meshflow.core.functions.signed_function import SignedFunction
from meshflow.core.tracing.trace import CompositeResultSlot, TensorSlot, TracedFunction
from meshflow.core.values import nest
from meshflow.core.values.composite import (
    CompositeTensor,
    get_batch_encoder,
    is_composite_spec,
    is_extension_spec,
)
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.dtypes import string
from meshflow.core.values.specs import TensorSpec, type_spec_from_value
from meshflow.core.values.symbolic_sizes import has_symbolic_size
from meshflow.core.values.tensor import Tensor
from meshflow.core.variables.variable import Variable
from meshflow.environment.types import PyTree
from meshflow.ops.deferred_host_values import DeferredValue
from meshflow.ops.ragged import RaggedTensorSpec
from meshflow.saved_model.manifest.composite_values import list_component_specs
from meshflow.saved_model.manifest.json_structures import (
    UnsavableError,
    pack_structure,
    unpack_structure,
)
from meshflow.saved_model.programs.restored_functions import AlternativeDispatcher

_log = logging.getLogger("meshflow")
_FUNCTION_TYPES = Function, SignedFunction
# Types that a signature may return. All but the first four are converted to tensors.
_RESULT_TYPES = (
    CompositeTensor,
    Tensor,
    DeferredValue,
    Variable,
    bool,
    int,
    float,
    complex,
    str,
    bytes,
    np.ndarray,
    np.generic,
)

# A Python function with the arguments for which it is traced: (function, args, kwargs).
FunctionCall: TypeAlias = tuple[Callable[..., Any], Sequence[Any], Mapping[str, Any]]


def iterate_functions(item: Trackable) -> Iterator[tuple[str, Function | SignedFunction]]:
    """Yield the functions of `tf.function`, including concrete functions, that an object has.

    They may be attributes, methods, or elements of a container.
    """
    if isinstance(item, (Function, SignedFunction)):
        return
    if isinstance(item, Mapping):
        yield from ((str(k), v) for k, v in item.items() if isinstance(v, _FUNCTION_TYPES))
    elif isinstance(item, (list, tuple)):
        yield from ((str(i), v) for i, v in enumerate(item) if isinstance(v, _FUNCTION_TYPES))
    names: dict[str, None] = {}
    for base in reversed(type(item).__mro__):
        names |= dict.fromkeys(k for k, v in vars(base).items() if isinstance(v, Function))
    attributes = getattr(item, "__dict__", {})
    names |= dict.fromkeys(k for k, v in attributes.items() if isinstance(v, _FUNCTION_TYPES))
    for name in names:
        yield name, attributes[name] if name in attributes else getattr(item, name)


def iterate_signatures(function: object) -> Iterator[FunctionCall]:
    """Yield Python functions with the arguments for which they are to be traced."""
    if isinstance(function, SignedFunction):
        yield get_call(function)
        return
    if not isinstance(function, Function):
        return
    if function.input_signature is not None:
        yield _get_python_function(function), function.input_signature, {}
        return
    if isinstance(function.python_function, AlternativeDispatcher):
        # The function was loaded.
        for alternative in function.python_function.alternatives:
            yield function.python_function, *alternative.arguments
        return
    concrete_functions = list(function._polymorphic_functions.values())
    cached = [
        c
        for c in function._cache.values()
        if not is_symbolic(c.structured_input_signature)
        and not any(is_special_case(c, s.structured_input_signature) for s in concrete_functions)
    ]
    arguments_seen = []
    python = _get_python_function(function)
    interpreted = [(python, *arguments) for arguments in function.python_calls.values()]
    # A trace of a composite tensor has the sizes of its parts, but the signature has not.
    varying = [c for c in cached if has_unknown_size(*c.structured_input_signature)]
    interpreted += [(python, *c.structured_input_signature) for c in varying]
    exact = [c for c in cached if c not in varying]
    for call in [*map(get_call, [*concrete_functions, *exact]), *interpreted]:
        call = _replace_by_specs(function, call)
        if call[1:] not in arguments_seen:
            arguments_seen.append(call[1:])
            yield call


def _replace_by_specs(function: Function, call: FunctionCall) -> FunctionCall:
    """Replace constant strings and variables in the arguments of a call by specs of tensors."""
    arguments = nest.map_structure(_as_spec, call[1:])
    changed = [
        a
        for a, b in zip(nest.flatten(call[1:]), nest.flatten(arguments), strict=True)
        if a is not b
    ]
    if not changed:
        return call
    python = _get_python_function(function)
    if any(isinstance(leaf, Variable) for leaf in changed):
        return _convert_to_tensor_function(python), *arguments
    return python, *arguments


def _as_spec(leaf: PyTree) -> PyTree:
    if isinstance(leaf, CompositeTensor):
        return type_spec_from_value(leaf)
    is_constant_string = isinstance(leaf, Tensor) and leaf.dtype is string
    return (
        TensorSpec(leaf.shape, leaf.dtype)
        if is_constant_string or isinstance(leaf, Variable)
        else leaf
    )


def _convert_to_tensor_function(python: Callable[..., Any]) -> Callable[..., Any]:
    """Convert a function of variables to a function of tensors."""

    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return python(*args, **kwargs)
        except AttributeError as error:
            raise UnsavableError(
                f"a tf.Variable as an argument that it does not only read ({error})"
            ) from error

    call.__name__ = python.__name__
    return call


def is_symbolic(signature: tuple[PyTree, PyTree]) -> bool:
    """Check whether a signature has symbolic sizes, from exporting another function."""
    return any(s.shape.rank and has_symbolic_size(s.shape) for s in list_specs(*signature))


def relax_batch_size(spec: PyTree, name: str | None = None) -> PyTree:
    """Return a spec with an unknown first size; a `TensorSpec` optionally with another name.

    Other values are unchanged, also specs of extension types that cannot be batched.
    """
    if is_extension_spec(spec) and hasattr(spec.value_type, "__batch_encoder__"):
        encoder = get_batch_encoder(spec)
        return encoder.batch(encoder.unbatch(spec), None)
    if isinstance(spec, (RaggedTensorSpec, SparseTensorSpec)):
        return spec.to_row_spec().to_batch_spec(None)
    if not isinstance(spec, TensorSpec):
        return spec
    sizes = spec.shape.as_list()
    return TensorSpec([None, *sizes[1:]] if sizes else sizes, spec.dtype, name or spec.name)


def make_rank_setter(rank: int) -> Callable[[PyTree], PyTree]:
    """Return a function that changes specs of unknown rank to a given rank with unknown sizes."""

    def set_rank(spec: PyTree) -> PyTree:
        if is_composite_spec(spec) and any(
            s.shape.rank is None for s in list_component_specs(spec)
        ):
            return spec.map_specs(set_rank)
        if not isinstance(spec, TensorSpec) or spec.shape.rank is not None:
            return spec
        return TensorSpec([None] * rank, spec.dtype, spec.name)

    return set_rank


def is_special_case(concrete: SignedFunction, general: tuple[PyTree, PyTree]) -> bool:
    """Check whether a function was traced for a special case of a signature with unknown sizes."""
    specs, general_specs = (nest.flatten(s) for s in (concrete.structured_input_signature, general))
    return len(specs) == len(general_specs) and all(
        w.is_compatible_with(s)
        if isinstance(w, TensorSpec) and isinstance(s, TensorSpec)
        else w == s
        for s, w in zip(specs, general_specs, strict=True)
    )


def get_call(signed: SignedFunction) -> FunctionCall:
    """Return the Python function and the arguments of a concrete function."""
    args, kwargs = signed.structured_input_signature
    function = getattr(signed, "_function", None)
    if function is not None:
        return _get_python_function(function), args, kwargs
    traced: TracedFunction | None = getattr(signed, "traced", None)
    if traced is None:
        # The signature was loaded.
        restored: Any = signed
        return restored, args, kwargs
    return _TracedCall(traced), args, kwargs


class _TracedCall:
    """Traced function as a Python function of the same arguments."""

    def __init__(self, traced: TracedFunction) -> None:
        self._traced = traced
        self.__name__ = traced.name

    def __call__(self, *args: Any, **kwargs: Any) -> PyTree:
        parts = nest.flatten_parts((args, kwargs))
        return self._traced.call([t for t in parts if isinstance(t, Tensor)])


def _get_python_function(function: Function) -> Callable[..., Any]:
    converted = function._get_converted()

    def call(*args: Any, **kwargs: Any) -> Any:
        return function._call_python(converted, args, kwargs)

    call.__name__ = function._name
    return call


def list_parameters(function: Any) -> list[Any]:
    """Return [name] or [name, default] of each parameter that may be passed by position."""
    if isinstance(function, SignedFunction):
        return [[name] for name in function._parameters]
    python = getattr(function, "python_function", function)
    if isinstance(python, AlternativeDispatcher):
        return _unpack_defaults(python.parameters)
    by_position = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    parameters = _inspect_parameters(python, by_position)
    return parameters[1:] if parameters and parameters[0][0] == "self" else parameters


def list_keyword_parameters(function: Any) -> list[Any]:
    """Return [name, default] of each parameter that must be passed by name and has a default."""
    python = getattr(function, "python_function", function)
    if isinstance(python, AlternativeDispatcher):
        return _unpack_defaults(python.keywords)
    parameters = (
        []
        if isinstance(function, SignedFunction)
        else _inspect_parameters(python, (inspect.Parameter.KEYWORD_ONLY,))
    )
    return [parameter for parameter in parameters if len(parameter) > 1]


def _inspect_parameters(python: Callable[..., Any], kinds: tuple[Any, ...]) -> list[Any]:
    try:
        signature = inspect.signature(python)
    except (TypeError, ValueError):
        return []
    selected = [(n, p) for n, p in signature.parameters.items() if p.kind in kinds]
    return [[name, *_get_default(parameter)] for name, parameter in selected]


def _get_default(parameter: inspect.Parameter) -> list[Any]:
    default = [] if parameter.default is parameter.empty else [parameter.default]
    try:
        pack_structure(default)
    except UnsavableError:
        return []
    return default


def _unpack_defaults(parameters: list[Any]) -> list[Any]:
    return [[name, *map(unpack_structure, default)] for name, *default in parameters]


def make_argument_names(
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    function: Function | SignedFunction | FunctionCall,
) -> list[str]:
    """Return a unique name for each tensor of a signature, numbered within an argument."""
    parameters = [] if isinstance(function, tuple) else list_parameters(function)
    parameter_names = {i: p[0] for i, p in enumerate(parameters)}
    arguments = [(parameter_names.get(i, f"args_{i}"), arg) for i, arg in enumerate(args)]
    names: list[str] = []
    changed: dict[str, str] = {}
    for default_name, argument in (*arguments, *kwargs.items()):
        for spec in list_specs(argument, {}):
            requested = spec.name or default_name
            name = base = _make_identifier(requested)
            if name != requested:
                changed[requested] = name
            for number in itertools.count(1):
                if name not in names:
                    break
                name = f"{base}_{number}"
            names.append(name)
    if changed:
        _log.warning(
            "tf.saved_model.save: input names %s have unsupported characters, and are renamed to %s in the signature.",
            ", ".join(changed),
            ", ".join(changed.values()),
        )
    return names


def _make_identifier(name: str) -> str:
    """Replace characters that a parameter name cannot contain by underscores."""
    identifier = re.sub(r"[^A-Za-z0-9]", "_", name)
    return identifier if identifier[:1].isalpha() else f"arg_{identifier}"


def name_results(result: PyTree) -> dict[str, Any]:
    """Return the results of a signature by name.

    Args:
      result: A tensor, a sequence of tensors, or a dictionary of tensors with strings as keys.

    Raises:
      UnsavableError: If the result has another form.
    """
    result = _list_parts_by_name(result)
    for name, value in result.items():
        if not isinstance(name, str):
            raise UnsavableError(f"a dictionary with the key {name!r}, which is not a string")
        if not isinstance(value, _RESULT_TYPES):
            raise UnsavableError(
                f"{value!r} of type {type(value).__name__} as {name!r}, where it may return a tensor, a list of "
                "tensors, or a dictionary of tensors by name: return nested ones flat"
            )
    return {name: _to_tensor(value) for name, value in result.items()}


def name_slots(structure: PyTree) -> dict[str, Any] | None:
    """Return the slots of a traced result by name, as `name_results` does for a result.

    Args:
      structure: The result with slots.

    Returns:
      The slots, or None if the result has other parts, such as constants.
    """
    parts = _list_parts_by_name(structure)
    has_only_slots = all(
        isinstance(name, str) and isinstance(part, (TensorSlot, CompositeResultSlot))
        for name, part in parts.items()
    )
    return dict(parts) if has_only_slots else None


def _list_parts_by_name(result: PyTree) -> Mapping[Any, Any]:
    if isinstance(result, Mapping):
        return result
    parts = result if isinstance(result, (list, tuple)) else [result]
    return {f"output_{i}": part for i, part in enumerate(parts)}


def _to_tensor(value: Any) -> Tensor | DeferredValue:
    is_converted = isinstance(value, (Tensor, DeferredValue, CompositeTensor))
    return value if is_converted else convert_to_tensor(value)


def list_specs(args: PyTree, kwargs: PyTree) -> list[TensorSpec]:
    """Return the specs of the tensor arguments, and of the components of composite ones."""
    return list_component_specs((args, kwargs))


def has_unknown_size(args: PyTree, kwargs: PyTree) -> bool:
    """Check whether an argument has an unknown size."""
    return any(not s.shape.is_fully_defined() for s in list_specs(args, kwargs))
