"""Overlapping frames of signals, and their spectra."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import jax.numpy as jnp
import numpy as np

from meshflow.core.dispatch.dispatch import op
from meshflow.core.dispatch.operands import to_static_value
from meshflow.core.runtime.errors import InvalidValueError
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.dtypes import DType
from meshflow.core.values.symbolic_sizes import make_range
from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.ops import array, math
from meshflow.ops.deferred_host_values import DeferredValue
from meshflow.ops.signal.cosine import dct, idct
from meshflow.ops.signal.fourier import irfft, rfft
from meshflow.ops.signal.windows import hann_window, vorbis_window

__all__ = [
    "frame",
    "inverse_mdct",
    "inverse_stft",
    "inverse_stft_window_fn",
    "mdct",
    "overlap_and_add",
    "stft",
]


# An integer, or a constant tensor that contains one.
_Integer: TypeAlias = int | Tensor
# Called with (frame_length, dtype=...); returns the weights of a frame.
_WindowFunction: TypeAlias = Callable[..., Tensor]


@op(same=("signal", "pad_value"), name="frame")
def _split_frames(
    signal: TensorLike, pad_value: TensorLike, length: int, step: int, pad_end: bool, axis: int
) -> Tensor:
    axis = axis % signal.ndim
    x = jnp.moveaxis(signal, axis, -1)
    size = x.shape[-1]
    count = -(-size // step) if pad_end else max(0, 1 + (size - length) // step)
    missing = max(0, (count - 1) * step + length - size)
    if pad_end and missing:
        tail = jnp.broadcast_to(pad_value, (*x.shape[:-1], missing))
        x = jnp.concatenate([x, tail], -1)
    indices = make_range(count)[:, None] * step + np.arange(length)
    return jnp.moveaxis(x[..., indices], (-2, -1), (axis, axis + 1))


def frame(
    signal: TensorLike,
    frame_length: _Integer,
    frame_step: _Integer,
    pad_end: bool = False,
    pad_value: TensorLike = 0,
    axis: int = -1,
    name: str | None = None,
) -> Tensor:
    """Split an axis into overlapping frames.

    Args:
      signal: A tensor [..., samples, ...].
      frame_length: Samples per frame.
      frame_step: Samples from the start of a frame to that of the next.
      pad_end: Whether to include frames that extend beyond the end, padded with `pad_value`.
      pad_value: Value of the padding.
      axis: The axis.
      name: Ignored.

    Returns:
      Tensor [..., frames, frame_length, ...].

    Example:
      >>> tf.signal.frame([1, 2, 3, 4, 5], 3, 2).numpy()
      array([[1, 2, 3],
             [3, 4, 5]], dtype=int32)
    """
    if not hasattr(signal, "_keras_history") and not isinstance(signal, DeferredValue):
        signal = convert_to_tensor(signal)
    length = to_static_value(frame_length, "frame_length")
    step = to_static_value(frame_step, "frame_step")
    if isinstance(length, tuple) or isinstance(step, tuple):
        raise ValueError("frame: frame_length and frame_step must be scalars.")
    if step < 1:
        raise InvalidValueError(f"frame: frame_step must be positive, got {step}.")
    rank = len(signal.shape)
    axis = to_static_value(axis, "axis")
    if rank < 1 or not -rank <= axis < rank:
        raise InvalidValueError(f"frame: axis {axis} is out of range for rank {rank}.")
    fill = convert_to_tensor(pad_value, dtype=signal.dtype)
    return _split_frames(signal, fill, length, step, bool(pad_end), axis)


@op(name="overlap_and_add")
def _add_overlapping(signal: TensorLike, step: int) -> Tensor:
    count, length = signal.shape[-2:]
    total = (count - 1) * step + length if count else 0
    indices = make_range(count)[:, None] * step + np.arange(length)
    return jnp.zeros((*signal.shape[:-2], total), signal.dtype).at[..., indices].add(signal)


def overlap_and_add(signal: TensorLike, frame_step: _Integer, name: str | None = None) -> Tensor:
    """Sum overlapping frames to a signal.

    Args:
      signal: Tensor [..., frames, frame_length].
      frame_step: Samples from the start of a frame to that of the next.
      name: Ignored.

    Returns:
      Tensor [..., (frames - 1) * frame_step + frame_length].

    Raises:
      ValueError: If `signal` has fewer than 2 dimensions or `frame_step` is not an integer.

    Example:
      >>> frames = [[1, 1, 1], [10, 10, 10]]
      >>> print(tf.signal.overlap_and_add(frames, frame_step=2).numpy())
      [ 1  1 11 10 10]
    """
    signal = signal if hasattr(signal, "_keras_history") else convert_to_tensor(signal)
    if len(signal.shape) < 2:
        raise ValueError(f"overlap_and_add: signal must have 2 dimensions, got {signal.shape}.")
    step = to_static_value(frame_step, "frame_step")
    if not isinstance(step, int):
        raise ValueError(f"overlap_and_add: frame_step must be an integer, got {frame_step!r}.")
    return _add_overlapping(signal, step)


def _round_up_to_power_of_two(length: int) -> int:
    return 1 << max(0, (length - 1).bit_length())


def stft(
    signals: TensorLike,
    frame_length: _Integer,
    frame_step: _Integer,
    fft_length: _Integer | None = None,
    window_fn: _WindowFunction | None = hann_window,
    pad_end: bool = False,
    name: str | None = None,
) -> Tensor:
    """Compute the short-time Fourier transform.

    Args:
      signals: float32 or float64, [..., samples].
      frame_length: Samples per frame.
      frame_step: Samples from the start of a frame to that of the next.
      fft_length: Size of the transform; by default the smallest power of 2 that is at least
        `frame_length`.
      window_fn: Function of (frame_length, dtype=...) that returns the weights of a frame; None for
        no window.
      pad_end: Whether to include frames that extend beyond the end, padded with zeros.
      name: Ignored.

    Returns:
      complex64 or complex128, [..., frames, fft_length // 2 + 1].

    Example:
      >>> tf.signal.stft(tf.zeros([1, 100]), frame_length=20, frame_step=10).shape
      TensorShape([1, 9, 17])
    """
    length = to_static_value(frame_length, "frame_length")
    size = to_static_value(fft_length, "fft_length")
    frames = frame(signals, length, frame_step, pad_end=pad_end)
    if window_fn is not None:
        frames = frames * window_fn(length, dtype=frames.dtype)
    return rfft(frames, [_round_up_to_power_of_two(length) if size is None else size])


def inverse_stft_window_fn(
    frame_step: _Integer, forward_window_fn: _WindowFunction = hann_window, name: str | None = None
) -> Callable[[_Integer, DType], Tensor]:
    """Create a window function for `inverse_stft` that undoes the window of `stft`.

    Args:
      frame_step: Samples from the start of a frame to that of the next.
      forward_window_fn: The `window_fn` of `stft`.
      name: Ignored.

    Returns:
      A function of (frame_length, dtype) that returns a vector of shape [frame_length].

    Example:
      >>> window = tf.signal.inverse_stft_window_fn(frame_step=4)
      >>> signal = tf.range(16.0)
      >>> spectra = tf.signal.stft(signal, frame_length=8, frame_step=4)
      >>> restored = tf.signal.inverse_stft(spectra, 8, 4, window_fn=window)
      >>> print(restored[4:8].numpy().round(3))  # samples in two frames
      [4. 5. 6. 7.]
    """

    def inverse_window_fn(frame_length: _Integer, dtype: DType) -> Tensor:
        length = to_static_value(frame_length, "frame_length")
        step = to_static_value(frame_step, "frame_step")
        window = forward_window_fn(length, dtype=dtype)
        overlaps = -(-length // step)
        squares = array.pad(math.square(window), [[0, overlaps * step - length]])
        sums = math.reduce_sum(array.reshape(squares, [overlaps, step]), 0)
        return window / array.tile(sums, [overlaps])[:length]

    return inverse_window_fn


def inverse_stft(
    stfts: TensorLike,
    frame_length: _Integer,
    frame_step: _Integer,
    fft_length: _Integer | None = None,
    window_fn: _WindowFunction | None = hann_window,
    name: str | None = None,
) -> Tensor:
    """Compute signals from their short-time Fourier transforms.

    The arguments are those of `stft`; `stfts` has the shape [..., frames, fft_length // 2 + 1]. The
    original signals are only restored with `inverse_stft_window_fn` as the window.

    Returns:
      Real tensor [..., samples].

    Example:
      >>> spectra = tf.signal.stft([1.0, 2.0, 3.0, 4.0], frame_length=2, frame_step=2, window_fn=None)
      >>> print(tf.signal.inverse_stft(spectra, 2, 2, window_fn=None).numpy().round(3))
      [1. 2. 3. 4.]
    """
    length = to_static_value(frame_length, "frame_length")
    size = to_static_value(fft_length, "fft_length")
    size = _round_up_to_power_of_two(length) if size is None else size
    frames = irfft(stfts, [size])
    if length > size:
        frames = array.pad(frames, [[0, 0]] * (frames.ndim - 1) + [[0, length - size]])
    frames = frames[..., :length]
    if window_fn is not None:
        frames = frames * window_fn(length, dtype=frames.dtype)
    return overlap_and_add(frames, frame_step)


def mdct(
    signals: TensorLike,
    frame_length: _Integer,
    window_fn: _WindowFunction | None = vorbis_window,
    pad_end: bool = False,
    norm: str | None = None,
    name: str | None = None,
) -> Tensor:
    """Compute the modified discrete cosine transform of frames that overlap by half.

    Args:
      signals: float32 or float64, [..., samples].
      frame_length: Samples per frame, a multiple of 4.
      window_fn: Function of (frame_length, dtype=...) that returns the weights of a frame; None for
        1 / sqrt(2).
      pad_end: Whether to include frames that extend beyond the end, padded with zeros.
      norm: None or 'ortho'.
      name: Ignored.

    Returns:
      Tensor [..., frames, frame_length // 2].

    Raises:
      ValueError: If `frame_length` is not a multiple of 4.

    Example:
      >>> tf.signal.mdct(tf.range(16.0), frame_length=8).shape
      TensorShape([3, 4])
    """
    length = to_static_value(frame_length, "frame_length")
    if length % 4:
        raise ValueError(f"mdct: frame_length must be a multiple of 4, got {length}.")
    frames = frame(signals, length, length // 2, pad_end=pad_end)
    frames = frames * _make_mdct_window(window_fn, length, frames.dtype)
    a, b, c, d = array.split(frames, 4, axis=-1)
    folded = array.concat([-array.reverse(c, [-1]) - d, a - array.reverse(b, [-1])], -1)
    return dct(folded, type=4, norm=norm)


def _make_mdct_window(window_fn: _WindowFunction | None, length: int, dtype: DType) -> Tensor:
    if window_fn is None:
        return convert_to_tensor(np.sqrt(0.5), dtype=dtype)
    return window_fn(length, dtype=dtype)


def inverse_mdct(
    mdcts: TensorLike,
    window_fn: _WindowFunction | None = vorbis_window,
    norm: str | None = None,
    name: str | None = None,
) -> Tensor:
    """Compute signals from their `mdct`, except for the first and last half frame.

    Args:
      mdcts: Tensor [..., frames, frame_length // 2].
      window_fn: The `window_fn` of `mdct`.
      norm: The `norm` of `mdct`.
      name: Ignored.

    Returns:
      Tensor [..., samples].

    Example:
      >>> spectra = tf.signal.mdct(tf.range(16.0), frame_length=8, norm="ortho")
      >>> print(tf.signal.inverse_mdct(spectra, norm="ortho")[4:8].numpy().round(3))
      [4. 5. 6. 7.]
    """
    mdcts = convert_to_tensor(mdcts)
    half = int(mdcts.shape[-1])
    scale = 1.0 if norm else 0.5 / half
    first, second = array.split(idct(mdcts, type=4, norm=norm) * scale, 2, axis=-1)
    mirrored_first, mirrored_second = (array.reverse(v, [-1]) for v in (first, second))
    frames = array.concat([second, -mirrored_second, -mirrored_first, -first], -1)
    return overlap_and_add(frames * _make_mdct_window(window_fn, 2 * half, frames.dtype), half)
