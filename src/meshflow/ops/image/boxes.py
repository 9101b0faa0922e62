"""Ops for boxes in images, which are (top, left, bottom, right) as fractions of height and width."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from meshflow.core.dispatch.dispatch import op
from meshflow.core.dispatch.operands import to_static_value
from meshflow.core.dispatch.symbolic_calls import record_in_graph
from meshflow.core.runtime.bounds_checks import BoundsCheck, check_bounds
from meshflow.core.runtime.context import context
from meshflow.core.runtime.errors import InvalidValueError
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.dtypes import float32, int32
from meshflow.core.values.symbolic_sizes import make_sizes_tensor
from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.core.values.unknown_sizes import compute_on_host, is_unknown
from meshflow.core.variables.variable import Variable
from meshflow.ops.array import pad
from meshflow.ops.array.shaping import StaticInts
from meshflow.ops.deferred_host_values import find_recording
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
    size: tuple[int, ...],
    nearest: bool,
    fill: float,
) -> Tensor:
    height, width = image.shape[1:3]

    def get_sample_positions(
        low: jax.Array, high: jax.Array, count: int, input_size: int
    ) -> jax.Array:
        if count == 1:
            return 0.5 * (low + high)[None] * (input_size - 1)
        # The fractions are computed on the host: a division here could put the last position just
        # outside the image.
        fractions = jnp.asarray(np.arange(count) / (count - 1), image.dtype)
        return low * (input_size - 1) + (high - low) * (input_size - 1) * fractions

    def crop_box(box: jax.Array, index: jax.Array) -> jax.Array:
        picture = image[index]
        rows = get_sample_positions(box[0], box[2], size[0], height)
        columns = get_sample_positions(box[1], box[3], size[1], width)
        is_inside = ((rows >= 0) & (rows <= height - 1))[:, None] & (
            (columns >= 0) & (columns <= width - 1)
        )[None, :]

        def get_pixels(r: jax.Array, c: jax.Array) -> jax.Array:
            r = jnp.clip(r, 0, height - 1).astype(jnp.int32)
            c = jnp.clip(c, 0, width - 1).astype(jnp.int32)
            return picture[r[:, None], c[None, :]]

        if nearest:
            crop = get_pixels(jnp.floor(rows + 0.5), jnp.floor(columns + 0.5))
        else:
            # Due to the slack, a position on the center of a pixel belongs to that pixel for every
            # rounding: XLA may compute a position twice, and the index and the fraction must agree.
            slack = 4 * np.finfo(np.float32).eps * max(height, width)
            top, left = jnp.floor(rows + slack), jnp.floor(columns + slack)
            down = (rows - top)[:, None, None]
            across = (columns - left)[None, :, None]
            # On the center of a pixel, the next one is not read: it may be NaN.
            bottom, right = (
                jnp.where(rows > top, top + 1, top),
                jnp.where(columns > left, left + 1, left),
            )
            above = get_pixels(top, left) * (1 - across) + get_pixels(top, right) * across
            below = get_pixels(bottom, left) * (1 - across) + get_pixels(bottom, right) * across
            crop = above * (1 - down) + below * down
        return jnp.where(is_inside[..., None], crop, jnp.asarray(fill, crop.dtype))

    return jax.vmap(crop_box)(boxes, box_indices)


@record_in_graph
def crop_and_resize(
    image: TensorLike,
    boxes: TensorLike,
    box_indices: TensorLike,
    crop_size: StaticInts,
    method: str = "bilinear",
    extrapolation_value: float = 0.0,
    name: str | None = None,
) -> Tensor:
    """Crop boxes out of images and resize all crops to one size.

    The corners of a box are centers of pixels.

    Args:
      image: [batch, height, width, channels].
      boxes: [n, 4]; coordinates below 0 or above 1 are outside the image.
      box_indices: [n], the index of the image of each box.
      crop_size: (height, width) of the results.
      method: 'bilinear' or 'nearest'.
      extrapolation_value: Value of pixels outside the image.
      name: Ignored.

    Returns:
      Float32 tensor [n, crop height, crop width, channels].

    Raises:
      InvalidArgumentError: If the method is another one.

    Example:
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
    size = tuple(int(s) for s in to_static_value(crop_size, "crop_size"))
    images, boxes = cast(image, float32), convert_to_tensor(boxes, float32)
    if len(images.shape) != 4:
        raise InvalidValueError(
            f"crop_and_resize: input image must be 4-D [batch, height, width, channels], got {images.shape}."
        )
    if boxes.shape[1:].as_list() != [4]:
        raise InvalidValueError(
            f"crop_and_resize: boxes must have 4 columns (y1, x1, y2, x2), got shape {boxes.shape}."
        )
    if min(size) < 1:
        raise InvalidValueError(f"crop_and_resize: crop dimensions must be positive, got {size}.")
    check = BoundsCheck(
        "box_index has values outside [0, batch_size)",
        (0,),
        images.array.shape[:1],
        error="OutOfRangeError",
    )
    box_indices = check_bounds(convert_to_tensor(box_indices), check)
    fill = float(extrapolation_value)
    return _crop(images, boxes, box_indices, size, method == "nearest", fill)


def _compute_iou(boxes: jax.Array, box: jax.Array) -> jax.Array:
    """Compute the intersection over union of each of many boxes with one box."""
    low, high = (
        jnp.minimum(boxes[..., :2], boxes[..., 2:]),
        jnp.maximum(boxes[..., :2], boxes[..., 2:]),
    )
    box_low, box_high = jnp.minimum(box[:2], box[2:]), jnp.maximum(box[:2], box[2:])
    intersection = jnp.prod(
        jnp.maximum(jnp.minimum(high, box_high) - jnp.maximum(low, box_low), 0), axis=-1
    )
    areas = jnp.prod(high - low, axis=-1)
    union = areas + jnp.prod(box_high - box_low) - intersection
    return jnp.where(union > 0, intersection / jnp.where(union > 0, union, 1), 0)


def _select_boxes(
    similarity: Callable[[jax.Array], jax.Array],
    scores: jax.Array,
    max_count: int,
    limit: jax.Array,
    min_score: jax.Array,
    sigma: float,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Select the box with the best score repeatedly, and lower the scores of overlapping boxes.

    If `sigma` is 0, boxes with an overlap above `limit` are dropped. Boxes with a score of at most `min_score`
    are not selected.

    Returns:
      (indices, scores, count): The first `count` entries are valid, the others 0.
    """

    def step(i: jax.Array, state: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        live, indices, values, count = state
        best = jnp.argmax(live)
        score = live[best]
        valid = score > min_score
        overlaps = similarity(best)
        if sigma > 0:
            lowered = live * jnp.exp(-0.5 / sigma * overlaps**2)
        else:
            lowered = jnp.where(overlaps > limit, -jnp.inf, live)
        live = jnp.where(valid, lowered, live).at[best].set(-jnp.inf)
        indices = indices.at[i].set(jnp.where(valid, best, 0).astype(jnp.int32))
        values = values.at[i].set(jnp.where(valid, score, 0))
        return live, indices, values, count + valid.astype(jnp.int32)

    start = (
        scores,
        jnp.zeros((max_count,), jnp.int32),
        jnp.zeros((max_count,), scores.dtype),
        jnp.zeros((), jnp.int32),
    )
    if scores.shape[0] == 0 or max_count == 0:
        return start[1:]
    _, indices, values, count = jax.lax.fori_loop(0, max_count, step, start)
    return indices, values, count


@op(same=("boxes", "scores"), differentiable=False, name="non_max_suppression")
def _suppress(
    boxes: TensorLike,
    scores: TensorLike,
    most: int,
    limit: TensorLike,
    least: TensorLike,
    sigma: float,
) -> tuple[Tensor, ...]:
    boxes = jnp.asarray(boxes)
    return _select_boxes(lambda i: _compute_iou(boxes, boxes[i]), scores, most, limit, least, sigma)


@op(same=("overlaps", "scores"), differentiable=False, name="non_max_suppression_overlaps")
def _suppress_overlaps(
    overlaps: TensorLike, scores: TensorLike, most: int, limit: TensorLike, least: TensorLike
) -> tuple[Tensor, ...]:
    overlaps = jnp.asarray(overlaps)
    return _select_boxes(lambda i: overlaps[i], scores, most, limit, least, 0.0)


def _select(
    op: Callable[..., tuple[Tensor, ...]],
    similar: TensorLike,
    scores: TensorLike,
    max_output_size: StaticInts,
    limits: Sequence[float | Tensor],
    name: str,
) -> tuple[Tensor, Tensor]:
    """Select boxes; return their indices and scores.

    Args:
      op: Selects a static number of boxes from boxes or overlaps, scores and limits.
      similar: Boxes [n, 4], or overlaps [n, n].
      scores: Scores [n].
      max_output_size: Maximum number of selected boxes.
      limits: Further arguments of the op.
      name: Name of the public function.
    """
    similar, scores = _convert_together(similar, scores)
    size = to_static_value(max_output_size, "max_output_size")
    if int(size) < 0:
        raise InvalidValueError(f"{name}: output size must be non-negative, got {size}.")
    counts = similar.shape[0], scores.shape[0]
    if None not in counts and counts[0] != counts[1]:
        if context.value_probe is None or not context.value_probe.invents_sizes:
            raise InvalidValueError(
                f"{name}: expected a score for each of {counts[0]} boxes, got {counts[1]}."
            )
        # An unknown size that must be 1, such as that of a batch, was replaced by another number.
        similar, scores = similar[: min(counts)], scores[: min(counts)]
    if not is_unknown([similar, scores, *(n for n in limits if isinstance(n, Tensor))]):
        found = similar.shape[0]
        most = min(int(size), found)
        num_outputs = most
        if context.trace is None:
            # Few padded sizes, so that few programs are compiled. Boxes without a score are not selected.
            padding = _round_up(found) - found
            similar = pad(similar, [[0, padding], [0, padding if op is _suppress_overlaps else 0]])
            scores = pad(scores, [[0, padding]], constant_values=-np.inf)
            num_outputs = _round_up(most)
        indices, values, num_valid = op(similar, scores, num_outputs, *limits)
        count = num_valid.require_value(
            f"the number of boxes that {name} selects (use tf.image.non_max_suppression_padded "
            "with pad_to_max_output_size=True)"
        )
        most = min(most, int(count))
        return indices[:most], values[:most]

    def run(
        similar: np.ndarray, scores: np.ndarray, size: np.ndarray, *limits: np.ndarray
    ) -> list[np.ndarray]:
        count = len(scores)
        most = min(int(size), count)
        padding = _round_up(count) - count
        widths = [(0, padding), (0, padding if op is _suppress_overlaps else 0)]
        indices, values, num_valid = op(
            Tensor(np.pad(similar, widths)),
            Tensor(np.pad(scores, (0, padding), constant_values=-np.inf)),
            min(_round_up(most), count + padding),
            *map(float, limits),
        )
        most = min(most, int(num_valid))
        return [np.asarray(indices.array)[:most], np.asarray(values.array)[:most]]

    types = [(("count",), np.int32), (("count",), scores.array.dtype)]
    operands: list[TensorLike] = [similar, scores, make_sizes_tensor(size, np.int64), *limits]
    indices, values = compute_on_host(run, operands, types, name)
    return indices, values


def _convert_together(similar: TensorLike, scores: TensorLike) -> list[Tensor]:
    """Convert NumPy arrays and lists to the dtype of the tensor beside them, or else to float32."""
    dtypes = (v.dtype for v in (similar, scores) if isinstance(v, (Tensor, Variable)))
    hint = next(dtypes, float32)
    return [convert_to_tensor(v, dtype_hint=hint) for v in (similar, scores)]


def _round_up(count: int) -> int:
    """Return the next power of two, at least 16."""
    return max(16, 1 << (count - 1).bit_length())


def _convert_limits(
    overlap: float | Tensor, score: float | Tensor, *others: float | Tensor
) -> tuple[float | Tensor, ...]:
    """Return limits as numbers, or as tensors if only the running program knows them.

    Args:
      overlap: Largest intersection over union of two boxes.
      score: Smallest score.
      *others: Further limits.

    Raises:
      InvalidArgumentError: If `overlap` is not in [0, 1].
    """
    limits = _convert_numbers(overlap, score, *others)
    if isinstance(limits[0], float) and not 0 <= limits[0] <= 1:
        raise InvalidValueError(
            f"tf.image.non_max_suppression: iou_threshold must be in [0, 1], got {limits[0]}."
        )
    return limits


def _convert_numbers(*values: float | Tensor) -> tuple[float | Tensor, ...]:
    return tuple(
        v if is_unknown([convert_to_tensor(v)]) else float(to_static_value(v)) for v in values
    )


def non_max_suppression(
    boxes: TensorLike,
    scores: TensorLike,
    max_output_size: StaticInts,
    iou_threshold: float | Tensor = 0.5,
    score_threshold: float | Tensor = float("-inf"),
    name: str | None = None,
) -> Tensor:
    """Select boxes with high scores that do not overlap much.

    The number of selected boxes depends on values, so a function runs op by op; one with
    `non_max_suppression_padded` is compiled.

    Args:
      boxes: [n, 4].
      scores: [n].
      max_output_size: Maximum number of selected boxes.
      iou_threshold: Boxes with a larger overlap (intersection over union) with a selected box are
        dropped.
      score_threshold: Boxes with a score not above it are dropped.
      name: Ignored.

    Returns:
      int32 vector of box indices, best score first.

    Example:
      >>> tf.image.non_max_suppression([[0., 0., 1., 1.], [0., 0., 1., 0.9], [2., 2., 3., 3.]],
      ...                              [0.5, 0.9, 0.7], 3).numpy()
      array([1, 2], dtype=int32)
    """
    settings = (scores, max_output_size, iou_threshold, score_threshold)
    recording = find_recording(boxes, scores)
    if recording is not None:
        indices: Tensor = recording.call(non_max_suppression, (boxes, *settings), {})
        return indices
    return non_max_suppression_with_scores(boxes, *settings)[0]


def non_max_suppression_with_scores(
    boxes: TensorLike,
    scores: TensorLike,
    max_output_size: StaticInts,
    iou_threshold: float | Tensor = 0.5,
    score_threshold: float | Tensor = float("-inf"),
    soft_nms_sigma: float | Tensor = 0.0,
    name: str | None = None,
) -> tuple[Tensor, Tensor]:
    """Select boxes as `non_max_suppression` does, and return their scores.

    Soft suppression lowers scores instead of dropping boxes.

    Args:
      boxes: [n, 4].
      scores: [n].
      max_output_size: Maximum number of selected boxes.
      iou_threshold: As in `non_max_suppression`; not used by soft suppression.
      score_threshold: Boxes with a score not above it are dropped.
      soft_nms_sigma: Width of soft suppression (Bodla et al., 2017); 0 for hard suppression.
      name: Ignored.

    Returns:
      (indices, scores), best score first.

    Example:
      >>> boxes = [[0.0, 0.0, 1.0, 1.0], [0.0, 0.0, 1.0, 0.9], [2.0, 2.0, 3.0, 3.0]]
      >>> indices, scores = tf.image.non_max_suppression_with_scores(boxes, [0.5, 0.75, 0.25], 3)
      >>> print(indices.numpy(), scores.numpy())
      [1 2] [0.75 0.25]
    """
    boxes, scores = _convert_together(boxes, scores)
    if boxes.shape.rank != 2 or boxes.shape[1] != 4:
        raise InvalidValueError(
            f"tf.image.non_max_suppression: expected boxes of shape [n, 4], got {boxes.shape}."
        )
    limits = _convert_limits(iou_threshold, score_threshold, soft_nms_sigma)
    name = "tf.image.non_max_suppression"
    return _select(_suppress, boxes, scores, max_output_size, limits, name)


def non_max_suppression_overlaps(
    overlaps: TensorLike,
    scores: TensorLike,
    max_output_size: StaticInts,
    overlap_threshold: float | Tensor = 0.5,
    score_threshold: float | Tensor = float("-inf"),
    name: str | None = None,
) -> Tensor:
    """Select boxes as `non_max_suppression` does, from precomputed overlaps.

    Args:
      overlaps: [n, n].
      scores: [n].
      max_output_size: Maximum number of selected boxes.
      overlap_threshold: Boxes with a larger overlap with a selected box are dropped.
      score_threshold: Boxes with a score not above it are dropped.
      name: Ignored.

    Returns:
      int32 vector of box indices, best score first.

    Example:
      >>> overlaps = [[1.0, 0.9, 0.0], [0.9, 1.0, 0.0], [0.0, 0.0, 1.0]]
      >>> print(tf.image.non_max_suppression_overlaps(overlaps, [0.6, 0.7, 0.3], 3).numpy())
      [1 2]
    """
    limits = _convert_numbers(overlap_threshold, score_threshold)
    name = "tf.image.non_max_suppression_overlaps"
    return _select(_suppress_overlaps, overlaps, scores, max_output_size, limits, name)[0]


def non_max_suppression_padded(
    boxes: TensorLike,
    scores: TensorLike,
    max_output_size: StaticInts,
    iou_threshold: float | Tensor = 0.5,
    score_threshold: float | Tensor = float("-inf"),
    pad_to_max_output_size: bool = False,
    name: str | None = None,
    sorted_input: bool = False,
    canonicalized_coordinates: bool = False,
    tile_size: int = 512,
) -> tuple[Tensor, Tensor]:
    """Select boxes as `non_max_suppression` does, with a result of fixed size.

    Args:
      boxes: [..., n, 4].
      scores: [..., n].
      max_output_size: Maximum number of selected boxes.
      iou_threshold: As in `non_max_suppression`.
      score_threshold: As in `non_max_suppression`.
      pad_to_max_output_size: Whether to pad the result with zeros to `max_output_size`.
      name: Ignored.
      sorted_input: Ignored.
      canonicalized_coordinates: Ignored.
      tile_size: Ignored.

    Returns:
      (indices, number of valid indices).

    Example:
      >>> boxes = [[0.0, 0.0, 1.0, 1.0], [0.0, 0.0, 1.0, 0.9], [2.0, 2.0, 3.0, 3.0]]
      >>> indices, valid = tf.image.non_max_suppression_padded(
      ...     boxes, [0.6, 0.7, 0.3], 4, pad_to_max_output_size=True)
      >>> print(indices.numpy(), valid.numpy())
      [1 2 0 0] 2
    """
    boxes, scores = _convert_together(boxes, scores)
    limit, min_score = _convert_limits(iou_threshold, score_threshold)
    if not pad_to_max_output_size and boxes.ndim == 2:
        limits, name = (limit, min_score, 0.0), "tf.image.non_max_suppression_padded"
        indices, _ = _select(_suppress, boxes, scores, max_output_size, limits, name)
        return indices, convert_to_tensor(indices.array.shape[0], dtype_hint=int32)
    max_count = int(to_static_value(max_output_size, "max_output_size"))
    if boxes.ndim > 2:
        indices, _, count = _suppress_batch(boxes, scores, max_count, limit, min_score)
        return indices, count
    indices, _, count = _suppress(boxes, scores, max_count, limit, min_score, 0.0)
    return indices, count


@op(same=("boxes", "scores"), differentiable=False, name="non_max_suppression_batch")
def _suppress_batch(
    boxes: TensorLike, scores: TensorLike, most: int, limit: TensorLike, least: TensorLike
) -> tuple[Tensor, ...]:
    def select_from_image(b: jax.Array, s: jax.Array) -> tuple[jax.Array, ...]:
        return _select_boxes(lambda i: _compute_iou(b, b[i]), s, most, limit, least, 0.0)

    for _ in range(boxes.ndim - 2):
        select_from_image = jax.vmap(select_from_image)
    return select_from_image(boxes, scores)


class CombinedNMSResult(NamedTuple):
    """Result of `combined_non_max_suppression`."""

    nmsed_boxes: Tensor
    nmsed_scores: Tensor
    nmsed_classes: Tensor
    valid_detections: Tensor


@op(same=("boxes", "scores"), differentiable=False, name="combined_non_max_suppression")
def _suppress_per_class(
    boxes: TensorLike,
    scores: TensorLike,
    per_class: int,
    total: int,
    limit: TensorLike,
    least: TensorLike,
    clip: bool,
) -> tuple[Tensor, ...]:
    classes = scores.shape[-1]

    def suppress_image(boxes_: jax.Array, scores_: jax.Array) -> tuple[jax.Array, ...]:
        def suppress_class(class_id: jax.Array) -> tuple[jax.Array, jax.Array]:
            candidates = boxes_[:, class_id] if boxes_.shape[1] > 1 else boxes_[:, 0]
            selection = _select_boxes(
                lambda i: _compute_iou(candidates, candidates[i]),
                scores_[:, class_id],
                per_class,
                limit,
                least,
                0.0,
            )
            indices, values, count = selection
            valid = jnp.arange(per_class) < count
            return candidates[indices], jnp.where(valid, values, -jnp.inf)

        selected, values = jax.vmap(suppress_class)(jnp.arange(classes))
        class_ids = jnp.repeat(jnp.arange(classes), per_class)
        flat = values.reshape(-1)
        num_missing = max(total - flat.shape[0], 0)
        flat = jnp.pad(flat, (0, num_missing), constant_values=-jnp.inf)
        order = jnp.argsort(-flat, stable=True)[:total]
        valid = jnp.isfinite(flat[order])
        rows = jnp.pad(selected.reshape(-1, 4), [(0, num_missing), (0, 0)])[order]
        rows = jnp.clip(rows, 0, 1) if clip else rows
        return (
            jnp.where(valid[:, None], rows, 0),
            jnp.where(valid, flat[order], 0),
            jnp.where(valid, jnp.pad(class_ids, (0, num_missing))[order], 0).astype(scores_.dtype),
            jnp.sum(valid).astype(jnp.int32),
        )

    return jax.vmap(suppress_image)(boxes, scores)


def combined_non_max_suppression(
    boxes: TensorLike,
    scores: TensorLike,
    max_output_size_per_class: StaticInts,
    max_total_size: StaticInts,
    iou_threshold: float | Tensor = 0.5,
    score_threshold: float | Tensor = float("-inf"),
    pad_per_class: bool = False,
    clip_boxes: bool = True,
    name: str | None = None,
) -> CombinedNMSResult:
    """Apply `non_max_suppression` to each class of each image, and select each image's best boxes.

    Args:
      boxes: [batch, n, 1 or classes, 4].
      scores: [batch, n, classes].
      max_output_size_per_class: Maximum number of boxes of a class.
      max_total_size: Maximum number of boxes of an image.
      iou_threshold: As in `non_max_suppression`.
      score_threshold: As in `non_max_suppression`.
      pad_per_class: Whether to limit the size of the result to max_output_size_per_class * classes.
      clip_boxes: Whether to clip coordinates to [0, 1].
      name: Ignored.

    Returns:
      (nmsed_boxes [batch, m, 4], nmsed_scores [batch, m], nmsed_classes [batch, m],
      valid_detections [batch]), padded with zeros.

    Example:
      >>> boxes = tf.constant([[[[0.0, 0.0, 0.5, 0.5]], [[0.5, 0.5, 1.0, 1.0]]]])
      >>> scores = tf.constant([[[0.75, 0.0], [0.0, 0.5]]])
      >>> found = tf.image.combined_non_max_suppression(boxes, scores, 2, 2, score_threshold=0.1)
      >>> print(found.nmsed_classes.numpy(), found.valid_detections.numpy())
      [[0. 1.]] [2]
    """
    boxes, scores = _convert_together(boxes, scores)
    per_class = int(to_static_value(max_output_size_per_class, "max_output_size_per_class"))
    total = int(to_static_value(max_total_size, "max_total_size"))
    if pad_per_class:
        total = min(total, per_class * scores.shape[-1])
    limit, min_score = _convert_limits(iou_threshold, score_threshold)
    selection = _suppress_per_class(boxes, scores, per_class, total, limit, min_score, clip_boxes)
    return CombinedNMSResult(*selection)


# Yellow, blue, red, lime, purple, olive, maroon, navy, aqua, fuchsia.
_COLORS = (
    *((1, 1, 0, 1), (0, 0, 1, 1), (1, 0, 0, 1), (0, 1, 0, 1), (0.5, 0, 0.5, 1), (0.5, 0.5, 0, 1)),
    *((0.5, 0, 0, 1), (0, 0, 0.5, 1), (0, 1, 1, 1), (1, 0, 1, 1)),
)


@op(same=("images",), differentiable=False, name="draw_bounding_boxes")
def _draw(images: TensorLike, boxes: TensorLike, colors: TensorLike) -> Tensor:
    height, width, channels = images.shape[1:]
    if channels not in (1, 3, 4):
        raise InvalidValueError(
            f"draw_bounding_boxes: Channel depth should be either 1 (GRY), 3 (RGB), or 4 (RGBA), got {channels}."
        )
    if boxes.ndim != 3 or boxes.shape[2] != 4:
        raise InvalidValueError(
            "draw_bounding_boxes: The boxes must have shape [batch, n, 4], and the size of the third dimension of the "
            f"box must be 4, got {list(boxes.shape)}."
        )
    rows, columns = jnp.arange(height)[:, None], jnp.arange(width)[None, :]
    for index in range(boxes.shape[1]):
        scaled = boxes[:, index] * jnp.asarray(
            [height - 1, width - 1, height - 1, width - 1], boxes.dtype
        )
        top, left, bottom, right = (v[:, None, None] for v in jnp.trunc(scaled).astype(jnp.int32).T)
        is_within = (rows >= top) & (rows <= bottom) & (columns >= left) & (columns <= right)
        is_edge = (rows == top) | (rows == bottom) | (columns == left) | (columns == right)
        color = colors[index % colors.shape[0], :channels].astype(images.dtype)
        images = jnp.where((is_within & is_edge)[..., None], color, images)
    return images


def draw_bounding_boxes(
    images: TensorLike, boxes: TensorLike, colors: Any, name: str | None = None
) -> Tensor:
    """Draw the outlines of boxes into images.

    Args:
      images: Float [batch, height, width, 1, 3 or 4].
      boxes: [batch, n, 4].
      colors: [m, channels], used in turn; None for a default palette.
      name: Ignored.

    Example:
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
