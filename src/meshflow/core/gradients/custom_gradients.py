"""`custom_gradient` replaces the gradient of a function."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ParamSpec, TypeVar, overload

import jax
import numpy as np

from meshflow.core.dispatch import symbolic_calls
from meshflow.core.dispatch.composite import IndexedSlices
from meshflow.core.dispatch.dispatch import apply
from meshflow.core.dispatch.operation import Op
from meshflow.core.dispatch.recorded_op import is_differentiable
from meshflow.core.gradients.linearity import is_linear
from meshflow.core.gradients.tape import GradientTape, suspend_tapes
from meshflow.core.gradients.tape_nodes import FunctionNode, to_dense
from meshflow.core.runtime.context import context
from meshflow.core.tracing.trace import TracedFunction, trace
from meshflow.core.values import nest
from meshflow.core.values.composite import (
    CompositeTensor,
    list_components,
    replace_components,
    split_value,
)
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.tensor import Tensor
from meshflow.core.variables.variable import Variable
from meshflow.environment.types import PyTree

Arrays = list[jax.Array]
Args = tuple[Any, ...]
Kwargs = dict[str, Any]
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
        a pair: gradients of the arguments, and a list of gradients of the variables. Gradients are
        in the order of f's parameters. Those of arguments that were passed by name, and are numbers
        or have a default, can be left out.

    Returns:
      A function that returns y.

    Example:
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
        if symbolic_calls.types and symbolic_calls.has_symbolic(args, kwargs):
            handler: Any = symbolic_calls.handler
            result = handler(self, args, kwargs)
            if result is not NotImplemented:
                return result
        if context.graph is not None and context.trace is None:
            return context.graph.call(self, args, kwargs)
        composites = _CompositeFunction(self._f, args)
        call = _CustomGradientCall(composites, composites.split(args), kwargs)
        return composites.join(self._run(call))

    @staticmethod
    def _run(call: _CustomGradientCall) -> PyTree:
        is_traced = not context.tapes or context.batch_gradients is not None
        if context.trace is not None and is_traced:
            return _run_traced(call)
        return _run_recorded(call)


class _CompositeFunction:
    """A function with a custom gradient, as one of the components of composite tensors that have gradients.

    Args:
      f: The function.
      args: Its positional arguments.
    """

    def __init__(self, f: Callable[..., Any], args: Args) -> None:
        self._f, self._args = f, args
        self._result: PyTree = None
        functools.update_wrapper(self, f)

    def split(self, value: PyTree) -> PyTree:
        """Replace composite tensors by lists of their components with gradients."""
        return nest.map_structure(lambda x: list_components(x) if _is_composite(x) else x, value)

    def _join_arguments(self, args: Args) -> Args:
        values = nest.flatten_up_to(self._args, args)
        pairs = zip(nest.flatten(self._args), values, strict=True)
        joined = [replace_components(x, v) if _is_composite(x) else v for x, v in pairs]
        arguments: Args = nest.pack_sequence_as(self._args, joined)
        return arguments

    def __call__(self, *args: Any, **kwargs: Any) -> tuple[PyTree, GradFn]:
        """Return the result with lists of parts in place of composite tensors, and the gradient function."""
        result, grad_fn = self._f(*self._join_arguments(args), **kwargs)
        self._result = nest.map_structure(_get_builder, result)
        leaves = nest.flatten(result)
        if not any(map(_is_composite, (*leaves, *nest.flatten(self._args)))):
            return result, grad_fn

        @functools.wraps(grad_fn)
        def differentiate(*cotangents: PyTree, **options: PyTree) -> PyTree:
            supply = iter(cotangents)
            arguments = [_take_cotangent(leaf, supply) for leaf in leaves]
            gradients = grad_fn(*arguments, **options)
            if "variables" in options:
                return self._flatten_gradients(gradients[0]), gradients[1]
            return self._flatten_gradients(gradients)

        parts = nest.map_structure(lambda x: split_value(x) if _is_composite(x) else x, result)
        return parts, differentiate

    def _flatten_gradients(self, gradients: PyTree) -> list[Any]:
        flat: list[Any] = []
        for gradient in nest.flatten(gradients):
            is_rows = isinstance(gradient, IndexedSlices) or not _is_composite(gradient)
            flat += [gradient] if is_rows else list_components(gradient)
        return flat

    def join(self, parts: PyTree) -> PyTree:
        """Return the result, given the parts of its composite tensors."""
        builders = nest.flatten(self._result)
        if not any(builders):
            return parts
        values = nest.flatten_up_to(self._result, parts)
        joined = [v if make is None else make(v) for make, v in zip(builders, values, strict=True)]
        return nest.pack_sequence_as(self._result, joined)


def _is_composite(value: object) -> bool:
    return isinstance(value, CompositeTensor)


def _get_builder(leaf: PyTree) -> Callable[[Sequence[Any]], Any] | None:
    """Return a function that makes a composite result of its parts; None for other leaves."""
    return leaf.join_parts if isinstance(leaf, CompositeTensor) else None


def _take_cotangent(leaf: PyTree, cotangents: Iterator[Any]) -> PyTree:
    if not isinstance(leaf, CompositeTensor):
        return next(cotangents)
    by_part = [(part, next(cotangents)) for part in split_value(leaf)]
    components = list_components(leaf)
    found = [next(c for part, c in by_part if part is component) for component in components]
    return replace_components(leaf, found)


# Whether `grad_fn` must return a gradient for an argument: always for positional ones. It may leave
# out all arguments of one of the other levels and of those after it.
_POSITIONAL, _NAMED_TENSOR, _NAMED_NUMBER, _DEFAULT_NUMBER, _OTHER = range(5)


class _CustomGradientCall:
    """A call of a function with a custom gradient.

    Attributes:
      tensors: The positional arguments and the tensors that were passed by name, in the order of
        the parameters.
    """

    def __init__(self, f: Callable[..., Any], args: Args, kwargs: Kwargs) -> None:
        self._f, self._args, self._kwargs = f, args, kwargs
        self.tensors = [convert_to_tensor(a) for a in nest.flatten(args)]
        self._num_positional = len(self.tensors)
        self._levels = [_POSITIONAL] * self._num_positional
        if kwargs:
            self._add_named_arguments()

    def _add_named_arguments(self) -> None:
        try:
            parameters = dict(inspect.signature(self._f).parameters)
        except (TypeError, ValueError):  # A builtin function.
            parameters = {}
        defaults = {n: p.default for n, p in list(parameters.items())[len(self._args) :]}
        for name in self._kwargs:
            defaults.setdefault(name)
        self._kwargs = {n: self._kwargs[n] for n in defaults if n in self._kwargs}
        for name, default in defaults.items():
            if name in self._kwargs:
                leaves = nest.flatten(self._kwargs[name])
                self.tensors += [convert_to_tensor(v) for v in leaves if _has_gradient(v)]
                self._levels += [
                    _NAMED_TENSOR if _has_gradient(v) else _get_level(v) for v in leaves
                ]
            elif default is not inspect.Parameter.empty:
                level = _OTHER if _get_level(default) == _OTHER else _DEFAULT_NUMBER
                self._levels.append(level)

    def run(self, tensors: Sequence[Any]) -> tuple[PyTree, GradFn]:
        """Call the function with replaced tensors."""
        args = nest.pack_sequence_as(self._args, list(tensors[: self._num_positional]))
        named = iter(tensors[self._num_positional :])
        replace = lambda leaf: next(named) if _has_gradient(leaf) else leaf
        kwargs = {n: nest.map_structure(replace, v) for n, v in self._kwargs.items()}
        result: tuple[PyTree, GradFn] = self._f(*args, **kwargs)
        return result

    def match_gradients(self, gradients: PyTree) -> list[Any]:
        """Return one gradient or None for each of `tensors`.

        Args:
          gradients: The result of `grad_fn` for the arguments.

        Raises:
          ValueError: If the number of gradients does not match the arguments.
        """
        is_structure = isinstance(gradients, (list, tuple, dict))
        flat = nest.flatten(gradients) if is_structure else [gradients]
        for max_level in range(_POSITIONAL, _OTHER + 1):
            if sum(level <= max_level for level in self._levels) == len(flat):
                remaining = iter(flat)
                matched = [(v, next(remaining) if v <= max_level else None) for v in self._levels]
                return [g for level, g in matched if level <= _NAMED_TENSOR]
        raise ValueError(
            f"custom_gradient function expected to return {len(self.tensors)} gradients, but returned {len(flat)} instead."
        )


def _has_gradient(leaf: object) -> bool:
    """Check whether an argument passed by name may have a gradient."""
    if isinstance(leaf, Variable):
        return True
    return isinstance(leaf, Tensor) and is_differentiable(leaf)


def _get_level(leaf: object) -> int:
    is_number = isinstance(leaf, (int, float, complex, np.number, np.ndarray, Tensor))
    return _NAMED_NUMBER if is_number and not isinstance(leaf, bool) else _OTHER


def _run_without_tapes(
    call: _CustomGradientCall, tensors: Sequence[Any]
) -> tuple[PyTree, GradFn, list[Variable]]:
    """Run a call hidden from the tapes; return its result, gradient function and trainable variables."""
    with suspend_tapes():
        with GradientTape() as tape:
            result, grad_fn = call.run(tensors)
        return result, grad_fn, list(tape.watched_variables())


def _call_grad_fn(
    call: _CustomGradientCall, grad_fn: GradFn, cotangents: Sequence[Any], variables: list[Variable]
) -> list[Any]:
    if variables:
        parameters = inspect.signature(grad_fn).parameters
        if "variables" not in parameters and not any(
            p.kind is p.VAR_KEYWORD for p in parameters.values()
        ):
            raise TypeError(
                f"@tf.custom_gradient: the function uses the variables {[v.name for v in variables]}, so its "
                "grad_fn must accept keyword argument 'variables' and return a pair (gradients, variable gradients)."
            )
        gradients, variable_gradients = grad_fn(*cotangents, variables=variables)
    else:
        gradients, variable_gradients = grad_fn(*cotangents), []
    return [*call.match_gradients(gradients), *variable_gradients]


def _run_recorded(call: _CustomGradientCall) -> PyTree:
    tensors = call.tensors
    result, grad_fn, variables = _run_without_tapes(call, tensors)
    # The outputs are new tensors, so that the tape can identify them.
    outputs = nest.map_structure(lambda t: Tensor(convert_to_tensor(t).array), result)
    flat = nest.flatten(outputs)
    inputs = [*tensors, *variables]

    def backward(cotangents: list[Any]) -> list[Any]:
        supply = iter(cotangents)
        found = [next(supply) if is_differentiable(o) else None for o in flat]
        full = [_make_zeros(o) if c is None else c for o, c in zip(flat, found, strict=True)]
        return _call_grad_fn(call, grad_fn, full, variables)

    for tape in context.tapes:
        for variable in variables:
            tape.record_read(variable, variable.value())
        if any(tape.watches(t) for t in tensors) or variables:
            tape.record(FunctionNode(inputs, [o for o in flat if is_differentiable(o)], backward))
    return outputs


def _make_zeros(tensor: Tensor) -> Tensor:
    return Tensor(jax.numpy.zeros(tensor.array.shape, tensor.array.dtype))


def _run_traced(call: _CustomGradientCall) -> PyTree:
    """Run a function as a `jax.custom_vjp` op, inside a traced function that may be differentiated."""
    tensors = call.tensors
    forward = trace(lambda *flat: call.run(flat)[0], tuple(tensors))
    if forward.writes:
        raise NotImplementedError("A function with a custom gradient may not assign variables.")
    captured = forward.get_captured_tensors()

    def gradient(flat: list[Any], cotangents: list[Any]) -> tuple[list[Any], list[Any]]:
        _, grad_fn, variables = _run_without_tapes(call, flat)
        results = _call_grad_fn(call, grad_fn, cotangents, variables)
        by_variable = {id(v): g for v, g in zip(variables, results[len(flat) :], strict=True)}
        gradients = [
            _make_zeros(t) if g is None else to_dense(g)
            for g, t in zip(results[: len(flat)], flat, strict=True)
        ]
        return gradients, [to_dense(by_variable.get(id(c))) for c in forward.captures]

    backward = trace(gradient, (tensors, list(forward.out_specs)))
    if context.batch_gradients is not None:
        context.batch_gradients.add_custom_gradient(
            is_linear(
                backward.closed_jaxpr.jaxpr,
                range(len(tensors), len(tensors) + len(forward.out_specs)),
            )
        )
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
    structure, out_types = backward.structure, forward.closed_jaxpr.out_avals

    @jax.custom_vjp
    def call(arguments: Arrays, captures: Arrays, extra: Arrays) -> Arrays:
        return forward.run_on_arrays(arguments, captures)

    def run_forward(arguments: Arrays, captures: Arrays, extra: Arrays) -> tuple[Arrays, Any]:
        # An outer gradient of this rule must use the custom gradient, too.
        return call(arguments, captures, extra), (arguments, captures, extra)

    def run_backward(residuals: Any, cotangents: Arrays) -> tuple[Arrays, Arrays, Arrays]:
        arguments, captures, extra = residuals
        # JAX passes no cotangents of integers, such as row splits.
        cotangents = [
            jax.numpy.zeros(a.shape, a.dtype) if c.dtype == jax.dtypes.float0 else c
            for c, a in zip(cotangents, out_types, strict=True)
        ]
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
