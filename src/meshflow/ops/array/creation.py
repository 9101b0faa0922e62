"""Ops that create tensors: constants, ranges, grids, identity matrices, one-hot vectors, masks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from meshflow.core.autograph.runtime.calls import register_range
from meshflow.core.dispatch.dispatch import apply, op
from meshflow.core.dispatch.operands import cast_numpy, check_integers, to_static_value
from meshflow.core.dispatch.operation import Op
from meshflow.core.dispatch.symbolic_calls import accept_symbolic, dispatch_composites
from meshflow.core.runtime.context import context
from meshflow.core.runtime.errors import DtypeMismatchError, InvalidValueError
from meshflow.core.values import convert, dtypes
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.dtypes import DType, DTypeLike, as_dtype
from meshflow.core.values.symbolic_sizes import has_symbolic_size
from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.core.values.unknown_sizes import compute_size
from meshflow.ops.array.shaping import StaticInts
from meshflow.ops.casting import cast
from meshflow.ops.deferred_host_values import defer_numbers

__all__ = [
    "eye",
    "fill",
    "linspace",
    "meshgrid",
    "one_hot",
    "ones",
    "ones_like",
    "range",
    "sequence_mask",
    "zeros",
    "zeros_like",
]

Sizes = tuple[int, ...]
Statics = tuple[Any, ...]
_python_range = range


class TensorLayout(Protocol):
    """A layout of tensors on a mesh of devices."""

    def constrain(self, tensor: Tensor) -> Tensor:
        """Return the tensor in this layout."""


def _make_full(shape: Sizes, value: int, dtype: dtypes.DType) -> Tensor:
    return apply(_FULL, (), (shape, value, dtype.name))


def _compute_full(_: object, static: Statics) -> jax.Array:
    shape, value, name = static
    return jnp.full(shape, value, as_dtype(name).dtype)


_FULL = Op("fill", _compute_full)


def as_sizes(shape: StaticInts, name: str = "shape") -> Sizes:
    """Return a shape argument as a tuple of Python integers.

    Raises:
      TypeError: If a size is only known at run time.
      ValueError: If a size is unknown.
      InvalidArgumentError: If a size is negative or a list.
    """
    if isinstance(shape, (tuple, list)) and all(type(size) is int and size >= 0 for size in shape):
        return tuple(shape)
    value = to_static_value(shape, name)
    check_integers(value, name)
    sizes = value if isinstance(value, tuple) else (value,)
    if any(s is None for s in sizes):
        raise ValueError(f"`{name}` must be fully known, got {sizes}.")
    if any(isinstance(s, tuple) for s in sizes):
        raise InvalidValueError(f"`{name}` must be a list of sizes, got the nested list {sizes}.")
    if any(s < 0 for s in sizes):
        raise InvalidValueError(f"`{name}` must hold sizes of at least 0, got {list(sizes)}.")
    return sizes if has_symbolic_size(sizes) else tuple(int(s) for s in sizes)


def _apply_layout(tensor: Tensor, layout: TensorLayout | None, like: object = None) -> Tensor:
    """Place a tensor in a layout or, without one, with the sharding of `like`."""
    if layout is not None:
        return layout.constrain(tensor)
    sharding = getattr(getattr(like, "_value", None), "sharding", None)
    if context.trace is None and isinstance(sharding, jax.sharding.NamedSharding):
        return Tensor(jax.device_put(tensor.array, sharding))
    return tensor


@defer_numbers
@accept_symbolic
def zeros(
    shape: StaticInts,
    dtype: DTypeLike | None = dtypes.float32,
    name: str | None = None,
    layout: TensorLayout | None = None,
) -> Tensor:
    """Create a tensor of zeros (False for booleans, empty for strings).

    Args:
      shape: Sizes, as a list, tuple, `TensorShape` or integer tensor.
      dtype: Element type.
      name: Ignored.
      layout: A `tf.experimental.dtensor.Layout`, to create the tensor on a mesh.

    Example:
      >>> tf.zeros([2], tf.int32).numpy()
      array([0, 0], dtype=int32)
    """
    dtype_ = as_dtype(dtype)
    if dtype_ is dtypes.string:
        return Tensor(np.full(as_sizes(shape), b"", object))
    return _apply_layout(_make_full(as_sizes(shape), 0, dtype_), layout)


@defer_numbers
@accept_symbolic
def ones(
    shape: StaticInts,
    dtype: DTypeLike | None = dtypes.float32,
    name: str | None = None,
    layout: TensorLayout | None = None,
) -> Tensor:
    """Create a tensor of a shape with ones (True for booleans); the arguments are those of `zeros`.

    Example:
      >>> print(tf.ones([2, 2], tf.int32).numpy())
      [[1 1]
       [1 1]]
    """
    return _apply_layout(_make_full(as_sizes(shape), 1, as_dtype(dtype)), layout)


@defer_numbers
@accept_symbolic
def fill(
    dims: StaticInts, value: TensorLike, name: str | None = None, layout: TensorLayout | None = None
) -> Tensor:
    """Create a tensor in which all elements have one value.

    Args:
      dims: Sizes of the tensor.
      value: A scalar.
      name: Ignored.
      layout: A `tf.experimental.dtensor.Layout`, to create the tensor on a mesh.

    Example:
      >>> tf.fill([2], 9).numpy()
      array([9, 9], dtype=int32)
    """
    return _apply_layout(_fill(value, as_sizes(dims, "dims")), layout)


@op(same=(), name="fill", strings="moves", sizes=("sizes",))
def _fill(value: TensorLike, sizes: tuple[int, ...]) -> Tensor:
    if value.size != 1:
        raise ValueError(f"value must be a scalar, got shape {list(value.shape)}.")
    return jnp.broadcast_to(value.reshape(()), sizes)


@op(same=(), differentiable=False, name="zeros_like")
def _fill_like(input: TensorLike, dtype: DType | None, value: int) -> Tensor:
    return jnp.full(input.shape, value, input.dtype if dtype is None else dtype.dtype)


@defer_numbers
@dispatch_composites
def zeros_like(
    input: TensorLike,
    dtype: DTypeLike | None = None,
    name: str | None = None,
    layout: TensorLayout | None = None,
) -> Tensor:
    """Create a tensor of zeros with the shape of another tensor.

    The dtype is the tensor's unless `dtype` is passed. Without a `layout`, the result has the
    tensor's sharding.

    Example:
      >>> print(tf.zeros_like([[1, 2], [3, 4]]).numpy())
      [[0 0]
       [0 0]]
      >>> tf.zeros_like([1, 2], dtype=tf.float16).dtype
      tf.float16
    """
    if not hasattr(input, "_keras_history"):
        input = convert_to_tensor(input)
        if input.dtype is dtypes.string:
            return zeros(input.shape, dtype or dtypes.string)
    if dtype is not None and as_dtype(dtype) is dtypes.string:
        return zeros(convert_to_tensor(input).shape, dtypes.string)
    return _apply_layout(
        _fill_like(input, None if dtype is None else as_dtype(dtype), 0), layout, input
    )


@defer_numbers
@dispatch_composites
def ones_like(
    input: TensorLike,
    dtype: DTypeLike | None = None,
    name: str | None = None,
    layout: TensorLayout | None = None,
) -> Tensor:
    """Create a tensor of ones with the shape of another tensor.

    The dtype is the tensor's unless `dtype` is passed. Without a `layout`, the result has the
    tensor's sharding.

    Example:
      >>> print(tf.ones_like([2.5, 3.5]).numpy())
      [1. 1.]
    """
    if dtype is not None and not hasattr(input, "_keras_history"):
        input = convert_to_tensor(input)
        if input.dtype is dtypes.string:
            return ones(input.shape, dtype)
    return _apply_layout(
        _fill_like(input, None if dtype is None else as_dtype(dtype), 1), layout, input
    )


@accept_symbolic
def eye(
    num_rows: StaticInts,
    num_columns: StaticInts | None = None,
    batch_shape: StaticInts | None = None,
    dtype: DTypeLike | None = dtypes.float32,
    name: str | None = None,
) -> Tensor:
    """Create identity matrices of shape [*batch_shape, num_rows, num_columns].

    Args:
      num_rows: Number of rows.
      num_columns: Number of columns; default `num_rows`.
      batch_shape: Sizes of leading dimensions; default none.
      dtype: Dtype of the result.
      name: Ignored.

    Example:
      >>> print(tf.eye(2, 3, dtype=tf.int32).numpy())
      [[1 0 0]
       [0 1 0]]
      >>> tf.eye(2, batch_shape=[5]).shape
      TensorShape([5, 2, 2])
    """
    (rows,) = as_sizes(_to_integer(num_rows), "num_rows")
    columns = rows
    if num_columns is not None:
        (columns,) = as_sizes(_to_integer(num_columns), "num_columns")
    batch = () if batch_shape is None else as_sizes(batch_shape)
    return apply(_EYE, (), (rows, columns, batch, as_dtype(dtype).name))


def _to_integer(size: Any) -> Any:
    """Convert a size that a program computed with floating-point numbers."""
    if isinstance(size, Tensor) and size.dtype.is_floating:
        return Tensor(size.array.astype("int32"))
    return int(size) if isinstance(size, float) and size.is_integer() else size


_EYE = Op(
    "eye",
    lambda _, s: jnp.broadcast_to(
        jnp.eye(s[0], s[1], dtype=as_dtype(s[3]).dtype), (*s[2], s[0], s[1])
    ),
)


@defer_numbers
@accept_symbolic
def range(
    start: Any,
    limit: Any = None,
    delta: Any = 1,
    dtype: DTypeLike | None = None,
    name: str = "range",
) -> Tensor:
    """Create the vector start, start + delta, ... of values before `limit`.

    It has ceil((limit - start) / delta) elements. This size is static while a function is traced.

    Args:
      start: First value; the limit if `limit` is None.
      limit: End of the range, which is not included.
      delta: Difference of consecutive values.
      dtype: Default the widest dtype of the arguments.
      name: Ignored.

    Raises:
      InvalidArgumentError: If delta is 0, or leads away from `limit`.
      TypeError: If the arguments are only known at run time.

    Example:
      >>> tf.range(3, 10, 3).numpy()
      array([3, 6, 9], dtype=int32)
    """
    if limit is None:
        start, limit = 0, start
    values = [to_static_value(v, "tf.range argument") for v in (start, limit, delta)]
    values = [v[0] if isinstance(v, tuple) and len(v) == 1 else v for v in values]
    if any(isinstance(v, tuple) for v in values):
        raise InvalidValueError(f"tf.range takes numbers, got {values}. [Op:Range]")
    if dtype is None:
        sample_values = [0 if has_symbolic_size([v]) else v for v in (start, limit, delta)]
        candidates = [convert_to_tensor(v).dtype for v in sample_values]
        order = [
            dtypes.int32,
            dtypes.int64,
            dtypes.float16,
            dtypes.bfloat16,
            dtypes.float32,
            dtypes.float64,
        ]
        result_dtype = max(
            (k for k in candidates if k in order), key=order.index, default=candidates[0]
        )
    else:
        result_dtype = as_dtype(dtype)
    if values[2] == 0:
        raise InvalidValueError("Requires delta != 0: 0 [Op:Range]")
    if (values[1] - values[0]) * values[2] < 0:
        sign = ("<=", ">") if values[2] > 0 else (">=", "<")
        raise InvalidValueError(
            f"Requires start {sign[0]} limit when delta {sign[1]} 0: {values[0]}/{values[1]} [Op:Range]"
        )
    if has_symbolic_size(values):
        return Tensor(jnp.arange(values[0], values[1], values[2], dtype=result_dtype.dtype))
    array = np.arange(*values).astype(result_dtype.dtype)
    return convert.convert_python_value(array, result_dtype)


register_range(range)


def linspace(
    start: TensorLike, stop: TensorLike, num: StaticInts, name: str | None = None, axis: int = 0
) -> Tensor:
    """Create `num` evenly spaced values from `start` to `stop` inclusive, along a new dimension.

    Integers of at most 16 bits are computed as float32, larger ones as float64.

    Args:
      start: A tensor.
      stop: A tensor of the same dtype and shape.
      num: Number of values, at least 1.
      name: Ignored.
      axis: Index of the new dimension.

    Example:
      >>> print(tf.linspace(0.0, 1.0, 5).numpy())
      [0.   0.25 0.5  0.75 1.  ]
    """
    if not hasattr(start, "_keras_history"):
        start = convert_to_tensor(start)
        if start.dtype.is_integer:
            float_dtype = dtypes.float32 if start.dtype.size <= 2 else dtypes.float64
            start, stop = cast(start, float_dtype), cast(stop, float_dtype)
    return _linspace(start, stop, to_static_value(num, "num"), axis)


@op(name="linspace", kinds="fc")
def _linspace(start: TensorLike, stop: TensorLike, num: int, axis: int) -> Tensor:
    return jnp.linspace(start, stop, num, axis=axis, dtype=start.dtype)


@accept_symbolic
def meshgrid(*args: Any, **kwargs: Any) -> list[Tensor]:
    """Create the coordinate tensors of a grid from vectors of coordinates.

    Vectors of n1, n2, ... elements result in tensors of shape (n2, n1, ...), with indexing 'ij'
    (n1, n2, ...).

    Args:
      *args: Vectors.
      **kwargs: `indexing`, 'xy' (default) or 'ij'.

    Returns:
      One tensor per vector.

    Example:
      >>> x, y = tf.meshgrid([1, 2, 3], [10, 20])
      >>> x.numpy().tolist(), y.numpy().tolist()
      ([[1, 2, 3], [1, 2, 3]], [[10, 10, 10], [20, 20, 20]])
    """
    indexing = kwargs.pop("indexing", "xy")
    kwargs.pop("name", None)
    if kwargs:
        raise TypeError(f"'{sorted(kwargs)[0]}' is an invalid keyword argument for this function")
    if indexing not in ("xy", "ij"):
        raise ValueError("Argument `indexing` must be either 'xy' or 'ij', got " + repr(indexing))
    return list(_meshgrid([convert_to_tensor(a) for a in args], indexing))


def _compute_meshgrid(operands: tuple[list[jax.Array]], static: Statics) -> list[jax.Array]:
    return jnp.meshgrid(*[v.reshape(-1) for v in operands[0]], indexing=static[0])


_MESHGRID = Op("meshgrid", _compute_meshgrid)


def _meshgrid(tensors: list[Tensor], indexing: str) -> Sequence[Tensor]:
    return apply(_MESHGRID, (tensors,), (indexing,))


@op(same=("on_value", "off_value"), name="one_hot", strings="moves", sizes=("depth",))
def _one_hot(
    indices: TensorLike, on_value: TensorLike, off_value: TensorLike, depth: int, axis: int
) -> Tensor:
    if not jnp.issubdtype(indices.dtype, jnp.integer):
        raise DtypeMismatchError(
            f"one_hot: indices must be integers, got {indices.dtype.name}. [Op:OneHot]"
        )
    if not -1 <= axis <= indices.ndim:
        raise InvalidValueError(
            f"one_hot: axis must be -1 or between 0 and {indices.ndim}, got {axis}."
        )
    if isinstance(depth, tuple):
        raise InvalidValueError(
            f"one_hot: depth must be a scalar, but got: {list(depth)}. [Op:OneHot]"
        )
    if depth < 0:
        raise InvalidValueError(f"one_hot: depth must be non-negative, got: {depth}. [Op:OneHot]")
    axis = axis % (indices.ndim + 1)
    positions = jnp.arange(depth, dtype=indices.dtype).reshape(
        [-1 if i == axis else 1 for i in _python_range(indices.ndim + 1)]
    )
    return jnp.where(jnp.expand_dims(indices, axis) == positions, on_value, off_value)


@dispatch_composites
def one_hot(
    indices: TensorLike,
    depth: StaticInts,
    on_value: Any = None,
    off_value: Any = None,
    axis: int | None = None,
    dtype: DTypeLike | None = None,
    name: str | None = None,
) -> Tensor:
    """Create one-hot vectors: `on_value` at one position, `off_value` at all others.

    The result has the shape of the indices with a dimension of size `depth` inserted at `axis`.

    Args:
      indices: Integers; one that is out of range results in a vector of `off_value` only.
      depth: Size of the new dimension.
      on_value: Default 1.
      off_value: Default 0.
      axis: Index of the new dimension; default last.
      dtype: Default the dtype of `on_value`, else float32.
      name: Ignored.

    Example:
      >>> tf.one_hot([1, -1], 2).numpy()
      array([[0., 1.],
             [0., 0.]], dtype=float32)
    """
    if dtype is None:
        value_dtypes = [convert_to_tensor(v).dtype for v in (on_value, off_value) if v is not None]
        if len({d.name for d in value_dtypes}) > 1:
            raise TypeError(
                f"dtype {value_dtypes[0]!r} of on_value does not match dtype {value_dtypes[1]!r} of off_value"
            )
        dtype = value_dtypes[0] if value_dtypes else dtypes.float32
    dtype_ = as_dtype(dtype)
    on = convert_to_tensor(
        1 if on_value is None else on_value,
        dtype=dtype_ if not dtype_.is_bool or on_value is not None else None,
    )
    off = convert_to_tensor(
        0 if off_value is None else off_value,
        dtype=dtype_ if not dtype_.is_bool or off_value is not None else None,
    )
    if dtype_.is_bool:
        on, off = cast(on, dtype_), cast(off, dtype_)
    indices = cast_numpy(indices, dtypes.int64)
    return _one_hot(indices, on, off, to_static_value(depth, "depth"), -1 if axis is None else axis)


@defer_numbers
@accept_symbolic
def sequence_mask(
    lengths: TensorLike,
    maxlen: StaticInts | None = None,
    dtype: DTypeLike = dtypes.bool_,
    name: str | None = None,
) -> Tensor:
    """Create masks that are True for the first n positions, for each length n.

    Args:
      lengths: Integers of any shape.
      maxlen: Size of the new last dimension; default the largest length.
      dtype: Dtype of the result.
      name: Ignored.

    Returns:
      Tensor of shape [*lengths.shape, maxlen].

    Example:
      >>> print(tf.sequence_mask([1, 3], maxlen=4, dtype=tf.int32).numpy())
      [[1 0 0 0]
       [1 1 1 0]]
    """
    lengths = convert_to_tensor(lengths)
    if maxlen is None:
        use = "lengths of tf.sequence_mask without maxlen"
        maxlen = compute_size(lambda values: values.max(initial=0), [lengths], use)
    return _sequence_mask(lengths, to_static_value(maxlen, "maxlen"), as_dtype(dtype))


@op(same=(), differentiable=False, name="sequence_mask", sizes=("maxlen",))
def _sequence_mask(lengths: TensorLike, maxlen: int, dtype: DType) -> Tensor:
    if isinstance(maxlen, tuple):
        raise InvalidValueError(
            f"Argument `maxlen` must be scalar for sequence_mask, received `maxlen` = {list(maxlen)}."
        )
    return (jnp.arange(maxlen, dtype=lengths.dtype) < lengths[..., None]).astype(dtype.dtype)
