"""Fourier transforms over the last one, two or three axes."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from meshflow.core.dispatch.dispatch import op
from meshflow.core.dispatch.operands import to_static_value
from meshflow.core.runtime.errors import InvalidValueError
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.dtypes import DType, complex64, float32
from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.ops.array import roll
from meshflow.ops.deferred_host_values import DeferredValue
from meshflow.ops.signatures import ComplexTransform, RealTransform

__all__ = [
    "fft",
    "fft2d",
    "fft3d",
    "fftshift",
    "ifft",
    "ifft2d",
    "ifft3d",
    "ifftshift",
    "irfft",
    "irfft2d",
    "irfft3d",
    "rfft",
    "rfft2d",
    "rfft3d",
]

# Arguments and results of the examples in docstrings. Adding 0 removes the sign of zeros.
_EXAMPLES = {
    "fft": ("[1, 2, 3, 4]", "[(10+0j), (-2+2j), (-2+0j), (-2-2j)]"),
    "fft2d": ("[[1, 2], [3, 4]]", "[[(10+0j), (-2+0j)], [(-4+0j), 0j]]"),
    "fft3d": ("[[[1, 2], [3, 4]]]", "[[[(10+0j), (-2+0j)], [(-4+0j), 0j]]]"),
    "ifft": ("[10, -2 + 2j, -2, -2 - 2j]", "[(1+0j), (2+0j), (3+0j), (4+0j)]"),
    "ifft2d": ("[[10, -2], [-4, 0]]", "[[(1+0j), (2+0j)], [(3+0j), (4+0j)]]"),
    "ifft3d": ("[[[10, -2], [-4, 0]]]", "[[[(1+0j), (2+0j)], [(3+0j), (4+0j)]]]"),
    "rfft": ("[1, 2, 3, 4]", "[(10+0j), (-2+2j), (-2+0j)]"),
    "rfft2d": ("[[1, 2], [3, 4]]", "[[(10+0j), (-2+0j)], [(-4+0j), 0j]]"),
    "rfft3d": ("[[[1, 2], [3, 4]]]", "[[[(10+0j), (-2+0j)], [(-4+0j), 0j]]]"),
    "irfft": ("[10, -2 + 2j, -2]", "[1.0, 2.0, 3.0, 4.0]"),
    "irfft2d": ("[[10, -2], [-4, 0]]", "[[1.0, 2.0], [3.0, 4.0]]"),
    "irfft3d": ("[[[10, -2], [-4, 0]]]", "[[[1.0, 2.0], [3.0, 4.0]]]"),
}
_AXES_DESCRIPTIONS = {1: "last axis", 2: "last two axes", 3: "last three axes"}


def _check_rank(x: jax.Array, rank: int, name: str) -> None:
    if x.ndim < rank:
        raise InvalidValueError(
            f"{name}: input must have at least {rank} dimensions, got shape {list(x.shape)}."
        )


def _make_complex_transform(
    name: str, function: Callable[..., jax.Array], rank: int, summary: str
) -> ComplexTransform:
    """Create a public transform from complex numbers to complex numbers."""

    def body(input: TensorLike, name: str | None = None) -> Tensor:
        _check_rank(input, rank, public)
        return function(input, axes=range(-rank, 0)).astype(input.dtype)

    public = body.__name__ = body.__qualname__ = name
    body.__module__ = __name__
    body.__doc__ = f"""{summary} over the {_AXES_DESCRIPTIONS[rank]}.

    Args:
      input: complex64 or complex128.
      name: Ignored.

    Returns:
      A tensor of the same shape and dtype.

    Raises:
      InvalidArgumentError: If there are too few dimensions.

    Example:
      >>> (tf.signal.{name}({_EXAMPLES[name][0]}).numpy().round(3) + 0).tolist()
      {_EXAMPLES[name][1]}
    """
    return _convert_operand(op(body, kinds="c"), complex64)


def _convert_operand(transform: Callable[..., Any], dtype: DType) -> Any:
    """Wrap a transform so that arguments other than tensors are converted to a dtype."""
    (operand, *_) = inspect.signature(transform).parameters

    @functools.wraps(transform)
    def public(*args: Any, **kwargs: Any) -> Any:
        if args:
            return transform(_to_tensor(args[0], dtype), *args[1:], **kwargs)
        if operand in kwargs:
            kwargs[operand] = _to_tensor(kwargs[operand], dtype)
        return transform(**kwargs)

    return public


def _to_tensor(value: TensorLike, dtype: DType) -> TensorLike:
    if hasattr(value, "_keras_history") or isinstance(value, DeferredValue):
        return value
    return convert_to_tensor(value, dtype_hint=dtype)


def _check_lengths(
    fft_length: int | Sequence[int] | None, rank: int, name: str
) -> Sequence[int] | None:
    """Return the sizes of the transformed axes; None for those of the input."""
    sizes = (fft_length,) if isinstance(fft_length, int) else fft_length
    if sizes is not None and len(sizes) != rank:
        raise InvalidValueError(f"{name}: fft_length must have shape [{rank}], got {list(sizes)}.")
    return sizes


def _make_real_transform(
    name: str, function: Callable[..., jax.Array], rank: int, summary: str, kinds: str, length: str
) -> RealTransform:
    """Create a public transform between real numbers and half of their (symmetric) spectrum."""

    def body(
        input_tensor: TensorLike,
        fft_length: int | Sequence[int] | None = None,
        name: str | None = None,
    ) -> Tensor:
        _check_rank(input_tensor, rank, public)
        sizes = _check_lengths(fft_length, rank, public)
        return function(input_tensor, s=sizes, axes=range(-rank, 0))

    public = body.__name__ = body.__qualname__ = name
    body.__module__ = __name__
    body.__doc__ = f"""{summary} over the {_AXES_DESCRIPTIONS[rank]}.

    Args:
      input_tensor: {"complex64 or complex128" if kinds == "c" else "float32 or float64"}.
      fft_length: {rank} size{"s" if rank > 1 else ""} of the real signal, which is cropped or padded with
        zeros; {length} by default.
      name: Ignored.

    Returns:
      {"Real" if kinds == "c" else "Complex"} numbers of the same precision.

    Raises:
      InvalidArgumentError: If there are too few dimensions or sizes.

    Example:
      >>> (tf.signal.{name}({_EXAMPLES[name][0]}).numpy().round(3) + 0).tolist()
      {_EXAMPLES[name][1]}
    """
    return _convert_operand(op(body, kinds=kinds), complex64 if kinds == "c" else float32)


_FORWARD, _INVERSE = "Compute the Fourier transform", "Compute the inverse Fourier transform"
fft = _make_complex_transform("fft", jnp.fft.fftn, 1, _FORWARD)
fft2d = _make_complex_transform("fft2d", jnp.fft.fftn, 2, _FORWARD)
fft3d = _make_complex_transform("fft3d", jnp.fft.fftn, 3, _FORWARD)
ifft = _make_complex_transform("ifft", jnp.fft.ifftn, 1, _INVERSE)
ifft2d = _make_complex_transform("ifft2d", jnp.fft.ifftn, 2, _INVERSE)
ifft3d = _make_complex_transform("ifft3d", jnp.fft.ifftn, 3, _INVERSE)

_REAL_FORWARD = "Compute half of the (symmetric) Fourier transform of real numbers"
_REAL_INVERSE = "Compute real numbers from half of their Fourier transform"
_SIGNAL_LENGTH, _SPECTRUM_LENGTH = (
    "the size of the input",
    "2 (n - 1) for n coefficients in the last axis",
)
rfft = _make_real_transform("rfft", jnp.fft.rfftn, 1, _REAL_FORWARD, "f", _SIGNAL_LENGTH)
rfft2d = _make_real_transform("rfft2d", jnp.fft.rfftn, 2, _REAL_FORWARD, "f", _SIGNAL_LENGTH)
rfft3d = _make_real_transform("rfft3d", jnp.fft.rfftn, 3, _REAL_FORWARD, "f", _SIGNAL_LENGTH)
irfft = _make_real_transform("irfft", jnp.fft.irfftn, 1, _REAL_INVERSE, "c", _SPECTRUM_LENGTH)
irfft2d = _make_real_transform("irfft2d", jnp.fft.irfftn, 2, _REAL_INVERSE, "c", _SPECTRUM_LENGTH)
irfft3d = _make_real_transform("irfft3d", jnp.fft.irfftn, 3, _REAL_INVERSE, "c", _SPECTRUM_LENGTH)


def _compute_shifts(x: Tensor, axes: int | Sequence[int] | None) -> tuple[list[int], list[int]]:
    """Return the axes to shift along, and half of their sizes."""
    rank = len(x.shape)
    axes = to_static_value(axes, "axes")
    selected = range(rank) if axes is None else (axes,) if isinstance(axes, int) else axes
    return list(selected), [x.shape[a] // 2 for a in selected]


def fftshift(
    x: TensorLike, axes: int | Sequence[int] | None = None, name: str | None = None
) -> Tensor:
    """Shift the zero frequency to the middle.

    Args:
      x: A tensor of any shape.
      axes: The axes to shift along; by default all.
      name: Ignored.

    Example:
      >>> tf.signal.fftshift([0, 1, 2, -2, -1]).numpy()
      array([-2, -1,  0,  1,  2], dtype=int32)
    """
    x = convert_to_tensor(x)
    shifted_axes, halves = _compute_shifts(x, axes)
    return roll(x, halves, shifted_axes)


def ifftshift(
    x: TensorLike, axes: int | Sequence[int] | None = None, name: str | None = None
) -> Tensor:
    """Undo `fftshift`, keeping the shape; the arguments are the same.

    Example:
      >>> tf.signal.ifftshift([-2, -1, 0, 1, 2]).numpy()
      array([ 0,  1,  2, -2, -1], dtype=int32)
    """
    x = convert_to_tensor(x)
    shifted_axes, halves = _compute_shifts(x, axes)
    return roll(x, [-h for h in halves], shifted_axes)
