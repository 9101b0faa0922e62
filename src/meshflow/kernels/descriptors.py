"""Geometry of convolutions and matrix products as the lists of integers that the handlers read.

A descriptor is: which computation, then dimensions and strides of every operand in oneDNN's order of
dimensions (batch, channels, *spatial; kernels [groups,] out, in, *spatial), then the rest.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import NamedTuple

FORWARD, INPUT_GRADIENT, KERNEL_GRADIENT, MATMUL, FLIPPED = range(5)
# Added to a computation: only its weights are packed; it takes packed weights.
PACK, PACKED = 16, 32
# Added to a computation that the calling thread does alone.
INLINE = 64
# Bits of a computation; above them is the code that has to do it.
_BITS = 8
# What may follow a forward convolution or a product while its result is written.
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
    """An array seen with its dimensions in another order: sizes, and strides in elements."""

    dims: tuple[int, ...]
    strides: tuple[int, ...]

    def split(self, axis: int, parts: int) -> View:
        """The view with one dimension as two, of `parts` and of what is left."""
        size, stride = self.dims[axis], self.strides[axis]
        inner = size // parts
        return View(
            (*self.dims[:axis], parts, inner, *self.dims[axis + 1 :]),
            (*self.strides[:axis], inner * stride, stride, *self.strides[axis + 1 :]),
        )

    def numbers(self) -> list[int]:
        """Sizes, then strides."""
        return [*self.dims, *self.strides]


def view(shape: Sequence[int], order: Sequence[int]) -> View:
    """A row-major array of a shape, its dimensions in the given order."""
    strides = [math.prod(shape[i + 1 :]) for i in range(len(shape))]
    return View(tuple(shape[i] for i in order), tuple(strides[i] for i in order))


def grouped(kernel: View, groups: int) -> View:
    """A kernel with its output channels split by group, the groups first."""
    return kernel.split(0, groups) if groups > 1 else kernel


def convolution(
    computation: int,
    groups: int,
    image: View,
    kernel: View,
    result: View,
    strides: Sequence[int],
    dilations: Sequence[int],
    low: Sequence[int],
) -> list[int] | None:
    """The descriptor of a convolution or one of its gradients, given in the terms of the forward one.

    Args:
      computation: FORWARD, INPUT_GRADIENT or KERNEL_GRADIENT.
      groups: number of groups; the kernel's view has no group dimension.
      image: [batch, in, *spatial].
      kernel: [out, in / groups, *spatial], or with groups [groups, out / groups, in / groups, *spatial].
      result: [batch, out, *spatial].
      strides: window strides per spatial dimension.
      dilations: distances of kernel elements, 1 for none.
      low: padding in front; the padding behind follows from the sizes.

    Returns:
      The integers, or None when the padding is one that oneDNN does not have.
    """
    high, rank = [], len(strides)
    for n, k, m, s, d, front in zip(
        image.dims[2:], kernel.dims[-rank:], result.dims[2:], strides, dilations, low, strict=True
    ):
        behind = (m - 1) * s + (k - 1) * d + 1 - n - front
        if front < 0 or behind <= -s or 0 in (n, k, m):
            return None
        # Elements behind the last window are left out by rounding down.
        high.append(max(behind, 0))
    if 0 in image.dims or 0 in result.dims:
        return None
    return [
        *(computation, rank, groups),
        *image.numbers(),
        *kernel.numbers(),
        *result.numbers(),
        *strides,
        *(d - 1 for d in dilations),
        *low,
        *high,
        *(0, 0),
    ]


def matmul(left: View, right: View, result: View) -> list[int] | None:
    """The descriptor of a batched matrix product, [*batch, m, k] by [*batch, k, n].

    Returns:
      The integers, or None when a dimension is empty.
    """
    if 0 in left.dims or 0 in right.dims:
        return None
    return [
        *(MATMUL, len(left.dims)),
        *left.numbers(),
        *right.numbers(),
        *result.numbers(),
        0,
    ]


def kind(descriptor: Sequence[int]) -> int:
    """Which computation a descriptor is of, whichever thread and code does it."""
    return descriptor[0] & ~INLINE & (1 << _BITS) - 1


def inline(descriptor: Sequence[int]) -> list[int]:
    """The descriptor of the same computation, done by the calling thread alone."""
    return [descriptor[0] | INLINE, *descriptor[1:]]


def by(descriptor: Sequence[int], implementation: str) -> list[int]:
    """The descriptor of the same computation, done by code of this name and no other."""
    fingerprint = 2166136261
    for byte in implementation.encode():
        fingerprint = (fingerprint ^ byte) * 16777619 % (1 << 32)
    return [descriptor[0] | fingerprint << _BITS, *descriptor[1:]]


def result(descriptor: Sequence[int]) -> list[int]:
    """The sizes of a product's result."""
    rank = descriptor[1]
    return list(descriptor[2 + 4 * rank : 2 + 5 * rank])


def with_epilogue(
    descriptor: Sequence[int], epilogue: Sequence[str], flipped: bool = False
) -> list[int]:
    """The descriptor of a forward convolution or a product, with an epilogue, with its kernel turned round or not."""
    first = FLIPPED | descriptor[0] & INLINE if flipped else descriptor[0]
    return [first, *descriptor[1:-1], len(epilogue), *(EPILOGUE_OPS[op] for op in epilogue)]


def with_bias_gradient(descriptor: Sequence[int]) -> list[int]:
    """The descriptor of a kernel's gradient without and with the gradient of a bias."""
    return [*descriptor[:-2], 1, 0]


def packing(descriptor: Sequence[int], codes: str) -> list[int]:
    """The descriptor that packs the weights of a computation, whose element types have these codes."""
    return [descriptor[0] + PACK, *descriptor[1:], *map(ord, codes), len(codes)]


def with_packed(descriptor: Sequence[int], code: str) -> list[int]:
    """The descriptor of a computation that takes its weights packed, from an element type with this code."""
    return [descriptor[0] + PACKED, *descriptor[1:], ord(code)]


def merged(shape: Sequence[int], axes: Sequence[int]) -> tuple[int, int] | None:
    """Size and stride of several dimensions of a row-major array seen as one; None when they are apart."""
    axes = [a for a in axes if shape[a] != 1]
    if not axes:
        return 1, 1
    # What lies between two neighbours must be of size 1.
    if any(b < a or math.prod(shape[a + 1 : b]) != 1 for a, b in itertools.pairwise(axes)):
        return None
    return math.prod(shape[a] for a in axes), math.prod(shape[axes[-1] + 1 :])
