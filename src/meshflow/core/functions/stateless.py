"""Calls in which variables hold given values, and that write none: pure functions for JAX's transformations."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import jax

from meshflow.core.dispatch.dispatch import apply
from meshflow.core.runtime.context import as_stored
from meshflow.core.runtime.errors import InvalidValueError
from meshflow.core.tracing.trace import Traced, is_array_like, trace
from meshflow.core.values import nest
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.tensor import Tensor

__all__ = ["call_stateless", "traced_by_jax"]


def traced_by_jax(values: Any) -> bool:
    """Whether a structure holds what a transformation of JAX, such as `jax.grad`, passes in place of arrays.

    Args:
      values: a nested structure.
    """
    return any(isinstance(leaf, jax.core.Tracer) for leaf in nest.flatten(values))


def call_stateless(
    function: Callable[..., Any],
    variables: Sequence[Any],
    values: Sequence[Any],
    args: tuple[Any, ...] = (),
    kwargs: dict[str, Any] | None = None,
) -> tuple[Any, list[Any]]:
    """Calls a function as if variables held values, and returns what they would hold after it.

    With arrays of JAX among values and arguments (those that `jax.jit` and `jax.grad` pass, too) the result
    holds arrays of JAX; else it holds tensors, which tapes record.

    Args:
      function: a function of nested structures.
      variables: the variables.
      values: a value for each of them.
      args: positional arguments.
      kwargs: named arguments.

    Returns:
      What the function returns, and a list of the variables' new values.

    Raises:
      ValueError: when the numbers of variables and values differ, or a value's shape does not fit.

    Example:
      >>> import meshflow as tf
      >>> from meshflow.core.functions.stateless import call_stateless
      >>> v = tf.Variable(1.0)
      >>> result, new = call_stateless(lambda x: v.assign_add(x), [v], [5.0], (2.0,))
      >>> float(result), [float(n) for n in new], float(v)
      (7.0, [7.0], 1.0)
    """
    kwargs = kwargs or {}
    _check(variables, values)
    given = [*values, *nest.flatten((args, kwargs))]
    as_arrays = any(isinstance(leaf, jax.Array) for leaf in given)
    traced = trace(function, args, kwargs, isolated=True)
    leaves = [leaf for leaf in nest.flatten((args, kwargs)) if is_array_like(leaf)]
    held = {id(v): value for v, value in zip(variables, values, strict=True)}
    if as_arrays:
        inputs = [_array(leaf) for leaf in leaves]
        captures = [_held(c, held.get(id(c), c)) for c in traced.captures]
        outputs = traced.arrays(inputs, captures)
    else:
        tensors = [convert_to_tensor(leaf) for leaf in leaves]
        with as_stored():
            read = [_tensor(c, held.get(id(c), c)) for c in traced.captures]
        outputs = apply(traced.op, (tensors, read))
    return traced.rebuild(outputs[: traced.count]), _after(traced, outputs, variables, values)


def _check(variables: Sequence[Any], values: Sequence[Any]) -> None:
    if len(variables) != len(values):
        raise InvalidValueError(
            f"{len(values)} values were given for {len(variables)} variables: give one for each, in their order."
        )
    for variable, value in zip(variables, values, strict=True):
        shape = getattr(value, "shape", ())
        if not variable.shape.is_compatible_with(shape):
            raise InvalidValueError(
                f"The value for variable {variable.name} has shape {tuple(shape)}, expected {tuple(variable.shape)}."
            )


def _array(value: Any) -> Any:
    """The array of a tensor or variable; arrays as they are."""
    if isinstance(value, jax.Array):
        return value
    if not isinstance(value, Tensor) and hasattr(value, "_as_tensor"):
        with as_stored():
            value = value._as_tensor()
    return jax.numpy.asarray(convert_to_tensor(value)._value)


def _held(capture: Any, value: Any) -> Any:
    """The array that a capture stands for, in its dtype."""
    array = _array(value)
    return array if value is capture else array.astype(capture.dtype.dtype)


def _tensor(capture: Any, value: Any) -> Tensor:
    if value is capture:
        return capture if isinstance(capture, Tensor) else capture._as_tensor()
    return convert_to_tensor(value, getattr(capture, "dtype", None))


def _after(
    traced: Traced, outputs: Any, variables: Sequence[Any], values: Sequence[Any]
) -> list[Any]:
    """The variables' values after the call; others that it writes are written, where their values are known."""
    written = {id(v): new for v, new in zip(traced.writes, outputs[traced.count :], strict=True)}
    own = {id(v) for v in variables}
    for variable in traced.writes:
        if id(variable) in own:
            continue
        new = written[id(variable)]
        if isinstance(new, jax.core.Tracer):
            warnings.warn(
                f"{traced.name} also writes {getattr(variable, 'name', 'a variable')}, which is not among the "
                "variables given; in a transformation of JAX it keeps its value (random numbers repeat: give the "
                "layer a seed generator).",
                stacklevel=4,
            )
        else:
            variable._write(new if isinstance(new, Tensor) else Tensor(new))
    return [written.get(id(v), value) for v, value in zip(variables, values, strict=True)]
