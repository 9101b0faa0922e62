"""Fourier transforms over the last one, two or three dimensions."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp

from meshflow.core.dispatch.dispatch import op
from meshflow.core.dispatch.operands import static_value
from meshflow.core.runtime.errors import InvalidValueError
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.dtypes import DType, complex64, float32
from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.ops.array import roll
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

# What the examples in docstrings take and print: the zeros have no sign after `+ 0`.
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
_WORDS = {1: "last dimension", 2: "last two dimensions", 3: "last three dimensions"}


def _check_rank(x: Any, rank: int, name: str) -> None:
    if x.ndim < rank:
        raise InvalidValueError(
            f"{name}: input must have at least {rank} dimensions, got shape {list(x.shape)}."
        )


def _complex(name: str, function: Callable[..., Any], rank: int, what: str) -> ComplexTransform:
    """A public transform of complex numbers to complex numbers."""

    def body(input: TensorLike, name: str | None = None) -> Tensor:
        _check_rank(input, rank, public)
        return function(input, axes=range(-rank, 0)).astype(input.dtype)

    public = body.__name__ = body.__qualname__ = name
    body.__module__ = __name__
    body.__doc__ = f"""{what} over the {_WORDS[rank]}.

    Args:
      input: complex64 or complex128.
      name: ignored.

    Returns:
      A tensor of the same shape and dtype.

    Raises:
      InvalidArgumentError: when there are fewer dimensions.

    Example:
      >>> import meshflow as tf
      >>> (tf.signal.{name}({_EXAMPLES[name][0]}).numpy().round(3) + 0).tolist()
      {_EXAMPLES[name][1]}
    """
    return _preferring(op(body, kinds="c"), complex64)


def _preferring(transform: Callable[..., Any], dtype: DType) -> Any:
    """The transform, which makes `dtype` of anything but tensors: arrays of any precision too."""

    (operand, *_) = inspect.signature(transform).parameters

    @functools.wraps(transform)
    def public(*args: Any, **kwargs: Any) -> Any:
        if args:
            return transform(_tensor(args[0], dtype), *args[1:], **kwargs)
        if operand in kwargs:
            kwargs[operand] = _tensor(kwargs[operand], dtype)
        return transform(**kwargs)

    return public


def _tensor(value: Any, dtype: DType) -> Any:
    return value if hasattr(value, "_keras_history") else convert_to_tensor(value, dtype_hint=dtype)


def _sized(fft_length: Any, rank: int, name: str) -> Any:
    """The sizes of the transformed dimensions, None for those of the input."""
    sizes = (fft_length,) if isinstance(fft_length, int) else fft_length
    if sizes is not None and len(sizes) != rank:
        raise InvalidValueError(f"{name}: fft_length must have shape [{rank}], got {list(sizes)}.")
    return sizes


def _real(
    name: str, function: Callable[..., Any], rank: int, what: str, kinds: str, length: str
) -> RealTransform:
    """A public transform between real numbers and half of their (symmetric) spectrum."""

    def body(input_tensor: TensorLike, fft_length: Any = None, name: str | None = None) -> Tensor:
        _check_rank(input_tensor, rank, public)
        sizes = _sized(fft_length, rank, public)
        return function(input_tensor, s=sizes, axes=range(-rank, 0))

    public = body.__name__ = body.__qualname__ = name
    body.__module__ = __name__
    body.__doc__ = f"""{what} over the {_WORDS[rank]}.

    Args:
      input_tensor: {"complex64 or complex128" if kinds == "c" else "float32 or float64"}.
      fft_length: {rank} size{"s" if rank > 1 else ""} of the real signal, which is cropped or padded with
        zeros; default {length}.
      name: ignored.

    Returns:
      {"Real" if kinds == "c" else "Complex"} numbers of the same precision.

    Raises:
      InvalidArgumentError: when there are fewer dimensions, or not as many sizes.

    Example:
      >>> import meshflow as tf
      >>> (tf.signal.{name}({_EXAMPLES[name][0]}).numpy().round(3) + 0).tolist()
      {_EXAMPLES[name][1]}
    """
    return _preferring(op(body, kinds=kinds), complex64 if kinds == "c" else float32)


_FORWARD, _BACK = "Fourier transform", "Inverse Fourier transform"
fft = _complex("fft", jnp.fft.fftn, 1, _FORWARD)
fft2d = _complex("fft2d", jnp.fft.fftn, 2, _FORWARD)
fft3d = _complex("fft3d", jnp.fft.fftn, 3, _FORWARD)
ifft = _complex("ifft", jnp.fft.ifftn, 1, _BACK)
ifft2d = _complex("ifft2d", jnp.fft.ifftn, 2, _BACK)
ifft3d = _complex("ifft3d", jnp.fft.ifftn, 3, _BACK)

_HALF = "Fourier transform of real numbers, half of the (symmetric) result,"
_WHOLE = "Real numbers with a given half of a Fourier transform, the inverse of rfft,"
_OWN, _TWICE = "the input's", "2 (n - 1) for n coefficients in the last dimension"
rfft = _real("rfft", jnp.fft.rfftn, 1, _HALF, "f", _OWN)
rfft2d = _real("rfft2d", jnp.fft.rfftn, 2, _HALF, "f", _OWN)
rfft3d = _real("rfft3d", jnp.fft.rfftn, 3, _HALF, "f", _OWN)
irfft = _real("irfft", jnp.fft.irfftn, 1, _WHOLE, "c", _TWICE)
irfft2d = _real("irfft2d", jnp.fft.irfftn, 2, _WHOLE, "c", _TWICE)
irfft3d = _real("irfft3d", jnp.fft.irfftn, 3, _WHOLE, "c", _TWICE)


def _shifts(x: Any, axes: Any) -> tuple[list[int], list[int]]:
    """The dimensions to move along, and half of their sizes."""
    rank = len(x.shape)
    axes = static_value(axes, "axes")
    chosen = range(rank) if axes is None else (axes,) if isinstance(axes, int) else axes
    return list(chosen), [x.shape[a] // 2 for a in chosen]


def fftshift(x: TensorLike, axes: Any = None, name: str | None = None) -> Tensor:
    """Moves the frequency 0 to the middle.

    The result has the shape of the argument.

    Args:
      x: a tensor.
      axes: the dimensions; default all.
      name: ignored.

    Example:
      >>> import meshflow as tf
      >>> tf.signal.fftshift([0, 1, 2, -2, -1]).numpy()
      array([-2, -1,  0,  1,  2], dtype=int32)
    """
    x = convert_to_tensor(x)
    chosen, halves = _shifts(x, axes)
    return roll(x, halves, chosen)


def ifftshift(x: TensorLike, axes: Any = None, name: str | None = None) -> Tensor:
    """The inverse of `fftshift`; same arguments.

    The result has the shape of the argument.

    Example:
      >>> import meshflow as tf
      >>> tf.signal.ifftshift([-2, -1, 0, 1, 2]).numpy()
      array([ 0,  1,  2, -2, -1], dtype=int32)
    """
    x = convert_to_tensor(x)
    chosen, halves = _shifts(x, axes)
    return roll(x, [-h for h in halves], chosen)
