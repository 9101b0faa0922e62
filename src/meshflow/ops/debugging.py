"""`tf.debugging`: assertions that run eagerly and in compiled functions.

A compiled function checks its assertions in host callbacks, which raise the error while it runs.
Saved functions check those outside of branches and loops; other exported functions contain no assertions.
"""

from __future__ import annotations

import dataclasses
import functools
import sys
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NoReturn

import jax
import numpy as np

from meshflow.core.autograph.runtime.logical_operators import register_assertion
from meshflow.core.dispatch import dispatch
from meshflow.core.dispatch.operation import clear_op_caches
from meshflow.core.dispatch.symbolic_calls import dispatch_composites, record_in_graph
from meshflow.core.runtime.bounds_checks import BoundsChecking
from meshflow.core.runtime.context import context
from meshflow.core.runtime.errors import InvalidArgumentError, InvalidValueError, NotFiniteError
from meshflow.core.runtime.tracebacks import is_filtering
from meshflow.core.tracing import host_callbacks, pass_pipeline
from meshflow.core.values.composite import CompositeTensor
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.dtypes import DType, DTypeLike, as_dtype, float32
from meshflow.core.values.shapes import ShapeLike, TensorShape
from meshflow.core.values.tensor import Tensor, TensorLike, is_symbolic_tensor, is_tensor
from meshflow.environment.types import Array
from meshflow.ops import array, math
from meshflow.ops.array.inspection import get_static_value, no_op
from meshflow.ops.casting import cast
from meshflow.ops.printing import format_value
from meshflow.ops.signatures import ComparisonCheck, SignCheck

__all__ = [
    "Assert",
    "assert_all_finite",
    "assert_equal",
    "assert_greater",
    "assert_greater_equal",
    "assert_integer",
    "assert_less",
    "assert_less_equal",
    "assert_near",
    "assert_negative",
    "assert_non_negative",
    "assert_non_positive",
    "assert_none_equal",
    "assert_positive",
    "assert_proper_iterable",
    "assert_rank",
    "assert_rank_at_least",
    "assert_rank_in",
    "assert_same_float_dtype",
    "assert_scalar",
    "assert_shapes",
    "assert_type",
    "check_numerics",
    "disable_bounds_check",
    "disable_check_numerics",
    "disable_traceback_filtering",
    "enable_bounds_check",
    "enable_check_numerics",
    "enable_traceback_filtering",
    "get_log_device_placement",
    "is_non_decreasing",
    "is_numeric_tensor",
    "is_strictly_increasing",
    "is_traceback_filtering_enabled",
    "reset_bounds_check",
    "set_log_device_placement",
]

is_strictly_increasing, is_non_decreasing = math.is_strictly_increasing, math.is_non_decreasing

# A message, or a function that formats it for the first array of the data.
_Message = str | Callable[..., str] | None


def _raise_failure(message: _Message, data: Sequence[Any], summarize: int) -> NoReturn:
    message = message(*data[:1]) if callable(message) else message
    text = str(message or "")
    lines = [format_value(d, summarize) if hasattr(d, "shape") else str(d) for d in data]
    # A message that ends with a space introduces the data.
    separator = "\n" if text and lines and not text.endswith(" ") else ""
    raise InvalidArgumentError(text + separator + "\n".join(lines) or "assertion failed")


@record_in_graph
def Assert(
    condition: TensorLike,
    data: Iterable[TensorLike],
    summarize: int | None = None,
    name: str | None = None,
) -> None:
    """Raise an error unless a condition holds; in a compiled function, when it runs.

    Args:
      condition: A boolean.
      data: Tensors and strings for the error message.
      summarize: Maximum number of elements of each tensor in the message; 3 by default.
      name: Ignored.

    Raises:
      InvalidArgumentError: If the condition is false.

    Example:
      >>> tf.debugging.Assert(tf.reduce_all(tf.constant([1, 2]) > 0), ["all are positive"])
      >>> tf.debugging.Assert(False, ["no"])  # doctest: +IGNORE_EXCEPTION_DETAIL
      Traceback (most recent call last):
        ...
      InvalidArgumentError: no
    """
    holds = convert_to_tensor(condition)
    is_known = context.trace is None
    message = f"Expected '{condition!s}' to be true. Summarized data: " if is_known else None
    _assert_condition(holds, message, list(data), summarize or 3)


register_assertion(Assert)


def _to_array(value: TensorLike) -> TensorLike:
    if not is_tensor(value):
        return value
    array = convert_to_tensor(value).array
    return value if isinstance(array, jax.core.Tracer) else np.asarray(array)


def _assert_condition(
    holds: Tensor, message: _Message, data: Sequence[TensorLike], summarize: int = 3
) -> None:
    if context.trace is None or isinstance(holds.array, np.ndarray):
        is_invented = context.value_probe is not None and context.value_probe.invents_sizes
        if not is_invented and not bool(np.all(np.asarray(holds.array))):
            _raise_failure(message, [_to_array(d) for d in data], summarize)
        return
    trace = context.trace
    values = [trace.lookup(convert_to_tensor(d)) if is_tensor(d) else d for d in data]
    assert_arrays(trace.lookup(holds), message, values, summarize)


def assert_arrays(holds: Array, message: _Message, data: Sequence[Any], summarize: int = 3) -> None:
    """Raise an error unless all elements of an array hold; if JAX traces it, when the program runs.

    Args:
      holds: Booleans.
      message: Message of the error, or a function that returns it for the first value of `data`.
      data: Arrays and strings for the message.
      summarize: Maximum number of elements of each array in the message.

    Raises:
      InvalidArgumentError: If an element is false.
    """
    if context.exporting:
        values = [Tensor(d) if isinstance(d, (np.ndarray, jax.core.Tracer)) else d for d in data]
        text = None if message is None else str(message)
        record_assertion(Tensor(holds), text, *values, summarize=summarize)
        return
    is_traced = [isinstance(d, jax.core.Tracer) for d in data]

    def verify(holds: np.ndarray, *arrays: np.ndarray) -> None:
        if not np.all(holds):
            remaining = iter(arrays)
            shown = [next(remaining) if t else d for t, d in zip(is_traced, data, strict=True)]
            _raise_failure(message, shown, summarize)

    arrays = [d for t, d in zip(is_traced, data, strict=True) if t]
    if not isinstance(holds, jax.core.Tracer):
        holds = np.asarray(holds)
        if not arrays or np.all(holds):
            verify(holds)
            return
        # Only the program knows the values for the message.
    jax.debug.callback(host_callbacks.make_check_callback(verify), holds, *arrays)


def record_assertion(holds: Tensor, message: str | None, *data: Any, summarize: int = 3) -> bool:
    """Record an assertion of a function that is exported; return False and count it as omitted if that is impossible.

    Args:
      holds: Booleans.
      message: Message of the error, or None.
      *data: Tensors and strings for the message.
      summarize: Maximum number of elements of each tensor in the message.
    """
    recorder, scope = context.host_recorder, context.trace
    if recorder is None or scope is None or scope.parent is not None:
        context.num_omitted_assertions += 1
        return False
    recorder.call(check_assertion, (math.reduce_all(holds), list(data), message, summarize), {})
    return True


def check_assertion(
    holds: Tensor, data: Sequence[Any], message: str | None, summarize: int
) -> Tensor:
    """Raise an InvalidArgumentError unless a condition holds; return the condition.

    Args:
      holds: A Boolean scalar.
      data: Tensors and strings for the message.
      message: Message of the error, or None.
      summarize: Maximum number of elements of each tensor in the message.
    """
    arrays = [d.array if isinstance(d, Tensor) else d for d in data]
    assert_arrays(holds.array, message, arrays, summarize)
    return holds


def _describe_differences(
    sign: str, holds: Tensor, x: Tensor, y: Tensor, count: int
) -> Iterator[str]:
    """Yield the lines of an error message with the first values that do not satisfy a relation."""
    is_satisfied, *values = (np.asarray(tensor.array) for tensor in (holds, x, y))
    yield f"Condition x {sign} y did not hold."
    if values[0].shape == values[1].shape != ():
        indices = np.argwhere(~is_satisfied)[:count]
        yield f"Indices of first {len(indices)} different values:\n{indices}"
        for name, array in zip("xy", values, strict=True):
            yield f"Corresponding {name} values:\n{array[tuple(indices.T)]}"
    for name, array in zip("xy", values, strict=True):
        first = array.ravel()[:count]
        yield f"First {first.size} elements of {name}:\n{first}"


def _make_comparison_check(
    name: str, relation: Callable[[Tensor, Tensor], Tensor], sign: str, good: str, bad: str
) -> ComparisonCheck:
    """Create a check of two tensors; `good` and `bad` are arguments for its doctest."""

    def check(
        x: TensorLike,
        y: TensorLike,
        message: str | None = None,
        summarize: int | None = None,
        name: str | None = None,
    ) -> None:
        x = convert_to_tensor(x, dtype_hint=getattr(y, "dtype", None))
        y = convert_to_tensor(y, dtype_hint=x.dtype)
        holds = relation(x, y)
        count = 3 if summarize is None else summarize if summarize >= 0 else sys.maxsize
        if context.trace is None:
            lines = [message] if message else []
            describe = lambda: "\n".join([*lines, *_describe_differences(sign, holds, x, y, count)])
            _assert_condition(math.reduce_all(holds), describe, [])
            return
        text = f"{message or ''} Condition x {sign} y did not hold element-wise:".strip()
        _assert_condition(math.reduce_all(holds), text, ["x =", x, "y =", y], count)

    check.__name__ = check.__qualname__ = name
    check.__doc__ = f"""Raise an InvalidArgumentError unless `x {sign} y` for all elements.

    Args:
      x: A tensor.
      y: A tensor of the same dtype.
      message: Prefix of the error message.
      summarize: Maximum number of elements in the error message; 3 by default.
      name: Ignored.

    Example:
      >>> tf.debugging.{name}({good})
      >>> tf.debugging.{name}({bad})  # doctest: +IGNORE_EXCEPTION_DETAIL
      Traceback (most recent call last):
        ...
      InvalidArgumentError: Condition x {sign} y did not hold element-wise
    """
    return dispatch_composites(check)


assert_equal = _make_comparison_check(
    "assert_equal", math.equal, "==", "[1, 2], [1, 2]", "[1, 2], [1, 3]"
)


@dispatch_composites
def assert_none_equal(
    x: TensorLike,
    y: TensorLike,
    summarize: int | None = None,
    message: str | None = None,
    name: str | None = None,
) -> None:
    """Raise an InvalidArgumentError unless `x != y` for all elements.

    Example:
      >>> tf.debugging.assert_none_equal([1, 2], [3, 4])
    """
    _assert_not_equal(x, y, message, summarize)


_assert_not_equal = _make_comparison_check(
    "assert_none_equal", math.not_equal, "!=", "[1, 2], [3, 4]", "[1, 2], [3, 2]"
)
assert_less = _make_comparison_check("assert_less", math.less, "<", "[1, 2], 3", "[1, 3], 3")
assert_less_equal = _make_comparison_check(
    "assert_less_equal", math.less_equal, "<=", "[1, 3], 3", "[1, 4], 3"
)
assert_greater = _make_comparison_check(
    "assert_greater", math.greater, ">", "[4, 5], 3", "[3, 5], 3"
)
assert_greater_equal = _make_comparison_check(
    "assert_greater_equal", math.greater_equal, ">=", "[3, 5], 3", "[2, 5], 3"
)


def _make_sign_check(
    name: str, relation: Callable[[Tensor, Tensor], Tensor], sign: str, good: str, bad: str
) -> SignCheck:
    """Create a check of one tensor; `good` and `bad` are arguments for its doctest."""

    def check(
        x: TensorLike,
        message: str | None = None,
        summarize: int | None = None,
        name: str | None = None,
    ) -> None:
        x = convert_to_tensor(x)
        text = f"{message or ''} Condition x {sign} 0 did not hold element-wise:".strip()
        _assert_condition(
            math.reduce_all(relation(x, math.cast(0, x.dtype))), text, ["x =", x], summarize or 3
        )

    check.__name__ = check.__qualname__ = name
    check.__doc__ = f"""Raise an InvalidArgumentError unless `x {sign} 0` for all elements.

    Args:
      x: A tensor.
      message: Prefix of the error message.
      summarize: Maximum number of elements in the error message; 3 by default.
      name: Ignored.

    Example:
      >>> tf.debugging.{name}({good})
      >>> tf.debugging.{name}({bad})  # doctest: +IGNORE_EXCEPTION_DETAIL
      Traceback (most recent call last):
        ...
      InvalidArgumentError: Condition x {sign} 0 did not hold element-wise
    """
    return dispatch_composites(check)


assert_positive = _make_sign_check("assert_positive", math.greater, ">", "[1, 2]", "[0, 2]")
assert_negative = _make_sign_check("assert_negative", math.less, "<", "[-1, -2]", "[-1, 0]")
assert_non_negative = _make_sign_check(
    "assert_non_negative", math.greater_equal, ">=", "[0, 2]", "[-1, 2]"
)
assert_non_positive = _make_sign_check(
    "assert_non_positive", math.less_equal, "<=", "[0, -2]", "[0, 1]"
)


@dispatch_composites
def assert_near(
    x: TensorLike,
    y: TensorLike,
    rtol: TensorLike | None = None,
    atol: TensorLike | None = None,
    message: str | None = None,
    summarize: int | None = None,
    name: str | None = None,
) -> None:
    """Raise an InvalidArgumentError unless `|x - y| <= atol + rtol * |y|` for all elements.

    Args:
      x: A tensor.
      y: A tensor.
      rtol: Relative tolerance; 10 times the machine epsilon of the dtype by default.
      atol: Absolute tolerance, with the same default.
      message: Prefix of the error message.
      summarize: Maximum number of elements in the error message; 3 by default.
      name: Ignored.

    Example:
      >>> tf.debugging.assert_near([1.0], [1.0 + 1e-7])
      >>> tf.debugging.assert_near([1.0], [1.2], atol=0.5)
    """
    x = convert_to_tensor(x)
    y = convert_to_tensor(y, dtype_hint=x.dtype)
    tolerance = 10 * float(jax.numpy.finfo(x.dtype.dtype).eps)
    limit = (tolerance if atol is None else atol) + (
        tolerance if rtol is None else rtol
    ) * math.abs(y)
    _assert_condition(
        math.reduce_all(math.abs(x - y) <= limit),
        f"{message or ''} x and y not equal to tolerance".strip(),
        ["x =", x, "y =", y],
        summarize or 3,
    )


@dispatch_composites
def check_numerics(tensor: TensorLike, message: str, name: str | None = None) -> Tensor:
    """Return a tensor after checking that it contains no NaN or infinity.

    Args:
      tensor: A floating-point tensor.
      message: Prefix of the error message.
      name: Ignored.

    Raises:
      InvalidArgumentError: If an element is NaN or infinite.

    Example:
      >>> print(tf.debugging.check_numerics([1.0, 2.0], "the loss").numpy())
      [1. 2.]
      >>> tf.debugging.check_numerics(float("nan"), "the loss")  # doctest: +IGNORE_EXCEPTION_DETAIL
      Traceback (most recent call last):
        ...
      InvalidArgumentError: the loss : Tensor had NaN values
    """
    tensor = convert_to_tensor(tensor)
    holds = math.reduce_all(math.is_finite(tensor))
    _assert_condition(holds, NumericsMessage(message), [tensor])
    return tensor


@dataclasses.dataclass(frozen=True)
class NumericsMessage:
    """Message that describes the infinities and NaNs of an array.

    Attributes:
      prefix: Beginning of the message.
    """

    prefix: str

    def __call__(self, value: np.ndarray) -> str:
        names = [n for n, test in (("Inf", np.isinf), ("NaN", np.isnan)) if np.any(test(value))]
        return f"{self.prefix} : Tensor had {' and '.join(names)} values"

    def __str__(self) -> str:
        return f"{self.prefix} : Tensor had Inf or NaN values"


@dispatch_composites
def assert_all_finite(x: TensorLike, message: str, name: str | None = None) -> Tensor:
    """Return a tensor after checking that it is finite, like `check_numerics`."""
    return check_numerics(x, message)


def enable_check_numerics(stack_height_limit: int = 30, path_length_limit: int = 50) -> None:
    """Raise an error whenever an op returns NaN or infinity.

    Results of eager ops are checked directly, those of compiled functions by JAX (`jax_debug_nans`,
    `jax_debug_infs`). Like `enable_bounds_check`, this checks indices and divisors in all compiled functions.

    Both arguments are ignored.

    Example:
      >>> tf.debugging.enable_check_numerics()
      >>> tf.math.log(-1.0)  # doctest: +IGNORE_EXCEPTION_DETAIL
      Traceback (most recent call last):
        ...
      InvalidArgumentError: Detected Infinity or NaN in the output of an op
      >>> tf.debugging.disable_check_numerics()
    """
    _set_numerics_checks(True)


def disable_check_numerics() -> None:
    """Undo `enable_check_numerics`."""
    _set_numerics_checks(False)


def _set_numerics_checks(enabled: bool) -> None:
    if enabled != jax.config.jax_debug_infs:  # type: ignore[attr-defined]  # JAX defines its options at run time
        pass_pipeline.invalidate_programs()
    dispatch.check_output = _check_output if enabled else None
    BoundsChecking.mode = True if enabled else None
    jax.config.update("jax_debug_nans", enabled)
    jax.config.update("jax_debug_infs", enabled)


def enable_bounds_check() -> None:
    """Check all indices and divisors in compiled functions, before variables change.

    By default, compiled functions raise TensorFlow's errors for indices that are out of range and integer divisions by
    zero where the check is free: on CPUs, and for the arguments of steps and functions. If a function that assigns
    variables computes an invalid index itself, the error follows the assignments. On GPUs and TPUs, such an index is not
    checked.

    After this call, functions check all of them on every device, and a function that fails assigns nothing. Functions
    that update large variables then need more memory and time, because they do not reuse the buffers of the old values.

    Example:
      >>> tf.debugging.enable_bounds_check()
      >>> pick = tf.function(lambda x, i: tf.gather(x, i))
      >>> pick(tf.constant([1, 2]), tf.constant([0, 5]))  # doctest: +IGNORE_EXCEPTION_DETAIL
      Traceback (most recent call last):
        ...
      InvalidArgumentError: indices[1] = 5 is not in [0, 2)
      >>> tf.debugging.reset_bounds_check()
    """
    _set_bounds_checks(True)


def disable_bounds_check() -> None:
    """Check no indices and divisors, also not in `fit`, `evaluate`, `predict` and eager ops.

    Gathers then return NaN for an invalid index (integers: the nearest element), and scatters ignore it.
    `reset_bounds_check` restores the default.

    Example:
      >>> tf.debugging.disable_bounds_check()
      >>> print(tf.function(lambda x, i: tf.gather(x, i))(tf.constant([1.0, 2.0]), 5).numpy())
      nan
      >>> tf.debugging.reset_bounds_check()
    """
    _set_bounds_checks(False)


def reset_bounds_check() -> None:
    """Undo `enable_bounds_check` or `disable_bounds_check`: check where it is free.

    Example:
      >>> tf.debugging.enable_bounds_check()
      >>> tf.debugging.reset_bounds_check()
    """
    _set_bounds_checks(None)


def _set_bounds_checks(mode: bool | None) -> None:
    if mode is not BoundsChecking.mode:
        BoundsChecking.mode = mode
        clear_op_caches()
        pass_pipeline.invalidate_programs()


def _check_output(array: Array) -> None:
    if isinstance(array, jax.core.Tracer) or not jax.numpy.issubdtype(array.dtype, np.inexact):
        return
    if not np.all(np.isfinite(np.asarray(array))):
        raise NotFiniteError(NotFiniteError.TEXT)


def _get_shape(tensor: TensorLike) -> TensorShape:
    return tensor.shape if hasattr(tensor, "_keras_history") else convert_to_tensor(tensor).shape


def _read_rank(rank: TensorLike) -> int | None:
    """Return a rank, or None if it is only known when a session runs.

    Raises:
      TypeError: If it is no integer.
      InvalidArgumentError: If it is no scalar (also a `ValueError`).
    """
    value = get_static_value(rank) if isinstance(rank, Tensor) else np.asarray(rank)
    found: Any = rank if value is None else value
    if not as_dtype(found.dtype).is_integer:
        raise TypeError(f"rank must be of type tf.int32; got {as_dtype(found.dtype)!r}.")
    if TensorShape(found.shape).rank:
        raise InvalidValueError(f"Rank must be a scalar, got shape {tuple(found.shape)}.")
    if value is None and (context.graph is None or context.trace is not None):
        return int(found)
    return None if value is None else int(value)


@record_in_graph
def _check_ranks_at_run(
    x: TensorLike, ranks: Sequence[TensorLike], kind: str, message: str | None, label: str
) -> None:
    if context.trace is None:
        _check_ranks(x, ranks, kind, message, label)


def _check_ranks_in_trace(
    x: TensorLike, ranks: Sequence[TensorLike], kind: str, message: str | None, label: str
) -> Any:
    """Check a rank when the program runs, because the rank or an allowed one is only known then."""
    actual, expected = array.rank(x), [convert_to_tensor(rank) for rank in ranks]
    relation = math.greater_equal if kind == "at least " else math.equal
    matches = [relation(actual, cast(rank, actual.dtype)) for rank in expected]
    text = f"{message or ''} {label} must have rank {kind}".strip()
    shape = ["Received shape:", str(_get_shape(x))]
    return Assert(functools.reduce(math.logical_or, matches), [text, *expected, *shape])


def _check_ranks(
    x: TensorLike,
    ranks: Sequence[TensorLike],
    kind: str,
    message: str | None,
    label: str = "Tensor",
) -> Any:
    """Check the rank of a tensor, in a graph when a session runs if it is unknown.

    Args:
      x: The tensor.
      ranks: The rank, or the allowed ones.
      kind: "at least " for a lower limit, "in " for several ranks, or "".
      message: Start of the error, or None.
      label: Description of the tensor in the error.

    Returns:
      None; in a graph, an operation.
    """
    shape = _get_shape(x)
    if context.trace is not None and (
        shape.rank is None or any(is_symbolic_tensor(convert_to_tensor(rank)) for rank in ranks)
    ):
        return _check_ranks_in_trace(x, ranks, kind, message, label)
    known = list(map(_read_rank, ranks))
    if shape.rank is None or None in known:
        if context.graph is not None and context.trace is None:
            label = f"Tensor {x.name}" if isinstance(x, Tensor) else label
            return _check_ranks_at_run(x, list(ranks), kind, message, label)
        raise InvalidValueError(f"{message or ''} The rank of the tensor is unknown.".strip())
    allowed: list[Any] = known
    if not (shape.rank >= allowed[0] if kind == "at least " else shape.rank in allowed):
        text = kind + str(allowed if kind == "in " else allowed[0])
        # As in TensorFlow, a check before the run is no error of an op.
        raise (ValueError if label == "Tensor" else InvalidValueError)(
            f"{message or ''} {label} must have rank {text}. Received rank {shape.rank}, shape {shape}".strip()
        )
    return no_op()


def assert_rank(
    x: TensorLike, rank: TensorLike, message: str | None = None, name: str | None = None
) -> None:
    """Raise a ValueError unless a tensor has a number of dimensions.

    Example:
      >>> tf.debugging.assert_rank(tf.zeros([2, 3]), 2)
      >>> tf.debugging.assert_rank(tf.zeros([2, 3]), 1)  # doctest: +IGNORE_EXCEPTION_DETAIL
      Traceback (most recent call last):
        ...
      ValueError: Tensor must have rank 1. Received rank 2, shape (2, 3)
    """
    return _check_ranks(x, [rank], "", message)


def assert_rank_at_least(
    x: TensorLike, rank: TensorLike, message: str | None = None, name: str | None = None
) -> None:
    """Raise a ValueError unless a tensor has at least a rank.

    Example:
      >>> tf.debugging.assert_rank_at_least(tf.zeros([2, 3]), 1)
    """
    return _check_ranks(x, [rank], "at least ", message)


def assert_rank_in(
    x: TensorLike, ranks: Iterable[TensorLike], message: str | None = None, name: str | None = None
) -> None:
    """Raise a ValueError unless a tensor has one of several ranks.

    Example:
      >>> tf.debugging.assert_rank_in(tf.zeros([2, 3]), (1, 2))
    """
    return _check_ranks(x, list(ranks), "in ", message)


def assert_scalar(tensor: TensorLike, message: str | None = None, name: str | None = None) -> None:
    """Raise a ValueError unless a tensor is a scalar.

    Example:
      >>> tf.debugging.assert_scalar(3.0)
    """
    if _get_shape(tensor).rank != 0:
        raise ValueError(
            f"{message or ''} Expected scalar shape, saw shape: {_get_shape(tensor)}.".strip()
        )


def assert_proper_iterable(values: object) -> None:
    """Raise a TypeError unless a value is an iterable other than a tensor, array or string.

    Example:
      >>> tf.debugging.assert_proper_iterable([1, 2])
    """
    if (
        isinstance(values, (str, bytes, np.ndarray))
        or is_tensor(values)
        or not hasattr(values, "__iter__")
    ):
        raise TypeError(
            'Expected argument "values" to be iterable: a list, tuple or other proper collection of values, got '
            f"{type(values).__name__}."
        )


def assert_type(
    tensor: TensorLike, tf_type: DTypeLike, message: str | None = None, name: str | None = None
) -> None:
    """Raise a TypeError unless a tensor has a dtype.

    Example:
      >>> tf.debugging.assert_type(tf.constant(1.0), tf.float32)
    """
    value: Any = tensor if isinstance(tensor, CompositeTensor) else convert_to_tensor(tensor)
    dtype = value.dtype
    if dtype is not as_dtype(tf_type):
        raise TypeError(
            f"{message or ''} tensor must be of type {as_dtype(tf_type).name}; got {dtype.name}".strip()
        )


def assert_integer(x: TensorLike, message: str | None = None, name: str | None = None) -> None:
    """Raise a TypeError unless a tensor has an integer dtype.

    Example:
      >>> tf.debugging.assert_integer(tf.constant([1, 2]))
    """
    if not convert_to_tensor(x).dtype.is_integer:
        raise TypeError(
            f'{message or ""} Expected "x" to be integer type. Found: {convert_to_tensor(x).dtype.name}'.strip()
        )


def assert_same_float_dtype(
    tensors: Iterable[TensorLike] | None = None, dtype: DType | None = None
) -> DType:
    """Return the common floating-point dtype of tensors; raise a ValueError if they differ.

    Args:
      tensors: Tensors.
      dtype: The dtype that they must have; by default any floating-point dtype.

    Example:
      >>> tf.debugging.assert_same_float_dtype([tf.constant(1.0), tf.constant(2.0)])
      tf.float32
    """
    dtypes = {convert_to_tensor(t).dtype for t in tensors or []} | (
        {dtype} if dtype is not None else set()
    )
    if len(dtypes) > 1 or not all(k.is_floating for k in dtypes):
        raise ValueError(
            f"Expected tensors of one floating point type, got {sorted(k.name for k in dtypes)}."
        )
    return next(iter(dtypes), float32)


@dispatch_composites
def assert_shapes(
    shapes: Mapping[TensorLike, ShapeLike | str] | Iterable[tuple[TensorLike, ShapeLike | str]],
    data: Iterable[TensorLike] | None = None,
    summarize: int | None = None,
    message: str | None = None,
    name: str | None = None,
) -> None:
    """Raise a ValueError unless tensors have shapes of fixed and named sizes.

    Args:
      shapes: Pairs (tensor, shape) or a dictionary. A shape contains integers, names of sizes, None
        and '...'.
      data: Ignored.
      summarize: Ignored.
      message: Prefix of the error message.
      name: Ignored.

    Example:
      >>> x, y = tf.zeros([8, 3]), tf.zeros([8])
      >>> tf.debugging.assert_shapes([(x, ("batch", 3)), (y, ("batch",))])
      >>> tf.debugging.assert_shapes([(x, ("n", "n"))])  # doctest: +IGNORE_EXCEPTION_DETAIL
      Traceback (most recent call last):
        ...
      ValueError: Specified shape ('n', 'n') of a tensor does not match its shape (8, 3)
    """
    sizes: dict[Hashable, int | None] = {}
    for tensor, expected in shapes.items() if isinstance(shapes, Mapping) else shapes:
        tensor = tensor.deref() if hasattr(tensor, "deref") else tensor
        actual = TensorShape(_get_shape(tensor)).as_list()
        symbols: list[Any] = (
            list(expected) if isinstance(expected, (tuple, list, str)) else [expected]
        )
        if "..." in symbols or Ellipsis in symbols:
            index = symbols.index("...") if "..." in symbols else symbols.index(Ellipsis)
            unknown = [None] * (len(actual) - len(symbols) + 1)
            symbols = unknown + symbols[index + 1 :] if index == 0 else symbols[:index] + unknown
        matches = len(symbols) == len(actual)
        for symbol, size in zip(symbols, actual, strict=False):
            if symbol is None or symbol == ".":
                continue
            is_name = isinstance(symbol, str) and not symbol.isdigit()
            expected_size = sizes.setdefault(symbol, size) if is_name else int(symbol)
            matches = matches and expected_size == size
        if not matches:
            raise ValueError(
                f"{message or ''} Specified shape {expected} of a tensor does not match its shape {tuple(actual)} (known sizes: {sizes}).".strip()
            )


def is_numeric_tensor(tensor: object) -> bool:
    """Check whether a value is a tensor of numbers.

    Example:
      >>> tf.debugging.is_numeric_tensor(tf.constant(1)), tf.debugging.is_numeric_tensor("a")
      (True, False)
    """
    return isinstance(tensor, Tensor) and tensor.dtype.is_numeric


def set_log_device_placement(enabled: bool) -> None:
    """Do nothing: XLA chooses the devices of fused ops; see `tensor.device`."""


def get_log_device_placement() -> bool:
    """Return False."""
    return False


def enable_traceback_filtering() -> None:
    """Hide the frames of Meshflow and JAX in tracebacks, which is the default."""
    jax.config.update("jax_traceback_filtering", "auto")


def disable_traceback_filtering() -> None:
    """Show all frames in tracebacks."""
    jax.config.update("jax_traceback_filtering", "off")


def is_traceback_filtering_enabled() -> bool:
    """Check whether tracebacks hide the frames of Meshflow and JAX."""
    return is_filtering()
