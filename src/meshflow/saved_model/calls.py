"""Which functions an object has, and for which arguments each is saved."""

from __future__ import annotations

import inspect
import itertools
import logging
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

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
# What signatures return, the last in place of tensors.
_RETURNED = Tensor, Pending, Variable, bool, int, float, complex, str, bytes, np.ndarray, np.generic


def functions_of(item: Any) -> Iterator[tuple[str, Any]]:
    """The functions made by `tf.function`, concrete ones included, that are an object's attributes, methods or elements."""
    if isinstance(item, (Function, Signed)):
        return
    if isinstance(item, Mapping):
        yield from ((str(k), v) for k, v in item.items() if isinstance(v, _FUNCTIONS))
    elif isinstance(item, (list, tuple)):
        yield from ((str(i), v) for i, v in enumerate(item) if isinstance(v, _FUNCTIONS))
    names: dict[str, None] = {}
    for kind in reversed(type(item).__mro__):
        names |= dict.fromkeys(k for k, v in vars(kind).items() if isinstance(v, Function))
    own = getattr(item, "__dict__", {})
    names |= dict.fromkeys(k for k, v in own.items() if isinstance(v, _FUNCTIONS))
    for name in names:
        yield name, own[name] if name in own else getattr(item, name)


def calls_of(function: Any) -> Iterator[tuple[Callable[..., Any], Any, Any]]:
    """Python functions with the arguments they are to be traced for: those of their signatures."""
    if isinstance(function, Signed):
        yield call_of(function)
        return
    if not isinstance(function, Function):
        return
    if function.input_signature is not None:
        yield _python_of(function), function.input_signature, {}
        return
    if isinstance(function.python_function, Choice):
        # One that was loaded.
        for alternative in function.python_function.alternatives:
            yield function.python_function, *alternative.arguments
        return
    later = list(function._later.values())
    known = [
        c
        for c in function._cache.values()
        if not is_symbolic(c.structured_input_signature)
        and not any(fits(c, s.structured_input_signature) for s in later)
    ]
    seen = []
    for signed in [*later, *known]:
        call = _with_specs(function, call_of(signed))
        if call[1:] not in seen:
            seen.append(call[1:])
            yield call


def _with_specs(function: Function, call: tuple[Callable[..., Any], Any, Any]) -> Any:
    """A call that takes tensors where the function was traced for known strings or for certain variables."""
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


def _as_spec(leaf: Any) -> Any:
    known_text = isinstance(leaf, Tensor) and leaf.dtype is string
    return TensorSpec(leaf.shape, leaf.dtype) if known_text or isinstance(leaf, Variable) else leaf


def _only_reads(python: Callable[..., Any]) -> Callable[..., Any]:
    """A function of variables as one of tensors."""

    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return python(*args, **kwargs)
        except AttributeError as error:
            raise Unsaved(
                f"a tf.Variable as an argument that it does not only read ({error})"
            ) from error

    call.__name__ = python.__name__
    return call


def is_symbolic(signature: Any) -> bool:
    """Whether a function was traced while another one was saved for any size."""
    return any(s.shape.rank and any_symbolic(s.shape) for s in specs_of(*signature))


def for_any_batch(spec: Any, name: str | None = None) -> Any:
    """A spec whose first size is open, under another name if one is given; what is no `TensorSpec` as it is."""
    if not isinstance(spec, TensorSpec):
        return spec
    sizes = spec.shape.as_list()
    return TensorSpec([None, *sizes[1:]] if sizes else sizes, spec.dtype, name or spec.name)


def with_rank(rank: int) -> Callable[[Any], Any]:
    """Gives specs of unknown rank a rank, with unknown sizes."""

    def known(spec: Any) -> Any:
        if not isinstance(spec, TensorSpec) or spec.shape.rank is not None:
            return spec
        return TensorSpec([None] * rank, spec.dtype, spec.name)

    return known


def fits(concrete: Any, general: Any) -> bool:
    """Whether a function was traced as a case of a signature with unknown sizes."""
    specs, wider = (nest.flatten(s) for s in (concrete.structured_input_signature, general))
    return len(specs) == len(wider) and all(
        w.is_compatible_with(s)
        if isinstance(w, TensorSpec) and isinstance(s, TensorSpec)
        else w == s
        for s, w in zip(specs, wider, strict=True)
    )


def call_of(signed: Signed) -> tuple[Callable[..., Any], Any, Any]:
    args, kwargs = signed.structured_input_signature
    function = getattr(signed, "_function", None)
    if function is not None:
        return _python_of(function), args, kwargs
    traced: Traced | None = getattr(signed, "traced", None)
    if traced is None:
        # A signature that was loaded.
        called: Any = signed
        return called, args, kwargs
    return _Replayed(traced), args, kwargs


class _Replayed:
    """A traced function as a Python function of the same arguments."""

    def __init__(self, traced: Traced) -> None:
        self._traced = traced
        self.__name__ = traced.name

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._traced.call([t for t in nest.flatten((args, kwargs)) if isinstance(t, Tensor)])


def _python_of(function: Function) -> Callable[..., Any]:
    converted = function._converted()

    def call(*args: Any, **kwargs: Any) -> Any:
        return function._call_python(converted, args, kwargs)

    call.__name__ = function._name
    return call


def parameters_of(function: Any) -> list[Any]:
    """[name] or [name, default] of the parameters that may be given by position."""
    if isinstance(function, Signed):
        return [[name] for name in function._parameters]
    python = getattr(function, "python_function", function)
    if isinstance(python, Choice):
        return _unpacked(python.parameters)
    by_position = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    found = _parameters(python, by_position)
    return found[1:] if found and found[0][0] == "self" else found


def keywords_of(function: Any) -> list[Any]:
    """The same of the parameters that are given by name and have a default."""
    python = getattr(function, "python_function", function)
    if isinstance(python, Choice):
        return _unpacked(python.keywords)
    found = (
        []
        if isinstance(function, Signed)
        else _parameters(python, (inspect.Parameter.KEYWORD_ONLY,))
    )
    return [parameter for parameter in found if len(parameter) > 1]


def _parameters(python: Any, kinds: tuple[Any, ...]) -> list[Any]:
    try:
        signature = inspect.signature(python)
    except (TypeError, ValueError):
        return []
    chosen = [(n, p) for n, p in signature.parameters.items() if p.kind in kinds]
    return [[name, *_default(parameter)] for name, parameter in chosen]


def _default(parameter: inspect.Parameter) -> list[Any]:
    default = [] if parameter.default is parameter.empty else [parameter.default]
    try:
        packed(default)
    except Unsaved:
        return []
    return default


def _unpacked(parameters: list[Any]) -> list[Any]:
    return [[name, *map(unpacked, default)] for name, *default in parameters]


def argument_names(args: Any, kwargs: Any, function: Any) -> list[str]:
    """Names of the tensors that a signature takes: each once, so the parts of an argument are numbered."""
    parameters = [] if isinstance(function, tuple) else parameters_of(function)
    of_arguments = {i: p[0] for i, p in enumerate(parameters)}
    called = [(of_arguments.get(i, f"args_{i}"), arg) for i, arg in enumerate(args)]
    names: list[str] = []
    changed: dict[str, str] = {}
    for known, argument in (*called, *kwargs.items()):
        for spec in specs_of(argument, {}):
            given = spec.name or known
            name = base = _identifier(given)
            if name != given:
                changed[given] = name
            for number in itertools.count(1):
                if name not in names:
                    break
                name = f"{base}_{number}"
            names.append(name)
    if changed:
        _log.warning(
            "tf.saved_model.save: input names %s have unsupported characters, and are %s in the signature.",
            ", ".join(changed),
            ", ".join(changed.values()),
        )
    return names


def _identifier(name: str) -> str:
    """A name with underscores for what no parameter's name has."""
    plain = re.sub(r"[^A-Za-z0-9]", "_", name)
    return plain if plain[:1].isalpha() else f"arg_{plain}"


def as_dictionary(result: Any) -> dict[str, Any]:
    """What a signature returns, by name.

    Args:
      result: a tensor, a sequence of tensors, or a dictionary of them by strings.

    Raises:
      Unsaved: for other results.
    """
    if not isinstance(result, Mapping):
        parts = result if isinstance(result, (list, tuple)) else [result]
        result = {f"output_{i}": part for i, part in enumerate(parts)}
    for name, value in result.items():
        if not isinstance(name, str):
            raise Unsaved(f"a dictionary with the key {name!r}, which is no string")
        if not isinstance(value, _RETURNED):
            raise Unsaved(
                f"{value!r} of type {type(value).__name__} as {name!r}, where it may return a tensor, a list of "
                "tensors, or a dictionary of tensors by name: return nested ones flat"
            )
    return {name: _as_tensor(value) for name, value in result.items()}


def _as_tensor(value: Any) -> Any:
    return value if isinstance(value, (Tensor, Pending)) else convert_to_tensor(value)


def specs_of(args: Any, kwargs: Any) -> list[TensorSpec]:
    return [s for s in nest.flatten((args, kwargs)) if isinstance(s, TensorSpec)]


def is_for_any_size(args: Any, kwargs: Any) -> bool:
    return any(not s.shape.is_fully_defined() for s in specs_of(args, kwargs))
