"""`tf.compat.v1.nn`: embedding lookups with TensorFlow 1's arguments."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from meshflow.core.dispatch.composite import SparseTensor
from meshflow.core.runtime.errors import InvalidValueError
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.ops import array, math
from meshflow.ops import nn as _nn
from meshflow.raw_ops.operations import bind_positional, find_op

_RAW_OPS = {
    "conv2d_backprop_filter": "Conv2DBackpropFilter",
    "conv2d_backprop_input": "Conv2DBackpropInput",
    "conv3d_backprop_filter": "Conv3DBackpropFilterV2",
    "conv3d_backprop_filter_v2": "Conv3DBackpropFilterV2",
    "depthwise_conv2d_native": "DepthwiseConv2dNative",
}
globals().update({_name: bind_positional(_op) for _name, _op in _RAW_OPS.items()})

__all__ = [
    *_RAW_OPS,
    "dropout",
    "embedding_lookup",
    "embedding_lookup_sparse",
    "fused_batch_norm",
    "relu_layer",
    "safe_embedding_lookup_sparse",
    "softmax_cross_entropy_with_logits",
    "xw_plus_b",
]


def dropout(
    x: TensorLike,
    keep_prob: float | None = None,
    noise_shape: Any = None,
    seed: int | None = None,
    name: str | None = None,
    rate: float | None = None,
) -> Tensor:
    """Set elements to 0, and scale the others.

    Args:
      x: Tensor.
      keep_prob: Probability that an element is kept.
      noise_shape: As in `tf.nn.dropout`.
      seed: Seed.
      name: Ignored.
      rate: Probability that an element is set to 0, instead of `keep_prob`.

    Raises:
      ValueError: If neither or both probabilities are passed and contradict each other.
    """
    if (keep_prob is None) == (rate is None):
        raise ValueError("You must provide a rate to dropout (rate or keep_prob, but not both).")
    return _nn.dropout(
        x, rate=rate if keep_prob is None else 1 - keep_prob, noise_shape=noise_shape, seed=seed
    )


def softmax_cross_entropy_with_logits(
    _sentinel: None = None,
    labels: TensorLike = None,
    logits: TensorLike = None,
    dim: int = -1,
    name: str | None = None,
    axis: int | None = None,
) -> Tensor:
    """Compute cross-entropies; no gradient flows to the labels. All arguments are passed by keyword.

    Raises:
      ValueError: If an argument is passed by position.
    """
    if _sentinel is not None:
        raise ValueError(
            "Only call `softmax_cross_entropy_with_logits` with named arguments (labels=..., logits=...)"
        )
    fixed = array.stop_gradient(labels)
    return _nn.softmax_cross_entropy_with_logits(fixed, logits, dim if axis is None else axis)


def xw_plus_b(
    x: TensorLike, weights: TensorLike, biases: TensorLike, name: str | None = None
) -> Tensor:
    """Compute `x @ weights + biases`."""
    return _nn.bias_add(math.matmul(x, weights), biases)


def relu_layer(
    x: TensorLike, weights: TensorLike, biases: TensorLike, name: str | None = None
) -> Tensor:
    """Compute `relu(x @ weights + biases)`."""
    return _nn.relu(xw_plus_b(x, weights, biases))


def fused_batch_norm(
    x: TensorLike,
    scale: TensorLike,
    offset: TensorLike,
    mean: TensorLike | None = None,
    variance: TensorLike | None = None,
    epsilon: float = 0.001,
    data_format: str = "NHWC",
    is_training: bool = True,
    name: str | None = None,
    exponential_avg_factor: float = 1.0,
) -> tuple[Tensor, Tensor, Tensor]:
    """Normalize the channels of images.

    Args:
      x: Images of shape [batch, height, width, channels].
      scale: Factor of each channel.
      offset: Offset of each channel.
      mean: Mean of each channel, if `is_training` is False.
      variance: Variance of each channel, if `is_training` is False.
      epsilon: Added to the variance.
      data_format: "NHWC" or "NCHW".
      is_training: Whether to use the statistics of `x`.
      name: Ignored.
      exponential_avg_factor: Weight of the new statistics in the returned ones.

    Returns:
      The results, the means and the (unbiased) variances.
    """
    empty: list[float] = []
    outputs = find_op("FusedBatchNormV3")(
        x=x,
        scale=scale,
        offset=offset,
        mean=empty if mean is None else mean,
        variance=empty if variance is None else variance,
        epsilon=max(epsilon, 1.001e-5),
        data_format=data_format,
        is_training=is_training,
        exponential_avg_factor=exponential_avg_factor,
    )
    return outputs[0], outputs[1], outputs[2]


def embedding_lookup(
    params: TensorLike,
    ids: TensorLike,
    partition_strategy: str = "mod",
    name: str | None = None,
    validate_indices: bool = True,
    max_norm: float | None = None,
) -> Tensor:
    """Look up rows of a table, or of several tables that share its rows.

    Args:
      params: Table of shape [rows, ...], or a list of tables.
      ids: Integers of any shape.
      partition_strategy: How the tables of a list share the rows: "mod" assigns row `i` to table `i
        % len(params)`, "div" assigns consecutive rows. A `ShardedVariable` always holds consecutive
        rows.
      name: Ignored.
      validate_indices: Ignored.
      max_norm: Maximum L2 norm; rows with a larger norm are scaled down.

    Returns:
      Tensor of shape [*ids.shape, ...].

    Raises:
      ValueError: If `partition_strategy` is unknown.

    Example:
      >>> tables = [tf.constant([[0.0], [2.0]]), tf.constant([[1.0], [3.0]])]
      >>> tf.compat.v1.nn.embedding_lookup(tables, [1, 2]).numpy().ravel()
      array([1., 2.], dtype=float32)
      >>> tf.compat.v1.nn.embedding_lookup(tables, [1, 2], partition_strategy="div").numpy().ravel()
      array([2., 1.], dtype=float32)
    """
    return _nn.embedding_lookup(
        params, _to_consecutive_ids(params, ids, partition_strategy), max_norm
    )


def embedding_lookup_sparse(
    params: TensorLike,
    sp_ids: SparseTensor,
    sp_weights: SparseTensor | None,
    partition_strategy: str = "mod",
    name: str | None = None,
    combiner: str | None = None,
    max_norm: float | None = None,
) -> Tensor:
    """Look up and combine rows for sparse ids, with `partition_strategy` as in `embedding_lookup`."""
    rows = _to_consecutive_ids(params, sp_ids.values, partition_strategy)
    ids = SparseTensor(sp_ids.indices, rows, sp_ids.dense_shape)
    return _nn.embedding_lookup_sparse(params, ids, sp_weights, combiner, max_norm)


def safe_embedding_lookup_sparse(
    embedding_weights: TensorLike,
    sparse_ids: SparseTensor,
    sparse_weights: SparseTensor | None = None,
    combiner: str = "mean",
    default_id: int | None = None,
    name: str | None = None,
    partition_strategy: str = "div",
    max_norm: float | None = None,
) -> Tensor:
    """Look up and combine rows, with defaults for empty rows of ids; see `embedding_lookup`."""
    values = convert_to_tensor(sparse_ids.values)
    # Negative ids remain, because they refer to no row.
    rows = array.where(
        values < 0, values, _to_consecutive_ids(embedding_weights, values, partition_strategy)
    )
    ids = SparseTensor(sparse_ids.indices, rows, sparse_ids.dense_shape)
    if default_id is not None:
        default_id = int(_to_consecutive_ids(embedding_weights, default_id, partition_strategy))
    return _nn.safe_embedding_lookup_sparse(
        embedding_weights, ids, sparse_weights, combiner, default_id, max_norm
    )


def _to_consecutive_ids(params: TensorLike, ids: TensorLike, partition_strategy: str) -> TensorLike:
    """Convert ids to those of a list of tables with consecutive rows."""
    if not isinstance(params, Sequence) or len(params) < 2:
        return ids
    if partition_strategy == "div":
        return ids
    if partition_strategy != "mod":
        raise InvalidValueError(
            f"partition_strategy must be 'mod' or 'div', got {partition_strategy!r}."
        )
    indices, offsets = convert_to_tensor(ids), [0]
    for table in params[:-1]:
        offsets.append(offsets[-1] + int(table.shape[0]))
    offset = array.gather(convert_to_tensor(offsets, dtype=indices.dtype), indices % len(params))
    return offset + indices // len(params)
