"""Functions that reshape, join, repeat, pad and resize tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.dtypes import DTypeLike
from meshflow.core.values.shapes import ShapeLike
from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.keras.settings import normalize_data_format
from meshflow.ops import array, image

__all__ = [
    "arange",
    "batch_flatten",
    "concatenate",
    "expand_dims",
    "flatten",
    "gather",
    "one_hot",
    "permute_dimensions",
    "repeat",
    "repeat_elements",
    "reshape",
    "resize_images",
    "resize_volumes",
    "reverse",
    "spatial_2d_padding",
    "spatial_3d_padding",
    "squeeze",
    "stack",
    "temporal_padding",
    "tile",
    "transpose",
]


def arange(
    start: TensorLike, stop: TensorLike = None, step: TensorLike = 1, dtype: DTypeLike = "int32"
) -> Tensor:
    """Return integers in [`start`, `stop`), or in [0, `start`) without `stop`.

    Example:
      >>> tf.keras.backend.arange(1, 10, 3).numpy().tolist()
      [1, 4, 7]
    """
    if stop is None:
        start, stop = 0, max(start, 0) if isinstance(start, int) else start
    return array.range(start, limit=stop, delta=step, dtype=dtype)


def reshape(x: TensorLike, shape: ShapeLike | Tensor) -> Tensor:
    """Reshape `x`.

    Example:
      >>> tf.keras.backend.reshape(tf.ones([2, 6]), (3, -1)).shape
      TensorShape([3, 4])
    """
    return array.reshape(x, shape)


def flatten(x: TensorLike) -> Tensor:
    """Flatten `x` to a vector.

    Example:
      >>> tf.keras.backend.flatten(tf.constant([[1, 2], [3, 4]])).numpy().tolist()
      [1, 2, 3, 4]
    """
    return array.reshape(x, [-1])


def batch_flatten(x: TensorLike) -> Tensor:
    """Flatten each example to a vector.

    Example:
      >>> tf.keras.backend.batch_flatten(tf.ones([2, 3, 4])).shape
      TensorShape([2, 12])
    """
    x = convert_to_tensor(x)
    inner = x.shape[1:]
    size = inner.num_elements() if inner.is_fully_defined() else -1
    return array.reshape(x, [-1, size] if size != -1 else [array.shape(x)[0], -1])


def expand_dims(x: TensorLike, axis: int = -1) -> Tensor:
    """Insert a dimension of size 1.

    Example:
      >>> tf.keras.backend.expand_dims(tf.ones([2, 3]), axis=0).shape
      TensorShape([1, 2, 3])
    """
    return array.expand_dims(x, axis)


def squeeze(x: TensorLike, axis: int) -> Tensor:
    """Remove a dimension of size 1.

    Example:
      >>> tf.keras.backend.squeeze(tf.ones([2, 1, 3]), axis=1).shape
      TensorShape([2, 3])
    """
    return array.squeeze(x, axis)


def transpose(x: TensorLike) -> Tensor:
    """Reverse the order of the dimensions.

    Example:
      >>> tf.keras.backend.transpose(tf.ones([2, 3, 4])).shape
      TensorShape([4, 3, 2])
    """
    return array.transpose(x)


def permute_dimensions(x: TensorLike, pattern: Sequence[int]) -> Tensor:
    """Permute the dimensions to the order of `pattern`.

    Example:
      >>> tf.keras.backend.permute_dimensions(tf.ones([2, 3, 4]), (2, 0, 1)).shape
      TensorShape([4, 2, 3])
    """
    return array.transpose(x, pattern)


def concatenate(tensors: Sequence[Any], axis: int = -1) -> Tensor:
    """Join tensors along a dimension.

    Example:
      >>> tf.keras.backend.concatenate([tf.ones([2, 3]), tf.ones([2, 1])]).shape
      TensorShape([2, 4])
    """
    return array.concat(list(tensors), axis)


def stack(x: Sequence[Any], axis: int = 0) -> Tensor:
    """Join tensors along a new dimension.

    Example:
      >>> tf.keras.backend.stack([tf.ones([3]), tf.ones([3])], axis=1).shape
      TensorShape([3, 2])
    """
    return array.stack(list(x), axis)


def repeat(x: TensorLike, n: int) -> Tensor:
    """Repeat a matrix [batch, features] `n` times: [batch, n, features].

    Raises:
      ValueError: If `x` is not a matrix.

    Example:
      >>> tf.keras.backend.repeat(tf.constant([[1, 2]]), 3).numpy().tolist()
      [[[1, 2], [1, 2], [1, 2]]]
    """
    x = convert_to_tensor(x)
    if x.ndim != 2:
        raise ValueError(f"K.repeat expects a tensor of rank 2, got one of shape {x.shape}.")
    return array.repeat(array.expand_dims(x, 1), n, axis=1)


def repeat_elements(x: TensorLike, rep: int, axis: int) -> Tensor:
    """Repeat each slice along a dimension `rep` times, as `numpy.repeat` does.

    Example:
      >>> tf.keras.backend.repeat_elements(tf.constant([[1, 2]]), 2, axis=1).numpy().tolist()
      [[1, 1, 2, 2]]
    """
    return array.repeat(x, rep, axis=axis)


def tile(x: TensorLike, n: int | Sequence[int]) -> Tensor:
    """Tile `x`: `n` holds one count for each dimension.

    Example:
      >>> tf.keras.backend.tile(tf.constant([[1, 2]]), (2, 2)).numpy().tolist()
      [[1, 2, 1, 2], [1, 2, 1, 2]]
    """
    return array.tile(x, [n] if isinstance(n, int) else n)


def reverse(x: TensorLike, axes: int | Sequence[int]) -> Tensor:
    """Reverse the elements along one or more dimensions.

    Example:
      >>> tf.keras.backend.reverse(tf.constant([[1, 2], [3, 4]]), axes=1).numpy().tolist()
      [[2, 1], [4, 3]]
    """
    return array.reverse(x, [axes] if isinstance(axes, int) else axes)


def gather(reference: TensorLike, indices: TensorLike) -> Tensor:
    """Gather slices of the first dimension.

    Example:
      >>> tf.keras.backend.gather(tf.constant([10, 20, 30]), [2, 0]).numpy().tolist()
      [30, 10]
    """
    return array.gather(reference, indices)


def one_hot(indices: TensorLike, num_classes: int) -> Tensor:
    """One-hot encode indices.

    Example:
      >>> tf.keras.backend.one_hot(tf.constant([2, 0]), 3).numpy().tolist()
      [[0.0, 0.0, 1.0], [1.0, 0.0, 0.0]]
    """
    return array.one_hot(indices, num_classes, axis=-1)


def temporal_padding(x: TensorLike, padding: Sequence[int] = (1, 1)) -> Tensor:
    """Pad the middle dimension of `x` [batch, time, features] with zeros.

    Example:
      >>> tf.keras.backend.temporal_padding(tf.ones([1, 4, 3]), (2, 0)).shape
      TensorShape([1, 6, 3])
    """
    return array.pad(x, [[0, 0], list(padding), [0, 0]])


def _pad_spatially(x: TensorLike, padding: Sequence[Sequence[int]], data_format: str | None) -> Any:
    pairs = [list(pair) for pair in padding]
    if normalize_data_format(data_format) == "channels_first":
        return array.pad(x, [[0, 0], [0, 0], *pairs])
    return array.pad(x, [[0, 0], *pairs, [0, 0]])


def spatial_2d_padding(
    x: TensorLike,
    padding: Sequence[Sequence[int]] = ((1, 1), (1, 1)),
    data_format: str | None = None,
) -> Tensor:
    """Pad images with zeros: ((top, bottom), (left, right)).

    Example:
      >>> tf.keras.backend.spatial_2d_padding(tf.ones([1, 4, 4, 3]), ((1, 1), (2, 0))).shape
      TensorShape([1, 6, 6, 3])
    """
    return _pad_spatially(x, padding, data_format)


def spatial_3d_padding(
    x: TensorLike,
    padding: Sequence[Sequence[int]] = ((1, 1), (1, 1), (1, 1)),
    data_format: str | None = None,
) -> Tensor:
    """Pad volumes with zeros: one pair for each of depth, height and width.

    Example:
      >>> tf.keras.backend.spatial_3d_padding(tf.ones([1, 4, 4, 4, 3])).shape
      TensorShape([1, 6, 6, 6, 3])
    """
    return _pad_spatially(x, padding, data_format)


def resize_images(
    x: TensorLike,
    height_factor: int,
    width_factor: int,
    data_format: str,
    interpolation: str = "nearest",
) -> Tensor:
    """Enlarge images by integer factors.

    Args:
      x: Images [batch, height, width, channels] (or channels first).
      height_factor: Factor of the height.
      width_factor: Factor of the width.
      data_format: 'channels_last' or 'channels_first'.
      interpolation: 'nearest', 'bilinear' or another method of `tf.image.resize`.

    Raises:
      ValueError: If the data format or the method is unknown.

    Example:
      >>> x = tf.reshape(tf.range(2.0), [1, 1, 2, 1])
      >>> tf.keras.backend.resize_images(x, 1, 2, "channels_last").numpy().ravel().tolist()
      [0.0, 0.0, 1.0, 1.0]
    """
    is_channels_first = normalize_data_format(data_format) == "channels_first"
    if interpolation == "nearest":
        rows = repeat_elements(x, height_factor, 2 if is_channels_first else 1)
        return repeat_elements(rows, width_factor, 3 if is_channels_first else 2)
    channels_last = array.transpose(x, [0, 2, 3, 1]) if is_channels_first else convert_to_tensor(x)
    sizes = array.shape(channels_last)[1:3] * [height_factor, width_factor]
    resized = image.resize(channels_last, sizes, method=interpolation)
    return array.transpose(resized, [0, 3, 1, 2]) if is_channels_first else resized


def resize_volumes(
    x: TensorLike, depth_factor: int, height_factor: int, width_factor: int, data_format: str
) -> Tensor:
    """Enlarge volumes by integer factors, by repetition.

    Args:
      x: Volumes [batch, depth, height, width, channels] (or channels first).
      depth_factor: Factor of the depth.
      height_factor: Factor of the height.
      width_factor: Factor of the width.
      data_format: 'channels_last' or 'channels_first'.

    Example:
      >>> tf.keras.backend.resize_volumes(tf.ones([1, 2, 3, 4, 5]), 2, 2, 2, "channels_last").shape
      TensorShape([1, 4, 6, 8, 5])
    """
    first_axis = 2 if normalize_data_format(data_format) == "channels_first" else 1
    for axis, factor in enumerate((depth_factor, height_factor, width_factor), first_axis):
        x = repeat_elements(x, factor, axis)
    return x
