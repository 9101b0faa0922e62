"""Geometry of convolutions and matrix products as lists of integers for the handlers.

A descriptor holds the computation, then dimensions and strides of every operand in oneDNN's order
of dimensions (batch, channels, *spatial; kernels [groups,] out, in, *spatial), then further
parameters.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import NamedTuple

FORWARD, INPUT_GRADIENT, KERNEL_GRADIENT, MATMUL, FLIPPED, SUMS = range(6)
# The terms of sums of a matrix: elements, products with a matrix, squares of differences from a vector.
SUM_TERMS = ("elements", "products", "squares")
# Added to a computation: PACK only packs its weights, PACKED reads packed weights.
PACK, PACKED = 16, 32
# Added to a computation that the calling thread performs without others.
INLINE = 64
# Number of bits of a computation; the bits above identify the required implementation.
_NUM_COMPUTATION_BITS = 8
# Operations that may follow a forward convolution or a product before its result is written.
EPILOGUE_OPS = {
    "add": 0,
    "scale": 1,
    "plus": 2,
    "relu_mask": 3,
    "relu": 4,
    "gelu": 5,
    "gelu_tanh": 6,
}


class View(NamedTuple):
    """A view of an array with permuted dimensions: sizes, and strides in elements."""

    dims: tuple[int, ...]
    strides: tuple[int, ...]

    def split(self, axis: int, parts: int) -> View:
        """Split a dimension into two, of sizes `parts` and size / `parts`."""
        size, stride = self.dims[axis], self.strides[axis]
        inner = size // parts
        return View(
            (*self.dims[:axis], parts, inner, *self.dims[axis + 1 :]),
            (*self.strides[:axis], inner * stride, stride, *self.strides[axis + 1 :]),
        )

    def to_integers(self) -> list[int]:
        """Return the sizes, then the strides."""
        return [*self.dims, *self.strides]


def make_view(shape: Sequence[int], order: Sequence[int]) -> View:
    """Return the view of a row-major array with the dimensions in this order."""
    strides = [math.prod(shape[i + 1 :]) for i in range(len(shape))]
    return View(tuple(shape[i] for i in order), tuple(strides[i] for i in order))


def split_groups(kernel: View, groups: int) -> View:
    """Split the output channels of a kernel into a leading group dimension."""
    return kernel.split(0, groups) if groups > 1 else kernel


def describe_convolution(
    computation: int,
    groups: int,
    image: View,
    kernel: View,
    result: View,
    strides: Sequence[int],
    dilations: Sequence[int],
    low: Sequence[int],
) -> list[int] | None:
    """Return the descriptor of a convolution or one of its gradients, in terms of the forward one.

    Args:
      computation: FORWARD, INPUT_GRADIENT or KERNEL_GRADIENT.
      groups: Number of groups; the kernel's view has a group dimension only for several.
      image: [batch, in, *spatial].
      kernel: [out, in, *spatial], or with groups [groups, out / groups, in / groups, *spatial].
      result: [batch, out, *spatial].
      strides: Window strides per spatial dimension.
      dilations: Distances of kernel elements; 1 for adjacent ones.
      low: Leading padding; the trailing padding follows from the sizes.

    Returns:
      The integers, or None if oneDNN does not support the padding or a dimension is empty.
    """
    high, rank = [], len(strides)
    for n, k, m, s, d, before in zip(
        image.dims[2:], kernel.dims[-rank:], result.dims[2:], strides, dilations, low, strict=True
    ):
        after = (m - 1) * s + (k - 1) * d + 1 - n - before
        if before < 0 or after <= -s or 0 in (n, k, m):
            return None
        # Elements after the last window are omitted, because the division rounds down.
        high.append(max(after, 0))
    if 0 in image.dims or 0 in result.dims:
        return None
    return [
        *(computation, rank, groups),
        *image.to_integers(),
        *kernel.to_integers(),
        *result.to_integers(),
        *strides,
        *(d - 1 for d in dilations),
        *low,
        *high,
        *(0, 0),
    ]


def describe_matmul(left: View, right: View, result: View) -> list[int] | None:
    """Return the descriptor of a batched matrix product, [*batch, m, k] by [*batch, k, n].

    Returns:
      The integers, or None if a dimension is empty.
    """
    if 0 in left.dims or 0 in right.dims:
        return None
    return [
        *(MATMUL, len(left.dims)),
        *left.to_integers(),
        *right.to_integers(),
        *result.to_integers(),
        0,
    ]


def get_computation(descriptor: Sequence[int]) -> int:
    """Return the computation of a descriptor, without flags for threads and implementation."""
    return descriptor[0] & ~INLINE & (1 << _NUM_COMPUTATION_BITS) - 1


def with_inline_flag(descriptor: Sequence[int]) -> list[int]:
    """Return the descriptor of the same computation on the calling thread only."""
    return [descriptor[0] | INLINE, *descriptor[1:]]


def with_implementation(descriptor: Sequence[int], implementation: str) -> list[int]:
    """Return the descriptor of the same computation by the implementation with this name only."""
    fingerprint = 2166136261
    for byte in implementation.encode():
        fingerprint = (fingerprint ^ byte) * 16777619 % (1 << 32)
    return [descriptor[0] | fingerprint << _NUM_COMPUTATION_BITS, *descriptor[1:]]


def get_result_shape(descriptor: Sequence[int]) -> list[int]:
    """Return the shape of a product's result."""
    rank = descriptor[1]
    return list(descriptor[2 + 4 * rank : 2 + 5 * rank])


_NAMES = {
    FORWARD: "convolution",
    INPUT_GRADIENT: "convolution, input gradient",
    KERNEL_GRADIENT: "convolution, kernel gradient",
    MATMUL: "matrix product",
    FLIPPED: "convolution",
    SUMS: "sum over rows or columns",
}


def get_computation_name(descriptor: Sequence[int]) -> str:
    """Return the name of a descriptor's computation."""
    computation = _NAMES.get(descriptor[0] & (PACK - 1), "kernel")
    return f"{computation}, packing" if descriptor[0] & PACK else computation


def count_operations(descriptor: Sequence[int]) -> int:
    """Return the number of additions and multiplications of a computation; 0 for packing."""
    if descriptor[0] & PACK:
        return 0
    rank = descriptor[1]
    if descriptor[0] & (PACK - 1) == SUMS:
        return 2 * math.prod(descriptor[1:3])
    if descriptor[0] & (PACK - 1) == MATMUL:
        return 2 * math.prod(get_result_shape(descriptor)) * descriptor[1 + rank]
    # An image has two non-spatial dimensions; a kernel with several groups has three.
    groups, image = descriptor[2], rank + 2
    kernel = image + (groups > 1)
    first = 3 + 2 * image
    outputs = math.prod(descriptor[first + 2 * kernel : first + 2 * kernel + image])
    return 2 * outputs * math.prod(descriptor[first + (groups > 1) + 1 : first + kernel])


def with_epilogue(
    descriptor: Sequence[int], epilogue: Sequence[str], flipped: bool = False
) -> list[int]:
    """Add an epilogue to a forward convolution or a product, optionally with a flipped kernel."""
    first = FLIPPED | descriptor[0] & INLINE if flipped else descriptor[0]
    return [first, *descriptor[1:-1], len(epilogue), *(EPILOGUE_OPS[op] for op in epilogue)]


def with_bias_gradient(descriptor: Sequence[int]) -> list[int]:
    """Extend a kernel gradient, without epilogue, by the gradient of a bias."""
    return [*descriptor[:-2], 1, 0]


def describe_packing(descriptor: Sequence[int], codes: str) -> list[int]:
    """Return the descriptor that packs the weights of a computation with these element type codes."""
    return [descriptor[0] + PACK, *descriptor[1:], *map(ord, codes), len(codes)]


def with_packed_weights(descriptor: Sequence[int], code: str) -> list[int]:
    """Make a computation read weights that were packed from an element type with this code."""
    return [descriptor[0] + PACKED, *descriptor[1:], ord(code)]


def merge_dimensions(shape: Sequence[int], axes: Sequence[int]) -> tuple[int, int] | None:
    """Return size and stride of several dimensions of a row-major array viewed as one, or None."""
    axes = [a for a in axes if shape[a] != 1]
    if not axes:
        return 1, 1
    # Only dimensions of size 1 may be between two neighbors.
    if any(b < a or math.prod(shape[a + 1 : b]) != 1 for a, b in itertools.pairwise(axes)):
        return None
    return math.prod(shape[a] for a in axes), math.prod(shape[axes[-1] + 1 :])
