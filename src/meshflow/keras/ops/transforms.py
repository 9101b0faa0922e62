"""Spectra, segments, frames of signals, and what is largest.

Example:
  >>> from meshflow.keras import ops
  >>> ops.top_k([1, 3, 2], 2).values.numpy().tolist()
  [3, 2]
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from meshflow.core.dispatch.dispatch import op
from meshflow.core.values import dtypes
from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.keras.ops.graph_calls import one_layer
from meshflow.keras.ops.making import Segments
from meshflow.keras.ops.promotion import as_float, tensor
from meshflow.ops import casting, math
from meshflow.ops.signal.windows import hamming_window, hann_window

__all__ = [
    *("extract_sequences", "fft", "fft2", "ifft2", "in_top_k", "irfft", "istft", "rfft"),
    *("segment_max", "segment_min", "segment_prod", "segment_sum", "stft", "top_k"),
]


class TopK(NamedTuple):
    """The largest elements and their places."""

    values: Tensor
    indices: Tensor


@one_layer()
def top_k(x: TensorLike, k: int, sorted: bool = True) -> TopK:
    """The largest elements of the last dimension, and their places.

    Args:
      x: a tensor.
      k: how many.
      sorted: whether they come in falling order.

    Returns:
      (values, indices).

    Example:
      >>> from meshflow.keras import ops
      >>> ops.top_k([1, 3, 2], 1).indices.numpy().tolist()
      [1]
    """
    values, indices = math.top_k(tensor(x), k, sorted)
    return TopK(values, indices)


@one_layer()
def in_top_k(targets: TensorLike, predictions: TensorLike, k: int) -> Tensor:
    """Whether classes are among the k most probable ones.

    Args:
      targets: numbers of classes, [batch].
      predictions: [batch, classes].
      k: how many.

    Example:
      >>> from meshflow.keras import ops
      >>> ops.in_top_k([1], [[0.1, 0.9]], 1).numpy().tolist()
      [True]
    """
    return math.in_top_k(casting.cast(tensor(targets), "int32"), as_float(predictions), k)


def _segments(kind: str, doc: str) -> Segments:
    reduce = getattr(math, f"unsorted_segment_{kind}")

    def public(
        data: TensorLike,
        segment_ids: TensorLike,
        num_segments: int | None = None,
        sorted: bool = False,
    ) -> Tensor:
        data, ids = tensor(data), casting.cast(tensor(segment_ids), "int32")
        _check_ids(data, ids)
        count: Any = math.reduce_max(ids) + 1 if num_segments is None else num_segments
        return reduce(data, ids, count)

    public.__name__ = public.__qualname__ = f"segment_{kind}"
    public.__doc__ = (
        f"{doc} of rows that have one number.\n\nArgs:\n  data: a tensor.\n  segment_ids: the number of each row.\n"
        "  num_segments: how many numbers there are; default the largest one and 1 more, which must be known when "
        "the program is written.\n  sorted: accepted: the numbers may have any order.\n\nReturns:\n  A tensor with a row for each number.\n"
    )
    return public


def _check_ids(data: Any, ids: Any) -> None:
    if len(ids.shape) != 1:
        raise ValueError(
            f"Argument `segment_ids` should be an 1-D vector, the number of each row. Received: shape={tuple(ids.shape)}"
        )
    if None not in (ids.shape[0], data.shape[0]) and ids.shape[0] != data.shape[0]:
        raise ValueError(
            "Argument `segment_ids` and `data` should have same leading dimension. Received: "
            f"{tuple(ids.shape)} and {tuple(data.shape)}"
        )


segment_sum = _segments("sum", "The sum")
segment_max = _segments("max", "The greatest elements")
segment_min = _segments("min", "The least elements")
segment_prod = _segments("prod", "The product")


def _ranked(x: Any, least: int) -> Any:
    """The tensor, if it has at least so many dimensions."""
    if len(x.shape) < least:
        raise ValueError(f"Input should have rank >= {least}. Received: shape={tuple(x.shape)}")
    return x


def _parts(x: Any, name: str, least: int = 1) -> tuple[Any, Any]:
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
    return _ranked(real, least), imaginary


@op(name="fft")
def _fft(real: TensorLike, imaginary: TensorLike, kind: str) -> Any:
    found = getattr(jnp.fft, kind)(real + 1j * imaginary)
    return jnp.real(found).astype(real.dtype), jnp.imag(found).astype(real.dtype)


@one_layer()
def fft(x: Any) -> tuple[Tensor, Tensor]:
    """The discrete Fourier transform of the last dimension.

    Args:
      x: (real part, imaginary part).

    Returns:
      (real part, imaginary part).

    Example:
      >>> from meshflow.keras import ops
      >>> ops.fft(([1.0, 1.0], [0.0, 0.0]))[0].numpy().tolist()
      [2.0, 0.0]
    """
    return tuple(_fft(*_parts(x, "fft"), "fft"))


@one_layer()
def fft2(x: Any) -> tuple[Tensor, Tensor]:
    """The discrete Fourier transform of the last two dimensions.

    Args:
      x: (real part, imaginary part).

    Returns:
      (real part, imaginary part).

    Example:
      >>> from meshflow.keras import ops
      >>> ops.fft2(([[1.0]], [[0.0]]))[0].numpy().tolist()
      [[1.0]]
    """
    return tuple(_fft(*_parts(x, "fft2", 2), "fft2"))


@one_layer()
def ifft2(x: Any) -> tuple[Tensor, Tensor]:
    """The inverse of `fft2`.

    Args:
      x: (real part, imaginary part).

    Returns:
      (real part, imaginary part).

    Example:
      >>> from meshflow.keras import ops
      >>> ops.ifft2(([[1.0]], [[0.0]]))[0].numpy().tolist()
      [[1.0]]
    """
    return tuple(_fft(*_parts(x, "ifft2", 2), "ifft2"))


@op(same=(), name="rfft")
def _rfft(x: TensorLike, length: Any) -> Any:
    found = jnp.fft.rfft(x, length)
    return jnp.real(found).astype(x.dtype), jnp.imag(found).astype(x.dtype)


@one_layer()
def rfft(x: TensorLike, fft_length: int | None = None) -> tuple[Tensor, Tensor]:
    """The half of the spectrum that real numbers have.

    Args:
      x: a real tensor, [..., n].
      fft_length: to how many elements rows are cut or filled up.

    Returns:
      (real part, imaginary part), [..., n / 2 + 1].

    Example:
      >>> from meshflow.keras import ops
      >>> ops.rfft([1.0, 1.0])[0].numpy().tolist()
      [2.0, 0.0]
    """
    return tuple(_rfft(_ranked(as_float(x), 1), fft_length))


@op(name="irfft")
def _irfft(real: TensorLike, imaginary: TensorLike, length: Any) -> Any:
    return jnp.fft.irfft(real + 1j * imaginary, length).astype(real.dtype)


@one_layer()
def irfft(x: Any, fft_length: int | None = None) -> Tensor:
    """The inverse of `rfft`.

    Args:
      x: (real part, imaginary part).
      fft_length: how many elements the rows have.

    Example:
      >>> from meshflow.keras import ops
      >>> ops.irfft(([2.0, 0.0], [0.0, 0.0])).numpy().tolist()
      [1.0, 1.0]
    """
    return _irfft(*_parts(x, "irfft"), fft_length)


@op(same=(), name="extract_sequences")
def _extract(x: TensorLike, length: int, stride: int) -> Any:
    starts = np.arange(0, x.shape[-1] - length + 1, stride)
    return x[..., starts[:, None] + np.arange(length)]


@one_layer()
def extract_sequences(x: TensorLike, sequence_length: int, sequence_stride: int) -> Tensor:
    """Overlapping parts of the last dimension.

    Args:
      x: [..., n].
      sequence_length: how long they are.
      sequence_stride: how far apart they begin.

    Returns:
      [..., parts, length].

    Example:
      >>> from meshflow.keras import ops
      >>> ops.extract_sequences([1, 2, 3, 4, 5], 3, 2).numpy().tolist()
      [[1, 2, 3], [3, 4, 5]]
    """
    _check_stride(sequence_stride)
    return _extract(_ranked(tensor(x), 1), sequence_length, sequence_stride)


def _check_stride(stride: Any) -> None:
    if not isinstance(stride, int) or stride < 1:
        raise ValueError(
            f"`sequence_stride` must be a positive integer. Received: sequence_stride={stride}"
        )


def _window(window: Any, length: int, fft_length: int, dtype: Any) -> np.ndarray | Any:
    """A window of the length of the transform, with zeros around."""
    if window is None:
        made: Any = np.ones(length)
    elif isinstance(window, str):
        if window not in ("hann", "hamming"):
            raise ValueError(
                f'If a string is passed to `window`, it must be one of `"hann"`, `"hamming"`. Received: window={window}'
            )
        made = np.asarray((hann_window if window == "hann" else hamming_window)(length))
    else:
        made = np.asarray(tensor(window))
        if made.shape != (length,):
            raise ValueError(
                f"The shape of `window` must be equal to [sequence_length].Received: window shape={made.shape}"
            )
    before = (fft_length - length) // 2
    return np.pad(made, (before, fft_length - length - before)).astype(dtypes.as_dtype(dtype).dtype)


@op(same=(), name="stft")
def _stft(x: TensorLike, window: TensorLike, fft_length: int, stride: int, center: bool) -> Any:
    if center:
        x = jnp.pad(
            x, [(0, 0)] * (x.ndim - 1) + [(fft_length // 2, fft_length // 2)], mode="reflect"
        )
    starts = np.arange(0, x.shape[-1] - fft_length + 1, stride)
    frames = x[..., starts[:, None] + np.arange(fft_length)] * window
    found = jnp.fft.rfft(frames)
    return jnp.real(found).astype(x.dtype), jnp.imag(found).astype(x.dtype)


@one_layer()
def stft(
    x: TensorLike,
    sequence_length: int,
    sequence_stride: int,
    fft_length: int,
    window: Any = "hann",
    center: bool = True,
) -> tuple[Tensor, Tensor]:
    """The spectra of overlapping parts of the last dimension.

    Args:
      x: [..., n].
      sequence_length: how long the parts are.
      sequence_stride: how far apart they begin.
      fft_length: to how many elements parts are filled up.
      window: 'hann', 'hamming', a row of factors, or None.
      center: whether a part's middle lies at its place, with the signal mirrored at its ends.

    Returns:
      (real part, imaginary part), [..., parts, fft_length / 2 + 1].

    Example:
      >>> from meshflow.keras import ops
      >>> ops.stft([0.0, 1.0, 2.0, 3.0, 4.0], 3, 2, 3)[0].shape
      TensorShape([3, 2])
    """
    _check_stride(sequence_stride)
    if sequence_length > fft_length:
        raise ValueError(
            "`fft_length` must equal or larger than `sequence_length`. Received: "
            f"sequence_length={sequence_length}, fft_length={fft_length}"
        )
    x = _ranked(as_float(x), 1)
    factors = tensor(_window(window, sequence_length, fft_length, x.dtype))
    return tuple(_stft(x, factors, fft_length, sequence_stride, center))


@op(name="istft")
def _istft(
    real: TensorLike,
    imaginary: TensorLike,
    window: TensorLike,
    fft_length: int,
    stride: int,
    center: bool,
    length: Any,
    scaled: bool,
) -> Any:
    frames = jnp.fft.irfft(real + 1j * imaginary, fft_length).astype(real.dtype)
    count = frames.shape[-2]
    size = fft_length + stride * (count - 1)
    places = np.arange(count)[:, None] * stride + np.arange(fft_length)
    blank = jnp.zeros((*frames.shape[:-2], size), frames.dtype)
    total = blank.at[..., places].add(frames * window)
    found = total
    if scaled:
        squares = jnp.broadcast_to(window**2, places.shape)
        weights = jnp.zeros(size, frames.dtype).at[places].add(squares)
        found = jnp.where(weights > 1e-10, total / jnp.where(weights > 1e-10, weights, 1), total)
    start = fft_length // 2 if center else 0
    if length is not None:
        end = start + length
    else:
        end = size - (fft_length // 2 if center else 0)
    return found[..., start:end]


@one_layer()
def istft(
    x: Any,
    sequence_length: int,
    sequence_stride: int,
    fft_length: int,
    length: int | None = None,
    window: Any = "hann",
    center: bool = True,
) -> Tensor:
    """The signal of which `stft` made spectra.

    Args:
      x: (real part, imaginary part), as `stft` returns.
      sequence_length: as in `stft`.
      sequence_stride: as in `stft`.
      fft_length: as in `stft`.
      length: how many elements the signal has; default what the parts cover.
      window: as in `stft`; with None parts that overlap are summed, and not divided by how many there are.
      center: as in `stft`.

    Example:
      >>> from meshflow.keras import ops
      >>> parts = ops.stft([0.0, 1.0, 2.0, 3.0, 4.0], 1, 1, 1, window=None)
      >>> ops.istft(parts, 1, 1, 1, window=None).numpy().tolist()
      [0.0, 1.0, 2.0, 3.0, 4.0]
    """
    real, imaginary = _parts(x, "istft", 2)
    _check_stride(sequence_stride)
    factors = tensor(_window(window, sequence_length, fft_length, real.dtype))
    scaled = window is not None
    return _istft(real, imaginary, factors, fft_length, sequence_stride, center, length, scaled)
