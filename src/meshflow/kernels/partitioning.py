"""Partitioning of convolutions over a mesh, with halo exchange along height and width.

XLA's own partitioner computes wrong results if height or width and the output channels of a
convolution are both split (JAX 0.10.2: errors of the magnitude of the result). Therefore each
device computes an ordinary convolution of its shard here: it receives the required rows from its
neighbors, and sums over the devices that hold other input channels. The gradients are convolutions
as well and are partitioned in the same way.

With ``y[o] = sum_w x[o * stride + w * dilation - pad] * k[w]`` along one axis, either `o` is split
(each device computes its part of the result) or `w` is (the kernel's gradient: each device sums
over its part of the image). Both need the same window of `x`, with stride and dilation exchanged.
"""

from __future__ import annotations

import functools
import itertools
import math
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax import Array
from jax.experimental.custom_partitioning import (
    ArrayMapping,
    CompoundFactor,
    SdyShardingRule,
    custom_partitioning,
)
from jax.sharding import NamedSharding, PartitionSpec

from meshflow.environment.jax_internals import mlir, parse_flatten_op_sharding

Axes = tuple[str, ...]
_GROUPS = ("feature_group_count", "batch_group_count")


def is_partitioned(context: mlir.LoweringRuleContext) -> bool:
    """Check whether a primitive is lowered for several devices and XLA partitions the work."""
    axes: Any = context.module_context.axis_context
    mesh = getattr(axes, "abstract_mesh", None)
    return (
        getattr(axes, "device_assignment", None) is not None
        and axes.num_devices > 1
        and mesh is not None
        and not mesh.empty
    )


# ---- one spatial axis ----------------------------------------------------------------------


@dataclass(frozen=True)
class ImageWindow:
    """The part of an image that one of several devices needs along one axis.

    Attributes:
      size: Size of the image.
      num_parts: Number of devices over which it is split.
      near: Size and stride of the split operand: the result, or the kernel for its gradient.
      far: Size and stride of the other operand.
      pad: Leading padding; negative values crop.
      spread: Dilation of the image.
      tile: Number of result positions that are computed together. A part starts at a tile of the
        full result, so that every position is computed by the same sums; surplus positions are
        dropped.
    """

    size: int
    num_parts: int
    near: tuple[int, int]
    far: tuple[int, int]
    pad: int
    spread: int
    tile: int = 1

    @property
    def part_size(self) -> int:
        """Return the number of positions of the split operand per part."""
        return self.near[0] // self.num_parts

    @property
    def surplus(self) -> int:
        """Return the number of positions that a part computes in addition to its own."""
        return max(part * self.part_size % self.tile for part in range(self.num_parts))

    @property
    def length(self) -> int:
        """Return the length of the window, in positions of the dilated image."""
        steps = self.part_size + self.surplus - 1
        return steps * self.near[1] + (self.far[0] - 1) * self.far[1] + 1

    def find_start(self, part: Any) -> Any:
        """Return the first position of a part's window in the full dilated image."""
        start = part * self.part_size
        return (start - start % self.tile) * self.near[1] - self.pad

    @property
    def halos(self) -> tuple[int, int] | None:
        """Return the rows needed from the previous and next part; None if more parts are needed."""
        size = self.size // self.num_parts
        ends = []
        for part in range(self.num_parts):
            start = self.find_start(part) - part * size * self.spread
            low = -(-start // self.spread)
            high = (start + self.length - 1) // self.spread
            if high < low:
                return None
            ends.append((-low, high - (size - 1)))
        before, after = (max(0, *(e[i] for e in ends)) for i in (0, 1))
        if before > size or after > size:
            return None
        # With dilation, the gaps must be at the same positions in all parts.
        if self.spread > 1 and len(set(ends)) > 1:
            return None
        return before, after

    def cut_from_part(self, x: Array, axis: int, name: Axes) -> tuple[Array, int, tuple[int, int]]:
        """Cut this device's window from its part; return it, its dilation and the missing padding."""
        index = jax.lax.axis_index(name)
        size = x.shape[axis]
        before, after = self.halos  # type: ignore[misc]
        x = exchange_halos(x, axis, name, self.num_parts, before, after)
        if self.spread > 1:
            start = self.find_start(0)
            low, high = -(-start // self.spread), (start + self.length - 1) // self.spread
            x = jax.lax.slice_in_dim(x, before + low, before + high + 1, axis=axis)
            return (
                x,
                self.spread,
                (low * self.spread - start, start + self.length - 1 - high * self.spread),
            )
        starts = {before + self.find_start(p) - p * size for p in range(self.num_parts)}
        if len(starts) == 1:
            first = starts.pop()
            return jax.lax.slice_in_dim(x, first, first + self.length, axis=axis), 1, (0, 0)
        first = before + self.find_start(index) - index * size
        return jax.lax.dynamic_slice_in_dim(x, first, self.length, axis=axis), 1, (0, 0)

    def drop_surplus(self, y: Array, axis: int, name: Axes) -> Array:
        """Drop the surplus positions of this device's result."""
        if not self.surplus:
            return y
        start = jax.lax.axis_index(name) * self.part_size % self.tile
        return jax.lax.dynamic_slice_in_dim(y, start, self.part_size, axis=axis)

    def cut_from_full(self, x: Array, axis: int, name: Axes) -> tuple[Array, int, tuple[int, int]]:
        """Cut this device's window from an image that is not split."""
        last = max(self.find_start(part) for part in range(self.num_parts)) + self.length
        config = [(0, 0, 0)] * x.ndim
        length = (self.size - 1) * self.spread + 1
        low = max(0, self.pad)
        config[axis] = (low, max(0, last - length), self.spread - 1)
        x = jax.lax.pad(x, np.zeros((), x.dtype), config)
        first = low + self.find_start(jax.lax.axis_index(name))
        return jax.lax.dynamic_slice_in_dim(x, first, self.length, axis=axis), 1, (0, 0)


def exchange_halos(x: Array, axis: int, name: Axes, parts: int, before: int, after: int) -> Array:
    """Add rows of the neighbors on both sides of a part, zeros at the ends of the image."""
    size = x.shape[axis]
    pieces = [x]
    if before:
        rows = jax.lax.slice_in_dim(x, size - before, size, axis=axis)
        pieces.insert(0, jax.lax.ppermute(rows, name, [(i, i + 1) for i in range(parts - 1)]))
    if after:
        rows = jax.lax.slice_in_dim(x, 0, after, axis=axis)
        pieces.append(jax.lax.ppermute(rows, name, [(i + 1, i) for i in range(parts - 1)]))
    return jax.lax.concatenate(pieces, axis) if len(pieces) > 1 else x


# ---- the complete convolution --------------------------------------------------------------


@dataclass(frozen=True)
class ShardCode:
    """Requirements of the code for one device, so that its bits are those of the full convolution.

    Attributes:
      choose: Returns a function that computes a shard, or None, given the types of its image,
        kernel and result and its parameters; None to use XLA's code.
      tile: Number of rows and columns of the result that are computed together.
      min_size: Minimum number of rows and columns; fewer are summed in a different order.
      fingerprint: Distinguishes different code.
    """

    choose: Callable[..., Any] | None = None
    tile: int = 1
    min_size: int = 1
    fingerprint: str = ""


@dataclass
class PartitionPlan:
    """Partitioning of one convolution.

    Attributes:
      left: Mesh dimensions of each axis of the image.
      right: Mesh dimensions of each axis of the kernel.
      out: Mesh dimensions of each axis of the result.
      sums: Mesh dimensions over which results are summed.
      windows: For each split axis of the image its window, its mesh dimensions, and whether every
        device holds the full image along it.
      groups: Number of parts into which the groups of channels are split.
    """

    left: list[Axes]
    right: list[Axes]
    out: list[Axes]
    sums: list[str] = field(default_factory=list)
    windows: dict[int, tuple[ImageWindow, Axes, bool]] = field(default_factory=dict)
    groups: int = 1


def plan_partition(
    parameters: dict[str, Any],
    shapes: Sequence[Sequence[int]],
    current: Sequence[Sequence[Axes]],
    sizes: dict[str, int],
    code: ShardCode = ShardCode(),
) -> PartitionPlan:
    """Plan the partitioning of a convolution.

    Args:
      parameters: Parameters of JAX's `conv_general_dilated`.
      shapes: Shapes of image, kernel and result.
      current: Mesh dimensions that split each axis of image, kernel and result now.
      sizes: Sizes of the mesh dimensions.
      code: The code for one device.
    """
    numbers = parameters["dimension_numbers"]
    left, right, out = numbers.lhs_spec, numbers.rhs_spec, numbers.out_spec
    (x_shape, k_shape, y_shape), (x, k, y) = shapes, current
    partition_plan = PartitionPlan([()] * len(x_shape), [()] * len(k_shape), [()] * len(y_shape))
    used: set[str] = set()

    def parts(axes: Axes) -> int:
        return math.prod(sizes[a] for a in axes)

    def take(axes: Axes, *lengths: int) -> Axes:
        if not axes or used & set(axes) or any(n % parts(axes) for n in lengths):
            return ()
        used.update(axes)
        return axes

    grouped = parameters["feature_group_count"] > 1
    groups = max(parameters[name] for name in _GROUPS)
    if groups > 1:
        # Features or, in a kernel's gradient, rows of the batch form groups that match those of the
        # results.
        axis = left[1] if grouped else left[0]
        axes = take(x[axis] or k[right[0]] or y[out[1]], groups)
        partition_plan.left[axis] = partition_plan.right[right[0]] = partition_plan.out[out[1]] = (
            axes
        )
        partition_plan.groups = parts(axes)
    else:
        partition_plan.right[right[0]] = partition_plan.out[out[1]] = take(
            k[right[0]] or y[out[1]], k_shape[right[0]], y_shape[out[1]]
        )
    if not grouped:
        # Weights are not moved; an image split by channels is gathered unless the result is
        # smaller.
        channels = k[right[1]]
        if not channels and math.prod(y_shape) < math.prod(x_shape):
            channels = x[left[1]]
        channels = take(channels, k_shape[right[1]], x_shape[left[1]])
        partition_plan.right[right[1]] = partition_plan.left[left[1]] = channels
        partition_plan.sums += channels
    if parameters["batch_group_count"] == 1:
        partition_plan.left[left[0]] = partition_plan.out[out[0]] = take(
            x[left[0]] or y[out[0]], x_shape[left[0]]
        )
    for i in range(len(x_shape) - 2):
        axis, kernel_axis, out_axis = left[2 + i], right[2 + i], out[2 + i]
        size, kernel, result = x_shape[axis], k_shape[kernel_axis], y_shape[out_axis]
        result_step, kernel_step = parameters["window_strides"][i], parameters["rhs_dilation"][i]
        pad, spread = parameters["padding"][i][0], parameters["lhs_dilation"][i]
        over_kernel = kernel > result
        split = kernel if over_kernel else result
        axes = x[axis] or (k[kernel_axis] if over_kernel else y[out_axis])
        if not over_kernel and split < code.min_size * parts(axes):
            continue
        axes = take(axes, split)
        if not axes:
            continue
        near, far = (result, result_step), (kernel, kernel_step)
        # A kernel's gradient is a different sum on each device anyway, so tiles do not matter.
        window = (
            ImageWindow(size, parts(axes), far, near, pad, spread)
            if over_kernel
            else ImageWindow(size, parts(axes), near, far, pad, spread, code.tile)
        )
        is_full = bool(size % parts(axes)) or window.halos is None
        partition_plan.windows[axis] = window, axes, is_full
        partition_plan.left[axis] = () if is_full else axes
        if over_kernel:
            partition_plan.right[kernel_axis] = axes
            partition_plan.sums += axes
        else:
            partition_plan.out[out_axis] = axes
    return partition_plan


def make_local_function(
    plan: PartitionPlan, parameters: dict[str, Any], code: ShardCode = ShardCode()
) -> Callable[[Array, Array], Array]:
    """Return the function that each device applies to its shards of image and kernel."""
    numbers = parameters["dimension_numbers"]
    spatial = numbers.lhs_spec[2:]

    def run(x: Array, k: Array) -> Array:
        padding, spreads = list(parameters["padding"]), list(parameters["lhs_dilation"])
        for axis, (window, axes, is_full) in plan.windows.items():
            i = spatial.index(axis)
            cut = window.cut_from_full if is_full else window.cut_from_part
            x, spreads[i], padding[i] = cut(x, axis, axes)
        local_parameters = {**parameters, "padding": tuple(padding), "lhs_dilation": tuple(spreads)}
        local_parameters.update({name: max(1, parameters[name] // plan.groups) for name in _GROUPS})
        bind = lambda x, k: jax.lax.conv_general_dilated_p.bind(x, k, **local_parameters)
        y = jax.eval_shape(bind, x, k)
        call = None if code.choose is None else code.choose(x, k, y, local_parameters)
        y = (call or bind)(x, k)
        for axis, (window, axes, _) in plan.windows.items():
            y = window.drop_surplus(y, numbers.out_spec[numbers.lhs_spec.index(axis)], axes)
        return jax.lax.psum(y, tuple(plan.sums)) if plan.sums else y

    return run


def partition_convolution(
    parameters: dict[str, Any], code: ShardCode = ShardCode()
) -> Callable[[Array, Array], Array]:
    """Return `conv_general_dilated` with fixed parameters, partitioned by the rules of this module."""

    @custom_partitioning
    def conv(x: Array, k: Array, mark: Array) -> Array:
        del mark
        return jax.lax.conv_general_dilated_p.bind(x, k, **parameters)

    def partition(
        mesh: jax.sharding.Mesh, arguments: Sequence[Any], result: jax.ShapeDtypeStruct
    ) -> tuple[Any, ...]:
        values = [*arguments[:2], result]
        current = [_find_mesh_axes(v.sharding, mesh, len(v.shape)) for v in values]
        partition_plan = plan_partition(
            parameters, [v.shape for v in values], current, dict(mesh.shape), code
        )
        make_sharding = lambda axes: NamedSharding(mesh, PartitionSpec(*(a or None for a in axes)))
        run = make_local_function(partition_plan, parameters, code)
        return (
            mesh,
            lambda x, k, mark: run(x, k),
            make_sharding(partition_plan.out),
            (
                make_sharding(partition_plan.left),
                make_sharding(partition_plan.right),
                make_sharding([]),
            ),
        )

    conv.def_partition(
        partition=partition,
        infer_sharding_from_operands=lambda mesh, arguments, result: NamedSharding(
            mesh, PartitionSpec()
        ),
        decode_shardings=False,
        sharding_rule=lambda mesh, operands, results: make_sharding_rule(
            parameters, [list(t.shape) for t in (*operands[:2], *results)]
        ),
    )
    # The text of the program contains neither the parameters nor these rules, so a checksum as
    # operand distinguishes compiled programs in the cache.
    text = f"{sorted((k, str(v)) for k, v in parameters.items())} {code.fingerprint}"
    mark = np.uint32(zlib.crc32(text.encode(), _hash_rules()))
    return lambda x, k: conv(x, k, mark)


@functools.cache
def _hash_rules() -> int:
    return zlib.crc32(Path(__file__).read_bytes())


def _find_mesh_axes(
    sharding: jax.sharding.Sharding, mesh: jax.sharding.Mesh, rank: int
) -> list[Axes]:
    """Return the mesh dimensions of each axis; none for splits of parts of mesh dimensions."""
    try:
        spec = parse_flatten_op_sharding(sharding._to_xla_hlo_sharding(rank), mesh)[0]
    except Exception:
        return [()] * rank
    entries = [(e,) if isinstance(e, str) else tuple(e or ()) for e in spec]
    return [*entries, *[()] * (rank - len(entries))]


def make_sharding_rule(
    parameters: dict[str, Any], shapes: Sequence[Sequence[int]]
) -> SdyShardingRule:
    """Return the rule for which axes of image, kernel and result are split together."""
    numbers = parameters["dimension_numbers"]
    left, right, out = numbers.lhs_spec, numbers.rhs_spec, numbers.out_spec
    features, rows = (parameters[name] for name in _GROUPS)
    x, k, y = ([""] * len(shape) for shape in shapes)  # type: list[Any], list[Any], list[Any]
    groups = max(features, rows)
    sizes: dict[str, int] = {}

    def make_factor(name: str, size: int) -> str | CompoundFactor:
        """Return the factor of an axis with `size` positions in each group."""
        if groups == 1:
            return name
        if size == 1:
            return "g"
        sizes.update({"g": groups, name: size})
        return CompoundFactor("g", name)

    x[left[0]] = make_factor("n", shapes[0][left[0]] // rows) if rows > 1 else "n"
    y[out[0]] = "n"
    k[right[0]] = y[out[1]] = make_factor("o", shapes[1][right[0]] // groups)
    x[left[1]] = make_factor("i", shapes[1][right[1]]) if features > 1 else "i"
    k[right[1]] = "i"
    sums = ["i"]
    for s in range(len(left) - 2):
        a, b, c = left[2 + s], right[2 + s], out[2 + s]
        over_kernel = shapes[1][b] > shapes[2][c]
        x[a] = f"s{s}"
        k[b], y[c] = (f"s{s}", f"t{s}") if over_kernel else (f"t{s}", f"s{s}")
        if over_kernel:
            sums.append(f"s{s}")
    # The rule needs the sizes of factors that are never a complete axis.
    factor_sizes: Any = {name: size for name, size in sizes.items() if name not in (*x, *k, *y)}
    # Shardy requires the order of their first use.
    used = [(f,) if isinstance(f, str) else f for f in (*x, *k)]
    order = list(dict.fromkeys(itertools.chain(*used)))
    return SdyShardingRule(
        (ArrayMapping(*x), ArrayMapping(*k), ArrayMapping()),
        (ArrayMapping(*y),),
        reduction_factors=tuple(sorted(sums, key=order.index)),
        **factor_sizes,
    )
