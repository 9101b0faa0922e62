"""Discovery of the functions of an object, and of the signatures for which each is saved."""

from __future__ import annotations

import inspect
import itertools
import logging
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from meshflow.checkpoint.graph import Trackable
from meshflow.core.functions.concrete_function import Signed
from meshflow.core.functions.function import Function
from meshflow.core.tracing.trace import Traced
from meshflow.core.values import nest
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.dtypes import string
from meshflow.core.values.specs import TensorSpec
from meshflow.core.values.symbolic_sizes import any_symbolic
from meshflow.core.values.tensor import Tensor
from meshflow.core.variables.variable import Variable
from meshflow.environment.types import PyTree
from meshflow.ops.deferred_host_values import Pending
from meshflow.saved_model.functions import Choice
from meshflow.saved_model.structures import Unsaved, packed, unpacked

__all__ = [
    "argument_names",
    "as_dictionary",
    "call_of",
    "calls_of",
    "fits",
    "for_any_batch",
    "functions_of",
    "is_for_any_size",
    "is_symbolic",
    "keywords_of",
    "parameters_of",
    "specs_of",
    "with_rank",
]

_log = logging.getLogger("meshflow")
_FUNCTIONS = Function, Signed
# Types that a signature may return. All but the first three are converted to tensors.
_RETURNED = Tensor, Pending, Variable, bool, int, float, complex, str, bytes, np.ndarray, np.generic

# A Python function with the arguments for which it is traced: (function, args, kwargs).
FunctionCall: TypeAlias = tuple[Callable[..., Any], Sequence[Any], Mapping[str, Any]]


def functions_of(item: Trackable) -> Iterator[tuple[str, Function | Signed]]:
    """Yield the functions of `tf.function`, including concrete functions, that an object has.

    They may be attributes, methods, or elements of a container.
    """
    if isinstance(item, (Function, Signed)):
        return
    if isinstance(item, Mapping):
        yield from ((str(k), v) for k, v in item.items() if isinstance(v, _FUNCTIONS))
    elif isinstance(item, (list, tuple)):
        yield from ((str(i), v) for i, v in enumerate(item) if isinstance(v, _FUNCTIONS))
    names: dict[str, None] = {}
    for base in reversed(type(item).__mro__):
        names |= dict.fromkeys(k for k, v in vars(base).items() if isinstance(v, Function))
    attributes = getattr(item, "__dict__", {})
    names |= dict.fromkeys(k for k, v in attributes.items() if isinstance(v, _FUNCTIONS))
    for name in names:
        yield name, attributes[name] if name in attributes else getattr(item, name)


def calls_of(function: object) -> Iterator[FunctionCall]:
    """Yield Python functions with the arguments for which they are to be traced."""
    if isinstance(function, Signed):
        yield call_of(function)
        return
    if not isinstance(function, Function):
        return
    if function.input_signature is not None:
        yield _python_of(function), function.input_signature, {}
        return
    if isinstance(function.python_function, Choice):
        # The function was loaded.
        for alternative in function.python_function.alternatives:
            yield function.python_function, *alternative.arguments
        return
    concrete_functions = list(function._later.values())
    cached = [
        c
        for c in function._cache.values()
        if not is_symbolic(c.structured_input_signature)
        and not any(fits(c, s.structured_input_signature) for s in concrete_functions)
    ]
    arguments_seen = []
    for signed in [*concrete_functions, *cached]:
        call = _with_specs(function, call_of(signed))
        if call[1:] not in arguments_seen:
            arguments_seen.append(call[1:])
            yield call


def _with_specs(function: Function, call: FunctionCall) -> FunctionCall:
    """Replace constant strings and variables in the arguments of a call by specs of tensors."""
    arguments = nest.map_structure(_as_spec, call[1:])
    changed = [
        a
        for a, b in zip(nest.flatten(call[1:]), nest.flatten(arguments), strict=True)
        if a is not b
    ]
    if not changed:
        return call
    python = _python_of(function)
    if any(isinstance(leaf, Variable) for leaf in changed):
        return _only_reads(python), *arguments
    return python, *arguments


def _as_spec(leaf: PyTree) -> PyTree:
    is_constant_string = isinstance(leaf, Tensor) and leaf.dtype is string
    return (
        TensorSpec(leaf.shape, leaf.dtype)
        if is_constant_string or isinstance(leaf, Variable)
        else leaf
    )


def _only_reads(python: Callable[..., Any]) -> Callable[..., Any]:
    """Convert a function of variables to a function of tensors."""

    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return python(*args, **kwargs)
        except AttributeError as error:
            raise Unsaved(
                f"a tf.Variable as an argument that it does not only read ({error})"
            ) from error

    call.__name__ = python.__name__
    return call


def is_symbolic(signature: tuple[PyTree, PyTree]) -> bool:
    """Check whether a signature has symbolic sizes, from exporting another function."""
    return any(s.shape.rank and any_symbolic(s.shape) for s in specs_of(*signature))


def for_any_batch(spec: PyTree, name: str | None = None) -> PyTree:
    """Return a `TensorSpec` with an unknown first size, and optionally another name.

    Other values are unchanged.
    """
    if not isinstance(spec, TensorSpec):
        return spec
    sizes = spec.shape.as_list()
    return TensorSpec([None, *sizes[1:]] if sizes else sizes, spec.dtype, name or spec.name)


def with_rank(rank: int) -> Callable[[PyTree], PyTree]:
    """Return a function that changes specs of unknown rank to a given rank with unknown sizes."""

    def set_rank(spec: PyTree) -> PyTree:
        if not isinstance(spec, TensorSpec) or spec.shape.rank is not None:
            return spec
        return TensorSpec([None] * rank, spec.dtype, spec.name)

    return set_rank


def fits(concrete: Signed, general: tuple[PyTree, PyTree]) -> bool:
    """Check whether a function was traced for a special case of a signature with unknown sizes."""
    specs, general_specs = (nest.flatten(s) for s in (concrete.structured_input_signature, general))
    return len(specs) == len(general_specs) and all(
        w.is_compatible_with(s)
        if isinstance(w, TensorSpec) and isinstance(s, TensorSpec)
        else w == s
        for s, w in zip(specs, general_specs, strict=True)
    )


def call_of(signed: Signed) -> FunctionCall:
    """Return the Python function and the arguments of a concrete function."""
    args, kwargs = signed.structured_input_signature
    function = getattr(signed, "_function", None)
    if function is not None:
        return _python_of(function), args, kwargs
    traced: Traced | None = getattr(signed, "traced", None)
    if traced is None:
        # The signature was loaded.
        restored: Any = signed
        return restored, args, kwargs
    return _Replayed(traced), args, kwargs


class _Replayed:
    """Traced function as a Python function of the same arguments."""

    def __init__(self, traced: Traced) -> None:
        self._traced = traced
        self.__name__ = traced.name

    def __call__(self, *args: Any, **kwargs: Any) -> PyTree:
        return self._traced.call([t for t in nest.flatten((args, kwargs)) if isinstance(t, Tensor)])


def _python_of(function: Function) -> Callable[..., Any]:
    converted = function._converted()

    def call(*args: Any, **kwargs: Any) -> Any:
        return function._call_python(converted, args, kwargs)

    call.__name__ = function._name
    return call


def parameters_of(function: Any) -> list[Any]:
    """Return [name] or [name, default] of each parameter that may be passed by position."""
    if isinstance(function, Signed):
        return [[name] for name in function._parameters]
    python = getattr(function, "python_function", function)
    if isinstance(python, Choice):
        return _unpacked(python.parameters)
    by_position = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    parameters = _parameters(python, by_position)
    return parameters[1:] if parameters and parameters[0][0] == "self" else parameters


def keywords_of(function: Any) -> list[Any]:
    """Return [name, default] of each parameter that must be passed by name and has a default."""
    python = getattr(function, "python_function", function)
    if isinstance(python, Choice):
        return _unpacked(python.keywords)
    parameters = (
        []
        if isinstance(function, Signed)
        else _parameters(python, (inspect.Parameter.KEYWORD_ONLY,))
    )
    return [parameter for parameter in parameters if len(parameter) > 1]


def _parameters(python: Callable[..., Any], kinds: tuple[Any, ...]) -> list[Any]:
    try:
        signature = inspect.signature(python)
    except (TypeError, ValueError):
        return []
    selected = [(n, p) for n, p in signature.parameters.items() if p.kind in kinds]
    return [[name, *_default(parameter)] for name, parameter in selected]


def _default(parameter: inspect.Parameter) -> list[Any]:
    default = [] if parameter.default is parameter.empty else [parameter.default]
    try:
        packed(default)
    except Unsaved:
        return []
    return default


def _unpacked(parameters: list[Any]) -> list[Any]:
    return [[name, *map(unpacked, default)] for name, *default in parameters]


def argument_names(
    args: Sequence[Any], kwargs: Mapping[str, Any], function: Function | Signed | FunctionCall
) -> list[str]:
    """Return a unique name for each tensor of a signature, numbered within an argument."""
    parameters = [] if isinstance(function, tuple) else parameters_of(function)
    parameter_names = {i: p[0] for i, p in enumerate(parameters)}
    arguments = [(parameter_names.get(i, f"args_{i}"), arg) for i, arg in enumerate(args)]
    names: list[str] = []
    changed: dict[str, str] = {}
    for default_name, argument in (*arguments, *kwargs.items()):
        for spec in specs_of(argument, {}):
            requested = spec.name or default_name
            name = base = _identifier(requested)
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


def _identifier(name: str) -> str:
    """Replace characters that a parameter name cannot contain by underscores."""
    identifier = re.sub(r"[^A-Za-z0-9]", "_", name)
    return identifier if identifier[:1].isalpha() else f"arg_{identifier}"


def as_dictionary(result: PyTree) -> dict[str, Any]:
    """Return the results of a signature by name.

    Args:
      result: A tensor, a sequence of tensors, or a dictionary of tensors with strings as keys.

    Raises:
      UnsavableError: If the result has another form.
    """
    if not isinstance(result, Mapping):
        parts = result if isinstance(result, (list, tuple)) else [result]
        result = {f"output_{i}": part for i, part in enumerate(parts)}
    for name, value in result.items():
        if not isinstance(name, str):
            raise Unsaved(f"a dictionary with the key {name!r}, which is not a string")
        if not isinstance(value, _RETURNED):
            raise Unsaved(
                f"{value!r} of type {type(value).__name__} as {name!r}, where it may return a tensor, a list of "
                "tensors, or a dictionary of tensors by name: return nested ones flat"
            )
    return {name: _as_tensor(value) for name, value in result.items()}


def _as_tensor(value: Any) -> Tensor | Pending:
    return value if isinstance(value, (Tensor, Pending)) else convert_to_tensor(value)


def specs_of(args: PyTree, kwargs: PyTree) -> list[TensorSpec]:
    """Return the specs of the tensor arguments."""
    return [s for s in nest.flatten((args, kwargs)) if isinstance(s, TensorSpec)]


def is_for_any_size(args: PyTree, kwargs: PyTree) -> bool:
    """Check whether an argument has an unknown size."""
    return any(not s.shape.is_fully_defined() for s in specs_of(args, kwargs))
