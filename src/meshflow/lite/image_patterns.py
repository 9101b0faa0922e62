"""Patterns of LiteRT's operators that move or resize the elements of images.

They have the form of the patterns in `deployment.patterns`.
"""

from __future__ import annotations

import numpy as np

from meshflow.deployment.equations import Equation, Value
from meshflow.deployment.gather_patterns import RowGather, try_classify_gather
from meshflow.deployment.patterns import DataflowGraph
from meshflow.ops.image.resampling import compute_taps


def _fuse_bilinear_resize(g: DataflowGraph, equation: Equation) -> Equation | None:
    """Match linear interpolation along width, then along height."""
    rows = _match_interpolation(g, equation, 1)
    producer = None if rows is None else g.find_producer(rows, "add")
    source = None if producer is None else _match_interpolation(g, producer, 2)
    if source is None:
        return None
    return Equation("resize", [source], [], {"method": "bilinear"})


def _match_interpolation(g: DataflowGraph, equation: Equation, axis: int) -> Value | None:
    """Return the value that is interpolated as `left + (right - left) * fractions`, or None."""
    if equation.name != "add" or len(equation.outputs[0].shape) != 4:
        return None
    left = g.find_producer(equation.inputs[0], "gather")
    product = g.find_producer(equation.inputs[1], "mul")
    difference = g.find_producer(product.inputs[0], "sub") if product else None
    right = g.find_producer(difference.inputs[0], "gather") if difference else None
    if left is None or product is None or difference is None or right is None:
        return None
    fractions, source = product.inputs[1].constant, left.inputs[0]
    if fractions is None or right.inputs[0].base is not source.base:
        return None
    if difference.inputs[1].base is not left.outputs[0].base:
        return None
    low, high = (_get_gather_indices(pixels, axis) for pixels in (left, right))
    if low is None or high is None:
        return None
    taps = compute_taps(equation.outputs[0].shape[axis], source.shape[axis], "bilinear", False)
    is_equal = np.array_equal(np.stack([low, high], 1), taps.indices)
    if not is_equal or not np.allclose(
        fractions.reshape(-1), taps.weights[:, 1], rtol=0, atol=1e-6
    ):
        return None
    return source


def _get_gather_indices(equation: Equation, axis: int) -> np.ndarray | None:
    """Return the constant indices of a gather along an axis, or None."""
    indices, form = equation.inputs[1].constant, try_classify_gather(equation)
    if indices is None or not isinstance(form, RowGather) or form.axes != [axis]:
        return None
    if list(form.offsets) != [i for i in range(4) if i != axis]:
        return None
    return indices.reshape(-1)


def _fuse_nearest_resize(g: DataflowGraph, equation: Equation) -> Equation | None:
    """Match a lookup of the nearest rows and one of the nearest columns."""
    if not _is_nearest_gather(equation, 2):
        return None
    rows = g.find_producer(equation.inputs[0], "gather")
    if rows is None or not _is_nearest_gather(rows, 1):
        return None
    return Equation("resize", [rows.inputs[0]], [], {"method": "nearest"})


def _is_nearest_gather(equation: Equation, axis: int) -> bool:
    if equation.name != "gather" or len(equation.inputs[0].shape) != 4:
        return False
    indices = _get_gather_indices(equation, axis)
    if indices is None:
        return False
    new, old = indices.size, equation.inputs[0].shape[axis]
    scale = np.float32(old / new)
    expected = np.minimum(
        np.floor((np.arange(new, dtype=np.float32) + np.float32(0.5)) * scale), old - 1
    )
    return new != old and np.array_equal(indices, expected)


def _fuse_repeats(g: DataflowGraph, equation: Equation) -> Equation | None:
    """Match rows and columns of an image that are repeated."""
    source = equation.outputs[0]
    axes: list[int] = []
    repeat = _match_repeat(g, equation)
    while repeat is not None and len(axes) < 2:
        source, axis = repeat
        axes.append(axis)
        reshape = g.find_producer(source, "reshape")
        repeat = None if reshape is None else _match_repeat(g, reshape)
    fits = len(source.shape) == 4 and source.dtype == np.float32 and set(axes) <= {1, 2}
    if not axes or not fits or len(set(axes)) != len(axes):
        return None
    return Equation("resize", [source], [], {"method": "nearest"})


def _match_repeat(g: DataflowGraph, equation: Equation) -> tuple[Value, int] | None:
    """Return the value with elements that are repeated along a dimension, and the dimension."""
    broadcast = (
        g.find_producer(equation.inputs[0], "broadcast") if equation.name == "reshape" else None
    )
    split = g.find_producer(broadcast.inputs[0], "reshape") if broadcast else None
    if broadcast is None or split is None:
        return None
    source, wide, shape = (split.inputs[0], broadcast.outputs[0].shape, split.outputs[0].shape)
    axes = [i for i, (n, m) in enumerate(zip(shape, wide, strict=True)) if n != m]
    if len(axes) != 1 or axes[0] == 0:
        return None
    (axis,) = axes
    result = (*wide[: axis - 1], wide[axis - 1] * wide[axis], *wide[axis + 1 :])
    if (*shape[:axis], *shape[axis + 1 :]) != source.shape or result != equation.outputs[0].shape:
        return None
    return source, axis - 1


def _fuse_space_and_depth(g: DataflowGraph, equation: Equation) -> Equation | None:
    """Match blocks of an image that become channels or images of the batch, and the inverse."""
    transpose = (
        g.find_producer(equation.inputs[0], "transpose") if equation.name == "reshape" else None
    )
    split = g.find_producer(transpose.inputs[0], "reshape") if transpose else None
    if transpose is None or split is None or len(equation.outputs[0].shape) != 4:
        return None
    source, cut, order = (
        split.inputs[0],
        transpose.inputs[0].shape,
        tuple(transpose.params["permutation"]),
    )
    if len(source.shape) != 4 or len(cut) != 6:
        return None
    b, h, w, c = source.shape
    new = equation.outputs[0].shape
    if order == (0, 1, 3, 2, 4, 5):
        size = cut[2] if cut[2] == cut[4] else cut[3]
        if cut == (b, new[1], size, new[2], size, c):
            return Equation("space_to_depth", [source], [], {"size": size})
        if cut == (b, h, w, size, size, new[3]) and cut[3] == cut[4]:
            return Equation("depth_to_space", [source], [], {"size": size})
    if order == (2, 4, 0, 1, 3, 5) and cut == (b, new[1], cut[2], new[2], cut[4], c):
        return Equation("space_to_batch", [source], [], {"sizes": [cut[2], cut[4]]})
    if order == (2, 3, 0, 4, 1, 5) and cut == (cut[0], cut[1], new[0], h, w, c):
        return Equation("batch_to_space", [source], [], {"sizes": [cut[0], cut[1]]})
    return None


def _fuse_mirror_pad(g: DataflowGraph, equation: Equation) -> Equation | None:
    """Match a concatenation of a tensor with its reversed edges."""
    if equation.name != "concatenate" or len(equation.inputs) != 2:
        return None
    axis, (partial, after) = equation.params["dimension"], equation.inputs
    first = g.find_producer(partial, "concatenate")
    if first is None or len(first.inputs) != 2 or first.params["dimension"] != axis:
        return None
    before, source = first.inputs
    low, size = before.shape[axis], source.shape[axis]
    if not isinstance(size, int):
        return None
    start = _find_reversed_start(g, before, source, axis)
    end = _find_reversed_start(g, after, partial, axis)
    if start is None or end is None or start not in (0, 1):
        return None
    high = after.shape[axis]
    # The last `high` elements, without the very last one if the first one is left out, too.
    if end != low + size - high - start:
        return None
    pads = [(low, high) if i == axis else (0, 0) for i in range(len(source.shape))]
    return Equation("mirror_pad", [source], [], {"pads": pads, "mode": start})


def _find_reversed_start(g: DataflowGraph, value: Value, source: Value, axis: int) -> int | None:
    """Return the start of the slice of `source` that a value reverses, or None."""
    reverse = g.find_producer(value, "rev")
    if reverse is None or tuple(reverse.params["dimensions"]) != (axis,):
        return None
    part = g.find_producer(reverse.inputs[0], "slice")
    if part is None:
        return 0 if reverse.inputs[0].base is source.base else None
    starts = list(part.params["start_indices"])
    has_unit_strides = part.params["strides"] is None or set(part.params["strides"]) == {1}
    if (
        part.inputs[0].base is not source.base
        or not has_unit_strides
        or any(s for i, s in enumerate(starts) if i != axis)
    ):
        return None
    others = [i for i in range(len(source.shape)) if i != axis]
    if any(part.outputs[0].shape[i] != source.shape[i] for i in others):
        return None
    return int(starts[axis])


PATTERNS = (
    _fuse_bilinear_resize,
    _fuse_nearest_resize,
    _fuse_repeats,
    _fuse_space_and_depth,
    _fuse_mirror_pad,
)
