"""Matrix products, convolutions, pooling, normalization and activations."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from meshflow.core.runtime.errors import InvalidValueError, UnimplementedError
from meshflow.core.values.tensor import Tensor
from meshflow.environment.types import Array
from meshflow.ops.image import geometry, resampling
from meshflow.saved_model.graph.format.node_attributes import (
    GraphNode,
    as_host_array,
    as_static_ints,
    is_static,
)


def _multiply(node: GraphNode, a: Array, b: Array) -> Array:
    a = a.T if node["transpose_a"] else a
    return jnp.matmul(a, b.T if node["transpose_b"] else b)


def _multiply_sparse(node: GraphNode, a: Array, b: Array) -> Array:
    """Multiply dense matrices in float32. The op's name refers to many zeros in them."""
    return _multiply(node, *(jnp.asarray(v, jnp.float32) for v in (a, b)))


def _multiply_batches(node: GraphNode, a: Array, b: Array) -> Array:
    a = jnp.swapaxes(a, -1, -2) if node["adj_x"] else a
    return jnp.matmul(a, jnp.swapaxes(b, -1, -2) if node["adj_y"] else b)


def _add_bias(node: GraphNode, x: Array, bias: Array) -> Array:
    if node["data_format"] == b"NCHW":
        bias = bias.reshape([-1, *[1] * (np.ndim(x) - 2)])
    return x + bias


class _DataLayout:
    """Positions of the batch, spatial and channel axes in the operands of a convolution or pooling."""

    def __init__(self, node: GraphNode) -> None:
        name = node.text("data_format")
        self.channel_axis = name.index("C")
        self.spatial_axes = [i for i in range(len(name)) if i not in (0, self.channel_axis)]
        letters = "DHW"[-len(self.spatial_axes) :]
        self.dimension_numbers = (name, f"{letters}IO", name)

    def select_spatial(self, values: Sequence[int]) -> list[int]:
        """Return the values of the spatial axes among those of all axes."""
        return [values[i] for i in self.spatial_axes]

    def get_padding(self, node: GraphNode) -> str | list[tuple[int, int]]:
        """Return the padding of the spatial axes."""
        padding = node.text("padding")
        if padding != "EXPLICIT":
            return padding
        sizes = node["explicit_paddings"]
        return [(sizes[2 * i], sizes[2 * i + 1]) for i in self.spatial_axes]


def _convolve(node: GraphNode, x: jax.Array, kernel: jax.Array) -> jax.Array:
    layout = _DataLayout(node)
    return lax.conv_general_dilated(
        x,
        kernel,
        layout.select_spatial(node["strides"]),
        layout.get_padding(node),
        rhs_dilation=layout.select_spatial(node["dilations"]),
        dimension_numbers=layout.dimension_numbers,
        feature_group_count=x.shape[layout.channel_axis] // kernel.shape[-2],
    )


def _convolve_depthwise(node: GraphNode, x: jax.Array, kernel: jax.Array) -> jax.Array:
    layout = _DataLayout(node)
    height, width, channels, multiplier = kernel.shape
    return lax.conv_general_dilated(
        x,
        kernel.reshape(height, width, 1, channels * multiplier),
        layout.select_spatial(node["strides"]),
        layout.get_padding(node),
        rhs_dilation=layout.select_spatial(node["dilations"]),
        dimension_numbers=layout.dimension_numbers,
        feature_group_count=channels,
    )


def _convolve_transposed(node: GraphNode, shape: Array, kernel: jax.Array, y: Array) -> Array:
    """Compute the gradient of a convolution by its input, which is a transposed convolution."""
    layout = _DataLayout(node)

    def forward(x: jax.Array) -> Array:
        return _convolve(node, x, kernel)

    sizes = as_static_ints(shape)
    if len(sizes) == len(layout.spatial_axes):
        sizes = [y.shape[0], *sizes, kernel.shape[-2]]
    return jax.linear_transpose(forward, jax.ShapeDtypeStruct(tuple(sizes), y.dtype))(y)[0]


def _make_pooling(kind: str) -> Callable[..., Any]:
    def run(node: GraphNode, x: Array) -> Array:
        layout = _DataLayout(node)
        window, strides = node["ksize"], node["strides"]
        padding = layout.get_padding(node)
        if not isinstance(padding, str):
            full = [(0, 0)] * np.ndim(x)
            for axis, pair in zip(layout.spatial_axes, padding, strict=True):
                full[axis] = pair
            padding = full
        if kind == "max":
            lowest = -jnp.inf if jnp.issubdtype(x.dtype, np.floating) else jnp.iinfo(x.dtype).min
            init = np.array(lowest, x.dtype)
            return lax.reduce_window(x, init, lax.max, window, strides, padding)
        zero = np.zeros((), x.dtype)
        total = lax.reduce_window(x, zero, lax.add, window, strides, padding)
        ones = jnp.ones_like(x)
        return total / lax.reduce_window(ones, zero, lax.add, window, strides, padding)

    return run


def _normalize_batch(
    node: GraphNode, x: Array, scale: Array, offset: Array, mean: Array, variance: Array
) -> tuple[Array, ...]:
    """Compute batch normalization. Layer normalization is saved as training of one batch per row."""
    layout = _DataLayout(node) if np.ndim(x) == 4 else None
    channels = layout.channel_axis if layout else np.ndim(x) - 1
    axes = tuple(i for i in range(np.ndim(x)) if i != channels)
    shape = [-1 if i == channels else 1 for i in range(np.ndim(x))]
    x_float32 = x.astype(jnp.float32)
    new_mean, new_variance = mean, variance
    if node["is_training"]:
        mean, variance = jnp.mean(x_float32, axes), jnp.var(x_float32, axes)
        count = math.prod(x.shape[i] for i in axes)
        # A symbolic batch size makes the count symbolic, so it is converted to an array.
        rest = max(count - 1, 1) if isinstance(count, int) else jnp.asarray(count - 1, jnp.float32)
        unbiased = variance * (jnp.asarray(count, jnp.float32) / rest)
        factor = node["exponential_avg_factor"]
        has_average = np.size(new_mean) and factor != 1
        new_mean = new_mean * (1 - factor) + mean * factor if has_average else mean
        new_variance = new_variance * (1 - factor) + unbiased * factor if has_average else unbiased
    multiplier = scale / jnp.sqrt(variance + node["epsilon"])
    y = x_float32 * multiplier.reshape(shape) + (offset - mean * multiplier).reshape(shape)
    return y.astype(x.dtype), new_mean, new_variance, mean, variance, variance


def _make_resize(method: str) -> Callable[..., Any]:
    def run(node: GraphNode, images: Array, size: Array) -> Array:
        if node["align_corners"] or not node["half_pixel_centers"]:
            return _resize_legacy(node, method, images, as_static_ints(size))
        out = geometry.resize(Tensor(jnp.asarray(images)), as_static_ints(size), method).array
        return out if method == "nearest" else out.astype(jnp.float32)

    return run


def _resize_legacy(node: GraphNode, method: str, images: Array, size: list[int]) -> Array:
    """Resize as earlier versions of TensorFlow, which sample at multiples of a step."""
    if method not in ("bilinear", "nearest"):
        raise UnimplementedError(
            f"resizing by {method} without half_pixel_centers is not supported"
        )
    out = jnp.asarray(images)
    for axis, new_size in zip((1, 2), size, strict=True):
        old_size = out.shape[axis]
        corners = node["align_corners"] and new_size > 1
        step = (old_size - 1) / (new_size - 1) if corners else old_size / new_size
        positions = np.arange(new_size, dtype=np.float32) * np.float32(step)
        if method == "nearest":
            nearest = np.round(positions) if corners else np.floor(positions)
            out = jnp.take(out, np.minimum(nearest, old_size - 1).astype(int), axis=axis)
            continue
        low, high = (
            np.minimum(p.astype(int), old_size - 1)
            for p in (np.floor(positions), np.ceil(positions))
        )
        out = resampling.interpolate_linearly(
            out.astype(jnp.float32), axis - 4, low, high, positions - low
        )
    return out


def _space_to_batch(node: GraphNode, x: Array, block: Array, paddings: Array) -> Array:
    sizes, widths = as_static_ints(block), np.asarray(paddings).tolist()
    count = len(sizes)
    x = jnp.pad(x, [(0, 0), *widths, *[(0, 0)] * (np.ndim(x) - 1 - count)])
    rest = x.shape[1 + count :]
    parts = [n for s, b in zip(x.shape[1 : 1 + count], sizes, strict=True) for n in (s // b, b)]
    y = x.reshape([x.shape[0], *parts, *rest])
    inner, outer = range(2, 2 * count + 1, 2), range(1, 2 * count + 1, 2)
    order = [*inner, 0, *outer, *range(2 * count + 1, y.ndim)]
    return y.transpose(order).reshape([-1, *parts[::2], *rest])


def _batch_to_space(node: GraphNode, x: Array, block: Array, crops: Array) -> Array:
    sizes, cut = as_static_ints(block), np.asarray(crops).tolist()
    count = len(sizes)
    rest = x.shape[1 + count :]
    y = x.reshape([*sizes, -1, *x.shape[1:]])
    order = [count]
    for i in range(count):
        order += [count + 1 + i, i]
    y = y.transpose([*order, *range(2 * count + 1, y.ndim)])
    y = y.reshape([y.shape[0], *(n * b for n, b in zip(x.shape[1:], sizes, strict=False)), *rest])
    inner = [slice(a, y.shape[1 + i] - b) for i, (a, b) in enumerate(cut)]
    return y[(slice(None), *inner)]


def _depth_to_space(node: GraphNode, x: Array) -> Array:
    block, (batch, height, width, depth) = node["block_size"], x.shape
    y = x.reshape(batch, height, width, block, block, depth // block**2)
    return y.transpose(0, 1, 3, 2, 4, 5).reshape(batch, height * block, width * block, -1)


def _space_to_depth(node: GraphNode, x: Array) -> Array:
    block, (batch, height, width, depth) = node["block_size"], x.shape
    y = x.reshape(batch, height // block, block, width // block, block, depth)
    return y.transpose(0, 1, 3, 2, 4, 5).reshape(batch, height // block, width // block, -1)


def _make_segment_reduction(reduce: Callable[..., Any]) -> Callable[..., Any]:
    def run(node: GraphNode, x: Array, ids: Array, count: Array | None = None) -> Array:
        total = int(np.max(as_host_array(ids)) + 1 if count is None else as_host_array(count))
        result = reduce(x, ids, total)
        if node.op == "UnsortedSegmentMax" and jnp.issubdtype(result.dtype, jnp.floating):
            # TensorFlow's value of empty segments is the lowest finite number.
            is_used = jnp.zeros(total, bool).at[jnp.asarray(ids)].set(True)
            is_used = is_used.reshape(-1, *[1] * (result.ndim - 1))
            result = jnp.where(is_used, result, jnp.finfo(result.dtype).min)
        return result

    return run


def _bucketize(node: GraphNode, x: Array) -> Array:
    edges = np.asarray(node["boundaries"], np.float32)
    if (edges[1:] < edges[:-1]).any():
        raise InvalidValueError(f"Expected sorted boundaries, got {edges.tolist()}. [Op:Bucketize]")
    return jnp.searchsorted(edges, jnp.asarray(x), side="right").astype(np.int32)


def _count_values(node: GraphNode, x: Array, size: Array, weights: Array) -> Array:
    if np.ndim(size) or np.ndim(x) > 2:
        shapes = f"input of rank {np.ndim(x)}, size of rank {np.ndim(size)}"
        raise InvalidValueError(
            f"The size: Shape must be rank 0, and that of the input must be at most rank 2, got {shapes}. "
            "[Op:DenseBincount]"
        )
    length = int(as_host_array(size))
    dtype = node.dtype("T")
    if is_static(x) and np.ndim(x) == 1 and not np.size(weights):
        counts = np.bincount(x, minlength=length)[:length]
        return ((counts > 0) if node["binary_output"] else counts).astype(dtype)

    def count_row(row: Array, amounts: Array | None) -> jax.Array:
        ones = jnp.ones(row.shape, dtype) if amounts is None else amounts
        counts = jnp.zeros(length, dtype).at[row].add(ones, mode="drop")
        return (counts > 0).astype(dtype) if node["binary_output"] else counts

    amounts = weights if np.size(weights) else None
    return (count_row if np.ndim(x) == 1 else jax.vmap(count_row))(x, amounts)


NETWORK_OPS: dict[str, Callable[..., Any]] = {
    "MatMul": _multiply,
    "SparseMatMul": _multiply_sparse,
    **dict.fromkeys(("BatchMatMul", "BatchMatMulV2", "BatchMatMulV3"), _multiply_batches),
    "Einsum": lambda node, *values: jnp.einsum(node.text("equation"), *values),
    "BiasAdd": _add_bias,
    "Conv2D": _convolve,
    "Conv3D": _convolve,
    "DepthwiseConv2dNative": _convolve_depthwise,
    "Conv2DBackpropInput": _convolve_transposed,
    "Conv3DBackpropInputV2": _convolve_transposed,
    "MaxPool": _make_pooling("max"),
    "MaxPool3D": _make_pooling("max"),
    "AvgPool": _make_pooling("average"),
    "AvgPool3D": _make_pooling("average"),
    **dict.fromkeys(("FusedBatchNorm", "FusedBatchNormV2", "FusedBatchNormV3"), _normalize_batch),
    "Relu": lambda node, x: jax.nn.relu(x),
    "Relu6": lambda node, x: jax.nn.relu6(x),
    "LeakyRelu": lambda node, x: jax.nn.leaky_relu(x, node["alpha"]),
    "Elu": lambda node, x: jax.nn.elu(x),
    "Selu": lambda node, x: jax.nn.selu(x),
    "Sigmoid": lambda node, x: jax.nn.sigmoid(x),
    "Tanh": lambda node, x: jnp.tanh(x),
    "Softplus": lambda node, x: jax.nn.softplus(x),
    "Softsign": lambda node, x: jax.nn.soft_sign(x),
    "Softmax": lambda node, x: jax.nn.softmax(x),
    "LogSoftmax": lambda node, x: jax.nn.log_softmax(x),
    "L2Loss": lambda node, x: jnp.sum(jnp.square(x)) / 2,
    "ResizeBilinear": _make_resize("bilinear"),
    "ResizeNearestNeighbor": _make_resize("nearest"),
    "ResizeBicubic": _make_resize("bicubic"),
    "SpaceToBatchND": _space_to_batch,
    "BatchToSpaceND": _batch_to_space,
    "DepthToSpace": _depth_to_space,
    "SpaceToDepth": _space_to_depth,
    "UnsortedSegmentSum": _make_segment_reduction(jax.ops.segment_sum),
    "UnsortedSegmentMax": _make_segment_reduction(jax.ops.segment_max),
    "SegmentSum": _make_segment_reduction(jax.ops.segment_sum),
    "Bucketize": _bucketize,
    "DenseBincount": _count_values,
    "Bincount": _count_values,
}
