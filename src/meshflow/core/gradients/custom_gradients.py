"""`custom_gradient` replaces the gradient of a function."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any, ParamSpec, TypeVar, overload

import jax

from meshflow.core.dispatch.dispatch import apply
from meshflow.core.dispatch.operation import Op
from meshflow.core.dispatch.recorded_op import is_differentiable
from meshflow.core.gradients.tape import GradientTape, suspend_tapes
from meshflow.core.gradients.tape_nodes import FunctionNode, to_dense
from meshflow.core.runtime.context import context
from meshflow.core.tracing.trace import TracedFunction, trace
from meshflow.core.values import nest
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.tensor import Tensor
from meshflow.core.variables.variable import Variable
from meshflow.environment.types import PyTree

Arrays = list[jax.Array]
P = ParamSpec("P")
T = TypeVar("T")
GradFn = Callable[..., Any]


@overload
def custom_gradient(f: None = None) -> Callable[[Callable[P, tuple[T, Any]]], Callable[P, T]]: ...
@overload
def custom_gradient(f: Callable[P, tuple[T, Any]]) -> Callable[P, T]: ...
def custom_gradient(f: Callable[..., Any] | None = None) -> Any:
    """Give a function a custom gradient.

    Args:
      f: Takes tensors and returns `(y, grad_fn)`; `grad_fn` maps gradients of y to gradients of the
        arguments. If f uses trainable variables, `grad_fn` takes a keyword `variables` and returns
        a pair: gradients of the arguments, and a list of gradients of the variables.

    Returns:
      A function that returns y.

    Example:
      >>> import meshflow as tf
      >>> @tf.custom_gradient
      ... def double_gradient(x):
      ...     return x, lambda dy: 2.0 * dy
      >>> x = tf.constant(1.0)
      >>> with tf.GradientTape() as tape:
      ...     tape.watch(x)
      ...     y = double_gradient(x)
      >>> float(tape.gradient(y, x))
      2.0
    """
    return custom_gradient if f is None else _CustomGradientFunction(f)


class _CustomGradientFunction:
    """A function or method with a custom gradient."""

    def __init__(self, f: Callable[..., Any]) -> None:
        self._f = f
        functools.update_wrapper(self, f)

    def __get__(self, instance: object, owner: type | None = None) -> _CustomGradientFunction:
        # The instance is not an argument, so it has no gradient.
        return (
            self if instance is None else _CustomGradientFunction(self._f.__get__(instance, owner))
        )

    def __call__(self, *args: Any, **kwargs: Any) -> PyTree:
        tensors = [convert_to_tensor(a) for a in nest.flatten(args)]
        packed = nest.pack_sequence_as(args, tensors)
        if context.trace is not None and not context.tapes:
            return _run_traced(self._f, args, tensors, kwargs)
        return _run_recorded(self._f, packed, tensors, kwargs)


def _run_without_tapes(
    f: Callable[..., tuple[PyTree, GradFn]], args: Sequence[Any], kwargs: dict[str, Any]
) -> tuple[PyTree, GradFn, list[Variable]]:
    """Run f hidden from the tapes; return its result, gradient function and trainable variables."""
    with suspend_tapes():
        with GradientTape() as tape:
            result, grad_fn = f(*args, **kwargs)
        return result, grad_fn, list(tape.watched_variables())


def _call_grad_fn(
    grad_fn: GradFn, cotangents: Sequence[Any], variables: list[Variable], count: int
) -> list[Any]:
    if variables:
        parameters = inspect.signature(grad_fn).parameters
        if "variables" not in parameters and not any(
            p.kind is p.VAR_KEYWORD for p in parameters.values()
        ):
            raise TypeError(
                f"@tf.custom_gradient: the function uses the variables {[v.name for v in variables]}, so its grad_fn must "
                "take a keyword argument `variables` and return a pair (gradients, variable gradients)."
            )
        gradients, variable_gradients = grad_fn(*cotangents, variables=variables)
    else:
        gradients, variable_gradients = grad_fn(*cotangents), []
    flat = (
        [gradients]
        if count == 1 and not isinstance(gradients, (list, tuple))
        else nest.flatten(gradients)
    )
    if len(flat) != count:
        raise ValueError(
            f"custom_gradient function expected to return {count} gradients, but returned {len(flat)} instead."
        )
    return [*flat, *variable_gradients]


def _run_recorded(
    f: Callable[..., Any], args: PyTree, tensors: list[Tensor], kwargs: Any
) -> PyTree:
    result, grad_fn, variables = _run_without_tapes(f, args, kwargs)
    # The outputs are new tensors, so that the tape can identify them.
    outputs = nest.map_structure(lambda t: Tensor(convert_to_tensor(t).array), result)
    flat = nest.flatten(outputs)
    inputs = [*tensors, *variables]

    def backward(cotangents: list[Any]) -> list[Any]:
        full = [_make_zeros(o) if c is None else c for o, c in zip(flat, cotangents, strict=True)]
        return _call_grad_fn(grad_fn, full, variables, len(tensors))

    for tape in context.tapes:
        for variable in variables:
            tape.record_read(variable, variable.value())
        if any(tape.watches(t) for t in tensors) or variables:
            tape.record(FunctionNode(inputs, [o for o in flat if is_differentiable(o)], backward))
    return outputs


def _make_zeros(tensor: Tensor) -> Tensor:
    return Tensor(jax.numpy.zeros(tensor.array.shape, tensor.array.dtype))


def _run_traced(f: Callable[..., Any], args: PyTree, tensors: list[Tensor], kwargs: Any) -> PyTree:
    """Run a function as a `jax.custom_vjp` op, inside a traced function that may be differentiated."""
    forward = trace(
        lambda *flat: f(*nest.pack_sequence_as(args, list(flat)), **kwargs)[0], tuple(tensors)
    )
    if forward.writes:
        raise NotImplementedError("A function with a custom gradient may not assign variables.")
    captured = forward.get_captured_tensors()

    def gradient(flat: list[Any], cotangents: list[Any]) -> tuple[list[Any], list[Any]]:
        packed = nest.pack_sequence_as(args, list(flat))
        _, grad_fn, variables = _run_without_tapes(f, packed, kwargs)
        results = _call_grad_fn(grad_fn, cotangents, variables, len(flat))
        by_variable = {id(v): g for v, g in zip(variables, results[len(flat) :], strict=True)}
        gradients = [
            _make_zeros(t) if g is None else to_dense(g)
            for g, t in zip(results[: len(flat)], flat, strict=True)
        ]
        return gradients, [to_dense(by_variable.get(id(c))) for c in forward.captures]

    backward = trace(gradient, (tensors, list(forward.out_specs)))
    extra = [
        (c, t) for c, t in zip(backward.captures, backward.get_captured_tensors(), strict=True)
    ]
    op = Op(
        f"custom_{forward.name}", _make_vjp_call(forward, backward, len(tensors), len(captured))
    )
    outputs = apply(op, (tensors, captured, [t for _, t in extra]))
    return forward.rebuild_result(outputs)


def _make_vjp_call(
    forward: TracedFunction, backward: TracedFunction, count: int, captured: int
) -> Callable[..., Any]:
    structure = backward.structure

    @jax.custom_vjp
    def call(arguments: Arrays, captures: Arrays, extra: Arrays) -> Arrays:
        return forward.run_on_arrays(arguments, captures)

    def run_forward(arguments: Arrays, captures: Arrays, extra: Arrays) -> tuple[Arrays, Any]:
        return forward.run_on_arrays(arguments, captures), (arguments, captures, extra)

    def run_backward(residuals: Any, cotangents: Arrays) -> tuple[Arrays, Arrays, Arrays]:
        arguments, captures, extra = residuals
        values = backward.run_on_arrays([*arguments, *cotangents], extra)
        argument_slots, capture_slots = structure
        gradients = [values[s.index] for s in argument_slots]
        capture_gradients = [
            jax.numpy.zeros(c.shape, c.dtype) if s is None else values[s.index]
            for s, c in zip(capture_slots, captures, strict=True)
        ]
        return gradients, capture_gradients, [jax.numpy.zeros_like(e) for e in extra]

    call.defvjp(run_forward, run_backward)
    return lambda operands, _: call(*operands)


def no_gradient(op_type: str) -> None:
    """Raise an error: ops have no global registry of gradients.

    Args:
      op_type: Name of an op.

    Raises:
      NotImplementedError: Always.
    """
    raise NotImplementedError(
        f"tf.no_gradient({op_type!r}) is not supported; use tf.stop_gradient or tf.custom_gradient."
    )
