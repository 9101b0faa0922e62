"""Arrays of which parts were written one by one: their keys, and putting them together again.

The key of a part is an ordered code: a zero, the array's name, the number of dimensions, and the first index and
the length in each, so that parts sort by name and place. A dimension that is whole has the length -1.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from meshflow.checkpoint.wire import Extents

__all__ = ["Parts", "SlicedArray", "extents_of", "slice_key"]


def slice_key(name: str, extents: Extents) -> bytes:
    """The key of a part of an array.

    Args:
      name: the array's key.
      extents: first index and length in each dimension.

    Example:
      >>> slice_key("w", ((0, 70), (0, 4))).hex(" ")
      '00 77 00 01 01 02 80 c0 46 80 84'
    """
    text = name.encode().replace(b"\0", b"\0\xff") + b"\0\1"
    numbers = b"".join(_signed(start) + _signed(size) for start, size in extents)
    return b"\0" + text + _count(len(extents)) + numbers


def _count(number: int) -> bytes:
    raw = number.to_bytes((number.bit_length() + 7) // 8, "big")
    return bytes((len(raw),)) + raw


def _signed(number: int) -> bytes:
    """A header of as many ones as there are bytes, then the number in two's complement; smaller numbers sort first."""
    bits = number if number >= 0 else ~number
    size = bits.bit_length() // 7 + 1
    header = ((1 << size) - 1) << 7 * size
    return ((number & ((1 << 8 * size) - 1)) ^ header).to_bytes(size, "big")


def extents_of(index: Sequence[slice], shape: Sequence[int]) -> Extents:
    """The part of an array that slices mean.

    Args:
      index: a slice for each dimension.
      shape: the array's.

    Example:
      >>> extents_of((slice(None), slice(2, 4)), (3, 4))
      ((0, -1), (2, 2))
    """
    ranges = [s.indices(size) for s, size in zip(index, shape, strict=True)]
    return tuple(
        (0, -1) if stop - start == size else (start, stop - start)
        for (start, stop, _), size in zip(ranges, shape, strict=True)
    )


class SlicedArray:
    """An array in parts, of which any region is put together where it is used.

    Args:
      shape: the array's.
      dtype: the NumPy dtype.
      parts: where each part lies.
      read: gives a part's array.

    Raises:
      ValueError: when parts lie outside, or are too few to make the whole.
    """

    def __init__(
        self,
        shape: tuple[int, ...],
        dtype: np.dtype,
        parts: Sequence[Extents],
        read: Callable[[Extents], Any],
    ) -> None:
        self.shape, self.dtype = shape, dtype
        self._read = read
        self._parts = []
        held = 0
        for extents in parts:
            if len(extents) != len(shape):
                raise ValueError(f"a part has {len(extents)} dimensions, the array {len(shape)}")
            region = [
                (0, size) if length < 0 else (start, start + length)
                for (start, length), size in zip(extents, shape, strict=True)
            ]
            if any(not 0 <= a <= b <= size for (a, b), size in zip(region, shape, strict=True)):
                raise ValueError(f"a part lies at {region}, outside of {shape}")
            held += math.prod(b - a for a, b in region)
            self._parts.append((extents, region))
        if held < math.prod(shape):
            raise ValueError(f"its parts hold {held} of {math.prod(shape)} numbers")

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return len(self.shape)

    def __getitem__(self, index: Any) -> np.ndarray:
        index = index if isinstance(index, tuple) else (index,)
        index = (*index, *[slice(None)] * (len(self.shape) - len(index)))
        wanted = [s.indices(size)[:2] for s, size in zip(index, self.shape, strict=True)]
        out = np.empty([b - a for a, b in wanted], self.dtype)
        missing = out.size
        for extents, region in self._parts:
            common = [(max(a, c), min(b, d)) for (a, b), (c, d) in zip(wanted, region, strict=True)]
            if any(a >= b for a, b in common):
                continue
            here = tuple(slice(a - c, b - c) for (a, b), (c, _) in zip(common, wanted, strict=True))
            there = tuple(
                slice(a - c, b - c) for (a, b), (c, _) in zip(common, region, strict=True)
            )
            out[here] = self._read(extents)[there]
            missing -= math.prod(b - a for a, b in common)
        if missing > 0:
            raise ValueError(f"its parts do not make {wanted} whole")
        return out

    def whole(self) -> np.ndarray:
        """The array."""
        return self[(slice(None),) * len(self.shape)]


class Parts:
    """An array to be written in parts.

    Args:
      shape: the array's.
      parts: where each lies, and the part.
    """

    def __init__(self, shape: Sequence[int], parts: Sequence[tuple[Extents, Any]]) -> None:
        self.shape, self.parts = tuple(shape), list(parts)

    @property
    def dtype(self) -> np.dtype:
        """The NumPy dtype."""
        return np.dtype(self.parts[0][1].dtype)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        found = dict(self.parts)
        read = lambda extents: np.asarray(found[extents])
        return (
            SlicedArray(self.shape, self.dtype, list(found), read)
            .whole()
            .astype(dtype or self.dtype, copy=False)
        )
