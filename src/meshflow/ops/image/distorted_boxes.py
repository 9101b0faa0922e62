"""Random crops that still contain a part of the labeled objects (Szegedy et al., 2014)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from meshflow.core.dispatch.dispatch import op
from meshflow.core.dispatch.symbolic_calls import record_in_graph
from meshflow.core.runtime.errors import InvalidArgumentError
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.core.variables.random_streams import draw_op_key
from meshflow.environment.types import Array
from meshflow.ops import random as random_ops

__all__ = ["sample_distorted_bounding_box", "stateless_sample_distorted_bounding_box"]

_DEFAULT_ATTEMPTS = 100
_SAMPLE_COUNTS = random_ops.count_counters(4, _DEFAULT_ATTEMPTS)


class SampleDistortedBoundingBoxV2(NamedTuple):
    """Window of an image.

    Attributes:
      begin: int32 [3]: first row, first column, 0; for `tf.slice`.
      size: int32 [3]: rows, columns, -1 (all channels).
      bboxes: float32 [1, 1, 4]: the window as fractions of height and width, for
        `draw_bounding_boxes`.
    """

    begin: Tensor
    size: Tensor
    bboxes: Tensor


@op(name="sample_distorted_bounding_box", same=(), differentiable=False)
def _sample(
    numbers: TensorLike,
    image_size: TensorLike,
    boxes: TensorLike,
    covered: float,
    aspects: tuple[float, float],
    areas: tuple[float, float],
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute all attempts at once; return the first valid one, or the full image without one."""
    height, width = (image_size[i].astype(jnp.float32) for i in (0, 1))
    aspect = aspects[0] + numbers[0] * (aspects[1] - aspects[0])
    lowest, highest = (jnp.sqrt(a * height * width / aspect) for a in areas)
    highest = jnp.minimum(jnp.minimum(highest, height), width / aspect)
    rows = jnp.round(lowest + numbers[1] * jnp.maximum(highest - lowest, 0.0))
    columns = jnp.round(rows * aspect)
    top = jnp.floor(numbers[2] * (height - rows + 1))
    left = jnp.floor(numbers[3] * (width - columns + 1))
    area = rows * columns / (height * width)
    # Rounding to integer pixels may leave the range by one row or column.
    slack = 1.0 / jnp.minimum(height, width)
    is_valid = (area >= areas[0] - slack) & (area <= areas[1] + slack)
    is_valid &= (rows >= 1) & (columns >= 1) & (rows <= height) & (columns <= width)
    windows = jnp.stack(
        [top / height, left / width, (top + rows) / height, (left + columns) / width], -1
    )
    overlap = jnp.minimum(windows[:, None, 2:], boxes[:, 2:]) - jnp.maximum(
        windows[:, None, :2], boxes[:, :2]
    )
    covered_areas = jnp.prod(jnp.maximum(overlap, 0.0), -1)
    object_areas = jnp.prod(boxes[:, 2:] - boxes[:, :2], -1)
    is_valid &= jnp.any((covered_areas >= covered * object_areas) & (object_areas > 0), -1)
    first, any_valid = jnp.argmax(is_valid), jnp.any(is_valid)
    begin = jnp.stack([jnp.where(any_valid, top[first], 0), jnp.where(any_valid, left[first], 0)])
    size = jnp.stack(
        [jnp.where(any_valid, rows[first], height), jnp.where(any_valid, columns[first], width)]
    )
    box = jnp.where(any_valid, windows[first], jnp.array([0.0, 0.0, 1.0, 1.0], jnp.float32))
    dtype = image_size.dtype
    return (
        jnp.append(begin, 0).astype(dtype),
        jnp.append(size, -1).astype(dtype),
        box.reshape(1, 1, 4),
    )


def _to_range(
    explicit: Sequence[float] | None, default: tuple[float, float]
) -> tuple[float, float]:
    low, high = (float(v) for v in (default if explicit is None else explicit))
    return low, high


def _sample_window(
    key: Tensor,
    image_size: TensorLike,
    bounding_boxes: TensorLike,
    min_object_covered: float,
    aspect_ratio_range: Sequence[float] | None,
    area_range: Sequence[float] | None,
    max_attempts: int | None,
    use_image_if_no_bounding_boxes: bool | None,
) -> SampleDistortedBoundingBoxV2:
    size = convert_to_tensor(image_size)
    boxes = convert_to_tensor(bounding_boxes, dtype="float32")
    if size.shape.as_list() != [3]:
        raise InvalidArgumentError(
            f"image_size must be 1-dimensional and contain 3 elements, got shape {size.shape}"
        )
    if boxes.shape.rank != 3 or boxes.shape[-1] != 4:
        raise InvalidArgumentError(
            f"bounding_boxes must have shape [batch, boxes, 4], got {boxes.shape}"
        )
    aspects, areas = _to_range(aspect_ratio_range, (0.75, 1.33)), _to_range(area_range, (0.05, 1.0))
    if not 0 < aspects[0] <= aspects[1]:
        raise InvalidArgumentError(
            f"aspect_ratio_range must be positive and ordered, got {aspects}"
        )
    if not 0 < areas[0] <= areas[1] <= 1:
        raise InvalidArgumentError(f"area_range must be ordered within (0, 1], got {areas}")
    if isinstance(boxes.array, np.ndarray) and np.any((boxes.array < 0) | (boxes.array > 1)):
        raise InvalidArgumentError(
            f"All bounding box coordinates must be in [0.0, 1.0], got {boxes.array.tolist()}"
        )
    if not boxes.shape.num_elements():
        if not use_image_if_no_bounding_boxes:
            raise InvalidArgumentError(
                "No bounding boxes provided as input. One must enable use_image_if_no_bounding_boxes "
                "if you wish to not provide any bounding boxes."
            )
        boxes = convert_to_tensor(np.array([[[0.0, 0.0, 1.0, 1.0]]], np.float32))
    attempts = _DEFAULT_ATTEMPTS if max_attempts is None else int(max_attempts)
    if attempts < 1:
        raise InvalidArgumentError(f"max_attempts must be positive, got {attempts}")
    numbers = random_ops.draw_uniform(key, [4, attempts], 0.0, 1.0, "float32")
    covered = float(np.asarray(min_object_covered))
    return SampleDistortedBoundingBoxV2(*_sample(numbers, size, boxes[0], covered, aspects, areas))


@record_in_graph
def sample_distorted_bounding_box(
    image_size: TensorLike,
    bounding_boxes: TensorLike,
    seed: int | None = 0,
    min_object_covered: float = 0.1,
    aspect_ratio_range: Sequence[float] | None = None,
    area_range: Sequence[float] | None = None,
    max_attempts: int | None = None,
    use_image_if_no_bounding_boxes: bool | None = None,
    name: str | None = None,
) -> SampleDistortedBoundingBoxV2:
    """Sample a random window of an image that contains enough of one of its objects.

    Args:
      image_size: Int32 or int64 [3]: height, width, channels.
      bounding_boxes: float32 [1, boxes, 4]: objects as (top, left, bottom, right), as fractions of
        height and width.
      seed: Seed of this op; 0 uses the global seed.
      min_object_covered: Minimum fraction of an object's area in the window.
      aspect_ratio_range: Range of width / height of the window; default (0.75, 1.33).
      area_range: Range of the window's area as a fraction of the image; default (0.05, 1).
      max_attempts: Number of attempts after which the full image is returned; default 100.
      use_image_if_no_bounding_boxes: Whether the image is the object if there are no boxes.
      name: Ignored.

    Returns:
      `begin` and `size` for `tf.slice`, and `bboxes` of shape [1, 1, 4].

    Raises:
      InvalidArgumentError: If a shape or range is invalid, or boxes are outside the image or
        missing.

    Example:
      >>> tf.random.set_seed(1)
      >>> begin, size, box = tf.image.sample_distorted_bounding_box(
      ...     [40, 50, 3], [[[0.1, 0.2, 0.5, 0.9]]], area_range=[0.25, 0.5]
      ... )
      >>> tf.slice(tf.zeros([40, 50, 3]), begin, size).shape[2]
      3
    """
    return _sample_window(
        draw_op_key(seed or None, _SAMPLE_COUNTS, "distorted box"), image_size, bounding_boxes, min_object_covered, aspect_ratio_range,
        area_range, max_attempts, use_image_if_no_bounding_boxes,
    )  # fmt: skip


def stateless_sample_distorted_bounding_box(
    image_size: TensorLike,
    bounding_boxes: TensorLike,
    seed: Sequence[int] | Array | Tensor,
    min_object_covered: float = 0.1,
    aspect_ratio_range: Sequence[float] | None = None,
    area_range: Sequence[float] | None = None,
    max_attempts: int | None = None,
    use_image_if_no_bounding_boxes: bool | None = None,
    name: str | None = None,
) -> SampleDistortedBoundingBoxV2:
    """Sample a window as `sample_distorted_bounding_box` does, determined only by the seed.

    Args:
      image_size: int32 or int64 [3]: height, width, channels.
      bounding_boxes: Boxes of objects, [1, n, 4].
      seed: Two integers.
      min_object_covered: Minimum fraction of an object's area in the window.
      aspect_ratio_range: Range of width / height of the window; default (0.75, 1.33).
      area_range: Range of the window's area as a fraction of the image; default (0.05, 1).
      max_attempts: Number of attempts after which the full image is returned; default 100.
      use_image_if_no_bounding_boxes: Whether the image is the object if there are no boxes.
      name: Ignored.

    Example:
      >>> boxes = tf.constant([[[0.2, 0.2, 0.8, 0.8]]])
      >>> begin, size, _ = tf.image.stateless_sample_distorted_bounding_box([64, 64, 3], boxes, [1, 2])
      >>> tf.slice(tf.zeros([64, 64, 3]), begin, size).shape[2]
      3
    """
    return _sample_window(
        random_ops.derive_key(seed), image_size, bounding_boxes, min_object_covered, aspect_ratio_range,
        area_range, max_attempts, use_image_if_no_bounding_boxes,
    )  # fmt: skip
