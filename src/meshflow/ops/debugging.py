"""`tf.debugging`: checks, eagerly and in compiled functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from meshflow.core.autograph.runtime.logical import register_assertion
from meshflow.core.dispatch import dispatch
from meshflow.core.runtime.context import context
from meshflow.core.runtime.errors import InvalidArgumentError, NotFiniteError
from meshflow.core.tracing import host_callbacks, pass_pipeline
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.dtypes import DType, as_dtype, float32
from meshflow.core.values.shapes import TensorShape
from meshflow.core.values.tensor import Tensor, is_tensor
from meshflow.ops import math
from meshflow.ops.printing import value_text
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
    "disable_check_numerics",
    "disable_traceback_filtering",
    "enable_check_numerics",
    "enable_traceback_filtering",
    "get_log_device_placement",
    "is_non_decreasing",
    "is_numeric_tensor",
    "is_strictly_increasing",
    "is_traceback_filtering_enabled",
    "set_log_device_placement",
]

is_strictly_increasing, is_non_decreasing = math.is_strictly_increasing, math.is_non_decreasing


def _fail(message: Any, data: list[Any], summarize: int) -> None:
    message = message(data[0]) if callable(message) else message
    lines = [str(message)] if message else []
    lines += [value_text(d, summarize) if hasattr(d, "shape") else str(d) for d in data]
    raise InvalidArgumentError("\n".join(lines) or "assertion failed")


def Assert(
    condition: Any, data: Any, summarize: int | None = None, name: str | None = None
) -> None:
    """Raises unless a condition holds; in a compiled function when it runs.

    Args:
      condition: a boolean.
      data: what to show.
      summarize: how many elements are shown.
      name: ignored.

    Raises:
      InvalidArgumentError: when the condition is false.

    Example:
      >>> import meshflow as tf
      >>> tf.debugging.Assert(tf.reduce_all(tf.constant([1, 2]) > 0), ["all are positive"])
      >>> tf.debugging.Assert(False, ["no"])  # doctest: +IGNORE_EXCEPTION_DETAIL
      Traceback (most recent call last):
        ...
      InvalidArgumentError: no
    """
    _check(convert_to_tensor(condition), None, list(data), summarize or 3)


register_assertion(Assert)


def _check(holds: Tensor, message: Any, data: list[Any], summarize: int = 3) -> None:
    tensors = [d for d in data if is_tensor(d)]
    if context.trace is None or isinstance(holds._value, np.ndarray):
        if not bool(np.all(np.asarray(holds._value))):
            _fail(
                message,
                [
                    np.asarray(convert_to_tensor(d)._value)
                    if is_tensor(d) and not isinstance(convert_to_tensor(d)._value, jax.core.Tracer)
                    else d
                    for d in data
                ],
                summarize,
            )
        return

    def verify(ok: Any, *arrays: Any) -> None:
        if not np.all(ok):
            supply = iter(arrays)
            _fail(message, [next(supply) if is_tensor(d) else d for d in data], summarize)

    values = [context.trace.value_of(convert_to_tensor(t)) for t in tensors]
    if context.exporting:
        return
    jax.debug.callback(host_callbacks.check(verify), context.trace.value_of(holds), *values)


def _binary(
    name: str, relation: Callable[..., Any], sign: str, good: str, bad: str
) -> ComparisonCheck:
    """A check of two tensors, with arguments that pass and fail for the example in its docstring."""

    def check(
        x: Any, y: Any, message: Any = None, summarize: int | None = None, name: str | None = None
    ) -> None:
        x = convert_to_tensor(x, dtype_hint=getattr(y, "dtype", None))
        y = convert_to_tensor(y, dtype_hint=x.dtype)
        text = f"{message or ''} Condition x {sign} y did not hold element-wise:".strip()
        _check(math.reduce_all(relation(x, y)), text, ["x =", x, "y =", y], summarize or 3)

    check.__name__ = check.__qualname__ = name
    check.__doc__ = f"""Raises InvalidArgumentError unless `x {sign} y` for all elements.

    Args:
      x: a tensor.
      y: a tensor of the same dtype.
      message: put before the error's text.
      summarize: how many elements are shown.
      name: ignored.

    Example:
      >>> import meshflow as tf
      >>> tf.debugging.{name}({good})
      >>> tf.debugging.{name}({bad})  # doctest: +IGNORE_EXCEPTION_DETAIL
      Traceback (most recent call last):
        ...
      InvalidArgumentError: Condition x {sign} y did not hold element-wise
    """
    return check


assert_equal = _binary("assert_equal", math.equal, "==", "[1, 2], [1, 2]", "[1, 2], [1, 3]")


def assert_none_equal(
    x: Any, y: Any, summarize: int | None = None, message: Any = None, name: str | None = None
) -> None:
    """Raises InvalidArgumentError unless `x != y` for all elements.

    Args:
      x: a tensor.
      y: a tensor of the same dtype.
      summarize: how many elements are shown.
      message: put before the error's text.
      name: ignored.

    Example:
      >>> import meshflow as tf
      >>> tf.debugging.assert_none_equal([1, 2], [3, 4])
    """
    _assert_not_equal(x, y, message, summarize)


_assert_not_equal = _binary(
    "assert_none_equal", math.not_equal, "!=", "[1, 2], [3, 4]", "[1, 2], [3, 2]"
)
assert_less = _binary("assert_less", math.less, "<", "[1, 2], 3", "[1, 3], 3")
assert_less_equal = _binary("assert_less_equal", math.less_equal, "<=", "[1, 3], 3", "[1, 4], 3")
assert_greater = _binary("assert_greater", math.greater, ">", "[4, 5], 3", "[3, 5], 3")
assert_greater_equal = _binary(
    "assert_greater_equal", math.greater_equal, ">=", "[3, 5], 3", "[2, 5], 3"
)


def _unary(name: str, relation: Callable[..., Any], sign: str, good: str, bad: str) -> SignCheck:
    """A check of one tensor, with arguments that pass and fail for the example in its docstring."""

    def check(
        x: Any, message: Any = None, summarize: int | None = None, name: str | None = None
    ) -> None:
        x = convert_to_tensor(x)
        text = f"{message or ''} Condition x {sign} 0 did not hold element-wise:".strip()
        _check(
            math.reduce_all(relation(x, math.cast(0, x.dtype))), text, ["x =", x], summarize or 3
        )

    check.__name__ = check.__qualname__ = name
    check.__doc__ = f"""Raises InvalidArgumentError unless `x {sign} 0` for all elements.

    Args:
      x: a tensor.
      message: put before the error's text.
      summarize: how many elements are shown.
      name: ignored.

    Example:
      >>> import meshflow as tf
      >>> tf.debugging.{name}({good})
      >>> tf.debugging.{name}({bad})  # doctest: +IGNORE_EXCEPTION_DETAIL
      Traceback (most recent call last):
        ...
      InvalidArgumentError: Condition x {sign} 0 did not hold element-wise
    """
    return check


assert_positive = _unary("assert_positive", math.greater, ">", "[1, 2]", "[0, 2]")
assert_negative = _unary("assert_negative", math.less, "<", "[-1, -2]", "[-1, 0]")
assert_non_negative = _unary("assert_non_negative", math.greater_equal, ">=", "[0, 2]", "[-1, 2]")
assert_non_positive = _unary("assert_non_positive", math.less_equal, "<=", "[0, -2]", "[0, 1]")


def assert_near(
    x: Any,
    y: Any,
    rtol: Any = None,
    atol: Any = None,
    message: Any = None,
    summarize: int | None = None,
    name: str | None = None,
) -> None:
    """Raises InvalidArgumentError unless `|x - y| <= atol + rtol * |y|` for all elements.

    Args:
      x: a tensor.
      y: a tensor.
      rtol: relative tolerance; default 10 epsilon of the dtype.
      atol: absolute tolerance; likewise.
      message: put before the error's text.
      summarize: how many elements are shown.
      name: ignored.

    Example:
      >>> import meshflow as tf
      >>> tf.debugging.assert_near([1.0], [1.0 + 1e-7])
      >>> tf.debugging.assert_near([1.0], [1.2], atol=0.5)
    """
    x = convert_to_tensor(x)
    y = convert_to_tensor(y, dtype_hint=x.dtype)
    tolerance = 10 * float(jax.numpy.finfo(x.dtype.dtype).eps)
    limit = (tolerance if atol is None else atol) + (
        tolerance if rtol is None else rtol
    ) * math.abs(y)
    _check(
        math.reduce_all(math.abs(x - y) <= limit),
        f"{message or ''} x and y not equal to tolerance".strip(),
        ["x =", x, "y =", y],
        summarize or 3,
    )


def check_numerics(tensor: Any, message: str, name: str | None = None) -> Tensor:
    """The tensor, which may hold no NaN or Inf.

    Args:
      tensor: a floating tensor.
      message: put before the error's text.
      name: ignored.

    Raises:
      InvalidArgumentError: when it does.

    Example:
      >>> import meshflow as tf
      >>> print(tf.debugging.check_numerics([1.0, 2.0], "the loss").numpy())
      [1. 2.]
      >>> tf.debugging.check_numerics(float("nan"), "the loss")  # doctest: +IGNORE_EXCEPTION_DETAIL
      Traceback (most recent call last):
        ...
      InvalidArgumentError: the loss : Tensor had NaN values
    """
    tensor = convert_to_tensor(tensor)

    def text(value: np.ndarray) -> str:
        kinds = [n for n, test in (("Inf", np.isinf), ("NaN", np.isnan)) if np.any(test(value))]
        return f"{message} : Tensor had {' and '.join(kinds)} values"

    _check(math.reduce_all(math.is_finite(tensor)), text, [tensor])
    return tensor


def assert_all_finite(x: Any, message: str, name: str | None = None) -> Tensor:
    """`check_numerics` under another name."""
    return check_numerics(x, message)


def enable_check_numerics(stack_height_limit: int = 30, path_length_limit: int = 50) -> None:
    """Makes every op raise `InvalidArgumentError` when it gives NaN or infinity.

    What compiled functions give is checked by JAX (`jax_debug_nans`, `jax_debug_infs`).

    Args:
      stack_height_limit: accepted; Python's traceback is shown.
      path_length_limit: accepted, likewise.

    Example:
      >>> import meshflow as tf
      >>> tf.debugging.enable_check_numerics()
      >>> tf.math.log(-1.0)  # doctest: +IGNORE_EXCEPTION_DETAIL
      Traceback (most recent call last):
        ...
      InvalidArgumentError: Detected Infinity or NaN in the output of an op
      >>> tf.debugging.disable_check_numerics()
    """
    _set_checks(True)


def disable_check_numerics() -> None:
    """Undoes `enable_check_numerics`."""
    _set_checks(False)


def _set_checks(on: bool) -> None:
    if on != jax.config.jax_debug_infs:  # type: ignore[attr-defined]  # JAX defines its options at run time
        pass_pipeline.compile_again()
    dispatch.check_output = _check_output if on else None
    jax.config.update("jax_debug_nans", on)
    jax.config.update("jax_debug_infs", on)


def _check_output(array: Any) -> None:
    if isinstance(array, jax.core.Tracer) or not jax.numpy.issubdtype(array.dtype, np.inexact):
        return
    if not np.all(np.isfinite(np.asarray(array))):
        raise NotFiniteError(NotFiniteError.TEXT)


def _shape(tensor: Any) -> Any:
    return tensor.shape if hasattr(tensor, "_keras_history") else convert_to_tensor(tensor).shape


def assert_rank(x: Any, rank: Any, message: Any = None, name: str | None = None) -> None:
    """Raises ValueError unless a tensor has the rank.

    Args:
      x: a tensor.
      rank: the number of dimensions.
      message: put before the error's text.
      name: ignored.

    Example:
      >>> import meshflow as tf
      >>> tf.debugging.assert_rank(tf.zeros([2, 3]), 2)
      >>> tf.debugging.assert_rank(tf.zeros([2, 3]), 1)  # doctest: +IGNORE_EXCEPTION_DETAIL
      Traceback (most recent call last):
        ...
      ValueError: Tensor must have rank 1. Received rank 2, shape (2, 3)
    """
    got = _shape(x).rank
    if got != int(convert_to_tensor(rank)):
        raise ValueError(
            f"{message or ''} Tensor must have rank {int(convert_to_tensor(rank))}. Received rank {got}, shape {_shape(x)}".strip()
        )


def assert_rank_at_least(x: Any, rank: Any, message: Any = None, name: str | None = None) -> None:
    """Raises ValueError unless a tensor has at least the rank.

    Example:
      >>> import meshflow as tf
      >>> tf.debugging.assert_rank_at_least(tf.zeros([2, 3]), 1)
    """
    if _shape(x).rank < int(convert_to_tensor(rank)):
        raise ValueError(
            f"{message or ''} Tensor must have rank at least {int(convert_to_tensor(rank))}. Received rank {_shape(x).rank}, shape {_shape(x)}".strip()
        )


def assert_rank_in(x: Any, ranks: Any, message: Any = None, name: str | None = None) -> None:
    """Raises ValueError unless a tensor has one of the ranks.

    Example:
      >>> import meshflow as tf
      >>> tf.debugging.assert_rank_in(tf.zeros([2, 3]), (1, 2))
    """
    allowed = [int(convert_to_tensor(r)) for r in ranks]
    if _shape(x).rank not in allowed:
        raise ValueError(
            f"{message or ''} Tensor must have rank in {allowed}. Received rank {_shape(x).rank}, shape {_shape(x)}".strip()
        )


def assert_scalar(tensor: Any, message: Any = None, name: str | None = None) -> None:
    """Raises ValueError unless a tensor is a scalar.

    Example:
      >>> import meshflow as tf
      >>> tf.debugging.assert_scalar(3.0)
    """
    if _shape(tensor).rank != 0:
        raise ValueError(
            f"{message or ''} Expected scalar shape, saw shape: {_shape(tensor)}.".strip()
        )


def assert_proper_iterable(values: Any) -> None:
    """Raises TypeError unless something can be iterated over and is no tensor, array or text.

    Example:
      >>> import meshflow as tf
      >>> tf.debugging.assert_proper_iterable([1, 2])
    """
    if (
        isinstance(values, (str, bytes, np.ndarray))
        or is_tensor(values)
        or not hasattr(values, "__iter__")
    ):
        raise TypeError(
            f'Expected argument "values" to be a list, tuple or other iterable of values, got {type(values).__name__}.'
        )


def assert_type(tensor: Any, tf_type: Any, message: Any = None, name: str | None = None) -> None:
    """Raises TypeError unless a tensor has the dtype.

    Example:
      >>> import meshflow as tf
      >>> tf.debugging.assert_type(tf.constant(1.0), tf.float32)
    """
    if convert_to_tensor(tensor).dtype is not as_dtype(tf_type):
        raise TypeError(
            f"{message or ''} tensor must be of type {as_dtype(tf_type).name}; got {convert_to_tensor(tensor).dtype.name}".strip()
        )


def assert_integer(x: Any, message: Any = None, name: str | None = None) -> None:
    """Raises TypeError unless a tensor has an integer dtype.

    Example:
      >>> import meshflow as tf
      >>> tf.debugging.assert_integer(tf.constant([1, 2]))
    """
    if not convert_to_tensor(x).dtype.is_integer:
        raise TypeError(
            f'{message or ""} Expected "x" to be integer type. Found: {convert_to_tensor(x).dtype.name}'.strip()
        )


def assert_same_float_dtype(tensors: Any = None, dtype: Any = None) -> DType:
    """The common floating dtype of tensors; raises ValueError when they differ.

    Args:
      tensors: tensors; None ones do not count.
      dtype: the dtype that they must have; default any floating one.

    Example:
      >>> import meshflow as tf
      >>> tf.debugging.assert_same_float_dtype([tf.constant(1.0), tf.constant(2.0)])
      tf.float32
    """
    kinds = {convert_to_tensor(t).dtype for t in tensors or []} | (
        {dtype} if dtype is not None else set()
    )
    if len(kinds) > 1 or not all(k.is_floating for k in kinds):
        raise ValueError(
            f"Expected tensors of one floating point type, got {sorted(k.name for k in kinds)}."
        )
    return next(iter(kinds), float32)


def assert_shapes(
    shapes: Any,
    data: Any = None,
    summarize: int | None = None,
    message: Any = None,
    name: str | None = None,
) -> None:
    """Raises ValueError unless tensors have shapes given by numbers and names of sizes.

    Args:
      shapes: pairs (tensor, shape) or a dictionary; a shape holds numbers, names, None or '...'.
      data: ignored.
      summarize: ignored.
      message: put before the error's text.
      name: ignored.

    Example:
      >>> import meshflow as tf
      >>> x, y = tf.zeros([8, 3]), tf.zeros([8])
      >>> tf.debugging.assert_shapes([(x, ("batch", 3)), (y, ("batch",))])
      >>> tf.debugging.assert_shapes([(x, ("n", "n"))])  # doctest: +IGNORE_EXCEPTION_DETAIL
      Traceback (most recent call last):
        ...
      ValueError: Specified shape ('n', 'n') of a tensor does not match its shape (8, 3)
    """
    sizes: dict[Any, Any] = {}
    for tensor, wanted in shapes.items() if isinstance(shapes, dict) else shapes:
        tensor = tensor.deref() if hasattr(tensor, "deref") else tensor
        got = TensorShape(_shape(tensor)).as_list()
        symbols = list(wanted) if isinstance(wanted, (tuple, list, str)) else [wanted]
        if "..." in symbols or Ellipsis in symbols:
            at = symbols.index("...") if "..." in symbols else symbols.index(Ellipsis)
            symbols = (
                [None] * (len(got) - len(symbols) + 1) + symbols[at + 1 :]
                if at == 0
                else symbols[:at] + [None] * (len(got) - len(symbols) + 1)
            )
        ok = len(symbols) == len(got)
        for symbol, size in zip(symbols, got, strict=False):
            if symbol is None or symbol == ".":
                continue
            expected = (
                sizes.setdefault(symbol, size)
                if isinstance(symbol, str) and not symbol.isdigit()
                else int(symbol)
            )
            ok = ok and expected == size
        if not ok:
            raise ValueError(
                f"{message or ''} Specified shape {wanted} of a tensor does not match its shape {tuple(got)} (known sizes: {sizes}).".strip()
            )


def is_numeric_tensor(tensor: Any) -> bool:
    """Whether something is a tensor of numbers.

    Example:
      >>> import meshflow as tf
      >>> tf.debugging.is_numeric_tensor(tf.constant(1)), tf.debugging.is_numeric_tensor("a")
      (True, False)
    """
    return isinstance(tensor, Tensor) and tensor.dtype.is_numeric


def set_log_device_placement(enabled: bool) -> None:
    """Accepted: XLA decides where fused ops run; see `tensor.device`."""


def get_log_device_placement() -> bool:
    """Always False."""
    return False


def enable_traceback_filtering() -> None:
    """Hides JAX's frames in tracebacks, as JAX does by default."""
    jax.config.update("jax_traceback_filtering", "auto")


def disable_traceback_filtering() -> None:
    """Shows all frames in tracebacks."""
    jax.config.update("jax_traceback_filtering", "off")


def is_traceback_filtering_enabled() -> bool:
    """Whether tracebacks hide JAX's frames."""
    # JAX defines its options at run time.
    return jax.config.jax_traceback_filtering != "off"  # type: ignore[attr-defined]
