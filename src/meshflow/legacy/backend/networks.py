"""Convolutions, pooling, normalization, dropout, and losses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.shapes import ShapeLike
from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.keras import losses
from meshflow.keras.losses.functions import _compute_binary_focal_terms, _compute_binary_terms
from meshflow.keras.settings import normalize_data_format
from meshflow.ops import array, nn
from meshflow.ops.image import extract_patches
from meshflow.ops.linalg import einsum

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
    "local_conv1d",
    "local_conv2d",
    "normalize_batch_in_training",
    "pool2d",
    "pool3d",
    "separable_conv2d",
    "sparse_categorical_crossentropy",
]


def _format_data_layout(data_format: str | None, rank: int) -> str:
    spatial = "DHW"[3 - rank :]
    is_channels_first = normalize_data_format(data_format) == "channels_first"
    return f"NC{spatial}" if is_channels_first else f"N{spatial}C"


def _normalize_padding(padding: str) -> str:
    if padding not in ("same", "valid"):
        raise ValueError(f"Invalid padding: {padding!r}. Expected 'same' or 'valid'.")
    return padding.upper()


def bias_add(x: TensorLike, bias: TensorLike, data_format: str | None = None) -> Tensor:
    """Add a bias to the channels.

    Args:
      x: Tensor with a batch dimension.
      bias: Vector with one value for each channel, or a tensor with the shape of an example.
      data_format: 'channels_last' or 'channels_first'; default `image_data_format()`.

    Raises:
      ValueError: If the rank of the bias is neither 1 nor the rank of an example.

    Example:
      >>> tf.keras.backend.bias_add(tf.zeros([1, 2, 2]), tf.constant([1.0, 5.0])).numpy().tolist()
      [[[1.0, 5.0], [1.0, 5.0]]]
    """
    is_channels_first = normalize_data_format(data_format) == "channels_first"
    x, bias = convert_to_tensor(x), convert_to_tensor(bias)
    sizes = bias.shape.as_list()
    if len(sizes) not in (1, x.ndim - 1):
        raise ValueError(
            f"Unexpected bias dimensions {len(sizes)}, expect to be 1 or {x.ndim - 1} dimensions"
        )
    if is_channels_first and len(sizes) > 1:
        # A bias of an example's shape has its channels last in either data format.
        sizes = [sizes[-1], *sizes[:-1]]
    elif is_channels_first:
        sizes = [*sizes, *[1] * (x.ndim - 2)]
    return x + array.reshape(bias, [1, *sizes] if len(sizes) > 1 else sizes)


def conv1d(
    x: TensorLike,
    kernel: TensorLike,
    strides: int = 1,
    padding: str = "valid",
    data_format: str | None = None,
    dilation_rate: int = 1,
) -> Tensor:
    """Convolve over time.

    Args:
      x: Tensor [batch, time, channels] (or channels first).
      kernel: Tensor [width, channels, filters].
      strides: Stride.
      padding: 'valid', 'same' or 'causal' (zeros before the start only).
      data_format: 'channels_last' or 'channels_first'; default `image_data_format()`.
      dilation_rate: Distance between the elements of the kernel.

    Example:
      >>> x, kernel = tf.reshape(tf.range(4.0), [1, 4, 1]), tf.ones([2, 1, 1])
      >>> tf.keras.backend.conv1d(x, kernel, padding="causal").numpy().ravel().tolist()
      [0.0, 1.0, 3.0, 5.0]
    """
    layout = "NCW" if normalize_data_format(data_format) == "channels_first" else "NWC"
    if padding == "causal":
        causal_pad = [dilation_rate * (kernel.shape[0] - 1), 0]
        pairs = [[0, 0], [0, 0], causal_pad] if layout == "NCW" else [[0, 0], causal_pad, [0, 0]]
        x, padding = array.pad(x, pairs), "valid"
    return nn.convolution(
        x, kernel, [strides], _normalize_padding(padding), layout, [dilation_rate]
    )


def conv2d(
    x: TensorLike,
    kernel: TensorLike,
    strides: Sequence[int] = (1, 1),
    padding: str = "valid",
    data_format: str | None = None,
    dilation_rate: Sequence[int] = (1, 1),
) -> Tensor:
    """Convolve images.

    Args:
      x: Images [batch, height, width, channels] (or channels first).
      kernel: Tensor [height, width, channels, filters].
      strides: Strides over height and width.
      padding: 'valid' or 'same'.
      data_format: 'channels_last' or 'channels_first'; default `image_data_format()`.
      dilation_rate: Distances between the elements of the kernel.

    Example:
      >>> tf.keras.backend.conv2d(tf.ones([1, 4, 4, 3]), tf.ones([2, 2, 3, 5])).shape
      TensorShape([1, 3, 3, 5])
    """
    layout = _format_data_layout(data_format, 2)
    return nn.convolution(x, kernel, strides, _normalize_padding(padding), layout, dilation_rate)


def conv3d(
    x: TensorLike,
    kernel: TensorLike,
    strides: Sequence[int] = (1, 1, 1),
    padding: str = "valid",
    data_format: str | None = None,
    dilation_rate: Sequence[int] = (1, 1, 1),
) -> Tensor:
    """Convolve volumes; the arguments are as in `conv2d`.

    Example:
      >>> tf.keras.backend.conv3d(tf.ones([1, 4, 4, 4, 2]), tf.ones([2, 2, 2, 2, 3])).shape
      TensorShape([1, 3, 3, 3, 3])
    """
    layout = _format_data_layout(data_format, 3)
    return nn.convolution(x, kernel, strides, _normalize_padding(padding), layout, dilation_rate)


def conv2d_transpose(
    x: TensorLike,
    kernel: TensorLike,
    output_shape: ShapeLike | Tensor,
    strides: Sequence[int] = (1, 1),
    padding: str = "valid",
    data_format: str | None = None,
    dilation_rate: Sequence[int] = (1, 1),
) -> Tensor:
    """Compute the transpose of a convolution of images.

    Args:
      x: Images [batch, height, width, channels] (or channels first).
      kernel: Tensor [height, width, filters, channels].
      output_shape: Shape of the result.
      strides: Strides over height and width.
      padding: 'valid' or 'same'.
      data_format: 'channels_last' or 'channels_first'; default `image_data_format()`.
      dilation_rate: Distances between the elements of the kernel.

    Example:
      >>> x, kernel = tf.ones([1, 2, 2, 3]), tf.ones([2, 2, 5, 3])
      >>> tf.keras.backend.conv2d_transpose(x, kernel, (1, 4, 4, 5), strides=(2, 2)).shape
      TensorShape([1, 4, 4, 5])
    """
    layout = _format_data_layout(data_format, 2)
    return nn.conv2d_transpose(
        x, kernel, output_shape, strides, _normalize_padding(padding), layout, dilation_rate
    )


def depthwise_conv2d(
    x: TensorLike,
    depthwise_kernel: TensorLike,
    strides: Sequence[int] = (1, 1),
    padding: str = "valid",
    data_format: str | None = None,
    dilation_rate: Sequence[int] = (1, 1),
) -> Tensor:
    """Convolve each channel separately.

    Args:
      x: Images [batch, height, width, channels] (or channels first).
      depthwise_kernel: Tensor [height, width, channels, multiplier].
      strides: Strides over height and width.
      padding: 'valid' or 'same'.
      data_format: 'channels_last' or 'channels_first'; default `image_data_format()`.
      dilation_rate: Distances between the elements of the kernel.

    Example:
      >>> tf.keras.backend.depthwise_conv2d(tf.ones([1, 4, 4, 3]), tf.ones([2, 2, 3, 2])).shape
      TensorShape([1, 3, 3, 6])
    """
    layout = _format_data_layout(data_format, 2)
    full_strides = [1, 1, *strides] if layout == "NCHW" else [1, *strides, 1]
    return nn.depthwise_conv2d(
        x, depthwise_kernel, full_strides, _normalize_padding(padding), layout, list(dilation_rate)
    )


def separable_conv2d(
    x: TensorLike,
    depthwise_kernel: TensorLike,
    pointwise_kernel: TensorLike,
    strides: Sequence[int] = (1, 1),
    padding: str = "valid",
    data_format: str | None = None,
    dilation_rate: Sequence[int] = (1, 1),
) -> Tensor:
    """Apply `depthwise_conv2d`, then a convolution with a kernel [1, 1, channels, filters].

    Example:
      >>> depthwise, pointwise = tf.ones([2, 2, 3, 1]), tf.ones([1, 1, 3, 7])
      >>> tf.keras.backend.separable_conv2d(tf.ones([1, 4, 4, 3]), depthwise, pointwise).shape
      TensorShape([1, 3, 3, 7])
    """
    inner = depthwise_conv2d(x, depthwise_kernel, strides, padding, data_format, dilation_rate)
    return conv2d(inner, pointwise_kernel, data_format=data_format)


def _pool(
    x: TensorLike,
    sizes: Sequence[int],
    strides: Sequence[int],
    padding: str,
    data_format: str | None,
    mode: str,
    rank: int,
) -> Any:
    if mode not in ("max", "avg"):
        raise ValueError(f"Invalid pooling mode: {mode!r}. Expected 'max' or 'avg'.")
    layout = _format_data_layout(data_format, rank)
    return nn.pool(x, sizes, mode.upper(), strides, _normalize_padding(padding), layout)


def pool2d(
    x: TensorLike,
    pool_size: Sequence[int],
    strides: Sequence[int] = (1, 1),
    padding: str = "valid",
    data_format: str | None = None,
    pool_mode: str = "max",
) -> Tensor:
    """Pool windows of images.

    Args:
      x: Images [batch, height, width, channels] (or channels first).
      pool_size: Height and width of the windows.
      strides: Distances between windows.
      padding: 'valid' or 'same'.
      data_format: 'channels_last' or 'channels_first'; default `image_data_format()`.
      pool_mode: 'max' or 'avg'.

    Raises:
      ValueError: If the mode or the padding is unknown.

    Example:
      >>> x = tf.reshape(tf.range(4.0), [1, 2, 2, 1])
      >>> tf.keras.backend.pool2d(x, (2, 2), pool_mode="avg").numpy().ravel().tolist()
      [1.5]
    """
    return _pool(x, pool_size, strides, padding, data_format, pool_mode, 2)


def pool3d(
    x: TensorLike,
    pool_size: Sequence[int],
    strides: Sequence[int] = (1, 1, 1),
    padding: str = "valid",
    data_format: str | None = None,
    pool_mode: str = "max",
) -> Tensor:
    """Pool windows of volumes; the arguments are as in `pool2d`.

    Example:
      >>> x = tf.reshape(tf.range(8.0), [1, 2, 2, 2, 1])
      >>> tf.keras.backend.pool3d(x, (2, 2, 2)).numpy().ravel().tolist()
      [7.0]
    """
    return _pool(x, pool_size, strides, padding, data_format, pool_mode, 3)


def batch_normalization(
    x: TensorLike,
    mean: TensorLike,
    var: TensorLike,
    beta: TensorLike,
    gamma: TensorLike,
    axis: int = -1,
    epsilon: float = 1e-3,
) -> Tensor:
    """Compute `gamma * (x - mean) / sqrt(var + epsilon) + beta`.

    Args:
      x: A tensor.
      mean: Means: a vector for the dimension `axis`, or a tensor that broadcasts with `x`.
      var: Variances, in the same form.
      beta: Offset, or None.
      gamma: Scale of the normalized values, or None.
      axis: Dimension of the vectors.
      epsilon: Value added to the variances.

    Example:
      >>> x, mean, variance = tf.constant([[1.0], [3.0]]), tf.constant([2.0]), tf.constant([0.25])
      >>> tf.keras.backend.batch_normalization(x, mean, variance, None, None, epsilon=0.0).numpy().tolist()
      [[-2.0], [2.0]]
    """
    x = convert_to_tensor(x)
    sizes = [1] * x.ndim
    sizes[axis] = -1

    def reshape_vector(value: TensorLike) -> Any:
        if value is None or len(getattr(value, "shape", ())) != 1:
            return value
        return array.reshape(value, sizes)

    mean, var, beta, gamma = (reshape_vector(value) for value in (mean, var, beta, gamma))
    return nn.batch_normalization(x, mean, var, beta, gamma, epsilon)


def normalize_batch_in_training(
    x: TensorLike,
    gamma: TensorLike,
    beta: TensorLike,
    reduction_axes: Sequence[int],
    epsilon: float = 1e-3,
) -> tuple[Any, Any, Any]:
    """Normalize by the statistics of the batch.

    Args:
      x: A tensor.
      gamma: Scale of the normalized values, or None.
      beta: Offset, or None.
      reduction_axes: Dimensions to average over.
      epsilon: Value added to the variances.

    Returns:
      The normalized tensor, the means, and the variances. For images and `reduction_axes` [0, 1, 2]
      these are
      unbiased, as in TensorFlow.

    Example:
      >>> x = tf.constant([[1.0], [3.0]])
      >>> y, mean, variance = tf.keras.backend.normalize_batch_in_training(x, None, None, [0], epsilon=0.0)
      >>> y.numpy().tolist(), mean.numpy().tolist(), variance.numpy().tolist()
      ([[-1.0], [1.0]], [2.0], [1.0])
    """
    axes = list(reduction_axes)
    x = convert_to_tensor(x)
    mean, var = nn.moments(x, axes)
    sizes = [1 if axis in axes else x.shape[axis] for axis in range(x.ndim)]

    def reshape_vector(value: TensorLike) -> Any:
        return None if value is None else array.reshape(value, sizes)

    result = nn.batch_normalization(
        x,
        reshape_vector(mean),
        reshape_vector(var),
        reshape_vector(beta),
        reshape_vector(gamma),
        epsilon,
    )
    if x.ndim == 4 and axes == [0, 1, 2]:
        count = float(x.shape[0] * x.shape[1] * x.shape[2])
        var = var * (count / max(count - 1.0, 1.0))
    return result, mean, var


def dropout(
    x: TensorLike,
    level: float,
    noise_shape: ShapeLike | Tensor | None = None,
    seed: int | None = None,
) -> Tensor:
    """Set a random fraction `level` of the elements to zero, and scale the others up.

    Example:
      >>> sorted(set(tf.keras.backend.dropout(tf.ones([100]), 0.5).numpy().tolist()))
      [0.0, 2.0]
    """
    return nn.dropout(x, rate=level, noise_shape=noise_shape, seed=seed)


def _check_shapes(target: TensorLike, output: TensorLike) -> None:
    expected, got = convert_to_tensor(target).shape, convert_to_tensor(output).shape
    if not expected.is_compatible_with(got):
        raise ValueError(
            f"Shapes {expected} and {got} are incompatible: labels and outputs of one shape are needed."
        )


def categorical_crossentropy(
    target: TensorLike, output: TensorLike, from_logits: bool = False, axis: int = -1
) -> Tensor:
    """Compute the cross entropy of each example, for one-hot labels.

    Args:
      target: Label distributions.
      output: Probabilities, or logits.
      from_logits: Whether `output` holds logits.
      axis: Dimension of the classes.

    Raises:
      ValueError: If the shapes differ.

    Example:
      >>> tf.keras.backend.categorical_crossentropy([[0.0, 1.0]], [[0.5, 0.5]]).numpy()
      array([0.6931472], dtype=float32)
    """
    _check_shapes(target, output)
    return losses.categorical_crossentropy(target, output, from_logits=from_logits, axis=axis)


def sparse_categorical_crossentropy(
    target: TensorLike,
    output: TensorLike,
    from_logits: bool = False,
    axis: int = -1,
    ignore_class: int | None = None,
) -> Tensor:
    """Compute the cross entropy of each example, for integer labels.

    Args:
      target: Class ids.
      output: Probabilities, or logits.
      from_logits: Whether `output` holds logits.
      axis: Dimension of the classes.
      ignore_class: Class id for which the loss is 0.

    Example:
      >>> target, output = tf.constant([0, 1]), tf.constant([[0.5, 0.5], [0.25, 0.75]])
      >>> tf.keras.backend.sparse_categorical_crossentropy(target, output).numpy().round(3)
      array([0.693, 0.288], dtype=float32)
    """
    return losses.sparse_categorical_crossentropy(
        target, output, from_logits=from_logits, axis=axis, ignore_class=ignore_class
    )


def binary_crossentropy(
    target: TensorLike, output: TensorLike, from_logits: bool = False
) -> Tensor:
    """Compute the cross entropy of each element, for labels 0 and 1.

    Args:
      target: Labels.
      output: Probabilities, or logits.
      from_logits: Whether `output` holds logits.

    Example:
      >>> target, output = tf.constant([0.0, 1.0]), tf.constant([0.5, 0.25])
      >>> tf.keras.backend.binary_crossentropy(target, output).numpy().round(3)
      array([0.693, 1.386], dtype=float32)
    """
    return _compute_binary_terms(target, output, from_logits)


def binary_focal_crossentropy(
    target: TensorLike,
    output: TensorLike,
    apply_class_balancing: bool = False,
    alpha: float = 0.25,
    gamma: float = 2.0,
    from_logits: bool = False,
) -> Tensor:
    """Compute the cross entropy of each element, with less weight on easy elements.

    Args:
      target: Labels.
      output: Probabilities, or logits.
      apply_class_balancing: Whether to weight the classes by `alpha`.
      alpha: Weight of class 1; class 0 has `1 - alpha`.
      gamma: Exponent of the factor that reduces the weight of easy elements.
      from_logits: Whether `output` holds logits.

    Example:
      >>> tf.keras.backend.binary_focal_crossentropy(tf.constant([1.0]), tf.constant([0.5])).numpy().round(3)
      array([0.173], dtype=float32)
    """
    return _compute_binary_focal_terms(
        target, output, apply_class_balancing, alpha, gamma, from_logits
    )


def categorical_focal_crossentropy(
    target: TensorLike,
    output: TensorLike,
    alpha: float = 0.25,
    gamma: float = 2.0,
    from_logits: bool = False,
    axis: int = -1,
) -> Tensor:
    """Compute focal cross entropy of each example, for one-hot labels.

    Args:
      target: Label distributions.
      output: Probabilities, or logits.
      alpha: Weight of all examples.
      gamma: Exponent of the factor that reduces the weight of easy examples.
      from_logits: Whether `output` holds logits.
      axis: Dimension of the classes.

    Example:
      >>> target, output = tf.constant([[0.0, 1.0]]), tf.constant([[0.5, 0.5]])
      >>> tf.keras.backend.categorical_focal_crossentropy(target, output, alpha=1.0).numpy().round(3)
      array([0.173], dtype=float32)
    """
    _check_shapes(target, output)
    return losses.categorical_focal_crossentropy(
        target, output, alpha=alpha, gamma=gamma, from_logits=from_logits, axis=axis
    )


def local_conv1d(
    inputs: TensorLike,
    kernel: TensorLike,
    kernel_size: Sequence[int],
    strides: Sequence[int],
    data_format: str | None = None,
) -> Tensor:
    """Convolve sequences with separate weights at each output position.

    Args:
      inputs: Tensor of shape [batch, steps, channels].
      kernel: Weights of shape [output steps, kernel size * channels, filters].
      kernel_size: One integer.
      strides: One integer.
      data_format: "channels_last" or "channels_first".
    """
    is_first = normalize_data_format(data_format) == "channels_first"
    images = array.expand_dims(inputs, -1 if is_first else 2)
    size, steps = (int(kernel_size[0]), 1), (int(strides[0]), 1)
    output = (int(convert_to_tensor(kernel).shape[0]), 1)
    result = local_conv2d(images, kernel, size, steps, output, data_format)
    return array.squeeze(result, [-1 if is_first else 2])


def local_conv2d(
    inputs: TensorLike,
    kernel: TensorLike,
    kernel_size: Sequence[int],
    strides: Sequence[int],
    output_shape: Sequence[int],
    data_format: str | None = None,
) -> Tensor:
    """Convolve images with separate weights at each output position.

    Args:
      inputs: Tensor of shape [batch, height, width, channels].
      kernel: Weights of shape [output positions, kernel height * kernel width * channels, filters].
      kernel_size: Height and width of the kernel.
      strides: Two integers.
      output_shape: Height and width of the output.
      data_format: "channels_last" or "channels_first".

    Example:
      >>> kernel = tf.reshape(tf.range(4.0), [4, 1, 1])
      >>> tf.keras.backend.local_conv2d(tf.ones([1, 2, 2, 1]), kernel, (1, 1), (1, 1), (2, 2)).numpy().ravel()
      array([0., 1., 2., 3.], dtype=float32)
    """
    is_first = normalize_data_format(data_format) == "channels_first"
    images = convert_to_tensor(inputs)
    images = array.transpose(images, [0, 2, 3, 1]) if is_first else images
    height, width = (int(n) for n in kernel_size)
    patches = extract_patches(
        images, [1, height, width, 1], [1, *map(int, strides), 1], [1, 1, 1, 1], "VALID"
    )
    rows, columns = (int(n) for n in output_shape)
    channels = int(images.shape[-1])
    if is_first:
        # The weights are ordered by channels first.
        patches = array.reshape(patches, [-1, rows, columns, height, width, channels])
        patches = array.transpose(patches, [0, 1, 2, 5, 3, 4])
    patches = array.reshape(patches, [-1, rows * columns, height * width * channels])
    result = einsum("bpk,pkf->bpf", patches, kernel)
    result = array.reshape(result, [-1, rows, columns, int(result.shape[-1])])
    return array.transpose(result, [0, 3, 1, 2]) if is_first else result
