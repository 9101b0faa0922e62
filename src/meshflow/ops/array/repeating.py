"""Ops that enlarge or shift tensors: tile, repeat, pad, reverse, roll, broadcast."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from meshflow.core.dispatch.dispatch import op
from meshflow.core.dispatch.operands import to_static_value
from meshflow.core.dispatch.symbolic_calls import accept_symbolic, dispatch_composites
from meshflow.core.runtime.bounds_checks import BoundsCheck, check_bounds
from meshflow.core.runtime.context import context
from meshflow.core.runtime.errors import InvalidValueError
from meshflow.core.values import dtypes
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.shapes import TensorShape, are_different
from meshflow.core.values.symbolic_sizes import make_sizes_tensor, may_be_zero
from meshflow.core.values.tensor import Tensor, TensorLike, is_tensor, read_tensor
from meshflow.core.values.unknown_sizes import compute_on_host, host_function, is_unknown
from meshflow.core.variables.indexing import take_slices
from meshflow.ops.array.inspection import stop_gradient
from meshflow.ops.array.shaping import StaticInts, normalize_axis, reshape
from meshflow.ops.deferred_host_values import defer_numbers

__all__ = [
    "broadcast_dynamic_shape",
    "broadcast_static_shape",
    "broadcast_to",
    "pad",
    "repeat",
    "reverse",
    "reverse_sequence",
    "roll",
    "tile",
]


@op(same=(), name="tile", strings="moves")
def tile(input: TensorLike, multiples: Any, name: str | None = None) -> Tensor:
    """Repeat a tensor `multiples[i]` times along dimension i.

    Args:
      input: A tensor.
      multiples: Number of repetitions for each dimension.
      name: Ignored.

    Example:
      >>> print(tf.tile([[1, 2]], multiples=[2, 2]).numpy())
      [[1 2 1 2]
       [1 2 1 2]]
    """
    if not isinstance(multiples, tuple):
        raise InvalidValueError(
            f"tile: Expected multiples to be 1-D, one integer for each of the {input.ndim} dimensions, got {multiples}. "
            "[Op:Tile]"
        )
    if len(multiples) != input.ndim:
        raise InvalidValueError(
            f"tile: Expected multiples argument to be a vector of length {input.ndim}, the rank of the input, but got "
            f"length {len(multiples)} [Op:Tile]"
        )
    for i, multiple in enumerate(multiples):
        if isinstance(multiple, int) and multiple < 0:
            raise InvalidValueError(
                f"tile: Expected multiples[{i}] >= 0, but got {multiple} [Op:Tile]"
            )
    return jnp.tile(input, multiples)


@op(same=(), name="repeat", strings="moves")
def _repeat(input: TensorLike, repeats: Any, axis: Any) -> Tensor:
    if isinstance(repeats, tuple):
        repeats = np.asarray(repeats)
        if repeats.ndim > 1:
            raise ValueError(f"repeats: shape {repeats.shape} must have rank at most 1.")
        # TensorFlow, too, takes negative numbers for zero if there is one for each element.
        repeats = np.maximum(repeats, 0)
        size = input.size if axis is None else input.shape[axis]
        if len(repeats) not in (1, size):
            raise InvalidValueError(
                f"repeat: Dimensions {size} and {len(repeats)} are not compatible: there must be one number of "
                "repetitions, or one for each element along the axis."
            )
    elif isinstance(repeats, int) and repeats < 0:
        raise InvalidValueError(f"repeat: repeats must be >= 0, got {repeats}.")
    return jnp.repeat(input, repeats, axis=axis)


@defer_numbers
@accept_symbolic
def repeat(input: TensorLike, repeats: Any, axis: Any = None, name: str | None = None) -> Tensor:
    """Repeat each element along a dimension, or of the flattened tensor.

    Args:
      input: A tensor.
      repeats: Number of repetitions: one integer, or one for each index along `axis`.
      axis: The dimension; by default the tensor is flattened.
      name: Ignored.

    Example:
      >>> print(tf.repeat([1, 2, 3], repeats=[2, 0, 1]).numpy())
      [1 1 3]
      >>> print(tf.repeat([[1, 2], [3, 4]], 2, axis=1).numpy())
      [[1 1 2 2]
       [3 3 4 4]]
    """
    counts = read_tensor(repeats)
    if not (isinstance(counts, Tensor) and is_unknown([counts])):
        result: Tensor = _repeat(input, repeats, axis)
        return result
    tensor = convert_to_tensor(input)
    if axis is None:
        tensor, axis = reshape(tensor, [-1]), 0
    axis = normalize_axis(int(axis), tensor.ndim, "repeat")
    size = make_sizes_tensor(tensor.array.shape[axis], np.int64)
    indices = compute_on_host(_repeat_indices, [size, counts], [((None,), np.int64)], "repeats")
    return take_slices(tensor, indices[0], axis)


@host_function
def _repeat_indices(size: np.ndarray, counts: np.ndarray) -> list[np.ndarray]:
    return [np.repeat(np.arange(int(size)), counts)]


def _check_paddings(tensor: jax.Array, paddings: Sequence[Sequence[int]]) -> None:
    """Raise unless the paddings are one pair of nonnegative sizes per dimension."""
    is_matrix = isinstance(paddings, tuple) and all(isinstance(p, tuple) for p in paddings)
    if not is_matrix or any(len(p) != 2 for p in paddings):
        raise InvalidValueError(
            f"paddings must be a matrix with 2 columns, pairs (before, after) of sizes, got {paddings}. [Op:Pad]"
        )
    if len(paddings) != tensor.ndim:
        raise InvalidValueError(
            f"The first dimension of paddings must be the rank of inputs, {tensor.ndim}, got {list(paddings)}. [Op:Pad]"
        )
    if any(min(p) < 0 for p in paddings):
        raise InvalidValueError(f"Paddings must be non-negative, got {list(paddings)}. [Op:Pad]")


@op(same=("tensor", "constant_values"), name="pad", strings="moves")
def _pad_constant(
    tensor: TensorLike, constant_values: TensorLike, paddings: Sequence[Sequence[int]]
) -> Tensor:
    _check_paddings(tensor, paddings)
    return jnp.pad(tensor, paddings, constant_values=constant_values) if paddings else tensor


@op(same=(), name="pad", strings="moves")
def _pad_mirror(tensor: TensorLike, paddings: Sequence[Sequence[int]], mode: str) -> Tensor:
    _check_paddings(tensor, paddings)
    for pair, size in zip(paddings, tensor.shape, strict=True):
        is_reflected = mode == "reflect"
        if max(pair) > size - is_reflected:
            words = "less than" if is_reflected else "no greater than"
            raise InvalidValueError(
                f"paddings must be {words} the dimension size, {size}, in mode {mode.upper()}, got {list(pair)}. "
                "[Op:MirrorPad]"
            )
    return jnp.pad(tensor, paddings, mode=mode) if paddings else tensor


@dispatch_composites
def pad(
    tensor: TensorLike,
    paddings: StaticInts,
    mode: str = "CONSTANT",
    constant_values: Any = 0,
    name: str | None = None,
) -> Tensor:
    """Add elements before and after the tensor, along each dimension.

    Args:
      tensor: A tensor.
      paddings: One pair (before, after) per dimension; a size n becomes before + n + after.
      mode: 'CONSTANT', 'REFLECT' (which does not repeat the edge) or 'SYMMETRIC' (which does).
      constant_values: The value in mode 'CONSTANT'.
      name: Ignored.

    Raises:
      ValueError: If the mode is another one.

    Example:
      >>> print(tf.pad([[1, 2], [3, 4]], [[1, 0], [0, 2]]).numpy())
      [[0 0 0 0]
       [1 2 0 0]
       [3 4 0 0]]
      >>> print(tf.pad([1, 2, 3], [[2, 2]], mode="REFLECT").numpy())
      [3 2 1 2 3 2 1]
    """
    mode = mode.upper()
    pairs = to_static_value(paddings, "paddings")
    if mode == "CONSTANT":
        if hasattr(tensor, "_keras_history"):
            return _pad_constant(tensor, constant_values, pairs)
        tensor = convert_to_tensor(tensor)
        if isinstance(constant_values, int) and constant_values == 0:
            constant_values = np.zeros((), tensor.dtype.dtype)
            if tensor.dtype is dtypes.string:
                constant_values = b""
        elif is_tensor(constant_values):
            # As in TensorFlow, the constant has no gradient.
            constant_values = stop_gradient(constant_values)
        return _pad_constant(tensor, convert_to_tensor(constant_values, dtype=tensor.dtype), pairs)
    if mode not in ("REFLECT", "SYMMETRIC"):
        raise ValueError(
            f"Value of argument `mode` expected to be one of 'CONSTANT', 'REFLECT' or 'SYMMETRIC'. Received `mode` = {mode}"
        )
    return _pad_mirror(tensor, pairs, mode.lower())


@op(same=(), name="reverse", strings="moves")
def reverse(tensor: TensorLike, axis: int | Sequence[int], name: str | None = None) -> Tensor:
    """Reverse the order of elements along dimensions.

    Args:
      tensor: A tensor.
      axis: The dimension or dimensions.
      name: Ignored.

    Example:
      >>> print(tf.reverse([[1, 2], [3, 4]], axis=[1]).numpy())
      [[2 1]
       [4 3]]
    """
    axes = [
        normalize_axis(a, tensor.ndim, "reverse")
        for a in (axis if isinstance(axis, tuple) else (axis,))
    ]
    if len(set(axes)) < len(axes):
        repeated = next(a for a in axes if axes.count(a) > 1)
        raise InvalidValueError(
            f"reverse: axis {repeated} specified more than once. [Op:ReverseV2]"
        )
    return jnp.flip(tensor, tuple(axes))


@dispatch_composites
def roll(
    input: Any, shift: StaticInts, axis: int | Sequence[int], name: str | None = None
) -> Tensor:
    """Shift elements along dimensions cyclically.

    Args:
      input: A tensor.
      shift: Offset, an integer or one per axis; may be a computed tensor in a compiled function.
      axis: The dimension or dimensions.
      name: Ignored.

    Raises:
      InvalidArgumentError: If there is not one shift for each axis.

    Example:
      >>> tf.roll([0, 1, 2, 3], shift=1, axis=0).numpy()
      array([3, 0, 1, 2], dtype=int32)
    """
    if isinstance(shift, Tensor) and isinstance(shift.array, jax.core.Tracer):
        return _roll_by_tensor(input, shift, axis)
    return _roll(input, shift, axis)


@op(same=(), name="roll", strings="moves")
def _roll(input: TensorLike, shift: Any, axis: int | Sequence[int]) -> Tensor:
    for name, value in (("shift", shift), ("axis", axis)):
        if isinstance(value, tuple) and any(isinstance(v, tuple) for v in value):
            raise InvalidValueError(
                f"roll: {name} must be a scalar or a 1-D vector, got {value}. [Op:Roll]"
            )
    counts = [len(v) if isinstance(v, tuple) else None for v in (shift, axis)]
    if counts[0] != counts[1] and {*counts} != {None, 1}:
        raise InvalidValueError(
            f"roll: shift and axis must have the same size, got {shift} and {axis}. [Op:Roll]"
        )
    if not input.ndim:
        raise InvalidValueError("roll: input must be 1-D or higher, got a scalar. [Op:Roll]")
    axes = [normalize_axis(a, input.ndim, "roll") for a in np.ravel(axis).tolist()]
    if context.exporting and any(may_be_zero(input.shape[a]) for a in axes):
        # JAX computes the remainder of a known shift while it traces, but that of an array in the program.
        shift = jnp.asarray(shift)
    return jnp.roll(input, shift, axis)


@op(same=(), name="roll")
def _roll_by_tensor(input: TensorLike, shift: TensorLike, axis: int | Sequence[int]) -> Tensor:
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
    seq_axis: int | None = None,
    batch_axis: int | None = None,
    name: str | None = None,
) -> Tensor:
    """Reverse the first `seq_lengths[i]` elements of each example i.

    Args:
      input: A tensor.
      seq_lengths: Integers, one for each index along `batch_axis`.
      seq_axis: The dimension to reverse along; default 1.
      batch_axis: The dimension of the examples; default 0.
      name: Ignored.

    Example:
      >>> print(tf.reverse_sequence([[1, 2, 3], [4, 5, 6]], [2, 3], seq_axis=1).numpy())
      [[2 1 3]
       [6 5 4]]
    """
    seq_axis = 1 if seq_axis is None else seq_axis
    batch_axis = 0 if batch_axis is None else batch_axis
    if seq_lengths.ndim != 1:
        raise InvalidValueError(
            f"seq_lengths must be 1-dim, got shape {list(seq_lengths.shape)}. [Op:ReverseSequence]"
        )
    if seq_axis == batch_axis:
        raise InvalidValueError(
            f"reverse_sequence: seq_axis and batch_axis must differ, got batch_dim == seq_dim == {seq_axis}. "
            "[Op:ReverseSequence]"
        )
    for name, axis in (("seq_dim", seq_axis), ("batch_dim", batch_axis)):
        if axis >= input.ndim:
            raise InvalidValueError(
                f"{name} must be < input rank ({axis} vs. {input.ndim}). [Op:ReverseSequence]"
            )
    if are_different(seq_lengths.shape[0], input.shape[batch_axis]):
        raise InvalidValueError(
            f"Length of seq_lengths != input.dims({batch_axis}), ({seq_lengths.shape[0]} vs. {input.shape[batch_axis]})"
        )
    check = BoundsCheck(
        "seq_lens({index}) < 0",
        (0,),
        (input.shape[seq_axis] + 1,),
        total=np.iinfo(np.int64).max,
        alternative=f"seq_lens({{index}}) > input.dims({seq_axis})",
    )
    seq_lengths = check_bounds(seq_lengths, check)
    sequences = jnp.moveaxis(input, (batch_axis, seq_axis), (0, 1))
    steps = jnp.arange(sequences.shape[1])[None, :]
    lengths = seq_lengths[:, None]
    index = jnp.where(steps < lengths, lengths - 1 - steps, steps)
    result = jnp.take_along_axis(
        sequences, index.reshape(index.shape + (1,) * (sequences.ndim - 2)), axis=1
    )
    return jnp.moveaxis(result, (0, 1), (batch_axis, seq_axis))


@op(same=(), name="broadcast_to", strings="moves", sizes=("shape",))
def broadcast_to(input: TensorLike, shape: Any, name: str | None = None) -> Tensor:
    """Broadcast a tensor to a larger shape.

    Args:
      input: A tensor.
      shape: Shape of the result.
      name: Ignored.

    Example:
      >>> print(tf.broadcast_to([1, 2, 3], [2, 3]).numpy())
      [[1 2 3]
       [1 2 3]]
    """
    sizes = shape if isinstance(shape, tuple) else (shape,)
    for i, size in enumerate(sizes):
        if isinstance(size, int) and size < 0:
            raise InvalidValueError(
                f"broadcast_to: Dimension {i} of the shape must be >= 0, got {list(sizes)}. [Op:BroadcastTo]"
            )
    if input.ndim > len(sizes):
        raise InvalidValueError(
            f"broadcast_to: Rank of input ({input.ndim}) must be no greater than rank of output shape ({len(sizes)}). "
            "[Op:BroadcastTo]"
        )
    if any(
        isinstance(own, int) and isinstance(size, int) and own not in (1, size)
        for own, size in zip(reversed(input.shape), reversed(sizes), strict=False)
    ):
        raise InvalidValueError(
            f"broadcast_to: Incompatible shapes: {list(input.shape)} vs. {list(sizes)}. Unable to broadcast tensor of "
            f"shape {list(input.shape)} to tensor of shape {list(sizes)} [Op:BroadcastTo]"
        )
    return jnp.broadcast_to(input, sizes)


def broadcast_static_shape(shape_x: TensorShape, shape_y: TensorShape) -> TensorShape:
    """Return the broadcast shape of two static shapes; an unknown size is 1 or equals the other one.

    Raises:
      ValueError: If the shapes cannot be broadcast.

    Example:
      >>> tf.broadcast_static_shape(tf.TensorShape([4, 1]), tf.TensorShape([3]))
      TensorShape([4, 3])
    """
    first, second = TensorShape(shape_x), TensorShape(shape_y)
    if first.rank is None or second.rank is None:
        return TensorShape(None)
    sizes = []
    for x, y in zip_longest(first.as_list()[::-1], second.as_list()[::-1], fillvalue=1):
        if x == 1 or x == y:
            sizes.append(y)
        elif y == 1:
            sizes.append(x)
        elif x is None or y is None:
            sizes.append(next((size for size in (x, y) if size is not None and size > 1), None))
        else:
            raise ValueError(f"Incompatible shapes for broadcasting: {first} and {second}")
    return TensorShape(sizes[::-1])


@dispatch_composites
def broadcast_dynamic_shape(shape_x: TensorLike, shape_y: TensorLike) -> Tensor:
    """Return the broadcast shape of two shapes that are integer tensors.

    Raises:
      InvalidArgumentError: If the shapes cannot be broadcast.

    Example:
      >>> print(tf.broadcast_dynamic_shape([4, 1], [3]).numpy())
      [4 3]
    """
    sizes = [
        tuple(int(v) for v in convert_to_tensor(s).require_value("a shape"))
        for s in (shape_x, shape_y)
    ]
    try:
        common = np.broadcast_shapes(*sizes)
    except ValueError:
        raise InvalidValueError(
            f"Incompatible shapes for broadcasting: {list(sizes[0])} and {list(sizes[1])}"
        ) from None
    return convert_to_tensor(list(common), dtype=dtypes.int32)
