"""Window functions."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np

from meshflow.core.dispatch.operands import to_static_value
from meshflow.core.runtime.errors import InvalidValueError
from meshflow.core.values.dtypes import DType, DTypeLike, as_dtype, float32
from meshflow.core.values.tensor import Tensor

__all__ = [
    "hamming_window",
    "hann_window",
    "kaiser_bessel_derived_window",
    "kaiser_window",
    "vorbis_window",
]


# An integer, or a constant tensor that contains one.
_Length: TypeAlias = int | Tensor


def _to_length(window_length: _Length) -> int:
    size = to_static_value(window_length, "window_length")
    if isinstance(size, tuple):
        raise InvalidValueError(f"window_length must be a scalar, got {list(size)}.")
    return int(size)


def _to_tensor(values: np.ndarray, dtype: DType) -> Tensor:
    return Tensor(values.astype(dtype.dtype))


def _to_floating_dtype(dtype: DTypeLike, name: str) -> DType:
    dt = as_dtype(dtype)
    if not dt.is_floating:
        raise ValueError(f"{name}: dtype must be a floating point type, got {dt.name}.")
    return dt


def _make_raised_cosine(
    name: str,
    window_length: _Length,
    periodic: bool | Tensor,
    dtype: DTypeLike,
    mean: float,
    amplitude: float,
) -> Tensor:
    dt, size = _to_floating_dtype(dtype, name), _to_length(window_length)
    if size == 1:
        return _to_tensor(np.ones(1), dt)
    # A periodic window of even length omits the last value, which repeats the first.
    period = size - 1 + (bool(periodic) and size % 2 == 0)
    return _to_tensor(mean - amplitude * np.cos(2 * np.pi * np.arange(size) / period), dt)


def hann_window(
    window_length: _Length,
    periodic: bool | Tensor = True,
    dtype: DTypeLike = float32,
    name: str | None = None,
) -> Tensor:
    """Compute the Hann window, a raised cosine that ends at 0.

    Args:
      window_length: Number of values.
      periodic: Whether a window of even length is one period, for spectra; otherwise it is
        symmetric.
      dtype: A floating-point dtype.
      name: Ignored.

    Returns:
      A vector of shape [window_length].

    Raises:
      ValueError: If `dtype` is not floating-point.

    Example:
      >>> tf.signal.hann_window(4).numpy()
      array([0. , 0.5, 1. , 0.5], dtype=float32)
    """
    return _make_raised_cosine("hann_window", window_length, periodic, dtype, 0.5, 0.5)


def hamming_window(
    window_length: _Length,
    periodic: bool | Tensor = True,
    dtype: DTypeLike = float32,
    name: str | None = None,
) -> Tensor:
    """Compute the Hamming window, of shape [window_length] and ending at 0.08; see `hann_window`.

    Example:
      >>> print(tf.signal.hamming_window(4).numpy().round(3))
      [0.08 0.54 1.   0.54]
    """
    return _make_raised_cosine("hamming_window", window_length, periodic, dtype, 0.54, 0.46)


def kaiser_window(
    window_length: _Length, beta: float = 12.0, dtype: DTypeLike = float32, name: str | None = None
) -> Tensor:
    """Compute the Kaiser window, a vector of shape [window_length].

    Args:
      window_length: Number of values.
      beta: Shape parameter; larger values narrow the window.
      dtype: A floating-point dtype.
      name: Ignored.

    Example:
      >>> print(tf.signal.kaiser_window(5, beta=2.0).numpy().round(3))
      [0.439 0.835 1.    0.835 0.439]
    """
    dt = _to_floating_dtype(dtype, "kaiser_window")
    return _to_tensor(
        np.kaiser(_to_length(window_length), float(to_static_value(beta, "beta"))), dt
    )


def kaiser_bessel_derived_window(
    window_length: _Length, beta: float = 12.0, dtype: DTypeLike = float32, name: str | None = None
) -> Tensor:
    """Compute the Kaiser-Bessel-derived window of even size, for `mdct`; see `kaiser_window`.

    Example:
      >>> window = tf.signal.kaiser_bessel_derived_window(4)
      >>> print((window[:2] ** 2 + window[2:] ** 2).numpy().round(3))
      [1. 1.]
    """
    dt = _to_floating_dtype(dtype, "kaiser_bessel_derived_window")
    half = _to_length(window_length) // 2
    sums = np.cumsum(np.kaiser(half + 1, float(to_static_value(beta, "beta"))))
    rising = np.sqrt(sums[:-1] / sums[-1])
    return _to_tensor(np.concatenate([rising, rising[::-1]]), dt)


def vorbis_window(
    window_length: _Length, dtype: DTypeLike = float32, name: str | None = None
) -> Tensor:
    """Compute the window of the Vorbis codec, a vector of shape [window_length], for `mdct`.

    Example:
      >>> print(tf.signal.vorbis_window(4).numpy().round(3))
      [0.228 0.974 0.974 0.228]
    """
    dt, size = _to_floating_dtype(dtype, "vorbis_window"), _to_length(window_length)
    inner = np.sin(np.pi * (np.arange(size) + 0.5) / size) ** 2
    return _to_tensor(np.sin(np.pi / 2 * inner), dt)
