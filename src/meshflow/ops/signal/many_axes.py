"""Fourier transforms over any axes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp

from meshflow.core.dispatch.dispatch import op
from meshflow.core.runtime.errors import InvalidValueError
from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.ops.signatures import AxesTransform

__all__ = ["fftnd", "ifftnd", "irfftnd", "rfftnd"]


def _make_transform(name: str, kinds: str, function: Callable[..., Any]) -> AxesTransform:
    def transform(
        input_tensor: TensorLike,
        fft_length: Sequence[int] | None = None,
        axes: Sequence[int] | None = None,
        norm: str | None = None,
        name: str | None = None,
    ) -> Tensor:
        sizes = None if fft_length is None else list(fft_length)
        dimensions = None if axes is None else list(axes)
        if sizes is not None and len(sizes) != (
            input_tensor.ndim if dimensions is None else len(dimensions)
        ):
            raise InvalidValueError(
                f"{label}: expected one size in fft_length for each axis, got {sizes}."
            )
        return function(input_tensor, s=sizes, axes=dimensions, norm=norm)

    label = name
    transform.__name__ = transform.__qualname__ = name
    transform.__doc__ = f"""Compute the transform of `tf.signal.{name.removesuffix("nd")}` over several axes.

    Args:
      input_tensor: {"Complex" if kinds == "c" else "Real"} tensor.
      fft_length: Size of the transform in each axis; the input is cropped or padded. Default: the sizes of the input.
      axes: The axes. Default: all.
      norm: "backward" (default), "forward" or "ortho".
      name: Ignored.

    Returns:
      A {"real" if name == "irfftnd" else "complex"} tensor.
    """
    return op(transform, kinds=kinds)


fftnd = _make_transform("fftnd", "c", jnp.fft.fftn)
ifftnd = _make_transform("ifftnd", "c", jnp.fft.ifftn)
rfftnd = _make_transform("rfftnd", "f", jnp.fft.rfftn)
irfftnd = _make_transform("irfftnd", "c", jnp.fft.irfftn)
