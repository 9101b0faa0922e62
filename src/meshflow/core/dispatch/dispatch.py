"""The dispatcher: the one place where a public op becomes a computation.

An op is a pure function of arrays, decorated with `op`. Parameters annotated `TensorLike` are
*operands*; all others are static: they must be known when the op is called and become part of
the compiled op's identity. For every call the dispatcher

1. hands the call to Keras when an operand is a symbolic Keras tensor,
2. converts operands to tensors under TensorFlow's dtype rules,
3. runs the function: compiled and cached per static arguments in eager mode, inlined while a
   function is traced, on the host when all operands are known while tracing,
4. tells the active gradient tapes.

What an op is stands in `operation`, how operands are converted in `operands`.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar, overload

import jax
import numpy as np

from meshflow.core.dispatch import op_names, symbolic
from meshflow.core.dispatch.known_values import all_determined, remember
from meshflow.core.dispatch.operands import (
    WHOLE,
    as_operand_list,
    check_kinds,
    check_whole,
    flat_tensors,
    static_value,
    unify,
    unify_lists,
)
from meshflow.core.dispatch.operation import Op, is_inexact
from meshflow.core.dispatch.recorded import RecordedOp
from meshflow.core.runtime import errors
from meshflow.core.runtime.annotations import current_scope
from meshflow.core.runtime.context import context
from meshflow.core.runtime.exhaustion import exhausted
from meshflow.core.runtime.forks import Fork, after_fork
from meshflow.core.runtime.placement_errors import is_placement_error, placement_error
from meshflow.core.values.dtypes import string
from meshflow.core.values.symbolic_sizes import any_symbolic, computed
from meshflow.core.values.tensor import HOST_CONSTANT_SIZE, Tensor

F = TypeVar("F", bound=Callable[..., Any])

OPERAND_ANNOTATIONS = ("TensorLike", "TensorLike | None")
OPERAND_LIST_ANNOTATIONS = ("Sequence[TensorLike]", "Sequence[TensorLike] | TensorLike")


def apply(op: Op, operands: Sequence[Any], static: tuple[Any, ...] = ()) -> Any:
    """Runs `op` on operands that are tensors, lists of tensors, or None.

    Returns:
      What the array function returns, with tensors for arrays.
    """
    if Fork.late:
        raise after_fork()
    try:
        if op.strings and context.trace is None and _begins_with_text(operands):
            # What JAX says of strings takes it long to say.
            return _on_codes(op, operands, static)
        return _apply(op, operands, static)
    except jax.errors.UnexpectedTracerError:
        raise errors.InaccessibleTensorError(
            f"{op.name}: an operand was made while a function was traced and is out of scope here. Return it "
            "from that function, or keep state in a tf.Variable."
        ) from None
    except TypeError:
        if op.strings and any(t.dtype is string for t in flat_tensors(operands)):
            return _on_codes(op, operands, static)
        raise
    except ValueError as error:
        if is_placement_error(error):
            raise placement_error(
                op.name, [("", t._value) for t in flat_tensors(operands)]
            ) from None
        raise
    except (MemoryError, RuntimeError) as error:
        full = exhausted(error, f"{op.name} [Op:{op.name}]")
        if full is None:
            raise
        raise full from error


def _apply(op: Op, operands: Sequence[Any], static: tuple[Any, ...]) -> Any:
    trace = context.trace
    recording = context.tapes
    if trace is None:
        values = [o._value if type(o) is Tensor else _values(o) for o in operands]
        if recording:
            return _apply_recorded(op, operands, values, static)
        if context.on_host:
            return _apply_on_host(op, values, static)
        return wrap(op.compiled(static)(*values))
    if op.constant and _all_known(operands) and not (recording and _watched(operands)):
        outputs = _on_host(op, operands, static)
        if outputs is not None:
            return outputs
    values = [_captured(trace, o) for o in operands]
    if recording:
        return _apply_recorded(op, operands, values, static)
    return _inlined(op, operands, values, static)


def _inlined(op: Op, operands: Sequence[Any], values: list[Any], static: tuple[Any, ...]) -> Any:
    """Runs an op as a part of the function that is being traced."""
    outputs = wrap(op.call(values, static))
    if context.exporting:
        computed(op.name, operands, static, outputs)
    if op.constant and all_determined(operands):
        remember(outputs, op, operands, static)
    return outputs


def _apply_on_host(op: Op, values: list[Any], static: tuple[Any, ...]) -> Any:
    """Runs an op on host arrays, by NumPy where it can; its results are host arrays."""
    outputs = None if op.host is None else op.host(values, static)
    if outputs is None:
        outputs = jax.tree.map(np.asarray, op.compiled(static)(*values))
    return wrap(outputs)


def _begins_with_text(operands: Sequence[Any]) -> bool:
    first = operands[0]
    if isinstance(first, (list, tuple)) and first:
        first = first[0]
    return type(first) is Tensor and first._value.dtype == object


def _on_codes(op: Op, operands: Sequence[Any], static: tuple[Any, ...]) -> Any:
    """Runs an op on numbers that stand for strings, in their order; 0 is the empty one."""
    if op.strings == "joins":
        joined = np.asarray(operands[0]._value + operands[1]._value, object)
        return Tensor(joined)
    words: set[bytes] = {b""}
    for tensor in flat_tensors(operands):
        if tensor.dtype is string:
            words.update(tensor._value.ravel().tolist())
    vocabulary = sorted(words)
    code = {word: i for i, word in enumerate(vocabulary)}

    def encode(operand: Any) -> Any:
        if isinstance(operand, (list, tuple)):
            return [encode(o) for o in operand]
        if operand is None or operand.dtype is not string:
            return operand
        codes = np.empty(operand._value.shape, np.int32)
        codes.reshape(-1)[:] = [code[w] for w in operand._value.ravel().tolist()]
        return Tensor(codes)

    def decode(codes: Tensor) -> Tensor:
        known = codes._concrete(f"a position in {op.name} of strings (XLA has no strings)")
        found = np.empty(known.shape, object)
        found.reshape(-1)[:] = [vocabulary[c] for c in known.reshape(-1)]
        return Tensor(found)

    outputs = _apply(op, [encode(o) for o in operands], static)
    if op.strings == "compares":
        return outputs
    return jax.tree.map(decode, outputs, is_leaf=_is_tensor)


# Called with every array that an op gives, while tf.debugging.enable_check_numerics is on.
check_output: Callable[[Any], None] | None = None


def wrap(outputs: Any) -> Any:
    """Tensors around the arrays of a nested structure."""
    if isinstance(outputs, (jax.Array, np.ndarray)):
        if check_output is not None:
            check_output(outputs)
        if context.placing is not None and context.trace is None:
            outputs = context.placing(outputs)
        return Tensor(outputs)
    if type(outputs) is tuple or type(outputs) is list:
        return type(outputs)(wrap(o) for o in outputs)
    if isinstance(outputs, np.generic):
        return wrap(np.asarray(outputs))
    return jax.tree.map(wrap, outputs)


def _values(operand: Any) -> Any:
    if operand is None:
        return None
    if isinstance(operand, (list, tuple)):
        return [_values(o) for o in operand]
    return operand._value


def _captured(trace: Any, operand: Any) -> Any:
    if operand is None:
        return None
    if isinstance(operand, (list, tuple)):
        return [_captured(trace, o) for o in operand]
    return trace.value_of(operand)


def _watched(operands: Sequence[Any]) -> bool:
    """Whether a tape of this level watches an operand."""
    inputs = flat_tensors(operands)
    return any(tape.is_watching(inputs) for tape in context.tapes)


def _all_known(operands: Iterable[Any]) -> bool:
    """Whether the values of all operands are on the host: true for shape arithmetic."""
    known = False
    for operand in operands:
        if type(operand) is Tensor:
            value = operand._value
            if type(value) is not np.ndarray or (
                operand._owner is not context.trace and is_inexact(value)
            ):
                return False
            known = True
        elif operand is not None:
            if not _all_known(operand):
                return False
            known = known or bool(operand)
    return known


def _on_host(op: Op, operands: Sequence[Any], static: tuple[Any, ...]) -> Any:
    """Runs an op on known operands while tracing; None when the result is better left traced."""
    # `jax.ensure_compile_time_eval` would reach into the lowering of what is compiled here, and break it.
    with jax.core.eval_context():
        shapes = jax.eval_shape(op.bound(static), *[_values(o) for o in operands])
        leaves = jax.tree.leaves(shapes)
        if any(any_symbolic(leaf.shape) for leaf in leaves):
            return None  # a constant of any size, as in an exported program
        if sum(leaf.size for leaf in leaves) > HOST_CONSTANT_SIZE:
            return None
        outputs = op.compiled(static)(*[_values(o) for o in operands])
        return jax.tree.map(lambda o: Tensor(np.asarray(o)), outputs)


def _apply_recorded(
    op: Op, operands: Sequence[Any], values: list[Any], static: tuple[Any, ...]
) -> Any:
    """Runs an op while gradient tapes look on."""
    inputs = flat_tensors(operands)
    watching = [t for t in context.tapes if t.is_watching(inputs)] if op.differentiable else []
    in_trace = context.trace is not None
    if not watching:
        if in_trace:
            return _inlined(op, operands, values, static)
        return wrap(op.compiled(static)(*values))
    watched = {id(t) for t in inputs if any(tape.watches(t) for tape in watching)}
    wanted = tuple(id(t) in watched and is_inexact(t._value) for t in inputs)
    pullback = None
    if any(wanted) and (in_trace or op.heavy) and len(watching) == 1 and not context.outer_tapes:
        run = op.residual(static, wanted) if in_trace else op.compiled_residual(static, wanted)
        outputs, pullback = run(*values)
    else:
        outputs = op.call(values, static) if in_trace else op.compiled(static)(*values)
    result = wrap(outputs)
    if any(wanted):
        node = RecordedOp(
            op,
            operands,
            static,
            inputs,
            wanted,
            jax.tree.leaves(result, is_leaf=_is_tensor),
            pullback,
            current_scope() if in_trace else "",
        )
        for tape in watching:
            tape.record(node)
    return result


def _is_tensor(value: Any) -> bool:
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
) -> Any:
    """Makes a public op of a function of arrays.

    Parameters annotated `TensorLike` (or `Sequence[TensorLike]`) arrive in the function as
    arrays (or lists of arrays), the others as hashable Python values (lists as tuples). A
    parameter called `name` is accepted and ignored.

    Args:
      function: the array function; its signature and docstring become the op's.
      name: the op's name in messages; default the function's.
      same: names of the operands that must share a dtype; default all of them.
      kinds: allowed kinds of the `same` operands, letters of "b" bool, "i" integer, "f" float,
        "c" complex; default anything but strings.
      differentiable: whether the op has a gradient.
      heavy: keep intermediate values for the gradient instead of recomputing the op.
      strings: what it can do to strings as well: "moves" when it only moves elements around,
        "compares" when it compares two, "joins" when it joins two.

    Returns:
      The public function.

    Raises:
      TypeError: there are no operands, and annotations are not text, which they are told by.

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
        )
    signature = inspect.signature(function)
    parameters = list(signature.parameters.values())
    names = [p.name for p in parameters]
    lists = {i for i, p in enumerate(parameters) if _annotation(p) in OPERAND_LIST_ANNOTATIONS}
    operand_at = [
        i for i, p in enumerate(parameters) if i in lists or _annotation(p) in OPERAND_ANNOTATIONS
    ]
    annotated = [p for p in parameters if p.annotation is not p.empty]
    evaluated = [p.name for p in annotated if not isinstance(p.annotation, str)]
    if evaluated and not operand_at:
        raise TypeError(
            f"Op {name or function.__name__} has no operands: Python has evaluated the annotations of "
            f"{', '.join(evaluated)}. Put `from __future__ import annotations` at the top of {function.__module__}, or "
            'write "TensorLike".'
        )
    static_at = [i for i, n in enumerate(names) if i not in operand_at and n != "name"]
    same_at = [k for k, i in enumerate(operand_at) if same is None or names[i] in same]
    list_at = {k for k, i in enumerate(operand_at) if i in lists}
    whole_at = [k for k, i in enumerate(static_at) if names[i] in WHOLE]
    defaults = [p.default for p in parameters]
    position = {n: i for i, n in enumerate(names)}
    count = len(parameters)
    public_name = name or function.__name__

    def call(operands: Sequence[Any], static: tuple[Any, ...]) -> Any:
        arguments = [None] * count
        for i, operand in zip(operand_at, operands, strict=True):
            arguments[i] = operand
        for i, value in zip(static_at, static, strict=True):
            arguments[i] = value
        return function(*arguments)

    the_op = Op(public_name, call, differentiable=differentiable, heavy=heavy, strings=strings)

    @functools.wraps(function)
    def public(*args: Any, **kwargs: Any) -> Any:
        if symbolic.types and symbolic.has_symbolic(args, kwargs):
            return symbolic.handler(public, args, kwargs)  # type: ignore[misc]
        if context.recording is not None and context.recording.takes(args, kwargs):
            return context.recording.call(public, args, kwargs)
        values = [*args, *defaults[len(args) :]]
        for key, value in kwargs.items():
            i = position.get(key, -1)
            if i < len(args):
                signature.bind(*args, **kwargs)  # raises Python's own TypeError
            values[i] = value
        if (
            len(values) != count
            or inspect.Parameter.empty in values[:0]
            or any(v is inspect.Parameter.empty for v in values)
        ):
            signature.bind(*args, **kwargs)
        operands = [values[i] for i in operand_at]
        if list_at:
            for k in list_at:
                operands[k] = as_operand_list(public_name, names[operand_at[k]], operands[k])
            operands = unify_lists(public_name, operands, same_at, list_at)
        else:
            operands = unify(public_name, operands, same_at)
        if kinds is not None:
            check_kinds(public_name, operands, same_at, kinds)
        static = tuple([static_value(values[i], names[i]) for i in static_at])
        for k in whole_at:
            if type(static[k]) is not int:
                check_whole(static[k], names[static_at[k]], public_name)
        try:
            return apply(the_op, operands, static)
        except (TypeError, ValueError, IndexError, ArithmeticError) as error:
            raise explain(public_name, error, operands) from error

    public.op = the_op  # type: ignore[attr-defined]
    public.static_defaults = tuple(defaults[i] for i in static_at)  # type: ignore[attr-defined]
    return op_names.nameable(public)


def _annotation(parameter: inspect.Parameter) -> str:
    annotation = parameter.annotation
    return annotation if isinstance(annotation, str) else ""


def explain(op_name: str, error: Exception, operands: Sequence[Any]) -> Exception:
    """TensorFlow's exception for a shape or value problem found below, naming op and operands."""
    if isinstance(error, FloatingPointError):
        return errors.NotFiniteError(f"{errors.NotFiniteError.TEXT} [Op:{op_name}]")
    own = (errors.OpError, errors.InaccessibleTensorError, errors.OperatorNotAllowedInGraphError)
    if isinstance(error, (*own, jax.errors.JAXTypeError)):
        return error
    shapes = ", ".join(f"{t.dtype.name}{list(t.shape)}" for t in flat_tensors(operands))
    if isinstance(error, TypeError) and any(t.dtype is string for t in flat_tensors(operands)):
        return errors.UnimplementedError(
            f"{op_name} does not work on strings. [Op:{op_name}; operands: {shapes}]"
        )
    text = f"{op_name}: {error} [Op:{op_name}; operands: {shapes or 'none'}]"
    if isinstance(error, (ValueError, TypeError, IndexError, ZeroDivisionError)):
        return errors.InvalidValueError(text)
    return type(error)(text)
