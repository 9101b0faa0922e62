"""Changing shapes and joining tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from meshflow.core import convert, dtypes
from meshflow.core.convert import convert_to_tensor
from meshflow.core.dispatch import apply, op
from meshflow.core.dtypes import as_dtype
from meshflow.core.errors import InvalidValueError
from meshflow.core.indexing import getitem
from meshflow.core.operands import static_value
from meshflow.core.operation import Op
from meshflow.core.shapes import TensorShape
from meshflow.core.tensor import Tensor, TensorLike

__all__ = [
    "batch_to_space",
    "bitcast",
    "broadcast_dynamic_shape",
    "broadcast_static_shape",
    "broadcast_to",
    "concat",
    "depth_to_space",
    "expand_dims",
    "newaxis",
    "pad",
    "parallel_stack",
    "repeat",
    "required_space_to_batch_paddings",
    "reshape",
    "reverse",
    "reverse_sequence",
    "roll",
    "slice",
    "space_to_batch",
    "space_to_batch_nd",
    "space_to_depth",
    "split",
    "squeeze",
    "stack",
    "strided_slice",
    "tile",
    "transpose",
    "unstack",
]

newaxis = None
_python_slice = slice


def _axis(axis: int, rank: int, what: str) -> int:
    if not -rank <= axis < rank:
        raise InvalidValueError(f"{what}: axis {axis} is out of range for rank {rank}.")
    return axis % rank


@op(same=(), name="reshape", strings="moves")
def reshape(tensor: TensorLike, shape: Any, name: str | None = None) -> Tensor:
    """The same elements in another shape.

    Args:
      tensor: a tensor.
      shape: the new sizes; one may be -1.
      name: ignored.

    Returns:
      A tensor.

    Raises:
      InvalidArgumentError: when the number of elements differs.

    Example:
      >>> import meshflow as tf
      >>> tf.reshape(tf.range(6), [2, -1]).numpy()
      array([[0, 1, 2],
             [3, 4, 5]], dtype=int32)
    """
    sizes = (shape,) if isinstance(shape, int) else tuple(-1 if s is None else s for s in shape)
    count = int(np.prod(sizes, dtype=np.int64))
    if (-1 not in sizes and count != tensor.size) or sizes.count(-1) > 1:
        raise InvalidValueError(
            f"Input to reshape is a tensor with {tensor.size} values, but the requested shape {list(sizes)} has {count}."
        )
    if -1 in sizes and 0 in sizes and tensor.size == 0:
        # Any size would do; TensorFlow takes the one that fits when zeros do not count.
        old = int(np.prod([s for s in tensor.shape if s], dtype=np.int64))
        new = int(np.prod([s for s in sizes if s > 0], dtype=np.int64))
        sizes = tuple(old // new if s == -1 else s for s in sizes)
    return jnp.reshape(tensor, sizes)


@op(same=(), name="expand_dims", strings="moves")
def expand_dims(input: TensorLike, axis: int, name: str | None = None) -> Tensor:
    """Adds a dimension of size 1 at `axis`."""
    if isinstance(axis, tuple) and len(axis) == 1:
        axis = axis[0]
    return jnp.expand_dims(input, _axis(axis, input.ndim + 1, "expand_dims"))


@op(same=(), name="squeeze", strings="moves")
def squeeze(input: TensorLike, axis: Any = None, name: str | None = None) -> Tensor:
    """Drops dimensions of size 1: all, or those in `axis`.

    Raises:
      InvalidArgumentError: when a dimension has another size.
    """
    if axis is not None and axis != ():
        axes = (axis,) if isinstance(axis, int) else axis
        axes = tuple(_axis(a, input.ndim, "squeeze") for a in axes)
        for a in axes:
            if input.shape[a] != 1:
                raise InvalidValueError(
                    f"Can not squeeze dim[{a}], expected a dimension of 1, got {input.shape[a]}."
                )
        return jnp.squeeze(input, axes)
    return jnp.squeeze(input)


@op(same=(), name="transpose", strings="moves")
def transpose(
    a: TensorLike, perm: Any = None, conjugate: bool = False, name: str = "transpose"
) -> Tensor:
    """Permutes dimensions; default reverses them.

    Args:
      a: a tensor.
      perm: the order of the dimensions.
      conjugate: whether complex numbers are conjugated too.
      name: ignored.
    """
    if perm is not None and sorted(p % max(a.ndim, 1) for p in perm) != list(range(a.ndim)):
        raise InvalidValueError(
            f"transpose expects a permutation of the {a.ndim} dimensions, got {list(perm)}."
        )
    result = jnp.transpose(a, perm)
    return jnp.conj(result) if conjugate else result


@op(name="concat", strings="moves")
def _concat(values: Sequence[TensorLike], axis: int) -> Tensor:
    axis = _axis(axis, max(values[0].ndim, 1), "concat")
    return jnp.concatenate(values, axis)


def concat(values: Any, axis: Any, name: str = "concat") -> Tensor:
    """Joins tensors along a dimension.

    Args:
      values: tensors of one dtype whose other sizes agree.
      axis: the dimension.
      name: ignored.

    Returns:
      A tensor.

    Raises:
      InvalidArgumentError: when shapes do not fit.

    Example:
      >>> import meshflow as tf
      >>> tf.concat([[1, 2], [3]], 0).numpy()
      array([1, 2, 3], dtype=int32)
    """
    if not isinstance(values, (list, tuple)):
        values = [values]
    return _concat(list(values), axis)


@op(name="stack", strings="moves")
def _stack(values: Sequence[TensorLike], axis: int) -> Tensor:
    shapes = {v.shape for v in values}
    if len(shapes) > 1:
        raise InvalidValueError(f"Shapes of all inputs must match, got {sorted(shapes)} [Op:Pack]")
    return jnp.stack(values, _axis(axis, values[0].ndim + 1, "stack"))


def stack(values: Any, axis: int = 0, name: str = "stack") -> Tensor:
    """Joins tensors of one shape along a new dimension.

    Args:
      values: tensors of one shape and dtype.
      axis: place of the new dimension.
      name: ignored.

    Example:
      >>> import meshflow as tf
      >>> tf.stack([1, 2]).numpy()
      array([1, 2], dtype=int32)
    """
    values = list(values)
    if not values:
        return convert_to_tensor([], dtypes.float32)
    if not any(hasattr(v, "dtype") for v in values):
        # Numbers and lists share a dtype as they do in one nested list: 1 and 2.5 are floats.
        try:
            together = convert_to_tensor(values).dtype
            values = [convert_to_tensor(v, dtype=together) for v in values]
        except ValueError:
            pass
    return _stack(values, axis)


def parallel_stack(values: Any, name: str = "parallel_stack") -> Tensor:
    """`stack` along a new first dimension."""
    return stack(values)


def _pack(value: Any, dtype: dtypes.DType | None) -> Tensor:
    """A tensor from nested lists that hold tensors."""
    items = [
        _pack(v, dtype) if isinstance(v, (list, tuple)) and convert._holds_tensors(v) else v
        for v in value
    ]
    if dtype is not None:
        items = [convert_to_tensor(v, dtype_hint=dtype) for v in items]
    result = stack(items)
    if dtype is not None and result.dtype is not dtype:
        raise TypeError(
            f"Cannot convert a list of {result.dtype.name} tensors to dtype {dtype.name}: use tf.cast."
        )
    return result


convert.pack = _pack


@op(same=(), name="unstack", strings="moves")
def _unstack(value: TensorLike, axis: int) -> Any:
    axis = _axis(axis, value.ndim, "unstack")
    return [jax.lax.index_in_dim(value, i, axis, keepdims=False) for i in range(value.shape[axis])]


def unstack(
    value: TensorLike, num: int | None = None, axis: int = 0, name: str = "unstack"
) -> list[Tensor]:
    """The parts of a tensor along a dimension, as a list.

    Raises:
      InvalidArgumentError: when `num` is given and is not the dimension's size.
    """
    parts = _unstack(value, axis)
    if num is not None and num != len(parts):
        raise InvalidValueError(
            f"unstack: num is {num}, but dimension {axis} has size {len(parts)}. [Op:Unpack]"
        )
    return list(parts)


@op(same=(), name="split", strings="moves")
def _split(value: TensorLike, sizes: Any, axis: int) -> Any:
    axis = _axis(axis, value.ndim, "split")
    total = value.shape[axis]
    if isinstance(sizes, int):
        if sizes <= 0 or total % sizes:
            raise InvalidValueError(
                f"Dimension size {total}, must be evenly divisible by {sizes} [Op:Split]"
            )
        sizes = (total // sizes,) * sizes
    if -1 in sizes:
        rest = total - sum(s for s in sizes if s != -1)
        sizes = tuple(rest if s == -1 else s for s in sizes)
    if sum(sizes) != total:
        raise InvalidValueError(
            f"split sizes {list(sizes)} must add up to {total}, the size of dimension {axis}."
        )
    return jnp.split(value, np.cumsum(sizes)[:-1].tolist(), axis)


def split(
    value: TensorLike,
    num_or_size_splits: Any,
    axis: int = 0,
    num: int | None = None,
    name: str = "split",
) -> list[Tensor]:
    """Splits a tensor along a dimension.

    Args:
      value: a tensor.
      num_or_size_splits: number of equal parts, or a list of sizes, one of which may be -1.
      axis: the dimension.
      num: ignored.
      name: ignored.

    Returns:
      A list of tensors.

    Raises:
      InvalidArgumentError: when the sizes do not fit.
    """
    return list(_split(value, num_or_size_splits, axis))


@op(same=(), name="tile", strings="moves")
def tile(input: TensorLike, multiples: Any, name: str | None = None) -> Tensor:
    """Repeats a tensor `multiples[i]` times along dimension i."""
    if len(multiples) != input.ndim:
        raise InvalidValueError(
            f"tile needs one multiple per dimension ({input.ndim}), got {list(multiples)}."
        )
    if min(multiples, default=0) < 0:
        raise InvalidValueError(f"tile: multiples must be >= 0, got {list(multiples)}.")
    return jnp.tile(input, multiples)


@op(same=(), name="repeat", strings="moves")
def repeat(input: TensorLike, repeats: Any, axis: Any = None, name: str | None = None) -> Tensor:
    """Repeats each element along a dimension; without `axis`, of the flattened tensor."""
    if isinstance(repeats, tuple):
        repeats = np.asarray(repeats)
        if repeats.ndim > 1:
            raise ValueError(f"repeats: shape {repeats.shape} must have rank at most 1.")
    return jnp.repeat(input, repeats, axis=axis)


def _check_pairs(tensor: Any, paddings: Any) -> None:
    """Refuses paddings that are not one pair of sizes per dimension."""
    if len(paddings) != tensor.ndim or any(len(p) != 2 or min(p) < 0 for p in paddings):
        raise InvalidValueError(
            f"paddings must be {tensor.ndim} pairs (before, after) of sizes that are not negative, "
            f"one per dimension of the input, got {list(paddings)}. [Op:Pad]"
        )


@op(same=("tensor", "constant_values"), name="pad", strings="moves")
def _pad_constant(tensor: TensorLike, constant_values: TensorLike, paddings: Any) -> Tensor:
    _check_pairs(tensor, paddings)
    return jnp.pad(tensor, paddings, constant_values=constant_values)


@op(same=(), name="pad", strings="moves")
def _pad_mirror(tensor: TensorLike, paddings: Any, mode: str) -> Tensor:
    _check_pairs(tensor, paddings)
    for pair, size in zip(paddings, tensor.shape, strict=True):
        most = size - (mode == "reflect")
        if max(pair) > most:
            raise InvalidValueError(
                f"paddings must be at most {most} for a dimension of size {size} in mode "
                f"{mode.upper()}, got {list(pair)}. [Op:MirrorPad]"
            )
    return jnp.pad(tensor, paddings, mode=mode)


def pad(
    tensor: TensorLike,
    paddings: Any,
    mode: str = "CONSTANT",
    constant_values: Any = 0,
    name: str | None = None,
) -> Tensor:
    """Adds elements before and after, along each dimension.

    Args:
      tensor: a tensor.
      paddings: one pair (before, after) per dimension.
      mode: 'CONSTANT', 'REFLECT' (without the edge) or 'SYMMETRIC' (with it).
      constant_values: the value in mode 'CONSTANT'.
      name: ignored.

    Returns:
      A larger tensor.

    Raises:
      ValueError: for another mode.
    """
    mode = mode.upper()
    pairs = static_value(paddings, "paddings")
    if mode == "CONSTANT":
        if hasattr(tensor, "_keras_history"):
            return _pad_constant(tensor, constant_values, pairs)
        tensor = convert_to_tensor(tensor)
        if isinstance(constant_values, int) and constant_values == 0:
            constant_values = np.zeros((), tensor.dtype.dtype)
            if tensor.dtype is dtypes.string:
                constant_values = b""
        return _pad_constant(tensor, convert_to_tensor(constant_values, dtype=tensor.dtype), pairs)
    if mode not in ("REFLECT", "SYMMETRIC"):
        raise ValueError(
            f"Value of argument `mode` expected to be one of 'CONSTANT', 'REFLECT' or 'SYMMETRIC'. Received {mode!r}."
        )
    return _pad_mirror(tensor, pairs, mode.lower())


@op(same=(), name="reverse", strings="moves")
def reverse(tensor: TensorLike, axis: Any, name: str | None = None) -> Tensor:
    """Reverses the order along dimensions."""
    return jnp.flip(tensor, axis)


def roll(input: Any, shift: Any, axis: Any, name: str | None = None) -> Tensor:
    """Moves elements along dimensions; those pushed out come in at the other end.

    Args:
      input: a tensor.
      shift: how far, an integer or one per axis; in a compiled function it may be computed there.
      axis: the dimension or dimensions.
      name: ignored.

    Returns:
      A tensor like `input`.

    Raises:
      InvalidArgumentError: when there is not one shift for each axis.

    Example:
      >>> import meshflow as tf
      >>> tf.roll([0, 1, 2, 3], shift=1, axis=0).numpy()
      array([3, 0, 1, 2], dtype=int32)
    """
    if isinstance(shift, Tensor) and isinstance(shift._value, jax.core.Tracer):
        return _rolled_by(input, shift, axis)
    return _rolled(input, shift, axis)


@op(same=(), name="roll", strings="moves")
def _rolled(input: TensorLike, shift: Any, axis: Any) -> Tensor:
    counts = [len(v) if isinstance(v, tuple) else None for v in (shift, axis)]
    if counts[0] != counts[1] and {*counts} != {None, 1}:
        raise InvalidValueError(
            f"roll: shift and axis must have the same size, got {shift} and {axis}."
        )
    return jnp.roll(input, shift, axis)


@op(same=(), name="roll")
def _rolled_by(input: TensorLike, shift: TensorLike, axis: Any) -> Tensor:
    count = len(axis) if isinstance(axis, tuple) else None
    if shift.shape != (() if count is None else (count,)):
        raise InvalidValueError(
            f"roll: shift has shape {shift.shape} and axis is {axis}: there must be one shift for each."
        )
    return jnp.roll(input, shift, axis)


@op(same=(), name="reverse_sequence", strings="moves")
def reverse_sequence(
    input: TensorLike,
    seq_lengths: TensorLike,
    seq_axis: Any = None,
    batch_axis: Any = None,
    name: str | None = None,
) -> Tensor:
    """Reverses the first `seq_lengths[i]` elements of each example."""
    seq_axis = 1 if seq_axis is None else seq_axis
    batch_axis = 0 if batch_axis is None else batch_axis
    moved = jnp.moveaxis(input, (batch_axis, seq_axis), (0, 1))
    steps = jnp.arange(moved.shape[1])[None, :]
    lengths = seq_lengths[:, None]
    index = jnp.where(steps < lengths, lengths - 1 - steps, steps)
    result = jnp.take_along_axis(
        moved, index.reshape(index.shape + (1,) * (moved.ndim - 2)), axis=1
    )
    return jnp.moveaxis(result, (0, 1), (batch_axis, seq_axis))


@op(same=(), name="broadcast_to", strings="moves")
def broadcast_to(input: TensorLike, shape: Any, name: str | None = None) -> Tensor:
    """Repeats a tensor to a larger shape, as broadcasting does."""
    return jnp.broadcast_to(input, shape)


def broadcast_static_shape(shape_x: TensorShape, shape_y: TensorShape) -> TensorShape:
    """The shape that two shapes broadcast to.

    Raises:
      ValueError: when they do not broadcast.
    """
    return TensorShape(
        np.broadcast_shapes(
            tuple(TensorShape(shape_x).as_list()), tuple(TensorShape(shape_y).as_list())
        )
    )


def broadcast_dynamic_shape(shape_x: TensorLike, shape_y: TensorLike) -> Tensor:
    """The shape that two shapes, given as integer tensors, broadcast to.

    Raises:
      InvalidArgumentError: when they do not broadcast.
    """
    sizes = [
        tuple(int(v) for v in convert_to_tensor(s)._concrete("a shape")) for s in (shape_x, shape_y)
    ]
    try:
        common = np.broadcast_shapes(*sizes)
    except ValueError:
        raise InvalidValueError(
            f"Incompatible shapes for broadcasting: {list(sizes[0])} and {list(sizes[1])}"
        ) from None
    return convert_to_tensor(list(common), dtype=dtypes.int32)


@op(same=(), name="bitcast")
def _bitcast(input: TensorLike, dtype: Any) -> Tensor:
    return jax.lax.bitcast_convert_type(input, dtype.dtype)


def bitcast(input: TensorLike, type: Any, name: str | None = None) -> Tensor:
    """The same bits read as another dtype."""
    return _bitcast(input, as_dtype(type))


def _slice_op(operands: Any, size: tuple[int, ...]) -> Any:
    array, begins = operands
    return jax.lax.dynamic_slice(array, begins, size)


_SLICE = Op("slice", _slice_op, strings="moves")


def slice(input_: TensorLike, begin: Any, size: Any, name: str | None = None) -> Tensor:
    """A block of a tensor; `begin` may be computed at run time, `size` may not.

    Args:
      input_: a tensor.
      begin: first position in each dimension.
      size: size in each dimension; -1 for all that remains (then `begin` must be known).
      name: ignored.

    Raises:
      InvalidArgumentError: when the block leaves the tensor.
    """
    if hasattr(input_, "_keras_history"):
        sizes = static_value(size)
        return input_[
            tuple(
                _python_slice(b, None if s == -1 else b + s)
                for b, s in zip(begin, sizes, strict=True)
            )
        ]
    tensor = convert_to_tensor(input_)
    sizes = static_value(size, "size")
    if len(sizes) != tensor.ndim:
        raise InvalidValueError(
            f"slice: begin and size must have {tensor.ndim} numbers for a tensor of shape "
            f"{tuple(tensor.shape)}, got size {list(sizes)}."
        )
    try:
        begins = static_value(begin, "begin")
    except TypeError:
        begins = [
            convert_to_tensor(b)
            for b in (list(begin) if isinstance(begin, (list, tuple)) else unstack(begin))
        ]
        return apply(_SLICE, (tensor, begins), sizes)
    for dim, (b, s, n) in enumerate(zip(begins, sizes, tensor._value.shape, strict=True)):
        if b < 0 or (s != -1 and b + s > n):
            raise InvalidValueError(
                f"slice: begin {b} and size {s} leave dimension {dim} of size {n}. [Op:Slice]"
            )
    return getitem(
        tensor,
        tuple(
            _python_slice(b, None if s == -1 else b + s) for b, s in zip(begins, sizes, strict=True)
        ),
    )


def strided_slice(
    input_: TensorLike,
    begin: Any,
    end: Any,
    strides: Any = None,
    begin_mask: int = 0,
    end_mask: int = 0,
    ellipsis_mask: int = 0,
    new_axis_mask: int = 0,
    shrink_axis_mask: int = 0,
    var: Any = None,
    name: str | None = None,
) -> Tensor:
    """`input_[begin:end:strides]` in every dimension; the masks' bits change the meaning of entries."""
    begins, ends = static_value(begin, "begin"), static_value(end, "end")
    steps = static_value(strides, "strides") if strides is not None else (1,) * len(begins)
    key: list[Any] = []
    for i, (b, e, s) in enumerate(zip(begins, ends, steps, strict=True)):
        bit = 1 << i
        if ellipsis_mask & bit:
            key.append(Ellipsis)
        elif new_axis_mask & bit:
            key.append(None)
        elif shrink_axis_mask & bit:
            key.append(b)
        else:
            key.append(
                _python_slice(None if begin_mask & bit else b, None if end_mask & bit else e, s)
            )
    return getitem(convert_to_tensor(input_), tuple(key))


def space_to_depth(
    input: TensorLike, block_size: int, data_format: str = "NHWC", name: str | None = None
) -> Tensor:
    """Moves blocks of height and width into channels."""
    return _space_to_depth(input, block_size, data_format)


@op(same=(), name="space_to_depth", strings="moves")
def _space_to_depth(input: TensorLike, block: int, data_format: str) -> Tensor:
    x = jnp.moveaxis(input, 1, -1) if data_format == "NCHW" else input
    b, h, w, c = x.shape
    if h % block or w % block:
        raise InvalidValueError(
            f"space_to_depth: height {h} and width {w} must be divisible by {block}."
        )
    x = x.reshape(b, h // block, block, w // block, block, c).transpose(0, 1, 3, 2, 4, 5)
    x = x.reshape(b, h // block, w // block, block * block * c)
    return jnp.moveaxis(x, -1, 1) if data_format == "NCHW" else x


def depth_to_space(
    input: TensorLike, block_size: int, data_format: str = "NHWC", name: str | None = None
) -> Tensor:
    """Moves channels into blocks of height and width; the inverse of `space_to_depth`."""
    return _depth_to_space(input, block_size, data_format)


@op(same=(), name="depth_to_space", strings="moves")
def _depth_to_space(input: TensorLike, block: int, data_format: str) -> Tensor:
    x = jnp.moveaxis(input, 1, -1) if data_format == "NCHW" else input
    b, h, w, c = x.shape
    if c % (block * block):
        raise InvalidValueError(
            f"depth_to_space: {c} channels must be divisible by {block * block}."
        )
    x = x.reshape(b, h, w, block, block, c // block**2).transpose(0, 1, 3, 2, 4, 5)
    x = x.reshape(b, h * block, w * block, c // block**2)
    return jnp.moveaxis(x, -1, 1) if data_format == "NCHW" else x


@op(same=(), name="space_to_batch", strings="moves")
def space_to_batch(
    input: TensorLike, block_shape: Any, paddings: Any, name: str | None = None
) -> Tensor:
    """Pads, then moves blocks of the spatial dimensions into the batch."""
    blocks = (block_shape,) * len(paddings) if isinstance(block_shape, int) else block_shape
    m = len(blocks)
    x = jnp.pad(input, [(0, 0), *paddings, *[(0, 0)] * (input.ndim - 1 - m)])
    batch, *spatial = x.shape
    rest = spatial[m:]
    parts = [v for s, b in zip(spatial[:m], blocks, strict=True) for v in (s // b, b)]
    x = x.reshape(batch, *parts, *rest)
    inner = [2 + 2 * i for i in range(m)]
    outer = [1 + 2 * i for i in range(m)]
    x = x.transpose(*inner, 0, *outer, *range(1 + 2 * m, x.ndim))
    return x.reshape(
        batch * int(np.prod(blocks)),
        *[s // b for s, b in zip(spatial[:m], blocks, strict=True)],
        *rest,
    )


@op(same=(), name="batch_to_space", strings="moves")
def batch_to_space(
    input: TensorLike, block_shape: Any, crops: Any, name: str | None = None
) -> Tensor:
    """Moves the batch back into blocks of the spatial dimensions, then crops."""
    blocks = (block_shape,) * len(crops) if isinstance(block_shape, int) else block_shape
    m = len(blocks)
    batch = input.shape[0] // int(np.prod(blocks))
    spatial, rest = input.shape[1 : m + 1], input.shape[m + 1 :]
    x = input.reshape(*blocks, batch, *spatial, *rest)
    order = [m] + [v for i in range(m) for v in (m + 1 + i, i)] + list(range(2 * m + 1, x.ndim))
    x = x.transpose(order).reshape(
        batch, *[s * b for s, b in zip(spatial, blocks, strict=True)], *rest
    )
    cuts = [_python_slice(a, x.shape[1 + i] - b) for i, (a, b) in enumerate(crops)]
    return x[(_python_slice(None), *cuts)]


space_to_batch_nd = space_to_batch


def required_space_to_batch_paddings(
    input_shape: Any, block_shape: Any, base_paddings: Any = None, name: str | None = None
) -> tuple[Tensor, Tensor]:
    """Paddings that make sizes divisible by block sizes, and the crops that undo them.

    Args:
      input_shape: n sizes.
      block_shape: n block sizes.
      base_paddings: n pairs: the least paddings; default none.
      name: ignored.

    Returns:
      (paddings, crops), both int32 [n, 2].
    """
    sizes = np.asarray(static_value(input_shape, "input_shape"), np.int64)
    blocks = np.asarray(static_value(block_shape, "block_shape"), np.int64)
    base = np.zeros((len(sizes), 2), np.int64)
    if base_paddings is not None:
        base = np.asarray(static_value(base_paddings, "base_paddings"), np.int64)
    more = -(sizes + base.sum(1)) % blocks
    zeros = np.zeros_like(more)
    paddings = base + np.stack([zeros, more], 1)
    crops = np.stack([zeros, more], 1)
    return Tensor(paddings.astype(np.int32)), Tensor(crops.astype(np.int32))
