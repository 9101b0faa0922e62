"""`tf.signal`: Fourier transforms."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

from meshflow.core.dispatch import op
from meshflow.core.tensor import Tensor, TensorLike

__all__ = ["fft", "fft2d", "ifft", "ifft2d", "irfft", "rfft"]


@op(kinds="c")
def fft(input: TensorLike, name: str | None = None) -> Tensor:
    """Fourier transform over the last dimension."""
    return jnp.fft.fft(input).astype(input.dtype)


@op(kinds="c")
def ifft(input: TensorLike, name: str | None = None) -> Tensor:
    """Inverse Fourier transform over the last dimension."""
    return jnp.fft.ifft(input).astype(input.dtype)


@op(kinds="c")
def fft2d(input: TensorLike, name: str | None = None) -> Tensor:
    """Fourier transform over the last two dimensions."""
    return jnp.fft.fft2(input).astype(input.dtype)


@op(kinds="c")
def ifft2d(input: TensorLike, name: str | None = None) -> Tensor:
    """Inverse Fourier transform over the last two dimensions."""
    return jnp.fft.ifft2(input).astype(input.dtype)


@op(kinds="f")
def rfft(input_tensor: TensorLike, fft_length: Any = None, name: str | None = None) -> Tensor:
    """Fourier transform of real numbers, half of the (symmetric) result."""
    return jnp.fft.rfft(
        input_tensor,
        None
        if fft_length is None
        else fft_length[0]
        if isinstance(fft_length, tuple)
        else fft_length,
    )


@op(kinds="c")
def irfft(input_tensor: TensorLike, fft_length: Any = None, name: str | None = None) -> Tensor:
    """Inverse of `rfft`."""
    return jnp.fft.irfft(
        input_tensor,
        None
        if fft_length is None
        else fft_length[0]
        if isinstance(fft_length, tuple)
        else fft_length,
    )
