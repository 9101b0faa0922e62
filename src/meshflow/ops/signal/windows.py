"""Window functions."""

from __future__ import annotations

from typing import Any

import numpy as np

from meshflow.core.dispatch.operands import static_value
from meshflow.core.runtime.errors import InvalidValueError
from meshflow.core.values.convert import from_python
from meshflow.core.values.dtypes import DType, as_dtype, float32
from meshflow.core.values.tensor import Tensor

__all__ = [
    "hamming_window",
    "hann_window",
    "kaiser_bessel_derived_window",
    "kaiser_window",
    "vorbis_window",
]


def _length(window_length: Any) -> int:
    size = static_value(window_length, "window_length")
    if isinstance(size, tuple):
        raise InvalidValueError(f"window_length must be a number, got {list(size)}.")
    return int(size)


def _window(values: np.ndarray, dtype: DType) -> Tensor:
    return from_python(values.astype(dtype.dtype), dtype)


def _floating(dtype: Any, name: str) -> DType:
    kind = as_dtype(dtype)
    if not kind.is_floating:
        raise ValueError(f"{name}: dtype must be a floating point type, got {kind.name}.")
    return kind


def _raised_cosine(
    name: str, window_length: Any, periodic: Any, dtype: Any, mean: float, swing: float
) -> Tensor:
    kind, size = _floating(dtype, name), _length(window_length)
    if size == 1:
        return _window(np.ones(1), kind)
    # A periodic window leaves out its last value, which repeats the first, only of even lengths.
    period = size - 1 + (bool(periodic) and size % 2 == 0)
    return _window(mean - swing * np.cos(2 * np.pi * np.arange(size) / period), kind)


def hann_window(
    window_length: Any, periodic: Any = True, dtype: Any = float32, name: str | None = None
) -> Tensor:
    """The Hann window, a raised cosine that ends at 0.

    The result is a vector of shape (window_length,).

    Args:
      window_length: number of values.
      periodic: whether the window of even length is one period, for spectra; else it is symmetric.
      dtype: a floating dtype.
      name: ignored.

    Returns:
      A vector.

    Raises:
      ValueError: when `dtype` is not floating.

    Example:
      >>> import meshflow as tf
      >>> tf.signal.hann_window(4).numpy()
      array([0. , 0.5, 1. , 0.5], dtype=float32)
    """
    return _raised_cosine("hann_window", window_length, periodic, dtype, 0.5, 0.5)


def hamming_window(
    window_length: Any, periodic: Any = True, dtype: Any = float32, name: str | None = None
) -> Tensor:
    """The Hamming window, a raised cosine that ends at 0.08; arguments as in `hann_window`.

    The result is a vector of shape (window_length,).

    Example:
      >>> import meshflow as tf
      >>> print(tf.signal.hamming_window(4).numpy().round(3))
      [0.08 0.54 1.   0.54]
    """
    return _raised_cosine("hamming_window", window_length, periodic, dtype, 0.54, 0.46)


def _kaiser(size: int, beta: float) -> np.ndarray:
    return np.kaiser(size, beta)


def kaiser_window(
    window_length: Any, beta: float = 12.0, dtype: Any = float32, name: str | None = None
) -> Tensor:
    """The Kaiser window.

    The result is a vector of shape (window_length,).

    Args:
      window_length: number of values.
      beta: how fast it falls.
      dtype: a floating dtype.
      name: ignored.

    Returns:
      A vector.

    Example:
      >>> import meshflow as tf
      >>> print(tf.signal.kaiser_window(5, beta=2.0).numpy().round(3))
      [0.439 0.835 1.    0.835 0.439]
    """
    kind = _floating(dtype, "kaiser_window")
    return _window(_kaiser(_length(window_length), float(static_value(beta, "beta"))), kind)


def kaiser_bessel_derived_window(
    window_length: Any, beta: float = 12.0, dtype: Any = float32, name: str | None = None
) -> Tensor:
    """The window for `mdct` derived from the Kaiser window; arguments as there, of even length.

    The result is a vector of shape (window_length,).

    Example:
      >>> import meshflow as tf
      >>> window = tf.signal.kaiser_bessel_derived_window(4)
      >>> print((window[:2] ** 2 + window[2:] ** 2).numpy().round(3))
      [1. 1.]
    """
    kind = _floating(dtype, "kaiser_bessel_derived_window")
    half = _length(window_length) // 2
    sums = np.cumsum(_kaiser(half + 1, float(static_value(beta, "beta"))))
    rising = np.sqrt(sums[:-1] / sums[-1])
    return _window(np.concatenate([rising, rising[::-1]]), kind)


def vorbis_window(window_length: Any, dtype: Any = float32, name: str | None = None) -> Tensor:
    """The window of the Vorbis codec, for `mdct`.

    The result is a vector of shape (window_length,).

    Args:
      window_length: number of values.
      dtype: a floating dtype.
      name: ignored.

    Returns:
      A vector.

    Example:
      >>> import meshflow as tf
      >>> print(tf.signal.vorbis_window(4).numpy().round(3))
      [0.228 0.974 0.974 0.228]
    """
    kind, size = _floating(dtype, "vorbis_window"), _length(window_length)
    inner = np.sin(np.pi * (np.arange(size) + 0.5) / size) ** 2
    return _window(np.sin(np.pi / 2 * inner), kind)
