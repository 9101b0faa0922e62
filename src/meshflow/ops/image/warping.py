"""Affine transforms of images."""

from __future__ import annotations

from meshflow.core.dispatch.dispatch import op
from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.kernels.warping import warp_images

INTERPOLATIONS = ("bilinear", "nearest")


@op(same=(), name="warp")
def warp(
    images: TensorLike,
    maps: TensorLike,
    fill_mode: str = "constant",
    interpolation: str = "bilinear",
    fill_value: float = 0.0,
    size: tuple[int, int] | None = None,
) -> Tensor:
    """Transform images: output pixel (x, y) is the input pixel at `map @ (x, y, 1)`.

    Args:
      images: Floating, [batch, height, width, channels].
      maps: float32, [batch, 2, 3]; the first row yields x, the second y. The third row of [batch, 3, 3] yields
        the divisor of both; a pixel with divisor 0 is outside the image.
      fill_mode: Content outside the image: 'constant', 'nearest' (the edge), 'reflect' (the
        mirrored image) or 'wrap' (the opposite edge).
      interpolation: 'bilinear' or 'nearest'.
      fill_value: Value outside the image for 'constant'.
      size: Height and width of the result; default those of the images.
    """
    return warp_images(
        images,
        maps,
        fill_mode=fill_mode,
        interpolation=interpolation,
        fill_value=fill_value,
        size=size or images.shape[1:3],
    )
