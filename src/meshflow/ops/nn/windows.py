"""Reductions over sliding windows, on arrays: what pooling is made of.

XLA's own gradient of a window maximum (select-and-scatter) is by far the slowest op of a CNN on
CPUs: 9 times slower than comparing each window's elements with its maximum, as done here. The
gradient goes to the first maximum of a window in reading order, as TensorFlow's does.

Windows of up to `UNROLLED` elements are written out as that many strided slices, which XLA fuses
into one loop; larger ones (global pooling, say) use XLA's reductions. Maxima of windows that overlap,
and in bfloat16 of all, are primitives, which the CPU kernels have faster loops for.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from meshflow.core.values.symbolic_sizes import any_symbolic
from meshflow.environment.jax_internals import batching, jex_core, mlir
from meshflow.kernels import pooling
from meshflow.kernels.composite_primitives import composites, in_front

UNROLLED = 32


class Windows(NamedTuple):
    """How windows lie on an array; one entry per dimension of the array.

    Attributes:
      size: extent of a window.
      strides: step from one window to the next.
      pads: (before, after) padding.
      dilations: distance between neighbouring elements of a window.
    """

    size: tuple[int, ...]
    strides: tuple[int, ...]
    pads: tuple[tuple[int, int], ...]
    dilations: tuple[int, ...]

    @property
    def count(self) -> int:  # type: ignore[override]  # hides a method of tuples
        """Number of elements of a window."""
        return math.prod(self.size)

    def grid(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """How many windows fit along each dimension of an array."""
        return tuple(
            max((n + low + high - (k - 1) * d - 1) // s + 1, 0)
            for n, k, s, (low, high), d in zip(shape, *self, strict=True)
        )

    def vary(self, shape: tuple[int, ...]) -> bool:
        """Whether windows slide along a dimension whose size the program is to leave open."""
        sizes = zip(shape, self.size, self.strides, self.pads, strict=True)
        return any(any_symbolic((n, *pair)) for n, k, s, pair in sizes if (k, s) != (1, 1))

    def tile(self, shape: tuple[int, ...]) -> bool:
        """Whether the windows cover an array without gaps, overlaps or padding."""
        divides = all(n % k == 0 for n, k in zip(shape, self.size, strict=True))
        unpadded = all(pair == (0, 0) for pair in self.pads)
        return divides and unpadded and self.size == self.strides and max(self.dilations) == 1

    def slices(self, shape: tuple[int, ...]) -> Iterator[tuple[Any, Any, Any]]:
        """(start, limit, strides) of the k-th elements of all windows, for each k in reading order."""
        for offset in np.ndindex(*self.size):
            start = [o * d for o, d in zip(offset, self.dilations, strict=True)]
            grid = zip(start, self.grid(shape), self.strides, strict=True)
            yield start, [o + (n - 1) * s + 1 for o, n, s in grid], self.strides


def padded(x: Any, windows: Windows, value: Any) -> Any:
    """`x` with its padding made of `value`."""
    if all(pair == (0, 0) for pair in windows.pads):
        return x
    return lax.pad(x, np.asarray(value, x.dtype), [(low, high, 0) for low, high in windows.pads])


def lowest(dtype: Any) -> Any:
    """The number that every other number of a dtype beats."""
    return -np.inf if jnp.issubdtype(dtype, jnp.inexact) else jnp.iinfo(dtype).min


def _elements(x: Any, windows: Windows, padding: Any) -> Iterator[Any]:
    full = padded(x, windows, padding)
    for start, limit, strides in windows.slices(x.shape):
        yield lax.slice(full, start, limit, strides)


def _library(x: Any, windows: Windows, start: Any, combine: Any) -> Any:
    return lax.reduce_window(
        x,
        # A literal, so that JAX recognizes the reduction and knows its gradient.
        np.asarray(start, x.dtype),
        combine,
        windows.size,
        windows.strides,
        windows.pads,
        window_dilation=windows.dilations,
    )


def sum_windows(x: Any, windows: Windows) -> Any:
    """The sum of each window; padding counts as 0."""
    if windows.vary(x.shape) or windows.count > UNROLLED or 0 in windows.grid(x.shape):
        return _library(x, windows, 0, lax.add)
    return functools.reduce(lax.add, _elements(x, windows, 0))


def max_windows(x: Any, windows: Windows) -> Any:
    """The maximum of each window; padding never wins.

    The gradient is exact and itself differentiable in reverse mode.
    """
    if windows.vary(x.shape):
        # Padded before, as the gradient of XLA's maxima takes no padding that varies.
        whole = windows._replace(pads=((0, 0),) * x.ndim)
        return _library(padded(x, windows, lowest(x.dtype)), whole, lowest(x.dtype), lax.max)
    if 0 in windows.grid(x.shape) or (windows.count > UNROLLED and not windows.tile(x.shape)):
        return _library(x, windows, lowest(x.dtype), lax.max)
    return _max(x, windows)


@functools.partial(jax.custom_vjp, nondiff_argnums=(1,))
def _max(x: Any, windows: Windows) -> Any:
    if _left_to_xla(x, windows):
        return _max_by_xla(x, windows)
    return _max_p.bind(x, windows=windows)


def _left_to_xla(x: Any, windows: Windows) -> bool:
    """Whether XLA's code for a maximum and its gradient is the best one."""
    return windows.tile(x.shape) and (x.dtype != jnp.bfloat16 or windows.count > UNROLLED)


def _max_by_xla(x: Any, windows: Windows) -> Any:
    if windows.count > UNROLLED:
        return _library(x, windows, lowest(x.dtype), lax.max)
    return functools.reduce(lax.max, _elements(x, windows, lowest(x.dtype)))


def _max_forward(x: Any, windows: Windows) -> Any:
    y = _max(x, windows)
    return y, (x, y)


def _max_backward(windows: Windows, saved: Any, g: Any) -> Any:
    x, y = saved
    if _left_to_xla(x, windows):
        return (_to_tiles(x, g, windows),)
    return (_to_first(x, y, g, windows),)


_max.defvjp(_max_forward, _max_backward)


@functools.partial(jax.custom_vjp, nondiff_argnums=(3,))
def _to_first(x: Any, y: Any, g: Any, windows: Windows) -> Any:
    return _gradient_p.bind(x, y, g, windows=windows)


def _of_first(windows: Windows, saved: Any, dx: Any) -> Any:
    """What `_to_first` is transposed, as it is linear in `g`: the numbers at the maxima."""
    x, y, g = saved
    (dg,) = jax.linear_transpose(lambda g: _to_first_by_xla(x, y, g, windows), g)(dx)
    return jnp.zeros_like(x), jnp.zeros_like(y), dg


_to_first.defvjp(lambda x, y, g, windows: (_to_first(x, y, g, windows), (x, y, g)), _of_first)


def _to_tiles(x: Any, g: Any, windows: Windows) -> Any:
    """Each gradient at the first maximum of its tile: one pass over the result."""
    blocks, inner, outer = [], [], []
    for n, k in zip(x.shape, windows.size, strict=True):
        blocks += [n // k, k]
        outer += [n // k, 1]
        inner += [1, k]
    place = np.arange(windows.count, dtype=np.int32).reshape(inner)
    if windows.count > UNROLLED:
        hit = x.reshape(blocks) == _max_by_xla(x, windows).reshape(outer)
        places = jnp.where(hit, place, windows.count)
        first = jnp.min(places, axis=tuple(range(1, 2 * x.ndim, 2)), keepdims=True)
    else:
        place = place.astype(np.int8)
        first = _first_places(x, windows).reshape(outer)
    return jnp.where(first == place, g.reshape(outer), jnp.zeros((), g.dtype)).reshape(x.shape)


def _first_places(x: Any, windows: Windows) -> Any:
    """Which element of its window the first maximum is, counted from 0; -1 where the maximum is NaN.

    Found while elements are compared with each other: XLA may compute `x` anew for each of its uses,
    with other digits in the last place, and no element need equal a maximum found elsewhere.
    """
    full = padded(x, windows, lowest(x.dtype))
    dtype = np.int8 if windows.count <= UNROLLED else np.int32
    best: Any = None
    first: Any = None
    for k, (start, limit, strides) in enumerate(windows.slices(x.shape)):
        element = lax.slice(full, start, limit, strides)
        inside = True if full is x else _inside(windows, x.shape, start, limit)
        if best is None:
            best, first = element, jnp.where(inside, jnp.zeros_like(element, dtype), dtype(-1))
            continue
        better = (element > best) | (first < 0)
        first = jnp.where(better & inside, dtype(k), first)
        best = lax.max(best, element)
    return jnp.where(best != best, dtype(-1), first)


def _to_first_by_xla(x: Any, y: Any, g: Any, windows: Windows) -> Any:
    if windows.tile(x.shape):
        return _to_tiles(x, g, windows)
    return _to_overlapping(x, g, windows)


def _to_positive_first_by_xla(x: Any, y: Any, g: Any, windows: Windows) -> Any:
    """The same where `x` is positive: what passes a ReLU in front of the windows."""
    return jnp.where(x > 0, _to_first_by_xla(x, y, g, windows), jnp.zeros((), g.dtype))


def _inside(windows: Windows, shape: Any, start: Any, limit: Any) -> Any:
    """Which windows have an element of `x` at one of their places, not one of the padding."""
    found = np.ones((1,) * len(shape), bool)
    for axis, (low, high) in enumerate(windows.pads):
        if low == high == 0:
            continue  # the number of elements may be unknown there
        places = np.arange(start[axis], limit[axis], windows.strides[axis])
        present = (places >= low) & (places < low + shape[axis])
        if not present.all():
            found = found & present.reshape([-1 if i == axis else 1 for i in range(len(shape))])
    return found


def _to_overlapping(x: Any, g: Any, windows: Windows) -> Any:
    """Each gradient at the first maximum of its window, added up where windows overlap."""
    shape = [n + low + high for n, (low, high) in zip(x.shape, windows.pads, strict=True)]
    zero = np.zeros((), g.dtype)
    first = _first_places(x, windows)
    total = jnp.zeros(shape, g.dtype)
    for k, (start, limit, strides) in enumerate(windows.slices(x.shape)):
        around = zip(start, limit, strides, shape, strict=True)
        pads = [(a, n - b, s - 1) for a, b, s, n in around]
        total = total + lax.pad(jnp.where(first == k, g, zero), zero, pads)
    corner = [low for low, _ in windows.pads]
    return lax.slice(total, corner, [a + n for a, n in zip(corner, x.shape, strict=True)])


def _primitive(name: str, call: Any) -> Any:
    """A primitive that is compiled as `call`, a function of arrays and of windows."""
    primitive = jex_core.Primitive(name)

    @functools.cache
    def compiled(windows: Windows) -> Any:
        return jax.jit(lambda *arrays: primitive.bind(*arrays, windows=windows))

    def run(*arrays: Any, windows: Windows) -> Any:
        return call(*arrays, windows)

    def abstract(*avals: Any, windows: Windows) -> Any:
        # Traced, so that shardings and the like are those of the function.
        return jax.make_jaxpr(functools.partial(run, windows=windows))(*avals).out_avals[0]

    def batched(arrays: Any, axes: Any, windows: Windows) -> Any:
        size, strides, pads, dilations = windows
        more = Windows((1, *size), (1, *strides), ((0, 0), *pads), (1, *dilations))
        return primitive.bind(*in_front(arrays, axes), windows=more), 0

    composites[primitive] = run
    primitive.def_impl(lambda *arrays, windows: compiled(windows)(*arrays))
    primitive.def_abstract_eval(abstract)
    batching.primitive_batchers[primitive] = batched
    mlir.register_lowering(primitive, mlir.lower_fun(run, multiple_results=False))
    return primitive


_max_p = _primitive("max_windows", _max_by_xla)
_gradient_p = _primitive("max_windows_gradient", _to_first_by_xla)
_gated_gradient_p = _primitive("max_windows_gated_gradient", _to_positive_first_by_xla)
pooling.register(_max_p, _gradient_p, _gated_gradient_p)


def argmax_windows(x: Any, windows: Windows) -> Any:
    """(maximum, position of the first maximum) of each window; positions count within an image.

    A position is the index into the flattened [*spatial, channels] part of `x`, channels last.
    """
    spatial = x.shape[1:]
    index = jnp.arange(math.prod(spatial), dtype=jnp.int64).reshape(1, *spatial)
    index = padded(jnp.broadcast_to(index, x.shape), windows, -1)
    first = _first_places(x, windows)
    found = jnp.full(first.shape, -1, jnp.int64)
    for k, (start, limit, strides) in enumerate(windows.slices(x.shape)):
        found = jnp.where(first == k, lax.slice(index, start, limit, strides), found)
    return max_windows(x, windows), found
