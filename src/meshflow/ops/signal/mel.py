"""Spectra on the mel scale of frequencies."""

from __future__ import annotations

from typing import Any

import numpy as np

from meshflow.core.dispatch.operands import static_value
from meshflow.core.values.convert import convert_to_tensor, from_python
from meshflow.core.values.dtypes import as_dtype, float32
from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.ops.signal.cosine import dct

__all__ = ["linear_to_mel_weight_matrix", "mfccs_from_log_mel_spectrograms"]


def _mel(hertz: Any) -> Any:
    return 1127.0 * np.log1p(np.asarray(hertz, np.float64) / 700.0)


def linear_to_mel_weight_matrix(
    num_mel_bins: int = 20,
    num_spectrogram_bins: Any = 129,
    sample_rate: Any = 8000,
    lower_edge_hertz: float = 125.0,
    upper_edge_hertz: float = 3800.0,
    dtype: Any = float32,
    name: str | None = None,
) -> Tensor:
    """Weights that turn spectra into mel spectra: overlapping triangles on the mel scale.

    Args:
      num_mel_bins: number of triangles.
      num_spectrogram_bins: number of frequencies of a spectrum, from 0 to sample_rate / 2.
      sample_rate: samples per second.
      lower_edge_hertz: where the first triangle starts.
      upper_edge_hertz: where the last one ends.
      dtype: a floating dtype.
      name: ignored.

    Returns:
      Tensor [num_spectrogram_bins, num_mel_bins].

    Raises:
      ValueError: for numbers that make no triangles, or a dtype that is not floating.

    Example:
      >>> import meshflow as tf
      >>> weights = tf.signal.linear_to_mel_weight_matrix(num_mel_bins=20, num_spectrogram_bins=129)
      >>> spectra = tf.ones([50, 129])
      >>> (spectra @ weights).shape
      TensorShape([50, 20])
    """
    bins, rate = static_value(num_spectrogram_bins, "bins"), static_value(sample_rate, "rate")
    kind = as_dtype(dtype)
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
    if not kind.is_floating:
        raise ValueError(f"dtype must be a floating point type, got {kind.name}.")
    # The frequency 0 belongs to no triangle.
    frequencies = _mel(np.linspace(0.0, rate / 2, bins)[1:])[:, None]
    edges = np.linspace(_mel(lower_edge_hertz), _mel(upper_edge_hertz), num_mel_bins + 2)
    low, middle, high = edges[:-2], edges[1:-1], edges[2:]
    rising = (frequencies - low) / (middle - low)
    falling = (high - frequencies) / (high - middle)
    weights = np.maximum(0.0, np.minimum(rising, falling))
    return from_python(np.pad(weights, [[1, 0], [0, 0]]).astype(kind.dtype), kind)


def mfccs_from_log_mel_spectrograms(
    log_mel_spectrograms: TensorLike, name: str | None = None
) -> Tensor:
    """Mel-frequency cepstral coefficients.

    Args:
      log_mel_spectrograms: logarithms of mel spectra, float32 or float64 [..., num_mel_bins].
      name: ignored.

    Returns:
      A tensor of the same shape.

    Raises:
      ValueError: when num_mel_bins is 0.

    Example:
      >>> import meshflow as tf
      >>> print(tf.signal.mfccs_from_log_mel_spectrograms(tf.ones([1, 4])).numpy().round(3) + 0)
      [[2.828 0.    0.    0.   ]]
    """
    spectra = convert_to_tensor(log_mel_spectrograms)
    count = int(spectra.shape[-1]) if len(spectra.shape) else 0
    if count == 0:
        raise ValueError("num_mel_bins must be positive, got 0.")
    return dct(spectra, type=2) * float(1 / np.sqrt(2.0 * count))
