"""Spectra on the mel scale."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from meshflow.core.dispatch.operands import to_static_value
from meshflow.core.values.convert import convert_python_value, convert_to_tensor
from meshflow.core.values.dtypes import DTypeLike, as_dtype, float32
from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.ops.signal.cosine import dct

__all__ = ["linear_to_mel_weight_matrix", "mfccs_from_log_mel_spectrograms"]


def _hertz_to_mel(hertz: ArrayLike) -> np.ndarray:
    return 1127.0 * np.log1p(np.asarray(hertz, np.float64) / 700.0)


def linear_to_mel_weight_matrix(
    num_mel_bins: int = 20,
    num_spectrogram_bins: int | Tensor = 129,
    sample_rate: float | Tensor = 8000,
    lower_edge_hertz: float = 125.0,
    upper_edge_hertz: float = 3800.0,
    dtype: DTypeLike = float32,
    name: str | None = None,
) -> Tensor:
    """Compute weights that map spectra to mel spectra: overlapping triangles on the mel scale.

    Args:
      num_mel_bins: Number of triangles.
      num_spectrogram_bins: Number of frequencies of a spectrum, from 0 to sample_rate / 2.
      sample_rate: Samples per second.
      lower_edge_hertz: Lower end of the first triangle.
      upper_edge_hertz: Upper end of the last triangle.
      dtype: A floating-point dtype.
      name: Ignored.

    Returns:
      Tensor [num_spectrogram_bins, num_mel_bins].

    Raises:
      ValueError: If the numbers do not define triangles, or `dtype` is not floating-point.

    Example:
      >>> weights = tf.signal.linear_to_mel_weight_matrix(num_mel_bins=20, num_spectrogram_bins=129)
      >>> spectra = tf.ones([50, 129])
      >>> (spectra @ weights).shape
      TensorShape([50, 20])
    """
    bins, rate = to_static_value(num_spectrogram_bins, "bins"), to_static_value(sample_rate, "rate")
    dt = as_dtype(dtype)
    if num_mel_bins <= 0:
        raise ValueError(f"num_mel_bins must be positive, got {num_mel_bins}.")
    if lower_edge_hertz < 0.0:
        raise ValueError(f"lower_edge_hertz must be non-negative, got {lower_edge_hertz}.")
    if lower_edge_hertz >= upper_edge_hertz:
        raise ValueError(
            f"lower_edge_hertz {lower_edge_hertz} must be below upper_edge_hertz {upper_edge_hertz}."
        )
    if rate <= 0.0:
        raise ValueError(f"sample_rate must be positive, got {rate}.")
    if upper_edge_hertz > rate / 2:
        raise ValueError(
            f"upper_edge_hertz must not be above sample_rate / 2 = {rate / 2}, got {upper_edge_hertz}."
        )
    if not dt.is_floating:
        raise ValueError(f"dtype must be a floating point type, got {dt.name}.")
    # No triangle contains the frequency 0.
    frequencies = _hertz_to_mel(np.linspace(0.0, rate / 2, bins)[1:])[:, None]
    edges = np.linspace(
        _hertz_to_mel(lower_edge_hertz), _hertz_to_mel(upper_edge_hertz), num_mel_bins + 2
    )
    low, middle, high = edges[:-2], edges[1:-1], edges[2:]
    rising = (frequencies - low) / (middle - low)
    falling = (high - frequencies) / (high - middle)
    weights = np.maximum(0.0, np.minimum(rising, falling))
    return convert_python_value(np.pad(weights, [[1, 0], [0, 0]]).astype(dt.dtype), dt)


def mfccs_from_log_mel_spectrograms(
    log_mel_spectrograms: TensorLike, name: str | None = None
) -> Tensor:
    """Compute mel-frequency cepstral coefficients.

    Args:
      log_mel_spectrograms: Logarithms of mel spectra, float32 or float64 [..., num_mel_bins].
      name: Ignored.

    Returns:
      A tensor of the same shape.

    Raises:
      ValueError: If num_mel_bins is 0.

    Example:
      >>> print(tf.signal.mfccs_from_log_mel_spectrograms(tf.ones([1, 4])).numpy().round(3) + 0)
      [[2.828 0.    0.    0.   ]]
    """
    spectra = convert_to_tensor(log_mel_spectrograms)
    count = int(spectra.shape[-1]) if len(spectra.shape) else 0
    if count == 0:
        raise ValueError("num_mel_bins must be positive, got 0.")
    return dct(spectra, type=2) * float(1 / np.sqrt(2.0 * count))
