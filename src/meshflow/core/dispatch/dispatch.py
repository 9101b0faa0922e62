"""The dispatcher, which turns every call of a public op into a computation.

An op is a pure function of arrays, decorated with `op`. Parameters annotated `TensorLike` are
*operands*. All others are static: their values must be known when the op is called, and they are
part of the key of the compiled op. For every call the dispatcher

1. passes the call to Keras if an operand is a symbolic Keras tensor,
2. converts the operands to tensors by TensorFlow's dtype rules,
3. runs the function: compiled and cached for each tuple of static arguments in eager mode, inlined
   while a function is traced, and on the host if all operands are constants during a trace,
4. records the op on the active gradient tapes.

`operation` defines ops, and `operands` converts operands.
"""

from __future__ import annotations

import functools
import inspect
import logging
import re
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from typing import Any, TypeVar, overload

import jax
import numpy as np

from meshflow.core.dispatch import op_names, symbolic_calls
from meshflow.core.dispatch.accepted_calls import AcceptedCalls
from meshflow.core.dispatch.common_sizes import find_common_sizes, refine_sizes
from meshflow.core.dispatch.deferred_constants import are_all_constant, store_inputs
from meshflow.core.dispatch.operands import (
    INTEGER_ARGUMENTS,
    NumpyRules,
    as_operand_list,
    cast_numpy,
    check_integers,
    check_kinds,
    convert_operand_lists,
    convert_operands,
    flatten_tensors,
    to_static_value,
)
from meshflow.core.dispatch.operation import Op, is_inexact, is_small_constant
from meshflow.core.dispatch.recorded_op import RecordedOp
from meshflow.core.runtime import errors
from meshflow.core.runtime.annotations import get_current_scope
from meshflow.core.runtime.bounds_checks import translate_bounds_failure
from meshflow.core.runtime.context import ActiveTrace, context
from meshflow.core.runtime.forks import ForkState, make_fork_error
from meshflow.core.runtime.memory_errors import translate_memory_error
from meshflow.core.runtime.placement_errors import is_placement_error, make_placement_error
from meshflow.core.runtime.tracebacks import explain_error, hide_frames, is_filtering
from meshflow.core.values.dtypes import bool_, string
from meshflow.core.values.symbolic_sizes import has_symbolic_size, propagate_sizes
from meshflow.core.values.tensor import MAX_HOST_CONSTANT_SIZE, Tensor
from meshflow.environment.types import PyTree

F = TypeVar("F", bound=Callable[..., Any])

_log = logging.getLogger("meshflow")

OPERAND_ANNOTATIONS = ("TensorLike", "TensorLike | None")
OPERAND_LIST_ANNOTATIONS = ("Sequence[TensorLike]", "Sequence[TensorLike] | TensorLike")


def apply(op: Op, operands: Sequence[Any], static: tuple[Any, ...] = ()) -> Any:
    """Run `op` on operands that are tensors, lists of tensors, or None.

    Args:
      op: The op.
      operands: Operands of the op.
      static: Static arguments of the op.

    Returns:
      The outputs of the array function, with tensors instead of arrays.
    """
    if ForkState.forked_late:
        raise make_fork_error()
    if context.graph is not None and context.trace is None:
        return context.graph.call(_make_recorded_form(op), (operands, static), {})
    try:
        if op.strings and context.trace is None and _starts_with_strings(operands):
            # JAX takes long to format its error about strings.
            return _apply_to_strings(op, operands, static)
        return _execute(op, operands, static)
    except jax.errors.UnexpectedTracerError:
        raise errors.InaccessibleTensorError(
            f"{op.name}: an operand was created while a function was traced, and is out of scope here. Return it "
            "from that function, or keep state in a tf.Variable."
        ) from None
    except TypeError:
        if op.strings and any(t.dtype is string for t in flatten_tensors(operands)):
            return _apply_to_strings(op, operands, static)
        raise
    except ValueError as error:
        if is_placement_error(error):
            raise make_placement_error(
                op.name, [("", t.array) for t in flatten_tensors(operands)]
            ) from None
        raise
    except (MemoryError, RuntimeError) as error:
        translated = translate_bounds_failure(error) or translate_memory_error(
            error, f"{op.name} [Op:{op.name}]"
        )
        if translated is None:
            raise
        raise translated from error


@functools.cache
def _make_recorded_form(op: Op) -> Callable[..., Any]:
    """Return a function with the name of an op that applies it, for the graphs of version 1."""

    def call(operands: Sequence[Any], static: tuple[Any, ...]) -> Any:
        return apply(op, operands, static)

    call.__name__ = op.name
    return call


def apply_and_translate(op: Op, operands: Sequence[Any], static: tuple[Any, ...] = ()) -> Any:
    """Run `op` like `apply`; mistakes in its operands raise TensorFlow's exceptions."""
    try:
        return apply(op, operands, static)
    except (TypeError, ValueError, IndexError, ArithmeticError) as error:
        raise translate_error(op.name, error, operands) from None


def _execute(op: Op, operands: Sequence[Any], static: tuple[Any, ...]) -> PyTree:
    # Every op call runs this function, so it and its helpers read the slot `_value`, which is faster
    # than the property `array`.
    trace = context.trace
    recording = context.tapes
    if trace is None:
        values = [o._value if type(o) is Tensor else _get_arrays(o) for o in operands]
        if recording:
            return _execute_with_tapes(op, operands, values, static)
        if context.computes_on_host:
            return _execute_on_host(op, values, static)
        return wrap_outputs(op.get_eager(static)(*values))
    if op.is_foldable and _are_all_constant(operands) and not (recording and _is_watched(operands)):
        outputs = _fold_constants(op, operands, static)
        if outputs is not None:
            return outputs
    values = [_capture(trace, o) for o in operands]
    with nullcontext() if context.label_op is None else context.label_op(op):
        if recording:
            return _execute_with_tapes(op, operands, values, static)
        return _inline(op, operands, values, static)


def _inline(op: Op, operands: Sequence[Any], values: list[Any], static: tuple[Any, ...]) -> PyTree:
    """Run an op as a part of the function that is being traced."""
    outputs = wrap_outputs(op.call_in_trace(values, static))
    if context.trace is not None:
        context.trace.record_call(op, values, outputs)
    if context.has_symbolic_sizes:
        propagate_sizes(op.name, operands, static, outputs)
    if op.is_foldable and are_all_constant(operands):
        store_inputs(outputs, op, operands, static)
    return outputs


def _execute_on_host(op: Op, values: list[Any], static: tuple[Any, ...]) -> PyTree:
    """Run an op on host arrays, with NumPy if the op supports it; the results are host arrays."""
    outputs = None if op.host_function is None else op.host_function(values, static)
    if outputs is None:
        outputs = op.get_eager(static)(*values)
        if type(outputs) is not np.ndarray:
            outputs = jax.tree.map(np.asarray, outputs)
    return wrap_outputs(outputs)


def _starts_with_strings(operands: Sequence[Any]) -> bool:
    first = operands[0]
    if isinstance(first, (list, tuple)) and first:
        first = first[0]
    return type(first) is Tensor and first.array.dtype == object


def _apply_to_strings(op: Op, operands: Sequence[Any], static: tuple[Any, ...]) -> PyTree:
    """Run an op on integer codes instead of strings.

    The codes have the order of the strings; 0 is the empty string.
    """
    if op.strings == "joins":
        joined = np.asarray(operands[0].array + operands[1].array, object)
        return Tensor(joined)
    if op.host_function is not None and op.strings != "compares":
        moved = op.host_function(list(map(_get_arrays, operands)), static)
        if moved is not None:
            return Tensor(moved)
    words: set[bytes] = {b""}
    for tensor in flatten_tensors(operands):
        if tensor.dtype is string:
            words.update(tensor.array.ravel().tolist())
    vocabulary = sorted(words)
    code = {word: i for i, word in enumerate(vocabulary)}

    def encode(operand: PyTree) -> PyTree:
        if isinstance(operand, (list, tuple)):
            return [encode(o) for o in operand]
        if operand is None or operand.dtype is not string:
            return operand
        codes = np.empty(operand.array.shape, np.int32)
        codes.reshape(-1)[:] = [code[w] for w in operand.array.ravel().tolist()]
        return Tensor(codes)

    def decode(codes: Tensor) -> Tensor:
        known = codes.require_value(f"a position in {op.name} of strings (XLA has no strings)")
        strings = np.empty(known.shape, object)
        strings.reshape(-1)[:] = [vocabulary[c] for c in known.reshape(-1)]
        return Tensor(strings)

    outputs = _execute(op, [encode(o) for o in operands], static)
    if op.strings == "compares":
        return outputs
    return jax.tree.map(decode, outputs, is_leaf=_is_tensor)


# While tf.debugging.enable_check_numerics is on, this function is called with every output array.
check_output: Callable[[Any], None] | None = None


def wrap_outputs(outputs: PyTree) -> PyTree:
    """Replace the arrays of a nested structure by tensors."""
    if isinstance(outputs, (np.ndarray, jax.Array)):  # The check for JAX's class is slower.
        if check_output is not None:
            check_output(outputs)
        if context.place_output is not None and context.trace is None:
            outputs = context.place_output(outputs)
        return Tensor(outputs)
    if type(outputs) is tuple or type(outputs) is list:
        return type(outputs)(wrap_outputs(o) for o in outputs)
    if isinstance(outputs, np.generic):
        return wrap_outputs(np.asarray(outputs))
    return jax.tree.map(wrap_outputs, outputs)


def _get_arrays(operand: PyTree) -> PyTree:
    if operand is None:
        return None
    if isinstance(operand, (list, tuple)):
        return [o._value if type(o) is Tensor else _get_arrays(o) for o in operand]
    return operand._value


def _capture(trace: ActiveTrace, operand: PyTree) -> PyTree:
    if operand is None:
        return None
    if isinstance(operand, (list, tuple)):
        return [_capture(trace, o) for o in operand]
    return trace.lookup(operand)


def _is_watched(operands: Sequence[Any]) -> bool:
    """Check whether a tape of this trace level watches an operand."""
    inputs = flatten_tensors(operands)
    return any(tape.is_watching(inputs) for tape in context.tapes)


def _are_all_constant(operands: Iterable[Any]) -> bool:
    """Check whether the values of all operands are on the host, which is the case in shape arithmetic."""
    has_operands = False
    for operand in operands:
        if type(operand) is Tensor:
            value = operand._value
            if type(value) is not np.ndarray or not (
                operand._owner is context.trace or is_small_constant(value)
            ):
                return False
            has_operands = True
        elif operand is not None:
            if not _are_all_constant(operand):
                return False
            has_operands = has_operands or bool(operand)
    return has_operands


def _fold_constants(op: Op, operands: Sequence[Any], static: tuple[Any, ...]) -> PyTree:
    """Run an op on constant operands during a trace; return None if the op must be traced."""
    # `jax.ensure_compile_time_eval` would also affect the lowering of the op that is compiled here,
    # and break it.
    with jax.core.eval_context():
        shapes = jax.eval_shape(op.bind_static(static), *[_get_arrays(o) for o in operands])
        leaves = jax.tree.leaves(shapes)
        if any(has_symbolic_size(leaf.shape) for leaf in leaves):
            return None  # the program is exported for any size, so the result has no fixed shape
        if sum(leaf.size for leaf in leaves) > MAX_HOST_CONSTANT_SIZE:
            return None
        outputs = op.get_eager(static)(*[_get_arrays(o) for o in operands])
        return jax.tree.map(lambda o: Tensor(np.asarray(o)), outputs)


def _execute_with_tapes(
    op: Op, operands: Sequence[Any], values: list[Any], static: tuple[Any, ...]
) -> PyTree:
    """Run an op while gradient tapes are active."""
    inputs = flatten_tensors(operands)
    watching = [t for t in context.tapes if t.is_watching(inputs)] if op.differentiable else []
    in_trace = context.trace is not None
    if not watching:
        if in_trace:
            return _inline(op, operands, values, static)
        return wrap_outputs(op.get_eager(static)(*values))
    form = op.get_eager(static)
    separation = None if in_trace else op.separate_sizes(static)
    if separation is not None:
        op, empty, static = separation
        operands, inputs = [empty, *operands], [empty, *inputs]
    watched = {id(t) for t in inputs if any(tape.watches(t) for tape in watching)}
    requested = tuple(id(t) in watched and is_inexact(t._value) for t in inputs)
    pullback = None
    keeps_residuals = in_trace or (op.heavy and not form.is_interpreted(values))
    if any(requested) and keeps_residuals and len(watching) == 1 and not context.outer_tapes:
        if in_trace:
            outputs, pullback = op.call_with_pullback(values, static, requested)
        else:
            run = op.get_compiled_residual_function(static, requested)
            outputs, pullback = run(*([] if separation is None else [empty._value]), *values)
    else:
        outputs = op.call_in_trace(values, static) if in_trace else form(*values)
    result = wrap_outputs(outputs)
    if context.trace is not None:
        context.trace.record_call(op, values, result)
    if any(requested):
        node = RecordedOp(
            op,
            operands,
            static,
            inputs,
            requested,
            jax.tree.leaves(result, is_leaf=_is_tensor),
            pullback,
            get_current_scope() if in_trace else "",
        )
        for tape in watching:
            tape.record(node)
    return result


def _is_tensor(value: object) -> bool:
    return type(value) is Tensor


@overload
def op(
    function: F,
    *,
    name: str | None = None,
    same: Sequence[str] | None = None,
    kinds: str | None = None,
    differentiable: bool = True,
    heavy: bool = False,
    strings: str | None = None,
    sizes: Sequence[str] = (),
) -> F: ...
@overload
def op(
    *,
    name: str | None = None,
    same: Sequence[str] | None = None,
    kinds: str | None = None,
    differentiable: bool = True,
    heavy: bool = False,
    strings: str | None = None,
    sizes: Sequence[str] = (),
) -> Callable[[F], F]: ...
def op(
    function: F | None = None,
    *,
    name: str | None = None,
    same: Sequence[str] | None = None,
    kinds: str | None = None,
    differentiable: bool = True,
    heavy: bool = False,
    strings: str | None = None,
    sizes: Sequence[str] = (),
) -> F | Callable[[F], F]:
    """Make a public op of a function of arrays.

    Parameters annotated `TensorLike` (or `Sequence[TensorLike]`) reach the function as arrays (or
    lists of arrays), the others as hashable Python values (lists as tuples). A parameter called
    `name` labels the call in the graph of a function.

    Args:
      function: The array function; the op gets its signature and docstring.
      name: The op's name in messages; by default the function's.
      same: Names of the operands that must have the same dtype; by default all.
      kinds: Allowed dtypes of the `same` operands, as a string of the letters "b" (bool), "i"
        (integer), "f" (float) and "c" (complex); by default all dtypes except strings.
      differentiable: Whether the op has a gradient.
      heavy: Whether gradient tapes keep intermediate values instead of computing the op again.
      strings: Support of strings: "moves" if the op only moves elements, "compares" if it compares
        two tensors, "joins" if it joins two tensors.
      sizes: Names of the static parameters that are sizes or shapes of results.

    Returns:
      The public function.

    Raises:
      TypeError: If there are no operands and the annotations are not strings, so operands cannot be
        recognized.

    Example:
      >>> from meshflow.core.dispatch.dispatch import op
      >>> from meshflow.core.values.tensor import TensorLike
      >>> @op
      ... def double(x: TensorLike, name: str | None = None):
      ...     return x + x
      >>> double([1, 2]).numpy()
      array([2, 4], dtype=int32)
    """
    if function is None:
        return functools.partial(
            op,
            name=name,
            same=same,
            kinds=kinds,
            differentiable=differentiable,
            heavy=heavy,
            strings=strings,
            sizes=sizes,
        )
    signature = inspect.signature(function)
    parameters = list(signature.parameters.values())
    names = [p.name for p in parameters]
    lists = {i for i, p in enumerate(parameters) if _get_annotation(p) in OPERAND_LIST_ANNOTATIONS}
    operand_indices = [
        i
        for i, p in enumerate(parameters)
        if i in lists or _get_annotation(p) in OPERAND_ANNOTATIONS
    ]
    annotated = [p for p in parameters if p.annotation is not p.empty]
    evaluated = [p.name for p in annotated if not isinstance(p.annotation, str)]
    if evaluated and not operand_indices:
        raise TypeError(
            f"Op {name or function.__name__} has no operands: Python has evaluated the annotations of "
            f"{', '.join(evaluated)}. Put `from __future__ import annotations` at the top of {function.__module__}, or "
            'write "TensorLike".'
        )
    static_indices = [i for i, n in enumerate(names) if i not in operand_indices and n != "name"]
    same_indices = [k for k, i in enumerate(operand_indices) if same is None or names[i] in same]
    list_indices = {k for k, i in enumerate(operand_indices) if i in lists}
    integer_indices = [k for k, i in enumerate(static_indices) if names[i] in INTEGER_ARGUMENTS]
    defaults = [p.default for p in parameters]
    position = {n: i for i, n in enumerate(names)}
    count = len(parameters)
    public_name = name or function.__name__

    def call(operands: Sequence[Any], static: tuple[Any, ...]) -> Any:
        arguments = [None] * count
        for i, operand in zip(operand_indices, operands, strict=True):
            arguments[i] = operand
        for i, value in zip(static_indices, static, strict=True):
            arguments[i] = value
        return function(*arguments)

    the_op = Op(
        public_name,
        call,
        differentiable=differentiable,
        heavy=heavy,
        strings=strings,
        sizes=[k for k, i in enumerate(static_indices) if names[i] in sizes],
    )

    accepted = AcceptedCalls()

    @functools.wraps(function)
    def public(*args: Any, **kwargs: Any) -> Any:
        call_key = None
        if _is_unobserved():
            call_key, tensors = accepted.describe(args, kwargs)
            found = accepted.find(call_key, tensors)
            if found is not None:
                try:
                    return _execute(the_op, *found)
                except Exception as error:
                    # The checks explain the error.
                    _log.debug("The op is called again: %r", error)
        try:
            if symbolic_calls.types and symbolic_calls.has_symbolic(args, kwargs):
                result = symbolic_calls.call_symbolically(public, args, kwargs)
                if result is not NotImplemented:
                    return result
            if context.graph is not None and context.trace is None:
                return context.graph.call(public, args, kwargs)
            if context.host_recorder is not None and context.host_recorder.should_record(
                args, kwargs
            ):
                return context.host_recorder.call(public, args, kwargs)
            values = [*args, *defaults[len(args) :]]
            for key, value in kwargs.items():
                i = position.get(key, -1)
                if i < len(args):
                    signature.bind(*args, **kwargs)  # The call raises Python's own TypeError.
                values[i] = value
            if len(values) != count or any(v is inspect.Parameter.empty for v in values):
                signature.bind(*args, **kwargs)
            operands = [values[i] for i in operand_indices]
            if kinds == "b":
                operands = [cast_numpy(o, bool_) for o in operands]
            if list_indices:
                for k in list_indices:
                    operands[k] = as_operand_list(
                        public_name, names[operand_indices[k]], operands[k]
                    )
                operands = convert_operand_lists(public_name, operands, same_indices, list_indices)
            else:
                operands = convert_operands(public_name, operands, same_indices)
            if kinds is not None:
                check_kinds(public_name, operands, same_indices, kinds)
            static = tuple([to_static_value(values[i], names[i]) for i in static_indices])
            for k in integer_indices:
                if type(static[k]) is not int:
                    check_integers(static[k], names[static_indices[k]], public_name)
        except Exception as error:
            explained = explain_error(error, public_name)
            if explained is error:
                raise
            raise explained from explained.__cause__
        try:
            result = apply(the_op, operands, static)
            if context.trace is not None and "name" in position:
                context.trace.label_call(result, values[position["name"]])
            if call_key is not None:
                order = [position[k] for k in kwargs]
                if order == sorted(order):  # Otherwise, the tensors have another order.
                    arguments = [values[i] for i in operand_indices]
                    accepted.add(call_key, tensors, arguments, operands, static)
            return result
        except Exception as error:
            is_argument_error = isinstance(
                error, (TypeError, ValueError, IndexError, ArithmeticError, AttributeError)
            )
            if is_argument_error and context.size_probe is not None:
                run = functools.partial(apply, the_op, static=static)
                result = context.size_probe.retry_op(public_name, run, operands, static)
                if result is not None:
                    return result
            if context.unknown_sizes is not None and "broadcast" in str(error):
                refined = _refine_operands(operands)
                if refined is not None:
                    return apply(the_op, refined, static)
            hide_frames(error)
            translated = error
            if is_argument_error:
                translated = translate_error(public_name, error, operands)
            if translated is error:
                raise
            raise translated from (None if is_filtering() else error)

    public.is_dispatchable = True  # type: ignore[attr-defined]
    public.op = the_op  # type: ignore[attr-defined]
    public.static_defaults = tuple(defaults[i] for i in static_indices)  # type: ignore[attr-defined]
    return op_names.register_name(public)


def _is_unobserved() -> bool:
    """Check whether ops run eagerly, and nothing but tapes records or changes their calls."""
    return not (
        context.trace is not None
        or NumpyRules.promote is not None
        or context.computes_on_host
        or context.graph is not None
        or context.host_recorder is not None
        or ForkState.forked_late
    )


def _get_annotation(parameter: inspect.Parameter) -> str:
    annotation = parameter.annotation
    return annotation if isinstance(annotation, str) else ""


# Messages of JAX, for which programs search TensorFlow's messages.
_INCOMPATIBLE_SHAPES = re.compile(
    r"^(?:\w+ got i|I)ncompatible shapes for broadcasting: (?:shapes=\[)?(\(.*\))[.\]]$"
)
_AXIS_OUT_OF_BOUNDS = re.compile(r"axis (-?\d+) is out of bounds for array of dimension (\d+)")


def _format_shapes(match: re.Match[str]) -> str:
    shapes = (shape.rstrip(",") for shape in re.findall(r"\((.*?)\)", match[1]))
    return f"Incompatible shapes: {' vs. '.join(f'[{shape}]' for shape in shapes)}"


def translate_error(op_name: str, error: Exception, operands: Sequence[Any]) -> Exception:
    """Return TensorFlow's exception for a shape or value error of an op.

    The message names the op and its operands.
    """
    if isinstance(error, FloatingPointError):
        return errors.NotFiniteError(f"{errors.NotFiniteError.TEXT} [Op:{op_name}]")
    passed_through = (
        errors.OpError,
        errors.InaccessibleTensorError,
        errors.OperatorNotAllowedInGraphError,
        jax.errors.JAXTypeError,
    )
    if isinstance(error, passed_through):
        return error
    is_of_attribute = isinstance(error, AttributeError)
    if (is_of_attribute or "NoneType" in str(error)) and any(o is None for o in operands):
        return errors.make_none_error()
    if is_of_attribute:
        return error
    shapes = ", ".join(f"{t.dtype.name}{list(t.shape)}" for t in flatten_tensors(operands))
    if isinstance(error, TypeError) and any(t.dtype is string for t in flatten_tensors(operands)):
        # TensorFlow's casts accept strings, but no kernel implements them.
        error_class = errors.UnimplementedError if op_name == "cast" else errors.InvalidValueError
        return error_class(
            f"{op_name} does not work on strings. [Op:{op_name}; operands: {shapes}]"
        )
    reason = _INCOMPATIBLE_SHAPES.sub(_format_shapes, str(error))
    reason = _AXIS_OUT_OF_BOUNDS.sub(r"axis \1 must be in the range [-\2, \2)", reason)
    text = f"{op_name}: {reason} [Op:{op_name}; operands: {shapes or 'none'}]"
    return errors.InvalidValueError(text)


def _refine_operands(operands: Sequence[Any]) -> list[Any] | None:
    """Return operands that broadcast if sizes that depend on values are as assumed; None if they cannot be."""
    changed = find_common_sizes(operands)

    def refine(operand: Any) -> Any:
        if isinstance(operand, (list, tuple)):
            return [refine(o) for o in operand]
        sizes = changed.get(id(operand))
        return operand if sizes is None else apply(refine_sizes, (operand,), sizes)

    return [refine(o) for o in operands] if changed else None
