"""CPU lowering of max pooling with overlapping windows, and of its gradient, to compiled loops."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from meshflow.environment.types import Primitive
from meshflow.kernels import library, lowerings
from meshflow.kernels.library import HandlerCall

# Arrays with fewer contiguous channels, or fewer elements, use XLA's code.
MIN_CHANNELS = 8
MIN_ELEMENTS = 1 << 13

# Maps the primitive of each gradient to the one that also applies the gradient of a preceding ReLU.
GATED_GRADIENTS: dict[Primitive, Primitive] = {}


def describe_windows(shape: tuple[int, ...], windows: Any) -> list[int] | None:
    """Return the integers that describe windows to the handler.

    Dimensions before the first with windows are merged as batch, those after the last as channels.

    Args:
      shape: Shape of the image.
      windows: A `Windows`.

    Returns:
      The descriptor, or None if the handler has no loop for it.
    """
    is_trivial = [part == (1, 1, (0, 0), 1) for part in zip(*windows, strict=True)]
    if all(is_trivial) or math.prod(shape) < MIN_ELEMENTS or 0 in windows.compute_grid(shape):
        return None
    first, last = is_trivial.index(False), len(shape) - is_trivial[::-1].index(False)
    batch, channels, rank = math.prod(shape[:first]), math.prod(shape[last:]), last - first
    low = [pair[0] for pair in windows.pads]
    if rank > 3 or channels < MIN_CHANNELS or min(low) < 0:
        return None
    integers = [batch, channels]
    values = (shape, windows.compute_grid(shape), windows.size, windows.strides, windows.dilations)
    for part in values:
        integers += [*(1,) * (3 - rank), *part[first:last]]
    return [*integers, *(0,) * (3 - rank), *low[first:last]]


def _choose_handler(is_gated: bool, *avals: Any) -> HandlerCall | None:
    """Return a function of the image, or of the image, its maxima and their gradients; or None."""
    *operands, out, parameters = avals
    dtypes = {np.dtype(a.dtype).name for a in (*operands, out)}
    integers = describe_windows(operands[0].shape, parameters["windows"])
    if integers is None or dtypes not in ({"float32"}, {"bfloat16"}):
        return None
    if len(operands) == 1 and dtypes == {"float32"}:
        # XLA's code is as fast for float32 and can be fused with other operations.
        return None
    loaded = library.load()
    target = library.GATED_POOLING if is_gated else library.POOLING
    if loaded is None or not loaded.has_handler(target):
        return None
    result = jax.ShapeDtypeStruct(out.shape, out.dtype)
    return lambda *arrays: lowerings.call_handler(integers, arrays, result, target)


def make_call(
    shape: tuple[int, ...], windows: Any, dtype: np.dtype, num_operands: int, is_gated: bool
) -> Callable[..., None] | None:
    """Return a function that runs the handler without XLA, or None if the handler has no loop for the windows.

    Args:
      shape: Shape of the image.
      windows: A `Windows`.
      dtype: Dtype of all arrays.
      num_operands: 1 for maxima; 3 for the gradient, from the image, its maxima and their gradients.
      is_gated: Whether the gradient is zero where the image is not positive.
    """
    integers, loaded = describe_windows(shape, windows), library.load()
    if integers is None or loaded is None or dtype.name not in ("float32", "bfloat16"):
        return None
    target = library.GATED_POOLING if is_gated else library.POOLING
    return loaded.make_call(integers, [dtype.name] * (num_operands + 1), target)


def register(maximum: Primitive, gradient: Primitive, gated: Primitive) -> None:
    """Register the loops for the primitives of window maxima and their gradients.

    Args:
      maximum: Maximum of windows; all three have the parameter `windows`.
      gradient: Gradient of the image, from image, maxima and their gradient.
      gated: The same, but zero where the image is not positive.
    """
    for primitive in (maximum, gradient, gated):
        lowerings.override_lowering(
            primitive, functools.partial(_choose_handler, primitive is gated)
        )
    GATED_GRADIENTS[gradient] = gated
