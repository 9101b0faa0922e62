"""How maxima of overlapping windows are compiled for the CPU: by loops of our own where they apply."""

from __future__ import annotations

import functools
import math
from typing import Any

import jax
import numpy as np

from meshflow.kernels import library, lowerings

# Arrays with fewer channels side by side are left to XLA; so are small ones.
LEAST_CHANNELS = 8
LEAST_SIZE = 1 << 13

# The primitive of a gradient behind which is the gradient of a ReLU, by that of the gradient alone.
GATED: dict[Any, Any] = {}


def descriptor(shape: tuple[int, ...], windows: Any) -> list[int] | None:
    """The integers that describe windows to the handler.

    Dimensions before the first with windows are the batch, those behind the last are channels.

    Args:
      shape: of the image.
      windows: a `Windows`.

    Returns:
      The descriptor; None when the handler has no loop for it.
    """
    trivial = [part == (1, 1, (0, 0), 1) for part in zip(*windows, strict=True)]
    if all(trivial) or math.prod(shape) < LEAST_SIZE or 0 in windows.grid(shape):
        return None
    first, last = trivial.index(False), len(shape) - trivial[::-1].index(False)
    batch, channels, rank = math.prod(shape[:first]), math.prod(shape[last:]), last - first
    low = [pair[0] for pair in windows.pads]
    if rank > 3 or channels < LEAST_CHANNELS or min(low) < 0:
        return None
    numbers = [batch, channels]
    values = (shape, windows.grid(shape), windows.size, windows.strides, windows.dilations)
    for part in values:
        numbers += [*(1,) * (3 - rank), *part[first:last]]
    return [*numbers, *(0,) * (3 - rank), *low[first:last]]


def _choose(gated: bool, *avals: Any) -> Any:
    """A function of the image, or of the image, its maxima and their gradients; or None."""
    *operands, out, parameters = avals
    types = {np.dtype(a.dtype).name for a in (*operands, out)}
    numbers = descriptor(operands[0].shape, parameters["windows"])
    if numbers is None or types not in ({"float32"}, {"bfloat16"}):
        return None
    if len(operands) == 1 and types == {"float32"}:
        # XLA is as fast, and fuses it with what is around.
        return None
    loaded = library.load()
    target = library.GATED_POOLING if gated else library.POOLING
    if loaded is None or not loaded.has_handler(target):
        return None
    result = jax.ShapeDtypeStruct(out.shape, out.dtype)
    return lambda *arrays: lowerings.run(numbers, arrays, result, target)


def register(maximum: Any, gradient: Any, gated: Any) -> None:
    """Gives the primitives of window maxima and their gradients these loops.

    Args:
      maximum: of arrays, with a parameter `windows`, as all of them.
      gradient: of the image, the maxima and their gradient.
      gated: the same, zero where the image is not positive.
    """
    for primitive in (maximum, gradient, gated):
        lowerings.override(primitive, functools.partial(_choose, primitive is gated))
    GATED[gradient] = gated
