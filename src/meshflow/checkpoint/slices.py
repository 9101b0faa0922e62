"""Arrays that are stored in parts: keys of the parts, and assembly of the array.

The key of a part is an order-preserving encoding: a zero, the name of the array, the number of
dimensions, and start and length in
each dimension, so parts are sorted by name and position. The length -1 denotes a full dimension.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from meshflow.checkpoint.bundle_messages import Extents


def encode_slice_key(name: str, extents: Extents) -> bytes:
    """Encode the key of a part of an array.

    Args:
      name: Key of the array.
      extents: Start and length in each dimension.

    Example:
      >>> encode_slice_key("w", ((0, 70), (0, 4))).hex(" ")
      '00 77 00 01 01 02 80 c0 46 80 84'
    """
    text = name.encode().replace(b"\0", b"\0\xff") + b"\0\1"
    numbers = b"".join(_encode_signed(start) + _encode_signed(size) for start, size in extents)
    return b"\0" + text + _encode_count(len(extents)) + numbers


def _encode_count(count: int) -> bytes:
    raw = count.to_bytes((count.bit_length() + 7) // 8, "big")
    return bytes((len(raw),)) + raw


def _encode_signed(value: int) -> bytes:
    """Encode an integer so that the bytes of smaller integers sort first.

    The code has as many leading one bits as bytes, followed by the two's complement.
    """
    bits = value if value >= 0 else ~value
    size = bits.bit_length() // 7 + 1
    header = ((1 << size) - 1) << 7 * size
    return ((value & ((1 << 8 * size) - 1)) ^ header).to_bytes(size, "big")


def get_extents(index: Sequence[slice], shape: Sequence[int]) -> Extents:
    """Convert slices to start and length in each dimension.

    Args:
      index: A slice for each dimension.
      shape: Shape of the array.

    Example:
      >>> get_extents((slice(None), slice(2, 4)), (3, 4))
      ((0, -1), (2, 2))
    """
    ranges = [s.indices(size) for s, size in zip(index, shape, strict=True)]
    return tuple(
        (0, -1) if stop - start == size else (start, stop - start)
        for (start, stop, _), size in zip(ranges, shape, strict=True)
    )


class SlicedArray:
    """Array in parts. A region is assembled from them when it is indexed.

    Args:
      shape: Shape of the array.
      dtype: NumPy dtype.
      parts: Extents of each part.
      read: Function that returns the array of a part.

    Raises:
      ValueError: If a part is out of bounds, or if the parts have too few elements.
    """

    def __init__(
        self,
        shape: tuple[int, ...],
        dtype: np.dtype,
        parts: Sequence[Extents],
        read: Callable[[Extents], np.ndarray],
    ) -> None:
        self.shape, self.dtype = shape, dtype
        self._read = read
        self._parts = []
        num_elements = 0
        for extents in parts:
            if len(extents) != len(shape):
                raise ValueError(f"a part has {len(extents)} dimensions, the array {len(shape)}")
            region = [
                (0, size) if length < 0 else (start, start + length)
                for (start, length), size in zip(extents, shape, strict=True)
            ]
            if any(not 0 <= a <= b <= size for (a, b), size in zip(region, shape, strict=True)):
                raise ValueError(f"a part at {region} is outside of the shape {shape}")
            num_elements += math.prod(b - a for a, b in region)
            self._parts.append((extents, region))
        if num_elements < math.prod(shape):
            raise ValueError(f"its parts hold {num_elements} of {math.prod(shape)} elements")

    @property
    def ndim(self) -> int:
        """Return the number of dimensions."""
        return len(self.shape)

    def __getitem__(self, index: slice | tuple[slice, ...]) -> np.ndarray:
        index = index if isinstance(index, tuple) else (index,)
        index = (*index, *[slice(None)] * (len(self.shape) - len(index)))
        bounds = [s.indices(size)[:2] for s, size in zip(index, self.shape, strict=True)]
        out = np.empty([b - a for a, b in bounds], self.dtype)
        missing = out.size
        for extents, region in self._parts:
            overlap = [
                (max(a, c), min(b, d)) for (a, b), (c, d) in zip(bounds, region, strict=True)
            ]
            if any(a >= b for a, b in overlap):
                continue
            target = tuple(
                slice(a - c, b - c) for (a, b), (c, _) in zip(overlap, bounds, strict=True)
            )
            source = tuple(
                slice(a - c, b - c) for (a, b), (c, _) in zip(overlap, region, strict=True)
            )
            out[target] = self._read(extents)[source]
            missing -= math.prod(b - a for a, b in overlap)
        if missing > 0:
            raise ValueError(f"its parts do not cover the region {bounds}")
        return out

    def read_all(self) -> np.ndarray:
        """Return the full array."""
        return self[(slice(None),) * len(self.shape)]


class ArrayParts:
    """Array to be written in parts.

    Args:
      shape: Shape of the array.
      parts: Extents and array of each part.
    """

    def __init__(self, shape: Sequence[int], parts: Sequence[tuple[Extents, Any]]) -> None:
        self.shape, self.parts = tuple(shape), list(parts)

    @property
    def dtype(self) -> np.dtype:
        """Return the NumPy dtype."""
        return np.dtype(self.parts[0][1].dtype)

    def __array__(self, dtype: np.dtype | None = None, copy: bool | None = None) -> np.ndarray:
        arrays = dict(self.parts)
        read = lambda extents: np.asarray(arrays[extents])
        full = SlicedArray(self.shape, self.dtype, list(arrays), read).read_all()
        return full.astype(dtype or self.dtype, copy=False)
