"""Convolutions on meshes: how the work is divided, with halo exchange along split height and width.

XLA's own partitioner gives wrong results where height or width and the output channels of a
convolution are both split (JAX 0.10.2: errors of the size of the result). So each device gets a plain
convolution of its own part here: it takes the rows that it needs from its neighbours, and sums over
the devices that hold other input channels. The gradients are convolutions as well and go the same way.

With ``y[o] = sum_w x[o * stride + w * dilation - pad] * k[w]`` along one axis, either `o` is split (each
device computes its part of the result) or `w` is (the kernel's gradient: each sums over its part of
the image). Both need the same window of `x`; only the two steps change places.
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
from jax.experimental.custom_partitioning import (
    ArrayMapping,
    CompoundFactor,
    SdyShardingRule,
    custom_partitioning,
)
from jax.sharding import NamedSharding, PartitionSpec

from meshflow.environment.jax_internals import parse_flatten_op_sharding

Axes = tuple[str, ...]
_GROUPS = ("feature_group_count", "batch_group_count")


def applies(context: Any) -> bool:
    """Whether a primitive is lowered for several devices with XLA dividing the work."""
    axes = context.module_context.axis_context
    mesh = getattr(axes, "abstract_mesh", None)
    return (
        getattr(axes, "device_assignment", None) is not None
        and axes.num_devices > 1
        and mesh is not None
        and not mesh.empty
    )


# ---- one spatial axis ----------------------------------------------------------------------


@dataclass(frozen=True)
class Window:
    """Which part of an image one of `parts` devices needs along one axis.

    Attributes:
      size: the image's size.
      parts: among how many devices it is split.
      near: size and step of what is split: of the result (or of the kernel, for its gradient).
      far: size and step of the other.
      pad: padding in front; a negative one cuts.
      spread: distance of the image's elements (its dilation).
      tile: how many places of the result are computed together: a part begins where a tile of the
        whole does, so that every place is computed by the same sums; what is too much is cut off.
    """

    size: int
    parts: int
    near: tuple[int, int]
    far: tuple[int, int]
    pad: int
    spread: int
    tile: int = 1

    @property
    def own(self) -> int:
        """How much of what is split a part has."""
        return self.near[0] // self.parts

    @property
    def surplus(self) -> int:
        """How many places a part computes besides its own."""
        return max(part * self.own % self.tile for part in range(self.parts))

    @property
    def need(self) -> int:
        """Length of the window, in places of the spread-out image."""
        steps = self.own + self.surplus - 1
        return steps * self.near[1] + (self.far[0] - 1) * self.far[1] + 1

    def first(self, part: Any) -> Any:
        """Where the window of a part begins, in places of the whole spread-out image."""
        start = part * self.own
        return (start - start % self.tile) * self.near[1] - self.pad

    @property
    def halos(self) -> tuple[int, int] | None:
        """Rows that a part takes from the one before and from the one after; None when it needs more."""
        own = self.size // self.parts
        ends = []
        for part in range(self.parts):
            start = self.first(part) - part * own * self.spread
            low = -(-start // self.spread)
            high = (start + self.need - 1) // self.spread
            if high < low:
                return None
            ends.append((-low, high - (own - 1)))
        before, after = (max(0, *(e[i] for e in ends)) for i in (0, 1))
        if before > own or after > own:
            return None
        # Where elements are spread out, the gaps must lie alike in all parts.
        if self.spread > 1 and len(set(ends)) > 1:
            return None
        return before, after

    def of_part(self, x: Any, axis: int, name: Axes) -> tuple[Any, int, tuple[int, int]]:
        """The window of this device's part, its spread, and the padding that it still needs."""
        index = jax.lax.axis_index(name)
        own = x.shape[axis]
        before, after = self.halos  # type: ignore[misc]
        x = exchanged(x, axis, name, self.parts, before, after)
        if self.spread > 1:
            start = self.first(0)
            low, high = -(-start // self.spread), (start + self.need - 1) // self.spread
            x = jax.lax.slice_in_dim(x, before + low, before + high + 1, axis=axis)
            return (
                x,
                self.spread,
                (low * self.spread - start, start + self.need - 1 - high * self.spread),
            )
        starts = {before + self.first(p) - p * own for p in range(self.parts)}
        if len(starts) == 1:
            first = starts.pop()
            return jax.lax.slice_in_dim(x, first, first + self.need, axis=axis), 1, (0, 0)
        first = before + self.first(index) - index * own
        return jax.lax.dynamic_slice_in_dim(x, first, self.need, axis=axis), 1, (0, 0)

    def kept(self, y: Any, axis: int, name: Axes) -> Any:
        """A part's own places of the result."""
        if not self.surplus:
            return y
        start = jax.lax.axis_index(name) * self.own % self.tile
        return jax.lax.dynamic_slice_in_dim(y, start, self.own, axis=axis)

    def of_whole(self, x: Any, axis: int, name: Axes) -> tuple[Any, int, tuple[int, int]]:
        """The window of this device's part, from an image that every device has."""
        last = max(self.first(part) for part in range(self.parts)) + self.need
        config = [(0, 0, 0)] * x.ndim
        length = (self.size - 1) * self.spread + 1
        low = max(0, self.pad)
        config[axis] = (low, max(0, last - length), self.spread - 1)
        x = jax.lax.pad(x, np.zeros((), x.dtype), config)
        first = low + self.first(jax.lax.axis_index(name))
        return jax.lax.dynamic_slice_in_dim(x, first, self.need, axis=axis), 1, (0, 0)


def exchanged(x: Any, axis: int, name: Axes, parts: int, before: int, after: int) -> Any:
    """A part with rows of its neighbours on both sides, zeros at the ends of the image."""
    size = x.shape[axis]
    pieces = [x]
    if before:
        rows = jax.lax.slice_in_dim(x, size - before, size, axis=axis)
        pieces.insert(0, jax.lax.ppermute(rows, name, [(i, i + 1) for i in range(parts - 1)]))
    if after:
        rows = jax.lax.slice_in_dim(x, 0, after, axis=axis)
        pieces.append(jax.lax.ppermute(rows, name, [(i + 1, i) for i in range(parts - 1)]))
    return jax.lax.concatenate(pieces, axis) if len(pieces) > 1 else x


# ---- the whole convolution -----------------------------------------------------------------


@dataclass(frozen=True)
class Code:
    """What the code for one device wants of the parts, so that their bits are those of the whole.

    Attributes:
      choose: from shapes of a part's image, kernel and result and its parameters, the code to run,
        or None; None for XLA's.
      tile: how many rows and columns of the result it computes together.
      least: with fewer rows or columns than that it computes other sums.
      text: tells it from other code.
    """

    choose: Callable[..., Any] | None = None
    tile: int = 1
    least: int = 1
    text: str = ""


@dataclass
class Plan:
    """How one convolution is divided.

    Attributes:
      left: mesh dimensions of each axis of the image.
      right: of the kernel.
      out: of the result.
      sums: mesh dimensions over which results are summed.
      windows: for each split axis of the image, its window, its mesh dimensions, and whether every
        device has the whole image along it.
      groups: into how many parts the groups of channels are split.
    """

    left: list[Axes]
    right: list[Axes]
    out: list[Axes]
    sums: list[str] = field(default_factory=list)
    windows: dict[int, tuple[Window, Axes, bool]] = field(default_factory=dict)
    groups: int = 1


def plan(
    parameters: dict[str, Any],
    shapes: Sequence[Sequence[int]],
    wanted: Sequence[Sequence[Axes]],
    sizes: dict[str, int],
    code: Code = Code(),
) -> Plan:
    """Divides a convolution among devices.

    Args:
      parameters: those of JAX's `conv_general_dilated`.
      shapes: of image, kernel and result.
      wanted: mesh dimensions that split each axis of image, kernel and result now.
      sizes: sizes of the mesh dimensions.
      code: the code for one device.

    Returns:
      A `Plan`.
    """
    numbers = parameters["dimension_numbers"]
    left, right, out = numbers.lhs_spec, numbers.rhs_spec, numbers.out_spec
    (x_shape, k_shape, y_shape), (x, k, y) = shapes, wanted
    made = Plan([()] * len(x_shape), [()] * len(k_shape), [()] * len(y_shape))
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
        # Features or, in a kernel's gradient, rows of the batch are in groups that go with the results'.
        at = left[1] if grouped else left[0]
        axes = take(x[at] or k[right[0]] or y[out[1]], groups)
        made.left[at] = made.right[right[0]] = made.out[out[1]] = axes
        made.groups = parts(axes)
    else:
        made.right[right[0]] = made.out[out[1]] = take(
            k[right[0]] or y[out[1]], k_shape[right[0]], y_shape[out[1]]
        )
    if not grouped:
        # Weights stay where they are; an image split by channels is gathered unless the result is smaller.
        channels = k[right[1]]
        if not channels and math.prod(y_shape) < math.prod(x_shape):
            channels = x[left[1]]
        channels = take(channels, k_shape[right[1]], x_shape[left[1]])
        made.right[right[1]] = made.left[left[1]] = channels
        made.sums += channels
    if parameters["batch_group_count"] == 1:
        made.left[left[0]] = made.out[out[0]] = take(x[left[0]] or y[out[0]], x_shape[left[0]])
    for i in range(len(x_shape) - 2):
        at, kernel_at, out_at = left[2 + i], right[2 + i], out[2 + i]
        size, kernel, result = x_shape[at], k_shape[kernel_at], y_shape[out_at]
        result_step, kernel_step = parameters["window_strides"][i], parameters["rhs_dilation"][i]
        pad, spread = parameters["padding"][i][0], parameters["lhs_dilation"][i]
        over_kernel = kernel > result
        split = kernel if over_kernel else result
        axes = x[at] or (k[kernel_at] if over_kernel else y[out_at])
        if not over_kernel and split < code.least * parts(axes):
            continue
        axes = take(axes, split)
        if not axes:
            continue
        near, far = (result, result_step), (kernel, kernel_step)
        # A kernel's gradient is another sum on each device anyway.
        window = (
            Window(size, parts(axes), far, near, pad, spread)
            if over_kernel
            else Window(size, parts(axes), near, far, pad, spread, code.tile)
        )
        whole = bool(size % parts(axes)) or window.halos is None
        made.windows[at] = window, axes, whole
        made.left[at] = () if whole else axes
        if over_kernel:
            made.right[kernel_at] = axes
            made.sums += axes
        else:
            made.out[out_at] = axes
    return made


def local(made: Plan, parameters: dict[str, Any], code: Code = Code()) -> Any:
    """The function of each device's parts, run by the code for one device."""
    numbers = parameters["dimension_numbers"]
    spatial = numbers.lhs_spec[2:]

    def run(x: Any, k: Any) -> Any:
        padding, spreads = list(parameters["padding"]), list(parameters["lhs_dilation"])
        for axis, (window, axes, whole) in made.windows.items():
            i = spatial.index(axis)
            cut = window.of_whole if whole else window.of_part
            x, spreads[i], padding[i] = cut(x, axis, axes)
        own = {**parameters, "padding": tuple(padding), "lhs_dilation": tuple(spreads)}
        own.update({name: max(1, parameters[name] // made.groups) for name in _GROUPS})
        bind = lambda x, k: jax.lax.conv_general_dilated_p.bind(x, k, **own)
        y = jax.eval_shape(bind, x, k)
        call = None if code.choose is None else code.choose(x, k, y, own)
        y = (call or bind)(x, k)
        for axis, (window, axes, _) in made.windows.items():
            y = window.kept(y, numbers.out_spec[numbers.lhs_spec.index(axis)], axes)
        return jax.lax.psum(y, tuple(made.sums)) if made.sums else y

    return run


def convolution(parameters: dict[str, Any], code: Code = Code()) -> Any:
    """`conv_general_dilated` with fixed parameters, divided by the rules of this module.

    Args:
      parameters: those of the primitive.
      code: the code for one device.

    Returns:
      A function of image and kernel.
    """

    @custom_partitioning
    def conv(x: Any, k: Any, mark: Any) -> Any:
        del mark
        return jax.lax.conv_general_dilated_p.bind(x, k, **parameters)

    def partition(mesh: Any, arguments: Any, result: Any) -> Any:
        values = [*arguments[:2], result]
        wanted = [_axes(v.sharding, mesh, len(v.shape)) for v in values]
        made = plan(parameters, [v.shape for v in values], wanted, dict(mesh.shape), code)
        place = lambda axes: NamedSharding(mesh, PartitionSpec(*(a or None for a in axes)))
        run = local(made, parameters, code)
        return (
            mesh,
            lambda x, k, mark: run(x, k),
            place(made.out),
            (place(made.left), place(made.right), place([])),
        )

    conv.def_partition(
        partition=partition,
        infer_sharding_from_operands=lambda mesh, arguments, result: NamedSharding(
            mesh, PartitionSpec()
        ),
        decode_shardings=False,
        sharding_rule=lambda mesh, operands, results: rule(
            parameters, [list(t.shape) for t in (*operands[:2], *results)]
        ),
    )
    # The program's text does not tell the parameters nor these rules: a number that stands for them
    # makes compiled programs in the cache different.
    text = f"{sorted((k, str(v)) for k, v in parameters.items())} {code.text}"
    mark = np.uint32(zlib.crc32(text.encode(), _rules()))
    return lambda x, k: conv(x, k, mark)


@functools.cache
def _rules() -> int:
    return zlib.crc32(Path(__file__).read_bytes())


def _axes(sharding: Any, mesh: Any, rank: int) -> list[Axes]:
    """Mesh dimensions of each axis; none where a split is not one over whole mesh dimensions."""
    try:
        spec = parse_flatten_op_sharding(sharding._to_xla_hlo_sharding(rank), mesh)[0]
    except Exception:
        return [()] * rank
    entries = [(e,) if isinstance(e, str) else tuple(e or ()) for e in spec]
    return [*entries, *[()] * (rank - len(entries))]


def rule(parameters: dict[str, Any], shapes: Sequence[Sequence[int]]) -> SdyShardingRule:
    """Which axes of image, kernel and result are split alike."""
    numbers = parameters["dimension_numbers"]
    left, right, out = numbers.lhs_spec, numbers.rhs_spec, numbers.out_spec
    features, rows = (parameters[name] for name in _GROUPS)
    x, k, y = ([""] * len(shape) for shape in shapes)  # type: list[Any], list[Any], list[Any]
    groups = max(features, rows)
    sizes: dict[str, int] = {}

    def within(name: str, size: int) -> Any:
        """An axis that goes through the groups, and then through `size` places in each."""
        if groups == 1:
            return name
        if size == 1:
            return "g"
        sizes.update({"g": groups, name: size})
        return CompoundFactor("g", name)

    x[left[0]] = within("n", shapes[0][left[0]] // rows) if rows > 1 else "n"
    y[out[0]] = "n"
    k[right[0]] = y[out[1]] = within("o", shapes[1][right[0]] // groups)
    x[left[1]] = within("i", shapes[1][right[1]]) if features > 1 else "i"
    k[right[1]] = "i"
    sums = ["i"]
    for s in range(len(left) - 2):
        a, b, c = left[2 + s], right[2 + s], out[2 + s]
        over_kernel = shapes[1][b] > shapes[2][c]
        x[a] = f"s{s}"
        k[b], y[c] = (f"s{s}", f"t{s}") if over_kernel else (f"t{s}", f"s{s}")
        if over_kernel:
            sums.append(f"s{s}")
    # Of factors that are no whole axis anywhere it has to be told the sizes.
    unknown: Any = {name: size for name, size in sizes.items() if name not in (*x, *k, *y)}
    # Shardy wants them in the order of their first use.
    used = [(f,) if isinstance(f, str) else f for f in (*x, *k)]
    order = list(dict.fromkeys(itertools.chain(*used)))
    return SdyShardingRule(
        (ArrayMapping(*x), ArrayMapping(*k), ArrayMapping()),
        (ArrayMapping(*y),),
        reduction_factors=tuple(sorted(sums, key=order.index)),
        **unknown,
    )
