"""Discrete cosine transforms, computed by Fourier transforms of twice the length."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from meshflow.core.dispatch.dispatch import op
from meshflow.core.dispatch.operands import to_static_value
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.environment.types import Array

__all__ = ["dct", "idct"]


def _check_arguments(dct_type: int, n: int | None, axis: int, norm: str | None, size: int) -> None:
    if axis != -1:
        raise NotImplementedError(f"dct: axis must be -1, got {axis}.")
    if n is not None and n < 1:
        raise ValueError(f"dct: n should be an integer greater than 0, got {n}.")
    if dct_type not in (1, 2, 3, 4):
        raise ValueError(f"dct: types I, II, III and IV (I)DCT are supported, got type {dct_type}.")
    if norm not in (None, "ortho"):
        raise ValueError(f"dct: norm must be None or 'ortho', got {norm!r}.")
    if dct_type == 1 and norm == "ortho":
        raise ValueError("dct: type I has no normalization; use norm=None.")
    if dct_type == 1 and size < 2:
        raise ValueError(f"dct: type I needs at least 2 values, got {size}.")


def _make_phase_factors(angles: np.ndarray, like: Array) -> jax.Array:
    return jnp.asarray(np.exp(1j * angles), jnp.result_type(like.dtype, jnp.complex64))


@op(kinds="f", name="dct")
def _dct(input: TensorLike, kind: int, n: int | None, norm: str | None) -> Tensor:
    x, size = input, input.shape[-1]
    if n is not None and n != size:
        x = x[..., :n] if n < size else jnp.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, n - size)])
        size = n
    if kind == 1:
        mirrored = jnp.concatenate([x, x[..., -2:0:-1]], -1)
        return jnp.fft.rfft(mirrored).real.astype(input.dtype)
    steps, quarter = np.arange(size), np.pi / (4 * size)
    # An orthonormal transform scales the first basis function of types II and III by 1 / sqrt(2).
    even = np.where(steps == 0, np.sqrt(0.5), 1.0).astype(x.dtype)
    scale = np.sqrt(0.5 / size) if norm else 1.0
    if kind == 2:
        spectrum = jnp.fft.rfft(x, 2 * size)[..., :size]
        y = 2 * (spectrum * _make_phase_factors(-2 * quarter * steps, x)).real
        y = y * even if norm else y
    elif kind == 3:
        weighted = x * even * 2 if norm else x * np.where(steps == 0, 1, 2).astype(x.dtype)
        turned = weighted * _make_phase_factors(2 * quarter * steps, x)
        y = (jnp.fft.ifft(turned, 2 * size)[..., :size] * (2 * size)).real
    else:
        spectrum = jnp.fft.fft(x * _make_phase_factors(-2 * quarter * steps, x), 2 * size)[
            ..., :size
        ]
        y = 2 * (spectrum * _make_phase_factors(-quarter * (2 * steps + 1), x)).real
    return (y * scale).astype(input.dtype)


def dct(
    input: TensorLike,
    type: int = 2,
    n: int | None = None,
    axis: int = -1,
    norm: str | None = None,
    name: str | None = None,
) -> Tensor:
    """Compute the discrete cosine transform along the last axis.

    Args:
      input: float32 or float64, shape [..., size].
      type: 1, 2, 3 or 4.
      n: Length to which the input is cropped or padded; by default its own.
      axis: Must be -1.
      norm: None, or 'ortho' for an orthonormal transform (not for type 1).
      name: Ignored.

    Returns:
      A tensor of shape [..., n], with the dtype of `input`.

    Raises:
      ValueError: If `type`, `norm` or `n` is invalid.
      NotImplementedError: For another axis.

    Example:
      >>> tf.signal.dct([1.0, 1.0]).numpy()
      array([4., 0.], dtype=float32)
    """
    if not hasattr(input, "_keras_history"):
        input = convert_to_tensor(input)
    n = to_static_value(n, "n")
    _check_arguments(type, n, axis, norm, n or input.shape[-1])
    return _dct(input, type, n, norm)


def idct(
    input: TensorLike,
    type: int = 2,
    n: int | None = None,
    axis: int = -1,
    norm: str | None = None,
    name: str | None = None,
) -> Tensor:
    """Compute the inverse of `dct` of shape [..., n], up to a factor unless norm='ortho'; see `dct`.

    Example:
      >>> x = tf.constant([1.0, 2.0, 3.0])
      >>> print(tf.signal.idct(tf.signal.dct(x, norm="ortho"), norm="ortho").numpy().round(3))
      [1. 2. 3.]
    """
    return dct(input, {2: 3, 3: 2}.get(type, type), n, axis, norm)
