"""What networks are made of: convolutions, pooling, normalization, dropout, and their losses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.tensor import Tensor
from meshflow.keras import losses
from meshflow.keras.losses.functions import _binary_focal_terms, _binary_terms
from meshflow.keras.settings import standard_data_format
from meshflow.ops import array, nn

__all__ = [
    "batch_normalization",
    "bias_add",
    "binary_crossentropy",
    "binary_focal_crossentropy",
    "categorical_crossentropy",
    "categorical_focal_crossentropy",
    "conv1d",
    "conv2d",
    "conv2d_transpose",
    "conv3d",
    "depthwise_conv2d",
    "dropout",
    "normalize_batch_in_training",
    "pool2d",
    "pool3d",
    "separable_conv2d",
    "sparse_categorical_crossentropy",
]


def _layout(data_format: str | None, rank: int) -> str:
    spatial = "DHW"[3 - rank :]
    first = standard_data_format(data_format) == "channels_first"
    return f"NC{spatial}" if first else f"N{spatial}C"


def _padding(padding: str) -> str:
    if padding not in ("same", "valid"):
        raise ValueError(f"Invalid padding: {padding!r}. Expected 'same' or 'valid'.")
    return padding.upper()


def bias_add(x: Any, bias: Any, data_format: str | None = None) -> Tensor:
    """Adds a bias to the channels.

    Args:
      x: a tensor with a batch dimension.
      bias: a vector with a number for each channel, or a tensor with a number for each element of
        an example.
      data_format: 'channels_last' or 'channels_first'; default `image_data_format()`.

    Raises:
      ValueError: for a bias with another number of dimensions.

    Example:
      >>> import meshflow as tf
      >>> tf.keras.backend.bias_add(tf.zeros([1, 2, 2]), tf.constant([1.0, 5.0])).numpy().tolist()
      [[[1.0, 5.0], [1.0, 5.0]]]
    """
    first = standard_data_format(data_format) == "channels_first"
    x, bias = convert_to_tensor(x), convert_to_tensor(bias)
    sizes = bias.shape.as_list()
    if len(sizes) not in (1, x.ndim - 1):
        raise ValueError(
            f"Unexpected bias dimensions {len(sizes)}, expect to be 1 or {x.ndim - 1} dimensions"
        )
    if first and len(sizes) > 1:
        # The bias has its channels last in either layout.
        sizes = [sizes[-1], *sizes[:-1]]
    elif first:
        sizes = [*sizes, *[1] * (x.ndim - 2)]
    return x + array.reshape(bias, [1, *sizes] if len(sizes) > 1 else sizes)


def conv1d(
    x: Any,
    kernel: Any,
    strides: int = 1,
    padding: str = "valid",
    data_format: str | None = None,
    dilation_rate: int = 1,
) -> Tensor:
    """Convolution over time.

    Args:
      x: a tensor [batch, time, channels] (or channels first).
      kernel: a tensor [width, channels, filters].
      strides: the stride.
      padding: 'valid', 'same' or 'causal' (zeros before the start only).
      data_format: 'channels_last' or 'channels_first'; default `image_data_format()`.
      dilation_rate: the distance between the kernel's elements.

    Example:
      >>> import meshflow as tf
      >>> x, kernel = tf.reshape(tf.range(4.0), [1, 4, 1]), tf.ones([2, 1, 1])
      >>> tf.keras.backend.conv1d(x, kernel, padding="causal").numpy().ravel().tolist()
      [0.0, 1.0, 3.0, 5.0]
    """
    layout = "NCW" if standard_data_format(data_format) == "channels_first" else "NWC"
    if padding == "causal":
        before = [dilation_rate * (kernel.shape[0] - 1), 0]
        pairs = [[0, 0], [0, 0], before] if layout == "NCW" else [[0, 0], before, [0, 0]]
        x, padding = array.pad(x, pairs), "valid"
    return nn.convolution(x, kernel, [strides], _padding(padding), layout, [dilation_rate])


def conv2d(
    x: Any,
    kernel: Any,
    strides: Any = (1, 1),
    padding: str = "valid",
    data_format: str | None = None,
    dilation_rate: Any = (1, 1),
) -> Tensor:
    """Convolution of images.

    Args:
      x: images [batch, height, width, channels] (or channels first).
      kernel: a tensor [height, width, channels, filters].
      strides: the strides.
      padding: 'valid' or 'same'.
      data_format: 'channels_last' or 'channels_first'; default `image_data_format()`.
      dilation_rate: the distances between the kernel's elements.

    Example:
      >>> import meshflow as tf
      >>> tf.keras.backend.conv2d(tf.ones([1, 4, 4, 3]), tf.ones([2, 2, 3, 5])).shape
      TensorShape([1, 3, 3, 5])
    """
    layout = _layout(data_format, 2)
    return nn.convolution(x, kernel, strides, _padding(padding), layout, dilation_rate)


def conv3d(
    x: Any,
    kernel: Any,
    strides: Any = (1, 1, 1),
    padding: str = "valid",
    data_format: str | None = None,
    dilation_rate: Any = (1, 1, 1),
) -> Tensor:
    """Convolution of volumes; arguments as in `conv2d`.

    Example:
      >>> import meshflow as tf
      >>> tf.keras.backend.conv3d(tf.ones([1, 4, 4, 4, 2]), tf.ones([2, 2, 2, 2, 3])).shape
      TensorShape([1, 3, 3, 3, 3])
    """
    layout = _layout(data_format, 3)
    return nn.convolution(x, kernel, strides, _padding(padding), layout, dilation_rate)


def conv2d_transpose(
    x: Any,
    kernel: Any,
    output_shape: Any,
    strides: Any = (1, 1),
    padding: str = "valid",
    data_format: str | None = None,
    dilation_rate: Any = (1, 1),
) -> Tensor:
    """The transpose of a convolution of images.

    Args:
      x: images [batch, height, width, channels] (or channels first).
      kernel: a tensor [height, width, filters, channels].
      output_shape: the shape of the result.
      strides: the strides.
      padding: 'valid' or 'same'.
      data_format: 'channels_last' or 'channels_first'; default `image_data_format()`.
      dilation_rate: the distances between the kernel's elements.

    Example:
      >>> import meshflow as tf
      >>> x, kernel = tf.ones([1, 2, 2, 3]), tf.ones([2, 2, 5, 3])
      >>> tf.keras.backend.conv2d_transpose(x, kernel, (1, 4, 4, 5), strides=(2, 2)).shape
      TensorShape([1, 4, 4, 5])
    """
    layout = _layout(data_format, 2)
    return nn.conv2d_transpose(
        x, kernel, output_shape, strides, _padding(padding), layout, dilation_rate
    )


def depthwise_conv2d(
    x: Any,
    depthwise_kernel: Any,
    strides: Any = (1, 1),
    padding: str = "valid",
    data_format: str | None = None,
    dilation_rate: Any = (1, 1),
) -> Tensor:
    """Convolution of each channel by itself.

    Args:
      x: images [batch, height, width, channels] (or channels first).
      depthwise_kernel: a tensor [height, width, channels, multiplier].
      strides: the strides.
      padding: 'valid' or 'same'.
      data_format: 'channels_last' or 'channels_first'; default `image_data_format()`.
      dilation_rate: the distances between the kernel's elements.

    Example:
      >>> import meshflow as tf
      >>> tf.keras.backend.depthwise_conv2d(tf.ones([1, 4, 4, 3]), tf.ones([2, 2, 3, 2])).shape
      TensorShape([1, 3, 3, 6])
    """
    layout = _layout(data_format, 2)
    steps = [1, 1, *strides] if layout == "NCHW" else [1, *strides, 1]
    return nn.depthwise_conv2d(
        x, depthwise_kernel, steps, _padding(padding), layout, list(dilation_rate)
    )


def separable_conv2d(
    x: Any,
    depthwise_kernel: Any,
    pointwise_kernel: Any,
    strides: Any = (1, 1),
    padding: str = "valid",
    data_format: str | None = None,
    dilation_rate: Any = (1, 1),
) -> Tensor:
    """`depthwise_conv2d`, then a convolution with a kernel [1, 1, channels, filters].

    Example:
      >>> import meshflow as tf
      >>> depthwise, pointwise = tf.ones([2, 2, 3, 1]), tf.ones([1, 1, 3, 7])
      >>> tf.keras.backend.separable_conv2d(tf.ones([1, 4, 4, 3]), depthwise, pointwise).shape
      TensorShape([1, 3, 3, 7])
    """
    inner = depthwise_conv2d(x, depthwise_kernel, strides, padding, data_format, dilation_rate)
    return conv2d(inner, pointwise_kernel, data_format=data_format)


def _pool(
    x: Any, sizes: Any, strides: Any, padding: str, data_format: str | None, mode: str, rank: int
) -> Any:
    if mode not in ("max", "avg"):
        raise ValueError(f"Invalid pooling mode: {mode!r}. Expected 'max' or 'avg'.")
    layout = _layout(data_format, rank)
    return nn.pool(x, sizes, mode.upper(), strides, _padding(padding), layout)


def pool2d(
    x: Any,
    pool_size: Any,
    strides: Any = (1, 1),
    padding: str = "valid",
    data_format: str | None = None,
    pool_mode: str = "max",
) -> Tensor:
    """Largest or mean elements of windows over images.

    Args:
      x: images [batch, height, width, channels] (or channels first).
      pool_size: height and width of the windows.
      strides: the distances between windows.
      padding: 'valid' or 'same'.
      data_format: 'channels_last' or 'channels_first'; default `image_data_format()`.
      pool_mode: 'max' or 'avg'.

    Raises:
      ValueError: for another mode or padding.

    Example:
      >>> import meshflow as tf
      >>> x = tf.reshape(tf.range(4.0), [1, 2, 2, 1])
      >>> tf.keras.backend.pool2d(x, (2, 2), pool_mode="avg").numpy().ravel().tolist()
      [1.5]
    """
    return _pool(x, pool_size, strides, padding, data_format, pool_mode, 2)


def pool3d(
    x: Any,
    pool_size: Any,
    strides: Any = (1, 1, 1),
    padding: str = "valid",
    data_format: str | None = None,
    pool_mode: str = "max",
) -> Tensor:
    """Largest or mean elements of windows over volumes; arguments as in `pool2d`.

    Example:
      >>> import meshflow as tf
      >>> x = tf.reshape(tf.range(8.0), [1, 2, 2, 2, 1])
      >>> tf.keras.backend.pool3d(x, (2, 2, 2)).numpy().ravel().tolist()
      [7.0]
    """
    return _pool(x, pool_size, strides, padding, data_format, pool_mode, 3)


def batch_normalization(
    x: Any, mean: Any, var: Any, beta: Any, gamma: Any, axis: int = -1, epsilon: float = 1e-3
) -> Tensor:
    """`gamma * (x - mean) / sqrt(var + epsilon) + beta`.

    Args:
      x: a tensor.
      mean: means, which broadcast with `x` or are vectors for the dimension `axis`.
      var: variances likewise.
      beta: what is added, or None.
      gamma: what the normalized values are multiplied by, or None.
      axis: the dimension of the vectors.
      epsilon: what is added to the variances.

    Example:
      >>> import meshflow as tf
      >>> x, mean, variance = tf.constant([[1.0], [3.0]]), tf.constant([2.0]), tf.constant([0.25])
      >>> tf.keras.backend.batch_normalization(x, mean, variance, None, None, epsilon=0.0).numpy().tolist()
      [[-2.0], [2.0]]
    """
    x = convert_to_tensor(x)
    sizes = [1] * x.ndim
    sizes[axis] = -1

    def fitted(value: Any) -> Any:
        if value is None or len(value.shape) != 1:
            return value
        return array.reshape(value, sizes)

    mean, var, beta, gamma = (fitted(value) for value in (mean, var, beta, gamma))
    return nn.batch_normalization(x, mean, var, beta, gamma, epsilon)


def normalize_batch_in_training(
    x: Any, gamma: Any, beta: Any, reduction_axes: Sequence[int], epsilon: float = 1e-3
) -> tuple[Any, Any, Any]:
    """Normalizes by the batch's own statistics.

    Args:
      x: a tensor.
      gamma: what the normalized values are multiplied by, or None.
      beta: what is added, or None.
      reduction_axes: the dimensions to average over.
      epsilon: what is added to the variances.

    Returns:
      The result, the means, and the variances. For images and `reduction_axes` [0, 1, 2] these are
      unbiased, as in TensorFlow.

    Example:
      >>> import meshflow as tf
      >>> x = tf.constant([[1.0], [3.0]])
      >>> y, mean, variance = tf.keras.backend.normalize_batch_in_training(x, None, None, [0], epsilon=0.0)
      >>> y.numpy().tolist(), mean.numpy().tolist(), variance.numpy().tolist()
      ([[-1.0], [1.0]], [2.0], [1.0])
    """
    axes = list(reduction_axes)
    x = convert_to_tensor(x)
    mean, var = nn.moments(x, axes)
    sizes = [1 if axis in axes else x.shape[axis] for axis in range(x.ndim)]

    def fitted(value: Any) -> Any:
        return None if value is None else array.reshape(value, sizes)

    result = nn.batch_normalization(
        x, fitted(mean), fitted(var), fitted(beta), fitted(gamma), epsilon
    )
    if x.ndim == 4 and axes == [0, 1, 2]:
        count = float(x.shape[0] * x.shape[1] * x.shape[2])
        var = var * (count / max(count - 1.0, 1.0))
    return result, mean, var


def dropout(x: Any, level: float, noise_shape: Any = None, seed: int | None = None) -> Tensor:
    """Zeros in place of a random share `level` of the elements; the others grow to make up for it.

    Example:
      >>> import meshflow as tf
      >>> sorted(set(tf.keras.backend.dropout(tf.ones([100]), 0.5).numpy().tolist()))
      [0.0, 2.0]
    """
    return nn.dropout(x, rate=level, noise_shape=noise_shape, seed=seed)


def _checked(target: Any, output: Any) -> None:
    expected, got = convert_to_tensor(target).shape, convert_to_tensor(output).shape
    if not expected.is_compatible_with(got):
        raise ValueError(
            f"Shapes {expected} and {got} are incompatible: labels and outputs of one shape are needed."
        )


def categorical_crossentropy(
    target: Any, output: Any, from_logits: bool = False, axis: int = -1
) -> Tensor:
    """Cross entropy of each example, with one-hot labels.

    Args:
      target: label distributions.
      output: probabilities, or logits.
      from_logits: whether `output` are logits.
      axis: the dimension of the classes.

    Raises:
      ValueError: when the shapes differ.

    Example:
      >>> import meshflow as tf
      >>> tf.keras.backend.categorical_crossentropy([[0.0, 1.0]], [[0.5, 0.5]]).numpy()
      array([0.6931472], dtype=float32)
    """
    _checked(target, output)
    return losses.categorical_crossentropy(target, output, from_logits=from_logits, axis=axis)


def sparse_categorical_crossentropy(
    target: Any,
    output: Any,
    from_logits: bool = False,
    axis: int = -1,
    ignore_class: int | None = None,
) -> Tensor:
    """Cross entropy of each example, with class numbers.

    Args:
      target: integers.
      output: probabilities, or logits.
      from_logits: whether `output` are logits.
      axis: the dimension of the classes.
      ignore_class: a class number whose examples have loss 0.

    Example:
      >>> import meshflow as tf
      >>> target, output = tf.constant([0, 1]), tf.constant([[0.5, 0.5], [0.25, 0.75]])
      >>> tf.keras.backend.sparse_categorical_crossentropy(target, output).numpy().round(3)
      array([0.693, 0.288], dtype=float32)
    """
    return losses.sparse_categorical_crossentropy(
        target, output, from_logits=from_logits, axis=axis, ignore_class=ignore_class
    )


def binary_crossentropy(target: Any, output: Any, from_logits: bool = False) -> Tensor:
    """Cross entropy of each element, with labels 0 and 1.

    Args:
      target: labels.
      output: probabilities, or logits.
      from_logits: whether `output` are logits.

    Returns:
      A tensor of the shape of `output`.

    Example:
      >>> import meshflow as tf
      >>> target, output = tf.constant([0.0, 1.0]), tf.constant([0.5, 0.25])
      >>> tf.keras.backend.binary_crossentropy(target, output).numpy().round(3)
      array([0.693, 1.386], dtype=float32)
    """
    return _binary_terms(target, output, from_logits)


def binary_focal_crossentropy(
    target: Any,
    output: Any,
    apply_class_balancing: bool = False,
    alpha: float = 0.25,
    gamma: float = 2.0,
    from_logits: bool = False,
) -> Tensor:
    """Cross entropy of each element that counts easy elements less.

    Args:
      target: labels.
      output: probabilities, or logits.
      apply_class_balancing: whether the classes are weighted by `alpha`.
      alpha: weight of class 1; class 0 has `1 - alpha`.
      gamma: how much less easy elements count.
      from_logits: whether `output` are logits.

    Returns:
      A tensor of the shape of `output`.

    Example:
      >>> import meshflow as tf
      >>> tf.keras.backend.binary_focal_crossentropy(tf.constant([1.0]), tf.constant([0.5])).numpy().round(3)
      array([0.173], dtype=float32)
    """
    return _binary_focal_terms(target, output, apply_class_balancing, alpha, gamma, from_logits)


def categorical_focal_crossentropy(
    target: Any,
    output: Any,
    alpha: float = 0.25,
    gamma: float = 2.0,
    from_logits: bool = False,
    axis: int = -1,
) -> Tensor:
    """Cross entropy of each example, with one-hot labels, that counts easy examples less.

    Args:
      target: label distributions.
      output: probabilities, or logits.
      alpha: weight of all examples.
      gamma: how much less easy examples count.
      from_logits: whether `output` are logits.
      axis: the dimension of the classes.

    Example:
      >>> import meshflow as tf
      >>> target, output = tf.constant([[0.0, 1.0]]), tf.constant([[0.5, 0.5]])
      >>> tf.keras.backend.categorical_focal_crossentropy(target, output, alpha=1.0).numpy().round(3)
      array([0.173], dtype=float32)
    """
    _checked(target, output)
    return losses.categorical_focal_crossentropy(
        target, output, alpha=alpha, gamma=gamma, from_logits=from_logits, axis=axis
    )
