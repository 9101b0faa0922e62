"""What moves or resizes the elements of images, as LiteRT's operators for it; finders as in `deployment.idioms`."""

from __future__ import annotations

from typing import Any

import numpy as np

from meshflow.deployment.equations import Equation, Value
from meshflow.deployment.gathering import Rows, rows_of
from meshflow.deployment.idioms import Makers
from meshflow.ops.image.resampling import weights

__all__ = ["FINDERS"]


def _resized(makers: Makers, equation: Equation) -> Equation | None:
    """Products with the weights of bilinear interpolation along height and width."""
    second = makers.by(equation.inputs[0], "dot_general") if equation.name == "transpose" else None
    first = makers.by(second.inputs[0], "dot_general") if second else None
    if first is None or second is None or len(first.inputs[0].shape) != 4:
        return None
    places: list[Any] = [0, 1, 2, 3]
    for product in (first, second):
        matrix, (contracted, batch) = (
            product.inputs[1].constant,
            product.params["dimension_numbers"],
        )
        if matrix is None or matrix.ndim != 2 or batch != ((), ()) or tuple(contracted[1]) != (1,):
            return None
        (axis,) = contracted[0]
        if places[axis] not in (1, 2) or not _is_bilinear(matrix):
            return None
        places = [p for i, p in enumerate(places) if i != axis] + [(places[axis], "new")]
    turned = [places[i] for i in equation.params["permutation"]]
    if turned != [0, (1, "new"), (2, "new"), 3]:
        return None
    return Equation("resize", [first.inputs[0]], [], {"method": "bilinear"})


def _is_bilinear(matrix: np.ndarray) -> bool:
    expected = weights(*matrix.shape, "bilinear", False)
    return bool(np.allclose(matrix, expected, rtol=0, atol=1e-6))


def _nearest(makers: Makers, equation: Equation) -> Equation | None:
    """Lookups of the nearest rows, then of the nearest columns."""
    if not _takes_nearest(equation, 2):
        return None
    rows = makers.by(equation.inputs[0], "gather")
    if rows is None or not _takes_nearest(rows, 1):
        return None
    return Equation("resize", [rows.inputs[0]], [], {"method": "nearest"})


def _takes_nearest(equation: Equation, axis: int) -> bool:
    if equation.name != "gather" or len(equation.inputs[0].shape) != 4:
        return False
    places, how = equation.inputs[1].constant, rows_of(equation)
    others = [i for i in range(4) if i != axis]
    if (
        places is None
        or not isinstance(how, Rows)
        or how.axes != [axis]
        or list(how.offsets) != others
    ):
        return False
    new, old = places.size, equation.inputs[0].shape[axis]
    scale = np.float32(old / new)
    expected = np.minimum(
        np.floor((np.arange(new, dtype=np.float32) + np.float32(0.5)) * scale), old - 1
    )
    return new != old and np.array_equal(places.reshape(-1), expected)


def _enlarged(makers: Makers, equation: Equation) -> Equation | None:
    """Rows and columns of an image that are repeated."""
    source = equation.outputs[0]
    axes: list[int] = []
    found = _repeated(makers, equation)
    while found is not None and len(axes) < 2:
        source, axis = found
        axes.append(axis)
        before = makers.by(source, "reshape")
        found = None if before is None else _repeated(makers, before)
    fits = len(source.shape) == 4 and source.dtype == np.float32 and set(axes) <= {1, 2}
    if not axes or not fits or len(set(axes)) != len(axes):
        return None
    return Equation("resize", [source], [], {"method": "nearest"})


def _repeated(makers: Makers, equation: Equation) -> tuple[Value, int] | None:
    """What a value has each element of several times along a dimension, and the dimension."""
    wide = makers.by(equation.inputs[0], "broadcast") if equation.name == "reshape" else None
    apart = makers.by(wide.inputs[0], "reshape") if wide else None
    if wide is None or apart is None:
        return None
    source, whole, shape = apart.inputs[0], wide.outputs[0].shape, apart.outputs[0].shape
    places = [i for i, (n, m) in enumerate(zip(shape, whole, strict=True)) if n != m]
    if len(places) != 1 or places[0] == 0:
        return None
    (place,) = places
    result = (*whole[: place - 1], whole[place - 1] * whole[place], *whole[place + 1 :])
    if (*shape[:place], *shape[place + 1 :]) != source.shape or result != equation.outputs[0].shape:
        return None
    return source, place - 1


def _blocks(makers: Makers, equation: Equation) -> Equation | None:
    """Squares of an image that become channels, or images of a batch, and the other way round."""
    turn = makers.by(equation.inputs[0], "transpose") if equation.name == "reshape" else None
    apart = makers.by(turn.inputs[0], "reshape") if turn else None
    if turn is None or apart is None or len(equation.outputs[0].shape) != 4:
        return None
    source, cut, order = apart.inputs[0], turn.inputs[0].shape, tuple(turn.params["permutation"])
    if len(source.shape) != 4 or len(cut) != 6:
        return None
    b, h, w, c = source.shape
    whole = equation.outputs[0].shape
    if order == (0, 1, 3, 2, 4, 5):
        size = cut[2] if cut[2] == cut[4] else cut[3]
        if cut == (b, whole[1], size, whole[2], size, c):
            return Equation("space_to_depth", [source], [], {"size": size})
        if cut == (b, h, w, size, size, whole[3]) and cut[3] == cut[4]:
            return Equation("depth_to_space", [source], [], {"size": size})
    if order == (2, 4, 0, 1, 3, 5) and cut == (b, whole[1], cut[2], whole[2], cut[4], c):
        return Equation("space_to_batch", [source], [], {"sizes": [cut[2], cut[4]]})
    if order == (2, 3, 0, 4, 1, 5) and cut == (cut[0], cut[1], whole[0], h, w, c):
        return Equation("batch_to_space", [source], [], {"sizes": [cut[0], cut[1]]})
    return None


def _mirrored(makers: Makers, equation: Equation) -> Equation | None:
    """A tensor with its own edges, reversed, before and behind it."""
    if equation.name != "concatenate" or len(equation.inputs) != 2:
        return None
    axis, (longer, behind) = equation.params["dimension"], equation.inputs
    first = makers.by(longer, "concatenate")
    if first is None or len(first.inputs) != 2 or first.params["dimension"] != axis:
        return None
    before, source = first.inputs
    low, size = before.shape[axis], source.shape[axis]
    if not isinstance(size, int):
        return None
    start = _reversed_part(makers, before, source, axis)
    end = _reversed_part(makers, behind, longer, axis)
    if start is None or end is None or start not in (0, 1):
        return None
    high = behind.shape[axis]
    # The last `high` elements, without the very last one if the first one is left out, too.
    if end != low + size - high - start:
        return None
    pads = [(low, high) if i == axis else (0, 0) for i in range(len(source.shape))]
    return Equation("mirror_pad", [source], [], {"pads": pads, "mode": start})


def _reversed_part(makers: Makers, value: Value, source: Value, axis: int) -> int | None:
    """Where the elements that a value has in reverse order begin."""
    turn = makers.by(value, "rev")
    if turn is None or tuple(turn.params["dimensions"]) != (axis,):
        return None
    part = makers.by(turn.inputs[0], "slice")
    if part is None:
        return 0 if turn.inputs[0].least is source.least else None
    starts = list(part.params["start_indices"])
    ones = part.params["strides"] is None or set(part.params["strides"]) == {1}
    if (
        part.inputs[0].least is not source.least
        or not ones
        or any(s for i, s in enumerate(starts) if i != axis)
    ):
        return None
    others = [i for i in range(len(source.shape)) if i != axis]
    if any(part.outputs[0].shape[i] != source.shape[i] for i in others):
        return None
    return int(starts[axis])


FINDERS = (_resized, _nearest, _enlarged, _blocks, _mirrored)
