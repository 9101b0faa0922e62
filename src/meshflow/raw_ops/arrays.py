"""Raw ops that move elements of arrays, or call a public function with other arguments."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from meshflow.core.dispatch.composite import SparseTensor
from meshflow.core.dispatch.operands import to_static_value
from meshflow.core.gradients.tape import GradientTape
from meshflow.core.runtime.errors import InvalidArgumentError
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.dtypes import DTypeLike
from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.ops import array, math
from meshflow.ops import linalg as linear_algebra
from meshflow.ops.array.shaping import StaticInts
from meshflow.ops.image.filters import extract_volume_patches
from meshflow.ops.random.index_shuffle import random_index_shuffle


def _find_concat_offsets(concat_dim: TensorLike, shape: Sequence[TensorLike]) -> list[Tensor]:
    """Return the start of each input in the result of `concat`."""
    shapes = [np.asarray(convert_to_tensor(s).require_value("a shape")) for s in shape]
    axis = to_static_value(concat_dim, "concat_dim")
    if not isinstance(axis, int):
        raise InvalidArgumentError(f"Concat dim tensor should be a scalar integer, got {axis}.")
    for i, sizes in enumerate(shapes):
        if sizes.ndim != 1:
            raise InvalidArgumentError(f"input {i} should be a vector, got shape {sizes.shape}.")
    first = shapes[0]
    rank = len(first)
    if not -rank <= axis < rank:
        raise InvalidArgumentError(f"Concat dim is out of range: {axis} vs. {rank}")
    axis %= rank
    offsets, start = [], 0
    for i, sizes in enumerate(shapes):
        if len(sizes) != rank:
            raise InvalidArgumentError(
                f"input {i} should contain {rank} elements, but got {len(sizes)}"
            )
        if (np.delete(sizes, axis) != np.delete(first, axis)).any():
            raise InvalidArgumentError(
                f"All dimensions except {axis} must match. Input {i} has shape {_format(sizes)} and doesn't match input "
                f"0 with shape {_format(first)}."
            )
        offset = np.zeros(rank, first.dtype)
        offset[axis] = start
        offsets.append(Tensor(offset))
        start += int(sizes[axis])
    return offsets


def _format(sizes: np.ndarray) -> str:
    return f"[{' '.join(map(str, sizes.tolist()))}]"


def _make_row_update(update: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Return an update of rows of a tensor."""

    def run(x: TensorLike, i: TensorLike, v: TensorLike) -> Tensor:
        rows = array.reshape(convert_to_tensor(i), [-1, 1])
        values = convert_to_tensor(v)
        if len(values.shape) < len(convert_to_tensor(x).shape):
            values = array.expand_dims(values, 0)
        return update(x, rows, values)

    return run


def _compute_pad_gradient(input: TensorLike, paddings: TensorLike, mode: str) -> Tensor:
    gradient = convert_to_tensor(input)
    pairs = np.asarray(to_static_value(paddings, "paddings"), np.int64).reshape(-1, 2)
    x = array.zeros(
        [n - int(p.sum()) for n, p in zip(gradient.shape, pairs, strict=True)], gradient.dtype
    )
    with GradientTape() as tape:
        tape.watch(x)
        y = array.pad(x, pairs, mode)
    return tape.gradient(y, x, gradient)


def _find_slice_positions(
    shape: TensorLike, begin: StaticInts, end: StaticInts, strides: StaticInts, **masks: Any
) -> Tensor:
    """Return the positions, in the flat array, of the elements of a slice."""
    sizes = to_static_value(shape, "shape")
    positions = np.arange(int(np.prod(sizes, dtype=np.int64))).reshape(sizes)
    return array.strided_slice(Tensor(positions), begin, end, strides, **masks)


def _compute_slice_gradient(
    shape: TensorLike,
    begin: StaticInts,
    end: StaticInts,
    strides: StaticInts,
    dy: TensorLike,
    **masks: Any,
) -> Tensor:
    positions = _find_slice_positions(shape, begin, end, strides, **masks)
    sizes = to_static_value(shape, "shape")
    flat = array.scatter_nd(
        array.reshape(positions, [-1, 1]),
        array.reshape(dy, [-1]),
        [int(np.prod(sizes, dtype=np.int64))],
    )
    return array.reshape(flat, sizes)


def _update_slice(
    input: TensorLike,
    begin: StaticInts,
    end: StaticInts,
    strides: StaticInts,
    value: TensorLike,
    **masks: Any,
) -> Tensor:
    x = convert_to_tensor(input)
    positions = _find_slice_positions(array.shape(x), begin, end, strides, **masks)
    values = array.broadcast_to(convert_to_tensor(value, dtype=x.dtype), array.shape(positions))
    flat = array.tensor_scatter_nd_update(
        array.reshape(x, [-1]), array.reshape(positions, [-1, 1]), array.reshape(values, [-1])
    )
    return array.reshape(flat, array.shape(x))


def _count_sparse(
    indices: TensorLike,
    values: TensorLike,
    dense_shape: TensorLike,
    size: TensorLike,
    weights: TensorLike,
    binary_output: bool = False,
) -> Tensor:
    count, amounts = to_static_value(size, "size"), convert_to_tensor(weights)
    if not isinstance(count, int):
        raise InvalidArgumentError(
            f"The size: Shape must be rank 0, got {count}. [Op:SparseBincount]"
        )
    if count < 0:
        raise InvalidArgumentError(f"size ({count}) must be non-negative. [Op:SparseBincount]")
    numbers, positions = convert_to_tensor(values), convert_to_tensor(indices)
    has_weights = bool(amounts.shape.num_elements())
    if has_weights and amounts.shape != numbers.shape:
        raise InvalidArgumentError(
            f"The weights must have the same shape as the values, {numbers.shape}, got {amounts.shape}."
        )
    if len(positions.shape) != 2 or positions.shape[0] != numbers.shape[0]:
        raise InvalidArgumentError(
            f"The indices must be a matrix with one row for each of the values, {numbers.shape}, got shape "
            f"{positions.shape}."
        )
    sizes = np.asarray(to_static_value(dense_shape, "dense_shape"))
    rows = positions.require_value("positions of a sparse tensor")
    if (rows < 0).any() or (rows >= sizes).any():
        raise InvalidArgumentError(
            f"SparseBincount: the indices are out of bounds of the shape {sizes.tolist()}."
        )
    return math.bincount(
        SparseTensor(positions, numbers, dense_shape),
        amounts if has_weights and not binary_output else None,
        count,
        count,
        amounts.dtype,
        axis=-1,
        binary_output=binary_output,
    )


def _make_v1_blocks(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Return `space_to_batch` or `batch_to_space` of images with square blocks."""

    def run(input: TensorLike, block_size: int, **margins: TensorLike) -> Tensor:
        if block_size < 2:
            raise InvalidArgumentError(f"block_size of {block_size} must be at least minimum 2.")
        return function(input, [block_size] * 2, *margins.values())

    return run


def _compute_eigenvalues(
    input: TensorLike, Tout: DTypeLike, compute_v: bool = True
) -> tuple[Tensor, ...]:
    if compute_v:
        return tuple(math.cast(x, Tout) for x in linear_algebra.eig(input))
    return math.cast(linear_algebra.eigvals(input), Tout), array.zeros([0], Tout)


def _format_shard(basename: TensorLike, shard: TensorLike, num_shards: TensorLike) -> Tensor:
    name = convert_to_tensor(basename).require_value("the name of a file").item()
    index, count = (int(to_static_value(n, "a number of shards")) for n in (shard, num_shards))
    return convert_to_tensor(name + b"-%05d-of-%05d" % (index, count))


def _format_shard_pattern(basename: TensorLike, num_shards: TensorLike) -> Tensor:
    name = convert_to_tensor(basename).require_value("the name of a file").item()
    return convert_to_tensor(name + b"-?????-of-%05d" % int(to_static_value(num_shards)))


ARRAY_OPS: dict[str, Callable[..., object]] = {
    "BatchToSpace": _make_v1_blocks(array.batch_to_space),
    "ConcatOffset": _find_concat_offsets,
    "Eig": _compute_eigenvalues,
    "ExtractVolumePatches": extract_volume_patches,
    "InplaceAdd": _make_row_update(array.tensor_scatter_nd_add),
    "InplaceSub": _make_row_update(array.tensor_scatter_nd_sub),
    "InplaceUpdate": _make_row_update(array.tensor_scatter_nd_update),
    "MirrorPadGrad": _compute_pad_gradient,
    "ShardedFilename": _format_shard,
    "ShardedFilespec": _format_shard_pattern,
    "RandomIndexShuffle": random_index_shuffle,
    "SobolSample": math.sobol_sample,
    "SpaceToBatch": _make_v1_blocks(array.space_to_batch),
    "SparseBincount": _count_sparse,
    "StridedSliceGrad": _compute_slice_gradient,
    "TensorStridedSliceUpdate": _update_slice,
}
