"""Which functions an object has, and for which arguments each is saved."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from meshflow.core.functions.concrete_function import Signed
from meshflow.core.functions.function import Function
from meshflow.core.tracing.trace import Traced
from meshflow.core.values import nest
from meshflow.core.values.specs import TensorSpec
from meshflow.core.values.symbolic_sizes import any_symbolic
from meshflow.core.values.tensor import Tensor
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
    "parameters_of",
    "specs_of",
    "with_rank",
]


def functions_of(item: Any) -> Iterator[tuple[str, Any]]:
    """The functions made by `tf.function` that are an object's attributes or methods."""
    names: dict[str, None] = {}
    for kind in reversed(type(item).__mro__):
        names |= dict.fromkeys(k for k, v in vars(kind).items() if isinstance(v, Function))
    own = getattr(item, "__dict__", {})
    names |= dict.fromkeys(k for k, v in own.items() if isinstance(v, Function))
    for name in names:
        yield name, getattr(item, name)


def calls_of(function: Any) -> Iterator[tuple[Callable[..., Any], Any, Any]]:
    """Python functions with the arguments they are to be traced for: those of their signatures."""
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
        call = call_of(signed)
        if call[1:] not in seen:
            seen.append(call[1:])
            yield call


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


def parameters_of(python: Any) -> list[Any]:
    """Names and defaults of the parameters that may be given by position."""
    if isinstance(python, Choice):
        return [[name, *map(unpacked, default)] for name, *default in python.parameters]
    try:
        signature = inspect.signature(python)
    except (TypeError, ValueError):
        return []
    found: list[Any] = []
    for name, parameter in signature.parameters.items():
        if parameter.kind not in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD):
            continue
        if name == "self" and not found:
            continue
        try:
            default = [] if parameter.default is parameter.empty else [parameter.default]
            packed(default)
        except Unsaved:
            default = []
        found.append([name, *default])
    return found


def argument_names(specs: list[TensorSpec], function: Any) -> list[str]:
    parameters = parameters_of(getattr(function, "python_function", None) or (lambda: None))
    names = []
    for place, spec in enumerate(specs):
        known = parameters[place][0] if place < len(parameters) else f"args_{place}"
        name = spec.name or known
        names.append(name if name not in names else f"{name}_{place}")
    return names


def as_dictionary(name: str, result: Any) -> dict[str, Any]:
    if isinstance(result, Mapping):
        return dict(result)
    flat = nest.flatten(result)
    if not all(isinstance(t, (Tensor, Pending)) for t in flat):
        raise ValueError(
            f"tf.saved_model.save: signature {name!r} must return tensors, got {result!r}."
        )
    return {f"output_{i}": tensor for i, tensor in enumerate(flat)}


def specs_of(args: Any, kwargs: Any) -> list[TensorSpec]:
    return [s for s in nest.flatten((args, kwargs)) if isinstance(s, TensorSpec)]


def is_for_any_size(args: Any, kwargs: Any) -> bool:
    return any(not s.shape.is_fully_defined() for s in specs_of(args, kwargs))
