"""Ops that move blocks of spatial elements to channels or to the batch, and their inverses."""

from __future__ import annotations

import math
from typing import Any

import jax.numpy as jnp
import numpy as np

from meshflow.core.dispatch.dispatch import op
from meshflow.core.dispatch.operands import to_static_value
from meshflow.core.runtime.errors import InvalidValueError
from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.environment.types import Array
from meshflow.ops.array.shaping import StaticInts, check_rank

__all__ = [
    "batch_to_space",
    "depth_to_space",
    "required_space_to_batch_paddings",
    "space_to_batch",
    "space_to_batch_nd",
    "space_to_depth",
]


def space_to_depth(
    input: TensorLike, block_size: int, data_format: str = "NHWC", name: str | None = None
) -> Tensor:
    """Move square blocks of pixels into channels.

    Args:
      input: Images [batch, height, width, channels], or channels first.
      block_size: Height and width of a block; must divide the height and width of the images.
      data_format: 'NHWC' or 'NCHW'.
      name: Ignored.

    Returns:
      Tensor [batch, height / n, width / n, channels * n^2] for blocks of size n.

    Example:
      >>> x = tf.reshape(tf.range(4), [1, 2, 2, 1])
      >>> print(tf.nn.space_to_depth(x, block_size=2).numpy())
      [[[[0 1 2 3]]]]
    """
    return _space_to_depth(input, block_size, data_format)


def _move_channels_last(images: Array, data_format: str, block: int, op_name: str) -> Array:
    """Return images with their channels last, after checking their rank and the size of a block."""
    if images.ndim != 4:
        raise InvalidValueError(
            f"{op_name}: Input rank should be: 4 instead of: {images.ndim}. [Op:{op_name}]"
        )
    if block < 2:
        raise InvalidValueError(
            f"{op_name}: block_size of {block} must be at least minimum 2. [Op:{op_name}]"
        )
    return jnp.moveaxis(images, 1, -1) if data_format == "NCHW" else images


@op(same=(), name="space_to_depth", strings="moves")
def _space_to_depth(input: TensorLike, block: int, data_format: str) -> Tensor:
    x = _move_channels_last(input, data_format, block, "space_to_depth")
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
    """Move channels into square blocks of pixels; the inverse of `space_to_depth`.

    Args:
      input: Images [batch, height, width, channels], or channels first.
      block_size: Height and width of a block; its square must divide the number of channels.
      data_format: 'NHWC' or 'NCHW'.
      name: Ignored.

    Example:
      >>> x = tf.reshape(tf.range(4), [1, 1, 1, 4])
      >>> print(tf.nn.depth_to_space(x, block_size=2)[0, :, :, 0].numpy())
      [[0 1]
       [2 3]]
    """
    return _depth_to_space(input, block_size, data_format)


@op(same=(), name="depth_to_space", strings="moves")
def _depth_to_space(input: TensorLike, block: int, data_format: str) -> Tensor:
    x = _move_channels_last(input, data_format, block, "depth_to_space")
    b, h, w, c = x.shape
    if c % (block * block):
        raise InvalidValueError(
            f"depth_to_space: {c} channels must be divisible by {block * block}."
        )
    x = x.reshape(b, h, w, block, block, c // block**2).transpose(0, 1, 3, 2, 4, 5)
    x = x.reshape(b, h * block, w * block, c // block**2)
    return jnp.moveaxis(x, -1, 1) if data_format == "NCHW" else x


def _check_blocks(array: Array, blocks: Any, margins: Any, op_name: str, name: str) -> None:
    """Raise unless there is a positive size of a block, and a pair of margins, for each spatial dimension."""
    m = len(blocks)
    check_rank(array, 1 + m, op_name)
    for i, block in enumerate(blocks):
        if block < 1:
            raise InvalidValueError(
                f"{op_name}: All values in block_shape must be positive, got value, {block} at index {i}."
            )
    if len(margins) != m or any(not isinstance(p, tuple) or len(p) != 2 for p in margins):
        raise InvalidValueError(
            f"{op_name}: {name} should have shape [{m}, 2] instead of {list(margins)}."
        )
    if any(size < 0 for pair in margins for size in pair):
        raise InvalidValueError(f"{op_name}: {name} cannot be negative, got {list(margins)}.")


@op(same=(), name="space_to_batch", strings="moves")
def space_to_batch(
    input: TensorLike, block_shape: Any, paddings: Any, name: str | None = None
) -> Tensor:
    """Pad the spatial dimensions, then move blocks of them into the batch.

    Args:
      input: Tensor [batch, *spatial, ...].
      block_shape: Size of a block in each spatial dimension.
      paddings: A pair (before, after) for each spatial dimension.
      name: Ignored.

    Example:
      >>> x = tf.reshape(tf.range(4), [1, 4, 1])
      >>> print(tf.space_to_batch(x, block_shape=[2], paddings=[[0, 0]])[:, :, 0].numpy())
      [[0 2]
       [1 3]]
    """
    blocks = (block_shape,) * len(paddings) if isinstance(block_shape, int) else block_shape
    m = len(blocks)
    _check_blocks(input, blocks, paddings, "space_to_batch", "paddings")
    x = jnp.pad(input, [(0, 0), *paddings, *[(0, 0)] * (input.ndim - 1 - m)])
    batch, *spatial = x.shape
    rest = spatial[m:]
    for i, (size, block) in enumerate(zip(spatial, blocks, strict=False)):
        if isinstance(size, int) and size % block:
            raise InvalidValueError(
                f"space_to_batch: padded_shape[{i}]={size} is not divisible by block_shape[{i}]={block}. "
                "[Op:SpaceToBatchND]"
            )
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
    """Move parts of the batch into blocks of the spatial dimensions, then crop.

    This is the inverse of `space_to_batch`.

    Args:
      input: Tensor [batch, *spatial, ...]; the volume of a block must divide the batch size.
      block_shape: Size of a block in each spatial dimension.
      crops: A pair (before, after) for each spatial dimension.
      name: Ignored.

    Example:
      >>> x = tf.constant([[[0], [2]], [[1], [3]]])
      >>> print(tf.batch_to_space(x, block_shape=[2], crops=[[0, 1]])[:, :, 0].numpy())
      [[0 1 2]]
    """
    blocks = (block_shape,) * len(crops) if isinstance(block_shape, int) else block_shape
    m = len(blocks)
    _check_blocks(input, blocks, crops, "batch_to_space", "crops")
    volume = math.prod(blocks)
    if isinstance(input.shape[0], int) and input.shape[0] % volume:
        raise InvalidValueError(
            f"batch_to_space: Input batch dimension ({input.shape[0]}) is not divisible by product of block sizes "
            f"({volume}). [Op:BatchToSpaceND]"
        )
    batch = input.shape[0] // volume
    spatial, rest = input.shape[1 : m + 1], input.shape[m + 1 :]
    x = input.reshape(*blocks, batch, *spatial, *rest)
    order = [m] + [v for i in range(m) for v in (m + 1 + i, i)] + list(range(2 * m + 1, x.ndim))
    x = x.transpose(order).reshape(
        batch, *[s * b for s, b in zip(spatial, blocks, strict=True)], *rest
    )
    for i, pair in enumerate(crops):
        if isinstance(x.shape[1 + i], int) and x.shape[1 + i] < sum(pair):
            raise InvalidValueError(
                f"batch_to_space: cropped_shape[{i}]={x.shape[1 + i] - sum(pair)} must be non-negative. "
                "[Op:BatchToSpaceND]"
            )
    cuts = [slice(a, x.shape[1 + i] - b) for i, (a, b) in enumerate(crops)]
    return x[(slice(None), *cuts)]


space_to_batch_nd = space_to_batch


def required_space_to_batch_paddings(
    input_shape: StaticInts,
    block_shape: StaticInts,
    base_paddings: StaticInts | None = None,
    name: str | None = None,
) -> tuple[Tensor, Tensor]:
    """Compute the paddings that make sizes divisible by block sizes, and the crops that undo them.

    Args:
      input_shape: n sizes.
      block_shape: n block sizes.
      base_paddings: n pairs of minimum paddings; default zeros.
      name: Ignored.

    Returns:
      (paddings, crops), both int32 [n, 2].

    Example:
      >>> paddings, crops = tf.required_space_to_batch_paddings([5, 4], block_shape=[2, 2])
      >>> print(paddings.numpy().tolist(), crops.numpy().tolist())
      [[0, 1], [0, 0]] [[0, 1], [0, 0]]
    """
    sizes = np.asarray(to_static_value(input_shape, "input_shape"), np.int64)
    blocks = np.asarray(to_static_value(block_shape, "block_shape"), np.int64)
    base = np.zeros((len(sizes), 2), np.int64)
    if base_paddings is not None:
        base = np.asarray(to_static_value(base_paddings, "base_paddings"), np.int64)
    extra = -(sizes + base.sum(1)) % blocks
    zeros = np.zeros_like(extra)
    paddings = base + np.stack([zeros, extra], 1)
    crops = np.stack([zeros, extra], 1)
    return Tensor(paddings.astype(np.int32)), Tensor(crops.astype(np.int32))
