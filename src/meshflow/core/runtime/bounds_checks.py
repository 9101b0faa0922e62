"""Checks of indices and divisors, with TensorFlow's errors.

An operation passes its indices through `check_bounds` and uses the result. Known values are checked immediately. In a
traced function, the check becomes the primitive `bounds_check`, which returns its operand: on CPUs, a handler checks
the values while the program runs; on accelerators, the check is only compiled under `enable_bounds_check`.
`BoundsCheck.find_failure` is the only definition of values out of range.
"""

from __future__ import annotations

import ctypes
import functools
import json
import re
from collections.abc import Sequence
from typing import Any, NamedTuple, NoReturn

import jax
import jax.numpy as jnp
import numpy as np

from meshflow.core.runtime.context import context
from meshflow.core.runtime.errors import (
    InternalError,
    InvalidArgumentError,
    InvalidValueError,
    OpError,
    OutOfRangeError,
)
from meshflow.environment.jax_internals import ad, batching, jex_core, mlir
from meshflow.interpreter.table import Compute, Equation, rule
from meshflow.kernels import library, lowerings

# A program reports a failure as an error that ends it, as a record that is raised after the program has written the
# variables of which it took over the buffers, or not at all. On several devices, an error of one device would leave the
# others waiting for it, so programs report failures there only if their callers raise records.
ERROR, RECORD, NONE, ERROR_OR_RECORD = "error", "record", "none", "error or record"

# The index of padding in sparse tensors and rows, or the size of a larger dimension. It fits into 32 bits.
PADDING_INDEX = int(np.iinfo(np.int32).max)

_MIN_INT64, _MAX_INT64 = np.iinfo(np.int64).min, np.iinfo(np.int64).max
_ERROR_CLASSES: dict[str, type[OpError]] = {
    c.__name__: c for c in (InvalidArgumentError, InternalError, OutOfRangeError)
}
_ERROR_CLASSES["InvalidArgumentError"] = InvalidValueError


class BoundsChecking:
    """The switch of `tf.debugging.enable_bounds_check`.

    Attributes:
      mode: True if all programs check their values, False if none do, None if programs check them where this is free:
        on CPUs.
    """

    mode: bool | None = None


class BoundsCheck(NamedTuple):
    """A range of allowed integers, which may be symbolic while a function is traced.

    Attributes:
      message: The error message, in which {position}, {index} (the position without brackets), {value} and {sizes} are
        replaced. [{value}] and [{values}] are all coordinates, at a position that is that of the row; {item}, {bound}
        and {name} are a single coordinate, its limit and the name of its column {column}.
      lower: Smallest allowed value; a value for each column (the last axis) of coordinates.
      upper: Values above the largest allowed one. Without limits, only 0 is not allowed.
      num_negative: Added to negative values in the message.
      total: Difference to the value that replaces {remaining} in `alternative`.
      alternative: Message for values from 0 to `total`, or empty.
      sizes: Integers that replace {sizes} in the messages.
      is_replaced: Whether a program that records a failure continues with an allowed value. Scatters ignore the others.
      error: Name of the error class.
      names: Names of the columns of coordinates.
    """

    message: str
    lower: tuple[int, ...] = ()
    upper: tuple[int, ...] = ()
    num_negative: int = 0
    total: int = 0
    alternative: str = ""
    sizes: tuple[int, ...] = ()
    is_replaced: bool = True
    error: str = "InvalidArgumentError"
    names: tuple[str, ...] = ()

    def find_failure(self, array: np.ndarray) -> OpError | None:
        """Return the error for the first element that is not allowed, or None."""
        offset = self._find_offset(array)
        if offset is None:
            return None
        return self.make_error(array.shape, offset, self._list_values(array, offset).tolist())

    def describe_failure(self, array: np.ndarray) -> str:
        """Return the handler's description of the first invalid element."""
        offset = self._find_offset(array) or 0
        values = ",".join(str(int(v)) for v in self._list_values(array, offset))
        shape = ",".join(map(str, array.shape))
        return f"meshflow_bounds:{offset}:{values}:{shape}:{self.to_json()};"

    def to_json(self) -> str:
        """Return the fields as JSON."""
        return json.dumps(self._asdict())

    def _find_offset(self, array: np.ndarray) -> int | None:
        if not array.size:
            return None
        if not self.lower:
            is_invalid = array == 0
        elif len(self.lower) == 1:
            lower, upper = self.lower[0], self.upper[0]
            if array.size == 1:
                return None if lower <= array.item() < upper else 0
            if array.min() >= lower and array.max() < upper:
                return None
            is_invalid = (array < lower) | (array >= upper)
        else:
            is_invalid = (array < np.array(self.lower)) | (array >= np.array(self.upper))
        return int(np.argmax(is_invalid)) if is_invalid.any() else None

    def _list_values(self, array: np.ndarray, offset: int) -> np.ndarray:
        """Return the element at an offset, or the coordinates to which it belongs."""
        columns = max(len(self.lower), 1)
        first = offset // columns * columns
        return array.reshape(-1)[first : first + columns]

    def make_error(self, shape: Sequence[int], offset: int, values: Sequence[int]) -> OpError:
        """Return the error for the element at an offset."""
        position = [int(i) for i in np.unravel_index(offset, tuple(shape))]
        value: Any = int(values[0])
        if self.num_negative and value < 0:
            value += self.num_negative
        coordinates = [str(int(v)) for v in values]
        column = offset % max(len(values), 1)
        if "[{value}]" in self.message:
            value = ", ".join(coordinates)
        if self.names or "[{value" in self.message:
            position = position[:-1]
        is_alternative = self.alternative and 0 <= int(values[0]) <= self.total
        message = self.alternative if is_alternative else self.message
        index = ",".join(map(str, position))
        words = {
            "position": f"[{index}]" if position else "",
            "index": index,
            "value": value,
            "remaining": self.total - int(values[0]),
            "total": self.total,
            "sizes": ",".join(map(str, self.sizes)),
            "values": ",".join(coordinates),
            "item": coordinates[column],
            "bound": self.upper[column] if self.upper else 0,
            "column": column,
            "name": self.names[column] if self.names else "",
        }
        for name, word in words.items():
            message = message.replace(f"{{{name}}}", str(word))
        return _ERROR_CLASSES[self.error](message)


def is_padding(indices: Any, sizes: Sequence[int] | np.ndarray) -> Any:
    """Check which row indices [n], or elements [n, rank] of a sparse tensor, are padding, which no op uses.

    The result has the shape [n] or [n, 1].
    """
    limits = [
        max(n, PADDING_INDEX) if isinstance(n, int | np.integer) else PADDING_INDEX for n in sizes
    ]
    padding = indices >= np.array(limits, np.int64)
    return padding.any(1, keepdims=True) if indices.ndim == 2 else padding


def check_indices(
    indices: Any,
    size: int,
    is_gather: bool = True,
    allows_padding: bool = False,
    deferred: bool = False,
) -> Any:
    """Check that the indices of a gather or scatter are in [0, size), and return them; see `check_bounds`."""
    message = "indices{position} = {value} is not in [0, {sizes})"
    check = BoundsCheck(message, (0,), (size,), sizes=(size,), is_replaced=is_gather)
    return check_bounds(indices, check, allows_padding, deferred)


def check_columns(indices: Any, shape: Sequence[int], is_gather: bool = False) -> Any:
    """Check coordinates, the rows of `indices`, and return them.

    Args:
      indices: Coordinates in the leading dimensions of a tensor.
      shape: Shape of the tensor.
      is_gather: Whether the coordinates are those of a gather, which has another message.
    """
    columns = indices.shape[-1] if indices.shape else 1
    if not columns:
        return indices
    subject = "param shape" if is_gather else "shape"
    message = f"indices{{position}} = [{{value}}] does not index into {subject} [{{sizes}}]"
    limits = (0,) * columns, tuple(shape[:columns])
    check = BoundsCheck(message, *limits, sizes=tuple(shape), is_replaced=is_gather)
    return check_bounds(indices, check, deferred=is_gather)


def check_begin(begin: Any, size: int, total: int, axis: int) -> Any:
    """Check that a slice of `size` elements that starts at `begin` is inside an axis; return the start."""
    check = BoundsCheck(
        f"Expected begin[{axis}] in [0, {{total}}], but got {{value}}",
        (0,),
        (total - size + 1,),
        total=total,
        alternative=f"Expected size[{axis}] in [0, {{remaining}}], but got {{sizes}}",
        sizes=(size,),
    )
    return check_bounds(begin, check)


def check_slice_index(index: Any, size: int, axis: int) -> Any:
    """Check that an index, which may count from the end, is inside an axis, and return it."""
    message = f"slice index {{value}} of dimension {axis} out of bounds."
    return check_bounds(index, BoundsCheck(message, (-size,), (size,), num_negative=size))


def check_segment_ids(ids: Any, num_segments: int, allows_padding: bool = False) -> Any:
    """Check that segment ids, which may be negative, are below a number of segments; return them."""
    message = "segment_ids{position} = {value} is out of range [0, {sizes})"
    limits = (_MIN_INT64,), (num_segments,)
    check = BoundsCheck(message, *limits, sizes=(num_segments,))
    return check_bounds(ids, check, allows_padding)


def check_exponent(exponent: Any) -> Any:
    """Check that an exponent of integers is not negative, and return it."""
    message = "Integers to negative integer powers are not allowed"
    return check_bounds(exponent, BoundsCheck(message, (0,), (_MAX_INT64,)))


def check_classes(classes: Any, count: int, message: str, too_large: str = "") -> Any:
    """Check that class indices are in [0, count), and return them; a program that continues ignores the others.

    Args:
      classes: The class indices.
      count: Number of classes.
      message: The error message, in which {value} is replaced.
      too_large: Another message for indices that are too large.
    """
    limits = (0,), (count,)
    check = BoundsCheck(
        message, *limits, total=_MAX_INT64, alternative=too_large, is_replaced=False
    )
    return check_bounds(classes, check)


def check_divisor(divisor: Any, is_truncated: bool = False) -> Any:
    """Check that an integer divisor has no zeros, and return it."""
    if is_truncated:
        message = (
            "Unexpected error in binary operator (only integer div and mod should have errors)"
        )
        return check_bounds(divisor, BoundsCheck(message, error="InternalError"))
    return check_bounds(divisor, BoundsCheck("Integer division by zero"))


def check_bounds(
    values: Any, check: BoundsCheck, allows_padding: bool = False, deferred: bool = False
) -> Any:
    """Check integers and return them: an array, or a tensor.

    Args:
      values: The integers.
      check: Range of the allowed integers.
      allows_padding: Whether padding is allowed: see `is_padding`.
      deferred: Whether the caller uses the result, so that a traced function with a known value that is not allowed
        fails when it is run, and only if it uses that value.

    Raises:
      OpError: If a known value is not allowed.
    """
    array = getattr(values, "array", values)
    if hasattr(values, "_skips_bounds_check"):
        return values
    is_symbolic = not all(isinstance(size, int) for size in (*array.shape, *check.upper))
    if is_symbolic and context.exporting:
        return values  # Other runtimes have no checks.
    if isinstance(array, jax.core.Tracer) or is_symbolic:
        is_disabled = context.exporting or BoundsChecking.mode is False
        # A comparison of a size that depends on values would be a guard.
        if is_disabled or any(isinstance(size, int) and size == 0 for size in array.shape):
            return values
        operand = _lookup(values)
        if not allows_padding:
            checked = bounds_check_p.bind(operand, check=check, mode=ERROR)
        elif 0 in check.sizes:
            return values
        else:
            padding = is_padding(operand, check.sizes)
            visible = bounds_check_p.bind(jnp.where(padding, 0, operand), check=check, mode=ERROR)
            checked = jnp.where(padding, operand, visible)
        return checked if array is values else type(values)(checked)
    if context.value_probe is not None and context.value_probe.used:
        return values  # They may be placeholder values, or computed from some.
    if allows_padding:
        array = np.asarray(array)
        padding = is_padding(array, check.sizes)
        if padding.any():
            array = array[:0] if 0 in check.sizes else np.where(padding, 0, array)
    try:
        _check_concrete(array, check=check, mode=ERROR)
    except OpError:
        if context.trace is None or not deferred:
            raise
        return type(values)(bounds_check_p.bind(jnp.asarray(array), check=check, mode=ERROR))
    return values


def _lookup(values: Any) -> Any:
    """Return the array that represents a tensor in the present trace."""
    if hasattr(values, "array"):
        return values.array if context.trace is None else context.trace.lookup(values)
    return values


# Operand: integers. Parameters: `check`, a `BoundsCheck`, and `mode`. Result: the operand.
bounds_check_p = jex_core.Primitive("bounds_check")


def _call_handler(
    values: jax.Array, *, check: BoundsCheck, records: bool, is_sharded: bool = False
) -> jax.Array:
    result = jax.ShapeDtypeStruct(values.shape, values.dtype)
    # XLA would remove the check of an index into a dimension of size 1, but it only partitions calls without side
    # effects: each device then checks all values.
    call = jax.ffi.ffi_call(
        library.BOUNDS_CHECK, result, input_output_aliases={0: 0}, has_side_effect=not is_sharded
    )
    limits = {n: np.array(getattr(check, n), np.int64) for n in ("lower", "upper")}
    return call(
        values, **limits, description=check.to_json(), records=records, replaces=check.is_replaced
    )


def _check_by_callback(values: jax.Array, *, check: BoundsCheck) -> jax.Array:
    """Check values without the handler: Python is only called if one is not allowed."""
    if not check.lower:
        is_valid = values != 0
    else:
        lower, upper = (np.clip(b, *_get_limits(values)) for b in (check.lower, check.upper))
        is_valid = (values >= lower.astype(values.dtype)) & (values < upper.astype(values.dtype))

    def fail(array: jax.Array) -> NoReturn:
        raise ValueError(check.describe_failure(np.asarray(array)))

    result = jax.ShapeDtypeStruct(values.shape, values.dtype)
    return jax.lax.cond(
        jnp.all(is_valid), lambda x: x, lambda x: jax.pure_callback(fail, result, x), values
    )


def _get_limits(values: jax.Array) -> tuple[int, int]:
    limits = np.iinfo(values.dtype)
    return max(limits.min, _MIN_INT64), min(limits.max, _MAX_INT64)


def _lower(
    rule_context: mlir.LoweringRuleContext, values: Any, *, check: BoundsCheck, mode: str
) -> Any:
    loaded = library.load() if mode != NONE else None
    if loaded is None or not loaded.has_handler(library.BOUNDS_CHECK):
        return _lower_elsewhere(rule_context, values, check=check, mode=mode)
    is_sharded = lowerings.is_sharded(rule_context)
    if (
        BoundsChecking.mode is False
        or lowerings.is_exported(rule_context)
        or (is_sharded and mode == ERROR)
    ):
        return [values]
    run = mlir.lower_fun(_call_handler, multiple_results=False)
    records = mode == RECORD or is_sharded
    return run(rule_context, values, check=check, records=records, is_sharded=is_sharded)


def _lower_elsewhere(
    rule_context: mlir.LoweringRuleContext, values: Any, *, check: BoundsCheck, mode: str
) -> Any:
    if mode == NONE or not BoundsChecking.mode or not lowerings.can_use_handlers(rule_context):
        return [values]
    run = mlir.lower_fun(_check_by_callback, multiple_results=False)
    return run(rule_context, values, check=check)


def _differentiate(primals: Sequence[Any], tangents: Sequence[Any], **parameters: Any) -> Any:
    return bounds_check_p.bind(*primals, **parameters), tangents[0]


def _batch(operands: Sequence[Any], axes: Sequence[int], **parameters: Any) -> Any:
    # The columns of coordinates remain the last axis.
    values = jnp.moveaxis(operands[0], axes[0], 0)
    return bounds_check_p.bind(values, **parameters), 0


def _check_concrete(values: Any, *, check: BoundsCheck, mode: str) -> Any:
    is_made = mode != NONE and BoundsChecking.mode is not False
    failure = check.find_failure(np.asarray(values)) if is_made else None
    if failure is not None:
        raise failure
    return values


bounds_check_p.def_impl(_check_concrete)
bounds_check_p.def_abstract_eval(lambda values, **_: values)
ad.primitive_jvps[bounds_check_p] = _differentiate
batching.primitive_batchers[bounds_check_p] = _batch
mlir.register_lowering(bounds_check_p, _lower_elsewhere)
mlir.register_lowering(bounds_check_p, _lower, platform="cpu")


@rule(bounds_check_p.name, uses_shapes=False, is_pure=False, is_view=True)
def _make_interpreted_check(equation: Equation) -> Compute:
    return functools.partial(_check_concrete, **equation.params)


_FAILURE = re.compile(r"meshflow_bounds:(\d+):([-\d,]*):([\d,]*):(\{.*?\});", re.DOTALL)


def translate_bounds_failure(error: object) -> OpError | None:
    """Return TensorFlow's error if XLA's error or a record describes a failed check; else None."""
    found = _FAILURE.search(str(error))
    if found is None:
        return None
    offset, values, shape, description = found.groups()
    fields = json.loads(description)
    limits = {name: tuple(fields[name]) for name in ("lower", "upper", "sizes", "names")}
    check = BoundsCheck(**{**fields, **limits})
    sizes = [int(n) for n in shape.split(",") if n]
    return check.make_error(sizes, int(offset), [int(v) for v in values.split(",")])


# Bytes of a recorded failure.
_MAX_RECORD_BYTES = 1 << 14


def raise_recorded_failure() -> None:
    """Raise the error of a check that failed in a program that has run, if any."""
    loaded = library.load()
    if loaded is None or not loaded.take_bounds_failure(None, 0):
        return
    buffer = ctypes.create_string_buffer(_MAX_RECORD_BYTES)
    loaded.take_bounds_failure(buffer, len(buffer))
    failure = translate_bounds_failure(buffer.value.decode())
    if failure is not None:
        raise failure
