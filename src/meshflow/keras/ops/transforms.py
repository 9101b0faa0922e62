"""Fourier transforms, segment reductions, sequence extraction, and top k.

Example:
  >>> ops.top_k([1, 3, 2], 2).values.numpy().tolist()
  [3, 2]
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from meshflow.core.dispatch.dispatch import op
from meshflow.core.values import dtypes
from meshflow.core.values.dtypes import DTypeLike
from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.keras.ops.graph_calls import as_single_layer
from meshflow.keras.ops.op_factories import SegmentOp
from meshflow.keras.ops.promotion import as_float, as_tensor
from meshflow.ops import casting, math
from meshflow.ops.signal.windows import hamming_window, hann_window

__all__ = [
    *("extract_sequences", "fft", "fft2", "ifft2", "in_top_k", "irfft", "istft", "rfft"),
    *("segment_max", "segment_min", "segment_prod", "segment_sum", "stft", "top_k"),
]


class TopK(NamedTuple):
    """Largest elements and their indices."""

    values: Tensor
    indices: Tensor


@as_single_layer()
def top_k(x: TensorLike, k: int, sorted: bool = True) -> TopK:
    """Find the largest elements of the last axis, and their indices.

    Args:
      x: A tensor.
      k: Number of elements.
      sorted: Whether to return them in descending order.

    Returns:
      (values, indices).

    Example:
      >>> ops.top_k([1, 3, 2], 1).indices.numpy().tolist()
      [1]
    """
    values, indices = math.top_k(as_tensor(x), k, sorted)
    return TopK(values, indices)


@as_single_layer()
def in_top_k(targets: TensorLike, predictions: TensorLike, k: int) -> Tensor:
    """Check whether classes are among the k most probable ones.

    Args:
      targets: Class indices, [batch].
      predictions: [batch, classes].
      k: Number of classes.

    Example:
      >>> ops.in_top_k([1], [[0.1, 0.9]], 1).numpy().tolist()
      [True]
    """
    return math.in_top_k(casting.cast(as_tensor(targets), "int32"), as_float(predictions), k)


def _make_segment_op(reduction: str, doc: str) -> SegmentOp:
    reduce = getattr(math, f"unsorted_segment_{reduction}")

    def public(
        data: TensorLike,
        segment_ids: TensorLike,
        num_segments: int | None = None,
        sorted: bool = False,
    ) -> Tensor:
        data, ids = as_tensor(data), casting.cast(as_tensor(segment_ids), "int32")
        _check_ids(data, ids)
        count: Any = math.reduce_max(ids) + 1 if num_segments is None else num_segments
        return reduce(data, ids, count)

    public.__name__ = public.__qualname__ = f"segment_{reduction}"
    public.__doc__ = (
        f"Compute {doc} of the rows of each segment.\n\nArgs:\n  data: A tensor.\n  segment_ids: The segment of each row.\n"
        "  num_segments: Number of segments; default the largest id plus 1, which must be known while tracing.\n"
        "  sorted: Accepted and ignored: ids may have any order.\n\nReturns:\n  A tensor with one row per segment.\n"
    )
    return public


def _check_ids(data: Tensor, ids: Tensor) -> None:
    if len(ids.shape) != 1:
        raise ValueError(
            f"Argument `segment_ids` should be a 1-D vector with the segment of each row. Received: shape={tuple(ids.shape)}"
        )
    if None not in (ids.shape[0], data.shape[0]) and ids.shape[0] != data.shape[0]:
        raise ValueError(
            "Argument `segment_ids` and `data` should have same leading dimension. Received: "
            f"{tuple(ids.shape)} and {tuple(data.shape)}"
        )


segment_sum = _make_segment_op("sum", "the sum")
segment_max = _make_segment_op("max", "the maximum")
segment_min = _make_segment_op("min", "the minimum")
segment_prod = _make_segment_op("prod", "the product")


def _check_rank(x: Tensor, min_rank: int) -> Tensor:
    """Check the minimum rank of a tensor, and return the tensor."""
    if len(x.shape) < min_rank:
        raise ValueError(f"Input should have rank >= {min_rank}. Received: shape={tuple(x.shape)}")
    return x


def _split_complex(x: Any, name: str, min_rank: int = 1) -> tuple[Tensor, Tensor]:
    if not isinstance(x, (tuple, list)) or len(x) != 2:
        raise ValueError(
            f"{name}: Input `x` should be a tuple of two tensors - real and imaginary. Received: x={x}"
        )
    real, imaginary = (as_float(v) for v in x)
    if tuple(real.shape) != tuple(imaginary.shape):
        raise ValueError(
            f"{name}: Both the real and imaginary parts should have the same shape. Received: "
            f"{tuple(real.shape)} and {tuple(imaginary.shape)}"
        )
    return _check_rank(real, min_rank), imaginary


@op(name="fft")
def _fft(real: TensorLike, imaginary: TensorLike, kind: str) -> Any:
    spectrum = getattr(jnp.fft, kind)(real + 1j * imaginary)
    return jnp.real(spectrum).astype(real.dtype), jnp.imag(spectrum).astype(real.dtype)


@as_single_layer()
def fft(x: tuple[TensorLike, TensorLike]) -> tuple[Tensor, Tensor]:
    """Compute the discrete Fourier transform of the last axis.

    Args:
      x: (real part, imaginary part).

    Returns:
      (real part, imaginary part).

    Example:
      >>> ops.fft(([1.0, 1.0], [0.0, 0.0]))[0].numpy().tolist()
      [2.0, 0.0]
    """
    return tuple(_fft(*_split_complex(x, "fft"), "fft"))


@as_single_layer()
def fft2(x: tuple[TensorLike, TensorLike]) -> tuple[Tensor, Tensor]:
    """Compute the discrete Fourier transform of the last two axes.

    Args:
      x: (real part, imaginary part).

    Returns:
      (real part, imaginary part).

    Example:
      >>> ops.fft2(([[1.0]], [[0.0]]))[0].numpy().tolist()
      [[1.0]]
    """
    return tuple(_fft(*_split_complex(x, "fft2", 2), "fft2"))


@as_single_layer()
def ifft2(x: tuple[TensorLike, TensorLike]) -> tuple[Tensor, Tensor]:
    """Compute the inverse of `fft2`.

    Args:
      x: (real part, imaginary part).

    Returns:
      (real part, imaginary part).

    Example:
      >>> ops.ifft2(([[1.0]], [[0.0]]))[0].numpy().tolist()
      [[1.0]]
    """
    return tuple(_fft(*_split_complex(x, "ifft2", 2), "ifft2"))


@op(same=(), name="rfft")
def _rfft(x: TensorLike, length: int | None) -> Any:
    spectrum = jnp.fft.rfft(x, length)
    return jnp.real(spectrum).astype(x.dtype), jnp.imag(spectrum).astype(x.dtype)


@as_single_layer()
def rfft(x: TensorLike, fft_length: int | None = None) -> tuple[Tensor, Tensor]:
    """Compute the non-redundant half of the Fourier transform of real numbers.

    Args:
      x: A real tensor, [..., n].
      fft_length: Length to which rows are truncated or zero-padded.

    Returns:
      (real part, imaginary part), [..., n / 2 + 1].

    Example:
      >>> ops.rfft([1.0, 1.0])[0].numpy().tolist()
      [2.0, 0.0]
    """
    return tuple(_rfft(_check_rank(as_float(x), 1), fft_length))


@op(name="irfft")
def _irfft(real: TensorLike, imaginary: TensorLike, length: int | None) -> Any:
    return jnp.fft.irfft(real + 1j * imaginary, length).astype(real.dtype)


@as_single_layer()
def irfft(x: tuple[TensorLike, TensorLike], fft_length: int | None = None) -> Tensor:
    """Compute the inverse of `rfft`.

    Args:
      x: (real part, imaginary part).
      fft_length: Length of the result.

    Example:
      >>> ops.irfft(([2.0, 0.0], [0.0, 0.0])).numpy().tolist()
      [1.0, 1.0]
    """
    return _irfft(*_split_complex(x, "irfft"), fft_length)


@op(same=(), name="extract_sequences")
def _extract_sequences(x: TensorLike, length: int, stride: int) -> Any:
    starts = np.arange(0, x.shape[-1] - length + 1, stride)
    return x[..., starts[:, None] + np.arange(length)]


@as_single_layer()
def extract_sequences(x: TensorLike, sequence_length: int, sequence_stride: int) -> Tensor:
    """Extract overlapping sequences of the last axis.

    Args:
      x: [..., n].
      sequence_length: Length of the sequences.
      sequence_stride: Distance between the starts of sequences.

    Returns:
      [..., parts, length].

    Example:
      >>> ops.extract_sequences([1, 2, 3, 4, 5], 3, 2).numpy().tolist()
      [[1, 2, 3], [3, 4, 5]]
    """
    _check_stride(sequence_stride)
    return _extract_sequences(_check_rank(as_tensor(x), 1), sequence_length, sequence_stride)


def _check_stride(stride: int) -> None:
    if not isinstance(stride, int) or stride < 1:
        raise ValueError(
            f"`sequence_stride` must be a positive integer. Received: sequence_stride={stride}"
        )


def _make_window(
    window: str | TensorLike | None, length: int, fft_length: int, dtype: DTypeLike
) -> np.ndarray:
    """Create a window, zero-padded to the length of the transform."""
    if window is None:
        values = np.ones(length)
    elif isinstance(window, str):
        if window not in ("hann", "hamming"):
            raise ValueError(
                f'If a string is passed to `window`, it must be one of `"hann"`, `"hamming"`. Received: window={window}'
            )
        values = np.asarray((hann_window if window == "hann" else hamming_window)(length))
    else:
        values = np.asarray(as_tensor(window))
        if values.shape != (length,):
            raise ValueError(
                f"The shape of `window` must be equal to [sequence_length].Received: window shape={values.shape}"
            )
    before = (fft_length - length) // 2
    after = fft_length - length - before
    return np.pad(values, (before, after)).astype(dtypes.as_dtype(dtype).dtype)


@op(same=(), name="stft")
def _stft(x: TensorLike, window: TensorLike, fft_length: int, stride: int, center: bool) -> Any:
    if center:
        x = jnp.pad(
            x, [(0, 0)] * (x.ndim - 1) + [(fft_length // 2, fft_length // 2)], mode="reflect"
        )
    starts = np.arange(0, x.shape[-1] - fft_length + 1, stride)
    frames = x[..., starts[:, None] + np.arange(fft_length)] * window
    spectra = jnp.fft.rfft(frames)
    return jnp.real(spectra).astype(x.dtype), jnp.imag(spectra).astype(x.dtype)


@as_single_layer()
def stft(
    x: TensorLike,
    sequence_length: int,
    sequence_stride: int,
    fft_length: int,
    window: str | TensorLike | None = "hann",
    center: bool = True,
) -> tuple[Tensor, Tensor]:
    """Compute the short-time Fourier transform of the last axis.

    Args:
      x: [..., n].
      sequence_length: Length of the sequences.
      sequence_stride: Distance between the starts of sequences.
      fft_length: Length to which sequences are zero-padded.
      window: 'hann', 'hamming', a vector of factors, or None.
      center: Whether to center sequences at their positions, with the signal mirrored at both ends.

    Returns:
      (real part, imaginary part), [..., parts, fft_length / 2 + 1].

    Example:
      >>> ops.stft([0.0, 1.0, 2.0, 3.0, 4.0], 3, 2, 3)[0].shape
      TensorShape([3, 2])
    """
    _check_stride(sequence_stride)
    if sequence_length > fft_length:
        raise ValueError(
            "`fft_length` must equal or larger than `sequence_length`. Received: "
            f"sequence_length={sequence_length}, fft_length={fft_length}"
        )
    x = _check_rank(as_float(x), 1)
    factors = as_tensor(_make_window(window, sequence_length, fft_length, x.dtype))
    return tuple(_stft(x, factors, fft_length, sequence_stride, center))


@op(name="istft")
def _istft(
    real: TensorLike,
    imaginary: TensorLike,
    window: TensorLike,
    fft_length: int,
    stride: int,
    center: bool,
    length: int | None,
    scaled: bool,
) -> Any:
    frames = jnp.fft.irfft(real + 1j * imaginary, fft_length).astype(real.dtype)
    count = frames.shape[-2]
    size = fft_length + stride * (count - 1)
    indices = np.arange(count)[:, None] * stride + np.arange(fft_length)
    zeros = jnp.zeros((*frames.shape[:-2], size), frames.dtype)
    total = zeros.at[..., indices].add(frames * window)
    signal = total
    if scaled:
        squares = jnp.broadcast_to(window**2, indices.shape)
        weights = jnp.zeros(size, frames.dtype).at[indices].add(squares)
        signal = jnp.where(weights > 1e-10, total / jnp.where(weights > 1e-10, weights, 1), total)
    start = fft_length // 2 if center else 0
    if length is not None:
        end = start + length
    else:
        end = size - (fft_length // 2 if center else 0)
    return signal[..., start:end]


@as_single_layer()
def istft(
    x: tuple[TensorLike, TensorLike],
    sequence_length: int,
    sequence_stride: int,
    fft_length: int,
    length: int | None = None,
    window: str | TensorLike | None = "hann",
    center: bool = True,
) -> Tensor:
    """Reconstruct a signal from its short-time Fourier transform.

    Args:
      x: (real part, imaginary part), the result of `stft`.
      sequence_length: See `stft`.
      sequence_stride: See `stft`.
      fft_length: See `stft`.
      length: Length of the signal; default the range that the sequences cover.
      window: See `stft`. With None, overlapping sequences are summed without division by their
        number.
      center: See `stft`.

    Example:
      >>> parts = ops.stft([0.0, 1.0, 2.0, 3.0, 4.0], 1, 1, 1, window=None)
      >>> ops.istft(parts, 1, 1, 1, window=None).numpy().tolist()
      [0.0, 1.0, 2.0, 3.0, 4.0]
    """
    real, imaginary = _split_complex(x, "istft", 2)
    _check_stride(sequence_stride)
    factors = as_tensor(_make_window(window, sequence_length, fft_length, real.dtype))
    is_scaled = window is not None
    return _istft(real, imaginary, factors, fft_length, sequence_stride, center, length, is_scaled)
