"""Calls in converted code: user functions are converted, and some builtins accept tensors."""

from __future__ import annotations

import builtins
import functools
from collections.abc import Callable, Iterable
from typing import Any

import jax.numpy as jnp

from meshflow.core.autograph.conversion import convert_callable
from meshflow.core.autograph.runtime.iterables import (
    StagedEnumerate,
    StagedRange,
    StagedZip,
    is_staged,
    register_index_range,
)
from meshflow.core.dispatch.dispatch import apply
from meshflow.core.dispatch.operands import convert_operands
from meshflow.core.dispatch.operation import CAST, Op
from meshflow.core.runtime.tracebacks import mark_boundary
from meshflow.core.staging.scalar_logic import is_symbolic, to_scalar_bool
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.tensor import Tensor


def convert_callee(callee: Any) -> Any:
    """Return the function that converted code calls instead of `callee`."""
    replacement = _get_replacements().get(id(callee))
    return replacement if replacement is not None else convert_callable(callee)


_ranges: list[Callable[..., Any]] = []


def register_range(function: Callable[..., Any]) -> None:
    """Make loops over the result of an op run without creating its values, like loops over `range`."""
    _ranges.append(mark_boundary(function))
    _get_replacements.cache_clear()


@functools.cache
def _get_replacements() -> dict[int, Callable[..., Any]]:
    """Return the replacements of functions by `id`; these functions are never freed."""
    table: dict[Any, Callable[..., Any]] = {
        builtins.range: _make_range(builtins.range),
        builtins.enumerate: _enumerate,
        builtins.zip: _zip,
        builtins.int: _make_number_conversion(builtins.int, "int32"),
        builtins.float: _make_number_conversion(builtins.float, "float32"),
        builtins.bool: _to_bool,
        builtins.max: _make_extreme(builtins.max, _maximum, _reduce_max),
        builtins.min: _make_extreme(builtins.min, _minimum, _reduce_min),
        builtins.any: _make_quantifier(builtins.any, _reduce_any),
        builtins.all: _make_quantifier(builtins.all, _reduce_all),
        builtins.map: _make_higher_order_call(builtins.map),
        builtins.filter: _make_higher_order_call(builtins.filter),
        functools.reduce: _make_higher_order_call(functools.reduce),
    }
    table.update({original: _make_range(original) for original in _ranges})
    return {id(original): replacement for original, replacement in table.items()}


def _make_range(original: Callable[..., Any]) -> Callable[..., Any]:
    def range_(*args: Any, **kwargs: Any) -> object:
        bounds = [
            *args,
            *(kwargs[key] for key in ("start", "limit", "delta") if kwargs.get(key) is not None),
        ]
        if any(is_symbolic(b) for b in bounds):
            return StagedRange(*bounds, dtype=kwargs.get("dtype"))
        result = original(*args, **kwargs)
        if isinstance(result, Tensor) and _starts_at_zero(args, kwargs):
            register_index_range(result)
        return result

    return range_


def _starts_at_zero(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Check whether the arguments of `tf.range` are (n) or (0, n)."""
    if kwargs or len(args) > 2:
        return False
    return len(args) == 1 or (isinstance(args[0], int) and args[0] == 0)


def _enumerate(iterable: Any, start: Any = 0) -> Iterable[Any]:
    return StagedEnumerate(iterable, start) if is_staged(iterable) else enumerate(iterable, start)


def _zip(*iterables: Any, **kwargs: Any) -> Iterable[Any]:
    if iterables and not kwargs and all(is_staged(i) for i in iterables):
        return StagedZip(*iterables)
    return zip(*iterables, **kwargs)  # noqa: B905 - the caller's keywords apply


def _make_higher_order_call(original: Callable[..., Any]) -> Callable[..., Any]:
    def call(function: Callable[..., Any] | None, *iterables: Any) -> object:
        return original(convert_callee(function) if function is not None else None, *iterables)

    return call


# ---- numbers -----------------------------------------------------------------------------------

_maximum = Op("maximum", lambda o, _: jnp.maximum(*o))
_minimum = Op("minimum", lambda o, _: jnp.minimum(*o))
_reduce_max = Op("reduce_max", lambda o, _: jnp.max(o[0], axis=0))
_reduce_min = Op("reduce_min", lambda o, _: jnp.min(o[0], axis=0))
_reduce_any = Op("reduce_any", lambda o, _: jnp.any(o[0]), differentiable=False)
_reduce_all = Op("reduce_all", lambda o, _: jnp.all(o[0]), differentiable=False)


def _make_number_conversion(original: type, dtype: str) -> Callable[..., Any]:
    def convert(*args: Any, **kwargs: Any) -> object:
        if len(args) == 1 and is_symbolic(args[0]):
            tensor = convert_to_tensor(args[0])
            integer = tensor.dtype.is_integer and dtype == "int32"
            floating = tensor.dtype.is_floating and dtype == "float32"
            return tensor if integer or floating else apply(CAST, (tensor,), (dtype,))
        return original(*args, **kwargs)

    return convert


def _to_bool(*args: object) -> Tensor | bool:
    return to_scalar_bool(args[0]) if args and is_symbolic(args[0]) else bool(*args)


def _make_extreme(original: Callable[..., Any], pairwise: Op, over_axis: Op) -> Callable[..., Any]:
    def extreme(*args: Any, **kwargs: Any) -> object:
        if kwargs:
            return original(*args, **kwargs)
        if len(args) == 1 and isinstance(args[0], Tensor) and is_symbolic(args[0]):
            return apply(over_axis, (args[0],))
        values: Iterable[Any] = (
            args[0] if len(args) == 1 and isinstance(args[0], (list, tuple)) else args
        )
        if len(args) > 1 or values is not args:
            values = list(values)
            if any(is_symbolic(v) for v in values):
                return functools.reduce(
                    lambda a, b: apply(pairwise, convert_operands(pairwise.name, [a, b], [0, 1])),
                    values,
                )
        return original(*args)

    return extreme


def _make_quantifier(original: Callable[..., Any], op: Op) -> Callable[..., Any]:
    def quantify(iterable: Any) -> Tensor | bool:
        if isinstance(iterable, Tensor) and is_symbolic(iterable):
            return apply(op, (iterable,))
        return original(iterable)

    return quantify
