"""Layers that crop, mirror, move, turn and zoom images at random."""

from __future__ import annotations

from math import pi
from typing import Any

from meshflow.core.values.shapes import TensorShape
from meshflow.keras.layers.preprocessing.augmentation import (
    RandomImageLayer,
    checked_limits,
    limits,
)
from meshflow.keras.layers.preprocessing.images import with_size
from meshflow.keras.utils.images import smart_resize
from meshflow.ops import array, image, math
from meshflow.ops.image.warping import FILL_MODES, INTERPOLATIONS, warp

__all__ = ["RandomCrop", "RandomFlip", "RandomRotation", "RandomTranslation", "RandomZoom"]


class RandomCrop(RandomImageLayer):
    """A random part of the images, the same for a whole batch.

    When not training, and for smaller images, the largest part with the aspect ratio is resized.

    Args:
      height: height of the part.
      width: width of the part.
      seed: seed.
      **kwargs: arguments of `Layer`.

    Input shape:
      (batch, height, width, channels), or without the batch.

    Output shape:
      The same, with the layer's `height` and `width`.

    Example:
      >>> import meshflow as tf
      >>> tf.keras.layers.RandomCrop(2, 3)(tf.ones([5, 8, 8, 1]), training=True).shape
      TensorShape([5, 2, 3, 1])
    """

    def __init__(self, height: int, width: int, seed: int | None = None, **kwargs: Any) -> None:
        super().__init__(seed, **kwargs)
        self.height, self.width = height, width

    def augment(self, images: Any) -> Any:
        """The parts."""
        down, right = images.shape[1] - self.height, images.shape[2] - self.width
        if down < 0 or right < 0:
            return self._unchanged(images)
        top = self.uniform([], 0, down + 1, "int32")
        left = self.uniform([], 0, right + 1, "int32")
        rows = array.gather(images, array.range(self.height) + top, axis=1)
        return array.gather(rows, array.range(self.width) + left, axis=2)

    def _unchanged(self, images: Any) -> Any:
        return math.cast(smart_resize(images, (self.height, self.width)), images.dtype)

    def compute_output_shape(self, input_shape: Any) -> TensorShape:
        """The input's shape with the layer's height and width."""
        return with_size(input_shape, self.height, self.width)

    def _own_config(self) -> dict[str, Any]:
        return {"height": self.height, "width": self.width}


class RandomFlip(RandomImageLayer):
    """Mirrors each image with probability 1/2.

    Args:
      mode: 'horizontal' (left and right), 'vertical', or 'horizontal_and_vertical'.
      seed: seed.
      **kwargs: arguments of `Layer`.

    Input shape:
      (batch, height, width, channels), or without the batch.

    Output shape:
      The same.

    Raises:
      ValueError: for another mode.

    Example:
      >>> import meshflow as tf
      >>> images = tf.reshape(tf.range(2.0), [1, 1, 2, 1])
      >>> flipped = tf.keras.layers.RandomFlip("horizontal", seed=1)(images, training=True)
      >>> sorted(flipped.numpy().ravel().tolist())
      [0.0, 1.0]
    """

    def __init__(
        self, mode: str = "horizontal_and_vertical", seed: int | None = None, **kwargs: Any
    ) -> None:
        super().__init__(seed, **kwargs)
        self.mode = mode
        if mode not in ("horizontal", "vertical", "horizontal_and_vertical"):
            raise ValueError(
                f"RandomFlip layer {self.name} received an unknown mode argument {mode}"
            )

    def augment(self, images: Any) -> Any:
        """The images, some of them mirrored."""
        if "horizontal" in self.mode:
            images = self._some(images, image.flip_left_right(images))
        if "vertical" in self.mode:
            images = self._some(images, image.flip_up_down(images))
        return images

    def _some(self, images: Any, flipped: Any) -> Any:
        chosen = self.per_image(images, 0.0, 1.0) < 0.5
        return array.where(array.reshape(chosen, [-1, 1, 1, 1]), flipped, images)

    def _own_config(self) -> dict[str, Any]:
        return {"mode": self.mode}


class _Warp(RandomImageLayer):
    """Reads each image at other places, which an affine map gives."""

    def __init__(
        self,
        fill_mode: str,
        interpolation: str,
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

    def _warped(self, images: Any, rows: list[Any]) -> Any:
        """Images read at `rows` times (x, y, 1); each row is three numbers or vectors [batch]."""
        zeros = array.zeros([images.shape[0]])
        maps = array.stack([array.stack([zeros + v for v in row], -1) for row in rows], 1)
        return warp(images, maps, self.fill_mode, self.interpolation, self.fill_value)

    def _own_config(self) -> dict[str, Any]:
        return {
            "fill_mode": self.fill_mode,
            "fill_value": self.fill_value,
            "interpolation": self.interpolation,
        }


class RandomTranslation(_Warp):
    """Moves each image.

    Args:
      height_factor: how far down, as a part of the height: between the two numbers of a pair, or
        between minus and plus a number.
      width_factor: how far to the right, as a part of the width.
      fill_mode: what is outside: 'reflect' (the image mirrored), 'wrap' (the other end), 'nearest'
        (the edge) or 'constant'.
      interpolation: 'bilinear' or 'nearest'.
      seed: seed.
      fill_value: the number outside for 'constant'.
      **kwargs: arguments of `Layer`.

    Input shape:
      (batch, height, width, channels), or without the batch.

    Output shape:
      The same.

    Raises:
      ValueError: for factors outside [-1, 1].
      NotImplementedError: for an unknown mode or interpolation.

    Example:
      >>> import meshflow as tf
      >>> move = tf.keras.layers.RandomTranslation(0.0, (0.5, 0.5), fill_mode="constant")
      >>> move(tf.constant([[[1.0], [2.0]]])).numpy().ravel()
      array([0., 1.], dtype=float32)
    """

    def __init__(
        self,
        height_factor: Any,
        width_factor: Any,
        fill_mode: str = "reflect",
        interpolation: str = "bilinear",
        seed: int | None = None,
        fill_value: float = 0.0,
        **kwargs: Any,
    ) -> None:
        super().__init__(fill_mode, interpolation, seed, fill_value, **kwargs)
        self.height_factor, self.width_factor = height_factor, width_factor
        self._down = checked_limits(height_factor, "height_factor", -1.0, 1.0)
        self._right = checked_limits(width_factor, "width_factor", -1.0, 1.0)

    def augment(self, images: Any) -> Any:
        """Moved images."""
        down = self.per_image(images, *self._down) * float(images.shape[1])
        right = self.per_image(images, *self._right) * float(images.shape[2])
        return self._warped(images, [[1.0, 0.0, -right], [0.0, 1.0, -down]])

    def _own_config(self) -> dict[str, Any]:
        own = {"height_factor": self.height_factor, "width_factor": self.width_factor}
        return own | super()._own_config()


class RandomRotation(_Warp):
    """Turns each image about its middle.

    Args:
      factor: how far, as a part of a whole turn, counterclockwise: between the two numbers of a
        pair, or between minus and plus a number.
      fill_mode: as in `RandomTranslation`.
      interpolation: 'bilinear' or 'nearest'.
      seed: seed.
      fill_value: the number outside for 'constant'.
      **kwargs: arguments of `Layer`.

    Input shape:
      (batch, height, width, channels), or without the batch.

    Output shape:
      The same.

    Raises:
      ValueError: for a negative number, or a pair that does not ascend.
      NotImplementedError: for an unknown mode or interpolation.

    Example:
      >>> import meshflow as tf
      >>> image = tf.reshape(tf.range(4.0), [1, 2, 2, 1])
      >>> turned = tf.keras.layers.RandomRotation((0.25, 0.25))(image, training=True)
      >>> turned.numpy()[0, ..., 0].round(2).tolist()
      [[1.0, 3.0], [0.0, 2.0]]
    """

    def __init__(
        self,
        factor: Any,
        fill_mode: str = "reflect",
        interpolation: str = "bilinear",
        seed: int | None = None,
        fill_value: float = 0.0,
        **kwargs: Any,
    ) -> None:
        super().__init__(fill_mode, interpolation, seed, fill_value, **kwargs)
        self.factor = factor
        try:
            self._turn = limits(factor, "factor")
        except ValueError:
            raise ValueError(
                f"`factor` argument cannot have a negative value. Received: factor={factor}"
            ) from None

    def augment(self, images: Any) -> Any:
        """Turned images."""
        angle = self.per_image(images, *self._turn) * (2.0 * pi)
        cosine, sine = math.cos(angle), math.sin(angle)
        middle_y, middle_x = (images.shape[1] - 1) / 2.0, (images.shape[2] - 1) / 2.0
        across = middle_x - (cosine * middle_x - sine * middle_y)
        along = middle_y - (sine * middle_x + cosine * middle_y)
        return self._warped(images, [[cosine, -sine, across], [sine, cosine, along]])

    def _own_config(self) -> dict[str, Any]:
        return {"factor": self.factor, **super()._own_config()}


class RandomZoom(_Warp):
    """Zooms each image about its middle.

    Args:
      height_factor: how much more of the height is seen, as a part of it; negative numbers enlarge.
        A pair of ends, or a number for minus and plus it.
      width_factor: the same for the width; default the factor drawn for the height.
      fill_mode: as in `RandomTranslation`.
      interpolation: 'bilinear' or 'nearest'.
      seed: seed.
      fill_value: the number outside for 'constant'.
      **kwargs: arguments of `Layer`.

    Input shape:
      (batch, height, width, channels), or without the batch.

    Output shape:
      The same.

    Raises:
      ValueError: for factors outside [-1, 1].
      NotImplementedError: for an unknown mode or interpolation.

    Example:
      >>> import meshflow as tf
      >>> layer = tf.keras.layers.RandomZoom((1.0, 1.0), fill_mode="constant")
      >>> layer(tf.ones([1, 4, 4, 1]), training=True).numpy()[0, ..., 0].round(2).tolist()
      [[0.0, 0.0, 0.0, 0.0], [0.0, 1.0, 1.0, 0.0], [0.0, 1.0, 1.0, 0.0], [0.0, 0.0, 0.0, 0.0]]
    """

    def __init__(
        self,
        height_factor: Any,
        width_factor: Any = None,
        fill_mode: str = "reflect",
        interpolation: str = "bilinear",
        seed: int | None = None,
        fill_value: float = 0.0,
        **kwargs: Any,
    ) -> None:
        super().__init__(fill_mode, interpolation, seed, fill_value, **kwargs)
        self.height_factor, self.width_factor = height_factor, width_factor
        self._tall = checked_limits(height_factor, "height_factor", -1.0, 1.0)
        self._wide = (
            None
            if width_factor is None
            else checked_limits(width_factor, "width_factor", -1.0, 1.0)
        )

    def augment(self, images: Any) -> Any:
        """Zoomed images."""
        tall = wide = 1.0 + self.per_image(images, *self._tall)
        if self._wide is not None:
            wide = 1.0 + self.per_image(images, *self._wide)
        middle_y, middle_x = (images.shape[1] - 1) / 2.0, (images.shape[2] - 1) / 2.0
        rows = [[wide, 0.0, middle_x * (1.0 - wide)], [0.0, tall, middle_y * (1.0 - tall)]]
        return self._warped(images, rows)

    def _own_config(self) -> dict[str, Any]:
        own = {"height_factor": self.height_factor, "width_factor": self.width_factor}
        return own | super()._own_config()
