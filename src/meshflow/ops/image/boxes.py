"""Boxes in images, given by (top, left, bottom, right) as shares of height and width."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from meshflow.core.dispatch.dispatch import op
from meshflow.core.dispatch.operands import static_value
from meshflow.core.runtime.errors import InvalidValueError, OutOfRangeError
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.dtypes import float32
from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.ops.deferred_host_values import saving
from meshflow.ops.math import cast

__all__ = [
    "combined_non_max_suppression",
    "crop_and_resize",
    "draw_bounding_boxes",
    "non_max_suppression",
    "non_max_suppression_overlaps",
    "non_max_suppression_padded",
    "non_max_suppression_with_scores",
]


@op(same=("image", "boxes"), name="crop_and_resize")
def _crop(
    image: TensorLike,
    boxes: TensorLike,
    box_indices: TensorLike,
    size: Any,
    nearest: bool,
    fill: float,
) -> Tensor:
    height, width = image.shape[1:3]

    def places(low: Any, high: Any, count: int, old: int) -> Any:
        if count == 1:
            return 0.5 * (low + high)[None] * (old - 1)
        # Known fractions: a division here could put the last place just outside the image.
        shares = jnp.asarray(np.arange(count) / (count - 1), image.dtype)
        return low * (old - 1) + (high - low) * (old - 1) * shares

    def one(box: Any, index: Any) -> Any:
        picture = image[index]
        rows = places(box[0], box[2], size[0], height)
        columns = places(box[1], box[3], size[1], width)
        inside = ((rows >= 0) & (rows <= height - 1))[:, None] & (
            (columns >= 0) & (columns <= width - 1)
        )[None, :]

        def at(r: Any, c: Any) -> Any:
            r = jnp.clip(r, 0, height - 1).astype(jnp.int32)
            c = jnp.clip(c, 0, width - 1).astype(jnp.int32)
            return picture[r[:, None], c[None, :]]

        if nearest:
            found = at(jnp.floor(rows + 0.5), jnp.floor(columns + 0.5))
        else:
            # The slack makes a place on a pixel's centre belong to that pixel however it was rounded:
            # XLA may compute a place twice, and indices and shares must agree.
            slack = 4 * np.finfo(np.float32).eps * max(height, width)
            top, left = jnp.floor(rows + slack), jnp.floor(columns + slack)
            down = (rows - top)[:, None, None]
            across = (columns - left)[None, :, None]
            above = at(top, left) * (1 - across) + at(top, left + 1) * across
            below = at(top + 1, left) * (1 - across) + at(top + 1, left + 1) * across
            found = above * (1 - down) + below * down
        return jnp.where(inside[..., None], found, jnp.asarray(fill, found.dtype))

    return jax.vmap(one)(boxes, box_indices)


def crop_and_resize(
    image: TensorLike,
    boxes: TensorLike,
    box_indices: TensorLike,
    crop_size: Any,
    method: str = "bilinear",
    extrapolation_value: float = 0.0,
    name: str | None = None,
) -> Tensor:
    """Parts of images, all resized to one size. The corners of a box fall on centres of pixels.

    Args:
      image: [batch, height, width, channels].
      boxes: [n, 4]; coordinates beyond 0 and 1 reach outside the image.
      box_indices: [n]: which image each box is in.
      crop_size: (height, width) of the results.
      method: 'bilinear' or 'nearest'.
      extrapolation_value: value outside the image.
      name: ignored.

    Returns:
      float32 tensor [n, crop height, crop width, channels].

    Raises:
      InvalidArgumentError: for another method.

    Example:
      >>> import meshflow as tf
      >>> x = tf.reshape(tf.range(9.0), [1, 3, 3, 1])
      >>> y = tf.image.crop_and_resize(x, [[0.0, 0.0, 0.5, 0.5]], box_indices=[0], crop_size=[2, 2])
      >>> print(y[0, ..., 0].numpy())
      [[0. 1.]
       [3. 4.]]
    """
    if method not in ("bilinear", "nearest"):
        raise InvalidValueError(
            f"crop_and_resize: method must be 'bilinear' or 'nearest', got {method!r}."
        )
    size = tuple(int(s) for s in static_value(crop_size, "crop_size"))
    picture = cast(image, float32)
    known = convert_to_tensor(box_indices)._value
    if isinstance(known, np.ndarray) and ((known < 0) | (known >= len(picture))).any():
        raise OutOfRangeError(
            f"crop_and_resize: box_indices must be within [0, {len(picture)}), got {known.tolist()}."
        )
    fill = float(extrapolation_value)
    return _crop(picture, boxes, box_indices, size, method == "nearest", fill)


def _overlap(boxes: Any, box: Any) -> Any:
    """Intersection over union of many boxes with one."""
    low, high = (
        jnp.minimum(boxes[..., :2], boxes[..., 2:]),
        jnp.maximum(boxes[..., :2], boxes[..., 2:]),
    )
    own_low, own_high = jnp.minimum(box[:2], box[2:]), jnp.maximum(box[:2], box[2:])
    common = jnp.prod(
        jnp.maximum(jnp.minimum(high, own_high) - jnp.maximum(low, own_low), 0), axis=-1
    )
    areas = jnp.prod(high - low, axis=-1)
    union = areas + jnp.prod(own_high - own_low) - common
    return jnp.where(union > 0, common / jnp.where(union > 0, union, 1), 0)


def _select(
    similarity: Any, scores: Any, most: int, limit: float, least: float, sigma: float
) -> tuple[Any, Any, Any]:
    """Takes the best score again and again, and lowers the scores of what resembles it.

    Returns:
      (numbers, scores, count): the first `count` entries are valid, the others 0.
    """

    def step(i: Any, state: Any) -> Any:
        live, numbers, values, count = state
        best = jnp.argmax(live)
        score = live[best]
        valid = score > least
        alike = similarity(best)
        if sigma > 0:
            kept = live * jnp.exp(-0.5 / sigma * alike**2)
        else:
            kept = jnp.where(alike > limit, -jnp.inf, live)
        live = jnp.where(valid, kept, live).at[best].set(-jnp.inf)
        numbers = numbers.at[i].set(jnp.where(valid, best, 0).astype(jnp.int32))
        values = values.at[i].set(jnp.where(valid, score, 0))
        return live, numbers, values, count + valid.astype(jnp.int32)

    start = (
        scores,
        jnp.zeros((most,), jnp.int32),
        jnp.zeros((most,), scores.dtype),
        jnp.zeros((), jnp.int32),
    )
    if scores.shape[0] == 0:
        return start[1:]
    _, numbers, values, count = jax.lax.fori_loop(0, most, step, start)
    return numbers, values, count


@op(same=("boxes", "scores"), differentiable=False, name="non_max_suppression")
def _suppress(
    boxes: TensorLike, scores: TensorLike, most: int, limit: float, least: float, sigma: float
) -> Any:
    return _select(lambda i: _overlap(boxes, boxes[i]), scores, most, limit, least, sigma)


@op(same=("overlaps", "scores"), differentiable=False, name="non_max_suppression_overlaps")
def _suppress_overlaps(
    overlaps: TensorLike, scores: TensorLike, most: int, limit: float, least: float
) -> Any:
    return _select(lambda i: overlaps[i], scores, most, limit, least, 0.0)


def _sizes(max_output_size: Any, count: Any) -> int:
    return min(int(static_value(max_output_size, "max_output_size")), count)


def _cut(found: Any, name: str) -> tuple[Tensor, Tensor]:
    numbers, values, count = found
    known = int(
        count._concrete(
            f"the number of boxes that {name} selects (use tf.image.non_max_suppression_padded "
            "with pad_to_max_output_size=True)"
        )
    )
    return numbers[:known], values[:known]


def _numbers(*values: Any) -> tuple[float, ...]:
    return tuple(float(static_value(v)) for v in values)


def non_max_suppression(
    boxes: TensorLike,
    scores: TensorLike,
    max_output_size: Any,
    iou_threshold: Any = 0.5,
    score_threshold: Any = float("-inf"),
    name: str | None = None,
) -> Tensor:
    """Selects boxes with high scores that do not overlap much.

    The number of boxes depends on their values: in a compiled function use
    `non_max_suppression_padded`.

    Args:
      boxes: [n, 4].
      scores: [n].
      max_output_size: at most so many are selected.
      iou_threshold: boxes that overlap more with a selected one (intersection over union) are dropped.
      score_threshold: boxes with a score not above it are dropped.
      name: ignored.

    Returns:
      int32 vector of their numbers, best first.

    Example:
      >>> import meshflow as tf
      >>> tf.image.non_max_suppression([[0., 0., 1., 1.], [0., 0., 1., 0.9], [2., 2., 3., 3.]],
      ...                              [0.5, 0.9, 0.7], 3).numpy()
      array([1, 2], dtype=int32)
    """
    settings = (scores, max_output_size, iou_threshold, score_threshold)
    recording = saving(boxes, scores)
    if recording is not None:
        found: Tensor = recording.call(non_max_suppression, (boxes, *settings), {})
        return found
    return non_max_suppression_with_scores(boxes, *settings)[0]


def non_max_suppression_with_scores(
    boxes: TensorLike,
    scores: TensorLike,
    max_output_size: Any,
    iou_threshold: Any = 0.5,
    score_threshold: Any = float("-inf"),
    soft_nms_sigma: Any = 0.0,
    name: str | None = None,
) -> tuple[Tensor, Tensor]:
    """`non_max_suppression` with the scores, which soft suppression lowers instead of dropping boxes.

    Args:
      boxes: [n, 4].
      scores: [n].
      max_output_size: at most so many are selected.
      iou_threshold: as in `non_max_suppression`; not used when suppression is soft.
      score_threshold: boxes with a score not above it are dropped.
      soft_nms_sigma: width of soft suppression (Bodla et al., 2017); 0 for none.
      name: ignored.

    Returns:
      (numbers, scores), best first.

    Example:
      >>> import meshflow as tf
      >>> boxes = [[0.0, 0.0, 1.0, 1.0], [0.0, 0.0, 1.0, 0.9], [2.0, 2.0, 3.0, 3.0]]
      >>> numbers, scores = tf.image.non_max_suppression_with_scores(boxes, [0.5, 0.75, 0.25], 3)
      >>> print(numbers.numpy(), scores.numpy())
      [1 2] [0.75 0.25]
    """
    boxes = convert_to_tensor(boxes)
    most = _sizes(max_output_size, boxes.shape[0])
    limits = _numbers(iou_threshold, score_threshold, soft_nms_sigma)
    return _cut(_suppress(boxes, scores, most, *limits), "tf.image.non_max_suppression")


def non_max_suppression_overlaps(
    overlaps: TensorLike,
    scores: TensorLike,
    max_output_size: Any,
    overlap_threshold: Any = 0.5,
    score_threshold: Any = float("-inf"),
    name: str | None = None,
) -> Tensor:
    """`non_max_suppression` by given overlaps.

    Args:
      overlaps: [n, n].
      scores: [n].
      max_output_size: at most so many are selected.
      overlap_threshold: those that overlap more with a selected one are dropped.
      score_threshold: those with a score not above it are dropped.
      name: ignored.

    Returns:
      int32 vector of numbers, best first.

    Example:
      >>> import meshflow as tf
      >>> overlaps = [[1.0, 0.9, 0.0], [0.9, 1.0, 0.0], [0.0, 0.0, 1.0]]
      >>> print(tf.image.non_max_suppression_overlaps(overlaps, [0.6, 0.7, 0.3], 3).numpy())
      [1 2]
    """
    overlaps = convert_to_tensor(overlaps)
    most = _sizes(max_output_size, overlaps.shape[0])
    found = _suppress_overlaps(
        overlaps, scores, most, *_numbers(overlap_threshold, score_threshold)
    )
    return _cut(found, "tf.image.non_max_suppression_overlaps")[0]


def non_max_suppression_padded(
    boxes: TensorLike,
    scores: TensorLike,
    max_output_size: Any,
    iou_threshold: Any = 0.5,
    score_threshold: Any = float("-inf"),
    pad_to_max_output_size: bool = False,
    name: str | None = None,
    sorted_input: bool = False,
    canonicalized_coordinates: bool = False,
    tile_size: int = 512,
) -> tuple[Tensor, Tensor]:
    """`non_max_suppression` whose result has a fixed size.

    Args:
      boxes: [..., n, 4].
      scores: [..., n].
      max_output_size: so many are selected at most.
      iou_threshold: as in `non_max_suppression`.
      score_threshold: as in `non_max_suppression`.
      pad_to_max_output_size: whether zeros fill the result up to `max_output_size`.
      name: ignored.
      sorted_input: ignored.
      canonicalized_coordinates: ignored.
      tile_size: ignored.

    Returns:
      (numbers, how many of them are valid).

    Example:
      >>> import meshflow as tf
      >>> boxes = [[0.0, 0.0, 1.0, 1.0], [0.0, 0.0, 1.0, 0.9], [2.0, 2.0, 3.0, 3.0]]
      >>> numbers, valid = tf.image.non_max_suppression_padded(
      ...     boxes, [0.6, 0.7, 0.3], 4, pad_to_max_output_size=True)
      >>> print(numbers.numpy(), valid.numpy())
      [1 2 0 0] 2
    """
    boxes, scores = convert_to_tensor(boxes), convert_to_tensor(scores)
    limit, least = _numbers(iou_threshold, score_threshold)
    most = int(static_value(max_output_size, "max_output_size"))
    if boxes.ndim > 2:
        numbers, _, count = _suppress_batch(boxes, scores, most, limit, least)
        return numbers, count
    numbers, _, count = _suppress(boxes, scores, most, limit, least, 0.0)
    if not pad_to_max_output_size:
        return _cut((numbers, numbers, count), "tf.image.non_max_suppression_padded")[0], count
    return numbers, count


@op(same=("boxes", "scores"), differentiable=False, name="non_max_suppression_batch")
def _suppress_batch(
    boxes: TensorLike, scores: TensorLike, most: int, limit: float, least: float
) -> Any:
    def one(b: Any, s: Any) -> Any:
        return _select(lambda i: _overlap(b, b[i]), s, most, limit, least, 0.0)

    for _ in range(boxes.ndim - 2):
        one = jax.vmap(one)
    return one(boxes, scores)


class CombinedNMSResult(NamedTuple):
    """Result of `combined_non_max_suppression`."""

    nmsed_boxes: Any
    nmsed_scores: Any
    nmsed_classes: Any
    valid_detections: Any


@op(same=("boxes", "scores"), differentiable=False, name="combined_non_max_suppression")
def _combined(
    boxes: TensorLike,
    scores: TensorLike,
    per_class: int,
    total: int,
    limit: float,
    least: float,
    clip: bool,
) -> Any:
    classes = scores.shape[-1]

    def image(own: Any, marks: Any) -> Any:
        def one(number: Any) -> Any:
            candidates = own[:, number] if own.shape[1] > 1 else own[:, 0]
            found = _select(
                lambda i: _overlap(candidates, candidates[i]),
                marks[:, number],
                per_class,
                limit,
                least,
                0.0,
            )
            numbers, values, count = found
            valid = jnp.arange(per_class) < count
            return candidates[numbers], jnp.where(valid, values, -jnp.inf)

        found, values = jax.vmap(one)(jnp.arange(classes))
        of_class = jnp.repeat(jnp.arange(classes), per_class)
        flat = values.reshape(-1)
        short = max(total - flat.shape[0], 0)
        flat = jnp.pad(flat, (0, short), constant_values=-jnp.inf)
        order = jnp.argsort(-flat, stable=True)[:total]
        valid = jnp.isfinite(flat[order])
        rows = jnp.pad(found.reshape(-1, 4), [(0, short), (0, 0)])[order]
        rows = jnp.clip(rows, 0, 1) if clip else rows
        return (
            jnp.where(valid[:, None], rows, 0),
            jnp.where(valid, flat[order], 0),
            jnp.where(valid, jnp.pad(of_class, (0, short))[order], 0).astype(marks.dtype),
            jnp.sum(valid).astype(jnp.int32),
        )

    return jax.vmap(image)(boxes, scores)


def combined_non_max_suppression(
    boxes: TensorLike,
    scores: TensorLike,
    max_output_size_per_class: Any,
    max_total_size: Any,
    iou_threshold: Any = 0.5,
    score_threshold: Any = float("-inf"),
    pad_per_class: bool = False,
    clip_boxes: bool = True,
    name: str | None = None,
) -> CombinedNMSResult:
    """`non_max_suppression` for each class of each image, and the best of all classes.

    Args:
      boxes: [batch, n, 1 or classes, 4].
      scores: [batch, n, classes].
      max_output_size_per_class: at most so many of a class.
      max_total_size: at most so many of an image.
      iou_threshold: as in `non_max_suppression`.
      score_threshold: as in `non_max_suppression`.
      pad_per_class: whether the result is no longer than max_output_size_per_class * classes.
      clip_boxes: whether boxes are cut to [0, 1].
      name: ignored.

    Returns:
      (nmsed_boxes [batch, m, 4], nmsed_scores [batch, m], nmsed_classes [batch, m],
      valid_detections [batch]); zeros fill up.

    Example:
      >>> import meshflow as tf
      >>> boxes = tf.constant([[[[0.0, 0.0, 0.5, 0.5]], [[0.5, 0.5, 1.0, 1.0]]]])
      >>> scores = tf.constant([[[0.75, 0.0], [0.0, 0.5]]])
      >>> found = tf.image.combined_non_max_suppression(boxes, scores, 2, 2, score_threshold=0.1)
      >>> print(found.nmsed_classes.numpy(), found.valid_detections.numpy())
      [[0. 1.]] [2]
    """
    boxes, scores = convert_to_tensor(boxes), convert_to_tensor(scores)
    per_class = int(static_value(max_output_size_per_class, "max_output_size_per_class"))
    total = int(static_value(max_total_size, "max_total_size"))
    if pad_per_class:
        total = min(total, per_class * scores.shape[-1])
    limit, least = _numbers(iou_threshold, score_threshold)
    found = _combined(boxes, scores, per_class, total, limit, least, clip_boxes)
    return CombinedNMSResult(*found)


# Yellow, blue, red, lime, purple, olive, maroon, navy, aqua, fuchsia.
_COLORS = (
    *((1, 1, 0, 1), (0, 0, 1, 1), (1, 0, 0, 1), (0, 1, 0, 1), (0.5, 0, 0.5, 1), (0.5, 0.5, 0, 1)),
    *((0.5, 0, 0, 1), (0, 0, 0.5, 1), (0, 1, 1, 1), (1, 0, 1, 1)),
)


@op(same=("images",), differentiable=False, name="draw_bounding_boxes")
def _draw(images: TensorLike, boxes: TensorLike, colors: TensorLike) -> Tensor:
    height, width, channels = images.shape[1:]
    rows, columns = jnp.arange(height)[:, None], jnp.arange(width)[None, :]
    for number in range(boxes.shape[1]):
        scaled = boxes[:, number] * jnp.asarray(
            [height - 1, width - 1, height - 1, width - 1], boxes.dtype
        )
        top, left, bottom, right = (v[:, None, None] for v in jnp.trunc(scaled).astype(jnp.int32).T)
        within = (rows >= top) & (rows <= bottom) & (columns >= left) & (columns <= right)
        edge = (rows == top) | (rows == bottom) | (columns == left) | (columns == right)
        color = colors[number % colors.shape[0], :channels].astype(images.dtype)
        images = jnp.where((within & edge)[..., None], color, images)
    return images


def draw_bounding_boxes(
    images: TensorLike, boxes: TensorLike, colors: Any, name: str | None = None
) -> Tensor:
    """Images with the outlines of boxes.

    Args:
      images: float [batch, height, width, 1, 3 or 4].
      boxes: [batch, n, 4].
      colors: [m, channels], used in turn; None for a default list.
      name: ignored.

    Returns:
      Images of the same shape.

    Example:
      >>> import meshflow as tf
      >>> drawn = tf.image.draw_bounding_boxes(tf.zeros([1, 4, 4, 1]), [[[0.0, 0.0, 1.0, 1.0]]], [[1.0]])
      >>> print(drawn[0, ..., 0].numpy())
      [[1. 1. 1. 1.]
       [1. 0. 0. 1.]
       [1. 0. 0. 1.]
       [1. 1. 1. 1.]]
    """
    images = convert_to_tensor(images)
    if colors is None:
        palette = np.array(_COLORS, np.float32)
        if images.shape[-1] == 1:
            palette[:, 0] = 1
        colors = palette
    return _draw(images, boxes, colors)
