"""Stateless calls: pure functions, for JAX's transformations, that take and return variable values."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import jax

from meshflow.core.dispatch.dispatch import apply
from meshflow.core.runtime.context import suspend_autocast
from meshflow.core.runtime.errors import InvalidValueError
from meshflow.core.tracing.trace import TracedFunction, is_array_like, trace
from meshflow.core.values import nest
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.tensor import Tensor, read_tensor
from meshflow.environment.types import PyTree


def is_traced_by_jax(values: PyTree) -> bool:
    """Check whether a structure contains tracers of a JAX transformation such as `jax.grad`."""
    return any(isinstance(leaf, jax.core.Tracer) for leaf in nest.flatten(values))


def call_stateless(
    function: Callable[..., Any],
    variables: Sequence[Any],
    values: Sequence[Any],
    args: tuple[Any, ...] = (),
    kwargs: dict[str, Any] | None = None,
) -> tuple[PyTree, list[Any]]:
    """Call a function with explicit values of variables, and return their values after the call.

    If values or arguments contain JAX arrays (including tracers of `jax.jit` and `jax.grad`), the
    result contains JAX arrays; otherwise it contains tensors, which tapes record.

    Args:
      function: A function of nested structures.
      variables: The variables.
      values: A value for each variable.
      args: Positional arguments.
      kwargs: Keyword arguments.

    Returns:
      The result of the function, and a list of the new values of the variables.

    Raises:
      ValueError: If the numbers of variables and values differ, or if a shape is incompatible.

    Example:
      >>> from meshflow.core.functions.stateless import call_stateless
      >>> v = tf.Variable(1.0)
      >>> result, new = call_stateless(lambda x: v.assign_add(x), [v], [5.0], (2.0,))
      >>> float(result), [float(n) for n in new], float(v)
      (7.0, [7.0], 1.0)
    """
    kwargs = kwargs or {}
    _check_values(variables, values)
    leaves = nest.flatten((args, kwargs))
    has_jax_arrays = any(isinstance(leaf, jax.Array) for leaf in [*values, *leaves])
    traced = trace(function, args, kwargs, isolated=True)
    leaves = [leaf for leaf in leaves if is_array_like(leaf)]
    value_by_id = {id(v): value for v, value in zip(variables, values, strict=True)}
    if has_jax_arrays:
        inputs = [_to_array(leaf) for leaf in leaves]
        captures = [_get_capture_array(c, value_by_id.get(id(c), c)) for c in traced.captures]
        outputs = traced.run_on_arrays(inputs, captures)
    else:
        tensors = [convert_to_tensor(leaf) for leaf in leaves]
        with suspend_autocast():
            read = [_get_capture_tensor(c, value_by_id.get(id(c), c)) for c in traced.captures]
        outputs = apply(traced.op, (tensors, read))
    return traced.rebuild_result(outputs[: traced.num_results]), _apply_writes(
        traced, outputs, variables, values
    )


def _check_values(variables: Sequence[Any], values: Sequence[Any]) -> None:
    if len(variables) != len(values):
        raise InvalidValueError(
            f"Expected a value for each of the {len(variables)} variables, in their order, got {len(values)} values."
        )
    for variable, value in zip(variables, values, strict=True):
        shape = getattr(value, "shape", ())
        if not variable.shape.is_compatible_with(shape):
            raise InvalidValueError(
                f"The value for variable {variable.name} has shape {tuple(shape)}, expected {tuple(variable.shape)}."
            )


def _to_array(value: Any) -> jax.Array:
    """Return the array of a tensor or variable; return arrays unchanged."""
    if isinstance(value, jax.Array):
        return value
    with suspend_autocast():
        value = read_tensor(value)
    return jax.numpy.asarray(convert_to_tensor(value).array)


def _get_capture_array(capture: Any, value: Any) -> jax.Array:
    """Return the array for a capture, in its dtype."""
    array = _to_array(value)
    return array if value is capture else array.astype(capture.dtype.dtype)


def _get_capture_tensor(capture: Any, value: Any) -> Tensor:
    if value is capture:
        return read_tensor(capture)
    return convert_to_tensor(value, getattr(capture, "dtype", None))


def _apply_writes(
    traced: TracedFunction, outputs: Sequence[Any], variables: Sequence[Any], values: Sequence[Any]
) -> list[Any]:
    """Return the new values of the variables; assign other written variables if possible."""
    written = {
        id(v): new for v, new in zip(traced.writes, outputs[traced.num_results :], strict=True)
    }
    ids = {id(v) for v in variables}
    for variable in traced.writes:
        if id(variable) in ids:
            continue
        new = written[id(variable)]
        if isinstance(new, jax.core.Tracer):
            warnings.warn(
                f"{traced.name} also writes {getattr(variable, 'name', 'a variable')}, which is not among the "
                "explicit variables. In a JAX transformation it keeps its value, so random numbers repeat: pass a "
                "seed generator to the layer.",
                stacklevel=4,
            )
        else:
            variable._write(new if isinstance(new, Tensor) else Tensor(new))
    return [written.get(id(v), value) for v, value in zip(variables, values, strict=True)]
