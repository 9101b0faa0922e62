"""Reductions over sliding windows of arrays, for pooling.

XLA's gradient of a window maximum (select-and-scatter) is by far the slowest op of a CNN on CPUs.
Comparing the elements of each window with its maximum, as in this module, is 9 times faster. The
gradient flows to the first maximum of a window in row-major order, as in TensorFlow.

Windows of up to `MAX_UNROLLED` elements are unrolled to as many strided slices, which XLA fuses
into one loop. Larger ones, for example global pooling, use XLA's reductions. Maxima of overlapping
windows, and all maxima in bfloat16, are primitives, for which the CPU kernels have faster loops.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.export import is_symbolic_dim

from meshflow.core.runtime.broadcasting import combine
from meshflow.core.values.symbolic_sizes import has_symbolic_size
from meshflow.environment.jax_internals import batching, jex_core, mlir
from meshflow.kernels import pooling
from meshflow.kernels.composite_primitives import composites, move_batch_axes_first

# Windows with more elements are not unrolled.
MAX_UNROLLED = 32

_Scalar: TypeAlias = int | float


class Windows(NamedTuple):
    """Layout of windows on an array; each attribute has one entry per dimension of the array.

    Attributes:
      size: Extent of a window.
      strides: Step from one window to the next.
      pads: Padding (before, after).
      dilations: Distance between adjacent elements of a window.
    """

    size: tuple[int, ...]
    strides: tuple[int, ...]
    pads: tuple[tuple[int, int], ...]
    dilations: tuple[int, ...]

    @property
    def count(self) -> int:  # type: ignore[override]  # The property hides a method of tuples.
        """Return the number of elements of a window."""
        return math.prod(self.size)

    def compute_grid(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return the number of windows along each dimension of an array."""
        # Arithmetic with symbolic sizes is slow, and most windows do not slide along the first axis.
        return tuple(
            n
            if (k, s, low, high) == (1, 1, 0, 0)
            else max((n + low + high - (k - 1) * d - 1) // s + 1, 0)
            for n, k, s, (low, high), d in zip(shape, *self, strict=True)
        )

    def has_symbolic_size(self, shape: tuple[int, ...]) -> bool:
        """Check whether windows slide along a dimension of symbolic size."""
        sizes = zip(shape, self.size, self.strides, self.pads, strict=True)
        return any(has_symbolic_size((n, *pair)) for n, k, s, pair in sizes if (k, s) != (1, 1))

    def is_tiling(self, shape: tuple[int, ...]) -> bool:
        """Check whether the windows cover an array without gaps, overlaps or padding."""
        divides = all(n % k == 0 for n, k in zip(shape, self.size, strict=True))
        return (
            divides
            and not self.has_padding
            and self.size == self.strides
            and max(self.dilations) == 1
        )

    @property
    def has_padding(self) -> bool:
        """Return whether the array may be padded."""
        return any(is_symbolic_dim(n) or n for pair in self.pads for n in pair)

    def iter_slices(
        self, shape: tuple[int, ...]
    ) -> Iterator[tuple[list[int], list[int], tuple[int, ...]]]:
        """Yield (start, limit, strides) of the k-th elements of all windows, for each k."""
        grid = self.compute_grid(shape)
        extents = [(n - 1) * s + 1 for n, s in zip(grid, self.strides, strict=True)]
        for offset in np.ndindex(*self.size):
            start = [o * d for o, d in zip(offset, self.dilations, strict=True)]
            yield start, [o + n for o, n in zip(start, extents, strict=True)], self.strides


def pad_array(x: Array, windows: Windows, value: _Scalar) -> Array:
    """Pad an array with a value."""
    if not windows.has_padding:
        return x
    return lax.pad(x, np.asarray(value, x.dtype), [(low, high, 0) for low, high in windows.pads])


def get_lowest(dtype: jnp.dtype) -> _Scalar:
    """Return the value of a dtype that is the identity of the maximum."""
    return -np.inf if jnp.issubdtype(dtype, jnp.inexact) else jnp.iinfo(dtype).min


def _iter_elements(x: Array, windows: Windows, padding: _Scalar) -> Iterator[Array]:
    padded_x = pad_array(x, windows, padding)
    for start, limit, strides in windows.iter_slices(x.shape):
        yield lax.slice(padded_x, start, limit, strides)


def _reduce_window(
    x: Array, windows: Windows, start: _Scalar, combine: Callable[..., Array]
) -> Array:
    return lax.reduce_window(
        x,
        # JAX only recognizes the reduction, and knows its gradient, if this is a literal.
        np.asarray(start, x.dtype),
        combine,
        windows.size,
        windows.strides,
        windows.pads,
        window_dilation=windows.dilations,
    )


def sum_windows(x: Array, windows: Windows) -> Array:
    """Compute the sum of each window, with padding as 0."""
    if (
        windows.has_symbolic_size(x.shape)
        or windows.count > MAX_UNROLLED
        or 0 in windows.compute_grid(x.shape)
    ):
        return _reduce_window(x, windows, 0, lax.add)
    return functools.reduce(lax.add, _iter_elements(x, windows, 0))


def max_windows(x: Array, windows: Windows) -> Array:
    """Compute the maximum of each window, ignoring padding.

    The gradient is exact and itself differentiable in reverse mode.
    """
    if windows.has_symbolic_size(x.shape):
        # The array is padded first, because the gradient of XLA's maximum does not support symbolic
        # padding.
        unpadded = windows._replace(pads=((0, 0),) * x.ndim)
        return _reduce_window(
            pad_array(x, windows, get_lowest(x.dtype)), unpadded, get_lowest(x.dtype), lax.max
        )
    if 0 in windows.compute_grid(x.shape) or (
        windows.count > MAX_UNROLLED and not windows.is_tiling(x.shape)
    ):
        return _reduce_window(x, windows, get_lowest(x.dtype), lax.max)
    return _compute_max(x, windows)


@functools.partial(jax.custom_vjp, nondiff_argnums=(1,))
def _compute_max(x: Array, windows: Windows) -> Array:
    if _is_xla_faster(x, windows):
        return _compute_max_with_xla(x, windows)
    return _max_primitive.bind(x, windows=windows)


def _is_xla_faster(x: Array, windows: Windows) -> bool:
    """Check whether XLA's code for a maximum and its gradient is the fastest."""
    return windows.is_tiling(x.shape) and (x.dtype != jnp.bfloat16 or windows.count > MAX_UNROLLED)


def _compute_max_with_xla(x: Array, windows: Windows) -> Array:
    if windows.count > MAX_UNROLLED:
        return _reduce_window(x, windows, get_lowest(x.dtype), lax.max)
    return functools.reduce(lax.max, _iter_elements(x, windows, get_lowest(x.dtype)))


def _compute_max_forward(x: Array, windows: Windows) -> tuple[Array, tuple[Array, Array]]:
    y = _compute_max(x, windows)
    return y, (x, y)


def _compute_max_backward(windows: Windows, saved: tuple[Array, Array], g: Array) -> tuple[Array]:
    x, y = saved
    if _is_xla_faster(x, windows):
        return (_scatter_to_tiles(x, g, windows),)
    return (_scatter_to_first(x, y, g, windows),)


_compute_max.defvjp(_compute_max_forward, _compute_max_backward)


@functools.partial(jax.custom_vjp, nondiff_argnums=(3,))
def _scatter_to_first(x: Array, y: Array, g: Array, windows: Windows) -> Array:
    return _gradient_primitive.bind(x, y, g, windows=windows)


def _scatter_to_first_backward(
    windows: Windows, saved: tuple[Array, ...], dx: Array
) -> tuple[Array, Array, Array]:
    """Transpose `_scatter_to_first`, which is linear in `g`: gather the values at the maxima."""
    x, y, g = saved
    (dg,) = jax.linear_transpose(lambda g: _scatter_to_first_with_xla(x, y, g, windows), g)(dx)
    return jnp.zeros_like(x), jnp.zeros_like(y), dg


_scatter_to_first.defvjp(
    lambda x, y, g, windows: (_scatter_to_first(x, y, g, windows), (x, y, g)),
    _scatter_to_first_backward,
)


def _scatter_to_tiles(x: Array, g: Array, windows: Windows) -> Array:
    """Write each gradient to the first maximum of its tile, in one pass over the result."""
    blocks, inner, outer = [], [], []
    for n, k in zip(x.shape, windows.size, strict=True):
        blocks += [n // k, k]
        outer += [n // k, 1]
        inner += [1, k]
    index: Any = np.arange(windows.count, dtype=np.int32).reshape(inner)
    if windows.count > MAX_UNROLLED:
        hit = x.reshape(blocks) == _compute_max_with_xla(x, windows).reshape(outer)
        candidates = jnp.where(hit, index, windows.count)
        first = jnp.min(candidates, axis=tuple(range(1, 2 * x.ndim, 2)), keepdims=True)
    else:
        index = index.astype(np.int8)
        first = _find_first_indices(x, windows).reshape(outer)
    is_first = combine(lax.eq, first, index)
    repeated = lax.broadcast_in_dim(lax.reshape(g, outer), is_first.shape, range(is_first.ndim))
    return lax.reshape(_select(is_first, repeated, g.dtype.type(0)), x.shape)


def _select(condition: Array, x: Any, y: Any) -> Array:
    """Select elements of arrays or NumPy scalars, which get the sharding of the condition."""
    x, y = (lax.full_like(condition, a, a.dtype) if a.ndim == 0 else a for a in (x, y))
    return lax.select(condition, x, y)


def _find_first_indices(x: Array, windows: Windows) -> Array:
    """Find the index of the first maximum within each window; -1 where the maximum is NaN.

    Elements are only compared with each other and not with a precomputed maximum: XLA may compute
    `x` again for each of its uses, with different rounding errors, so that no element may be equal
    to it.
    """
    padded_x = pad_array(x, windows, get_lowest(x.dtype))
    dtype = np.int8 if windows.count <= MAX_UNROLLED else np.int32
    best: Any = None
    first: Any = None
    for k, (start, limit, strides) in enumerate(windows.iter_slices(x.shape)):
        element = lax.slice(padded_x, start, limit, strides)
        inside = None if padded_x is x else _is_inside(windows, x.shape, start, limit)
        if best is None:
            best, first = element, lax.full_like(element, 0, dtype)
            first = first if inside is None else jnp.where(inside, first, dtype(-1))
            continue
        better = lax.gt(element, best)
        if inside is not None:
            # Windows may start in the padding.
            better = lax.bitwise_or(better, lax.lt(first, dtype(0))) & inside
        first = _select(better, dtype(k), first)
        best = lax.max(best, element)
    return _select(lax.ne(best, best), dtype(-1), first)


def _scatter_to_first_with_xla(x: Array, y: Array, g: Array, windows: Windows) -> Array:
    if windows.is_tiling(x.shape):
        return _scatter_to_tiles(x, g, windows)
    return _scatter_to_overlapping(x, g, windows)


def _scatter_to_positive_first_with_xla(x: Array, y: Array, g: Array, windows: Windows) -> Array:
    """Scatter the gradients where `x` is positive, for a ReLU before the windows."""
    return jnp.where(x > 0, _scatter_to_first_with_xla(x, y, g, windows), jnp.zeros((), g.dtype))


def _is_inside(
    windows: Windows, shape: tuple[int, ...], start: Sequence[int], limit: Sequence[int]
) -> np.ndarray:
    """Return a mask of the windows with a given element inside of the array, not in its padding."""
    mask = np.ones((1,) * len(shape), bool)
    for axis, (low, high) in enumerate(windows.pads):
        if low == high == 0:
            continue  # The size may be symbolic.
        positions = np.arange(start[axis], limit[axis], windows.strides[axis])
        present = (positions >= low) & (positions < low + shape[axis])
        if not present.all():
            mask = mask & present.reshape([-1 if i == axis else 1 for i in range(len(shape))])
    return mask


def _scatter_to_overlapping(x: Array, g: Array, windows: Windows) -> Array:
    """Add each gradient to the first maximum of its window."""
    shape = [n + low + high for n, (low, high) in zip(x.shape, windows.pads, strict=True)]
    zero = np.zeros((), g.dtype)
    first = _find_first_indices(x, windows)
    total = jnp.zeros(shape, g.dtype)
    for k, (start, limit, strides) in enumerate(windows.iter_slices(x.shape)):
        around = zip(start, limit, strides, shape, strict=True)
        pads = [(a, n - b, s - 1) for a, b, s, n in around]
        is_chosen = lax.eq(first, first.dtype.type(k))
        total = total + lax.pad(_select(is_chosen, g, g.dtype.type(0)), zero, pads)
    corner = [low for low, _ in windows.pads]
    return lax.slice(total, corner, [a + n for a, n in zip(corner, x.shape, strict=True)])


def _make_primitive(
    name: str, call: Callable[..., Array], is_gradient: bool = False
) -> jex_core.Primitive:
    """Create a primitive that is lowered as `call`, a function of arrays and windows.

    Args:
      name: Its name.
      call: The function.
      is_gradient: Whether the result has the type of the first operand.
    """
    primitive = jex_core.Primitive(name)

    @functools.cache
    def get_compiled(windows: Windows) -> Callable[..., Array]:
        return jax.jit(lambda *arrays: primitive.bind(*arrays, windows=windows))

    def run(*arrays: Array, windows: Windows) -> Array:
        return call(*arrays, windows)

    def infer_aval(*avals: Any, windows: Windows) -> Any:
        if is_gradient:
            return avals[0].update(weak_type=False)
        # Tracing the function also infers shardings.
        return jax.make_jaxpr(functools.partial(run, windows=windows))(*avals).out_avals[0]

    def batch(
        arrays: Sequence[Array], axes: Sequence[int | None], windows: Windows
    ) -> tuple[Array, int]:
        size, strides, pads, dilations = windows
        more = Windows((1, *size), (1, *strides), ((0, 0), *pads), (1, *dilations))
        return primitive.bind(*move_batch_axes_first(arrays, axes), windows=more), 0

    composites[primitive] = run
    primitive.def_impl(lambda *arrays, windows: get_compiled(windows)(*arrays))
    primitive.def_abstract_eval(infer_aval)
    batching.primitive_batchers[primitive] = batch
    mlir.register_lowering(primitive, mlir.lower_fun(run, multiple_results=False))
    return primitive


_max_primitive = _make_primitive("max_windows", _compute_max_with_xla)
_gradient_primitive = _make_primitive(
    "max_windows_gradient", _scatter_to_first_with_xla, is_gradient=True
)
_gated_gradient_primitive = _make_primitive(
    "max_windows_gated_gradient", _scatter_to_positive_first_with_xla, is_gradient=True
)
pooling.register(_max_primitive, _gradient_primitive, _gated_gradient_primitive)


def argmax_windows(x: Array, windows: Windows) -> tuple[Array, Array]:
    """Compute the maximum of each window and the position of its first maximum within the image.

    A position is an index into the flattened [*spatial, channels] part of `x`.
    """
    spatial = x.shape[1:]
    index = jnp.arange(math.prod(spatial), dtype=jnp.int64).reshape(1, *spatial)
    index = pad_array(jnp.broadcast_to(index, x.shape), windows, -1)
    first = _find_first_indices(x, windows)
    positions = jnp.full(first.shape, -1, jnp.int64)
    for k, (start, limit, strides) in enumerate(windows.iter_slices(x.shape)):
        positions = jnp.where(first == k, lax.slice(index, start, limit, strides), positions)
    return max_windows(x, windows), positions
