"""Layers that crop, flip, translate, rotate and zoom images at random."""

from __future__ import annotations

from collections.abc import Sequence
from math import pi
from typing import Any, Literal, Unpack

from meshflow.core.values.shapes import ShapeLike, TensorShape
from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.environment.types import Config
from meshflow.keras.layers.keyword_arguments import RandomImageArguments
from meshflow.keras.layers.preprocessing.augmentation import (
    RandomImageLayer,
    parse_bounded_limits,
    parse_limits,
)
from meshflow.keras.layers.preprocessing.images import replace_image_size
from meshflow.keras.literals import FillMode
from meshflow.keras.utils.images import smart_resize
from meshflow.kernels.warping import FILL_MODES
from meshflow.ops import array, image, math
from meshflow.ops.image.warping import INTERPOLATIONS, warp

__all__ = ["RandomCrop", "RandomFlip", "RandomRotation", "RandomTranslation", "RandomZoom"]


class RandomCrop(RandomImageLayer):
    """Random crop of images, the same for all images of a batch.

    Outside of training, and for smaller images, the largest part with the aspect ratio of the
    output is resized.

    Args:
      height: Height of the output.
      width: Width of the output.
      seed: Seed of the random numbers; default a random one.
      **kwargs: Arguments of `Layer`.

    Input shape:
      (batch, height, width, channels), or a single image (height, width, channels).

    Output shape:
      The input shape, with the `height` and `width` of the layer.

    Example:
      >>> tf.keras.layers.RandomCrop(2, 3)(tf.ones([5, 8, 8, 1]), training=True).shape
      TensorShape([5, 2, 3, 1])
    """

    def __init__(
        self,
        height: int,
        width: int,
        seed: int | None = None,
        **kwargs: Unpack[RandomImageArguments],
    ) -> None:
        super().__init__(seed, **kwargs)
        self.height, self.width = int(height), int(width)

    def augment(self, images: TensorLike) -> Tensor:
        """Crop the images."""
        down, right = images.shape[1] - self.height, images.shape[2] - self.width
        if down < 0 or right < 0:
            return self._prepare_inference(images)
        top = self.draw_uniform([], 0, down + 1, "int32")
        left = self.draw_uniform([], 0, right + 1, "int32")
        rows = array.gather(images, array.range(self.height) + top, axis=1)
        return array.gather(rows, array.range(self.width) + left, axis=2)

    def _prepare_inference(self, images: Tensor) -> Tensor:
        return math.cast(smart_resize(images, (self.height, self.width)), images.dtype)

    def compute_output_shape(self, input_shape: ShapeLike) -> TensorShape:
        """Replace height and width in the shape of the input."""
        return replace_image_size(input_shape, self.height, self.width)

    def _own_config(self) -> Config:
        return {"height": self.height, "width": self.width}


class RandomFlip(RandomImageLayer):
    """Random flip of each image, with probability 1/2 in each direction.

    Args:
      mode: 'horizontal' (left and right), 'vertical', or 'horizontal_and_vertical'.
      seed: Seed of the random numbers; default a random one.
      **kwargs: Arguments of `Layer`.

    Input shape:
      (batch, height, width, channels), or a single image (height, width, channels).

    Output shape:
      The same as the input shape.

    Raises:
      ValueError: If the mode is unknown.

    Example:
      >>> images = tf.reshape(tf.range(2.0), [1, 1, 2, 1])
      >>> flipped = tf.keras.layers.RandomFlip("horizontal", seed=1)(images, training=True)
      >>> sorted(flipped.numpy().ravel().tolist())
      [0.0, 1.0]
    """

    def __init__(
        self,
        mode: Literal[
            "horizontal", "vertical", "horizontal_and_vertical"
        ] = "horizontal_and_vertical",
        seed: int | None = None,
        **kwargs: Unpack[RandomImageArguments],
    ) -> None:
        super().__init__(seed, **kwargs)
        self.mode = mode
        if mode not in ("horizontal", "vertical", "horizontal_and_vertical"):
            raise ValueError(
                f"RandomFlip layer {self.name} received an unknown mode argument {mode}"
            )

    def augment(self, images: TensorLike) -> Tensor:
        """Flip some of the images."""
        if "horizontal" in self.mode:
            images = self._flip_some(images, image.flip_left_right(images))
        if "vertical" in self.mode:
            images = self._flip_some(images, image.flip_up_down(images))
        return images

    def _flip_some(self, images: Tensor, flipped: Tensor) -> Tensor:
        chosen = self.draw_per_image(images, 0.0, 1.0) < 0.5
        return array.where(array.reshape(chosen, [-1, 1, 1, 1]), flipped, images)

    def _own_config(self) -> Config:
        return {"mode": self.mode}


class _AffineLayer(RandomImageLayer):
    """Layer that transforms each image by an affine map from output to input positions."""

    def __init__(
        self,
        fill_mode: FillMode,
        interpolation: Literal["nearest", "bilinear"],
        seed: int | None,
        fill_value: float,
        **kwargs: Any,
    ) -> None:
        if fill_mode not in FILL_MODES:
            raise NotImplementedError(
                f"Unknown `fill_mode` {fill_mode}. Only `reflect`, `wrap`, `constant` and `nearest` are supported."
            )
        if interpolation not in INTERPOLATIONS:
            raise NotImplementedError(
                f"Unknown `interpolation` {interpolation}. Only `nearest` and `bilinear` are supported."
            )
        super().__init__(seed, **kwargs)
        self.fill_mode, self.fill_value = fill_mode, fill_value
        self.interpolation = interpolation

    def _warp_images(self, images: Tensor, rows: Sequence[Sequence[float | Tensor]]) -> Tensor:
        """Read images at `rows @ (x, y, 1)`; elements of rows are numbers or vectors [batch]."""
        zeros = array.zeros([images.shape[0]])
        maps = array.stack([array.stack([zeros + v for v in row], -1) for row in rows], 1)
        return warp(images, maps, self.fill_mode, self.interpolation, self.fill_value)

    def _own_config(self) -> Config:
        return {
            "fill_mode": self.fill_mode,
            "fill_value": self.fill_value,
            "interpolation": self.interpolation,
        }


class RandomTranslation(_AffineLayer):
    """Random translation of each image.

    Args:
      height_factor: Shift downwards as a fraction of the height: x for [-x, x], or a pair of
        bounds.
      width_factor: Shift to the right as a fraction of the width, in the same form.
      fill_mode: Values outside of the image: 'reflect' (mirror image), 'wrap' (opposite side),
        'nearest' (edge) or 'constant'.
      interpolation: 'bilinear' or 'nearest'.
      seed: Seed of the random numbers; default a random one.
      fill_value: Value outside of the image for 'constant'.
      **kwargs: Arguments of `Layer`.

    Input shape:
      (batch, height, width, channels), or a single image (height, width, channels).

    Output shape:
      The same as the input shape.

    Raises:
      ValueError: If a factor is outside of [-1, 1].
      NotImplementedError: If the mode or interpolation is unknown.

    Example:
      >>> move = tf.keras.layers.RandomTranslation(0.0, (0.5, 0.5), fill_mode="constant")
      >>> move(tf.constant([[[1.0], [2.0]]])).numpy().ravel()
      array([0., 1.], dtype=float32)
    """

    def __init__(
        self,
        height_factor: float | Sequence[float],
        width_factor: float | Sequence[float],
        fill_mode: FillMode = "reflect",
        interpolation: Literal["nearest", "bilinear"] = "bilinear",
        seed: int | None = None,
        fill_value: float = 0.0,
        **kwargs: Unpack[RandomImageArguments],
    ) -> None:
        super().__init__(fill_mode, interpolation, seed, fill_value, **kwargs)
        self.height_factor, self.width_factor = height_factor, width_factor
        self._down = parse_bounded_limits(height_factor, "height_factor", -1.0, 1.0)
        self._right = parse_bounded_limits(width_factor, "width_factor", -1.0, 1.0)

    def augment(self, images: TensorLike) -> Tensor:
        """Translate the images."""
        down = self.draw_per_image(images, *self._down) * float(images.shape[1])
        right = self.draw_per_image(images, *self._right) * float(images.shape[2])
        return self._warp_images(images, [[1.0, 0.0, -right], [0.0, 1.0, -down]])

    def _own_config(self) -> Config:
        factors = {"height_factor": self.height_factor, "width_factor": self.width_factor}
        return factors | super()._own_config()


class RandomRotation(_AffineLayer):
    """Random rotation of each image about its center.

    Args:
      factor: Counterclockwise angle as a fraction of 2 pi: x for [-x, x], or a pair of bounds.
      fill_mode: As in `RandomTranslation`.
      interpolation: 'bilinear' or 'nearest'.
      seed: Seed of the random numbers; default a random one.
      fill_value: Value outside of the image for 'constant'.
      **kwargs: Arguments of `Layer`.

    Input shape:
      (batch, height, width, channels), or a single image (height, width, channels).

    Output shape:
      The same as the input shape.

    Raises:
      ValueError: If the factor is a negative number or a pair that does not ascend.
      NotImplementedError: If the mode or interpolation is unknown.

    Example:
      >>> image = tf.reshape(tf.range(4.0), [1, 2, 2, 1])
      >>> turned = tf.keras.layers.RandomRotation((0.25, 0.25))(image, training=True)
      >>> turned.numpy()[0, ..., 0].round(2).tolist()
      [[1.0, 3.0], [0.0, 2.0]]
    """

    def __init__(
        self,
        factor: float | Sequence[float],
        fill_mode: FillMode = "reflect",
        interpolation: Literal["nearest", "bilinear"] = "bilinear",
        seed: int | None = None,
        fill_value: float = 0.0,
        **kwargs: Unpack[RandomImageArguments],
    ) -> None:
        super().__init__(fill_mode, interpolation, seed, fill_value, **kwargs)
        self.factor = factor
        try:
            self._turn = parse_limits(factor, "factor")
        except ValueError:
            raise ValueError(
                f"`factor` argument cannot have a negative value. Received: factor={factor}"
            ) from None

    def augment(self, images: TensorLike) -> Tensor:
        """Rotate the images."""
        angle = self.draw_per_image(images, *self._turn) * (2.0 * pi)
        cosine, sine = math.cos(angle), math.sin(angle)
        center_y, center_x = (images.shape[1] - 1) / 2.0, (images.shape[2] - 1) / 2.0
        shift_x = center_x - (cosine * center_x - sine * center_y)
        shift_y = center_y - (sine * center_x + cosine * center_y)
        return self._warp_images(images, [[cosine, -sine, shift_x], [sine, cosine, shift_y]])

    def _own_config(self) -> Config:
        return {"factor": self.factor, **super()._own_config()}


class RandomZoom(_AffineLayer):
    """Random zoom of each image about its center.

    Args:
      height_factor: Change of the visible height as a fraction; negative numbers zoom in. Either x
        for [-x, x], or a pair of bounds.
      width_factor: Change of the visible width; default that of the height.
      fill_mode: As in `RandomTranslation`.
      interpolation: 'bilinear' or 'nearest'.
      seed: Seed of the random numbers; default a random one.
      fill_value: Value outside of the image for 'constant'.
      **kwargs: Arguments of `Layer`.

    Input shape:
      (batch, height, width, channels), or a single image (height, width, channels).

    Output shape:
      The same as the input shape.

    Raises:
      ValueError: If a factor is outside of [-1, 1].
      NotImplementedError: If the mode or interpolation is unknown.

    Example:
      >>> layer = tf.keras.layers.RandomZoom((1.0, 1.0), fill_mode="constant")
      >>> layer(tf.ones([1, 4, 4, 1]), training=True).numpy()[0, ..., 0].round(2).tolist()
      [[0.0, 0.0, 0.0, 0.0], [0.0, 1.0, 1.0, 0.0], [0.0, 1.0, 1.0, 0.0], [0.0, 0.0, 0.0, 0.0]]
    """

    def __init__(
        self,
        height_factor: float | Sequence[float],
        width_factor: float | Sequence[float] | None = None,
        fill_mode: FillMode = "reflect",
        interpolation: Literal["nearest", "bilinear"] = "bilinear",
        seed: int | None = None,
        fill_value: float = 0.0,
        **kwargs: Unpack[RandomImageArguments],
    ) -> None:
        super().__init__(fill_mode, interpolation, seed, fill_value, **kwargs)
        self.height_factor, self.width_factor = height_factor, width_factor
        self._tall = parse_bounded_limits(height_factor, "height_factor", -1.0, 1.0)
        self._wide = (
            None
            if width_factor is None
            else parse_bounded_limits(width_factor, "width_factor", -1.0, 1.0)
        )

    def augment(self, images: TensorLike) -> Tensor:
        """Zoom the images."""
        height_scale = width_scale = 1.0 + self.draw_per_image(images, *self._tall)
        if self._wide is not None:
            width_scale = 1.0 + self.draw_per_image(images, *self._wide)
        center_y, center_x = (images.shape[1] - 1) / 2.0, (images.shape[2] - 1) / 2.0
        rows = [
            [width_scale, 0.0, center_x * (1.0 - width_scale)],
            [0.0, height_scale, center_y * (1.0 - height_scale)],
        ]
        return self._warp_images(images, rows)

    def _own_config(self) -> Config:
        factors = {"height_factor": self.height_factor, "width_factor": self.width_factor}
        return factors | super()._own_config()
