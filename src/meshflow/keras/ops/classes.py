"""One-hot encoding of class indices, and cross-entropy losses.

Example:
  >>> ops.one_hot([1], 3).numpy().tolist()
  [[0.0, 1.0, 0.0]]
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from meshflow.core.runtime.errors import InvalidValueError
from meshflow.core.values import dtypes
from meshflow.core.values.dtypes import DTypeLike
from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.keras.ops.promotion import as_float, as_tensor
from meshflow.keras.settings import epsilon as default_epsilon
from meshflow.keras.settings import floatx
from meshflow.ops import array as array_ops
from meshflow.ops import casting, math
from meshflow.ops import nn as nn_ops

__all__ = [
    "binary_crossentropy",
    "categorical_crossentropy",
    "multi_hot",
    "one_hot",
    "sparse_categorical_crossentropy",
]


def one_hot(
    x: TensorLike,
    num_classes: int,
    axis: int = -1,
    dtype: DTypeLike | None = None,
    sparse: bool = False,
) -> Tensor:
    """One-hot encode integers; indices out of range produce zeros.

    Args:
      x: Integers.
      num_classes: Number of classes.
      axis: Position of the new axis.
      dtype: Dtype of the result; default `floatx()`.
      sparse: Not supported; the result is dense.

    Example:
      >>> ops.one_hot([1], 3).numpy().tolist()
      [[0.0, 1.0, 0.0]]
    """
    _check_dense(sparse, "one_hot")
    kind = dtypes.as_dtype(dtype or floatx())
    return array_ops.one_hot(
        casting.cast(as_tensor(x), "int32"), num_classes, axis=axis, dtype=kind
    )


def _check_dense(sparse: bool, name: str) -> None:
    if sparse:
        raise InvalidValueError(
            f"{name}: sparse=True is not supported; use the dense result, or tf.sparse.from_dense."
        )


def multi_hot(
    inputs: TensorLike,
    num_classes: int | None = None,
    axis: int = -1,
    dtype: DTypeLike | None = None,
    sparse: bool = False,
    **kwargs: Any,
) -> Tensor:
    """Encode rows of integers as vectors with 1 at each of these indices.

    Args:
      inputs: Integers, [..., n].
      num_classes: Number of classes.
      axis: Axis of the classes.
      dtype: Dtype of the result; default `floatx()`.
      sparse: Not supported; the result is dense.
      **kwargs: `num_tokens`, the old name of `num_classes`.

    Example:
      >>> ops.multi_hot([0, 2], 3).numpy().tolist()
      [1.0, 0.0, 1.0]
    """
    count = kwargs.pop("num_tokens", num_classes)
    if count is None:
        raise ValueError("Argument `num_classes` must be specified. Received: num_classes=None")
    inputs = as_tensor(inputs)
    class_axis = 1 if len(inputs.shape) > 1 else 0
    _check_dense(sparse, "multi_hot")
    kind = dtypes.as_dtype(dtype or floatx())
    rows = one_hot(inputs, count, axis, "uint8" if kind.is_bool else kind)
    return casting.cast(math.reduce_max(rows, class_axis), kind)


def binary_crossentropy(
    target: TensorLike, output: TensorLike, from_logits: bool = False
) -> Tensor:
    """Compute `-t log(o) - (1 - t) log(1 - o)` for each element.

    Args:
      target: Expected probabilities, from 0 to 1.
      output: Predicted probabilities or logits.
      from_logits: Whether `output` contains logits.

    Example:
      >>> print(ops.binary_crossentropy([1.0], [0.5]).numpy().round(4))
      [0.6931]
    """
    target, output = as_tensor(target), as_float(output)
    target = casting.cast(target, output.dtype)
    _check_shapes("binary_crossentropy", target.shape, output.shape)
    if from_logits:
        return nn_ops.sigmoid_cross_entropy_with_logits(target, output)
    small = default_epsilon()
    clipped = math.minimum(math.maximum(output, small), 1.0 - small)
    return -(target * math.log(clipped) + (1 - target) * math.log(1 - clipped))


def _check_shapes(name: str, target: Sequence[int | None], output: Sequence[int | None]) -> None:
    if len(target) != len(output) or any(
        t is not None and o is not None and t != o for t, o in zip(target, output, strict=True)
    ):
        raise ValueError(
            f"{name}: arguments `target` and `output` must have the same shape. Received: "
            f"target.shape={tuple(target)}, output.shape={tuple(output)}"
        )


def categorical_crossentropy(
    target: TensorLike, output: TensorLike, from_logits: bool = False, axis: int = -1
) -> Tensor:
    """Compute `-sum(t log(o))` over classes.

    Args:
      target: Expected probabilities of the classes.
      output: Predicted probabilities, which are scaled to a sum of 1, or logits.
      from_logits: Whether `output` contains logits.
      axis: Axis of the classes.

    Example:
      >>> print(ops.categorical_crossentropy([[0.0, 1.0]], [[0.5, 0.5]]).numpy().round(4))
      [0.6931]
    """
    target, output = as_tensor(target), as_float(output)
    target = casting.cast(target, output.dtype)
    _check_shapes("categorical_crossentropy", target.shape, output.shape)
    return -math.reduce_sum(target * _compute_log_probabilities(output, from_logits, axis), axis)


def _compute_log_probabilities(output: Tensor, from_logits: bool, axis: int) -> Tensor:
    if from_logits:
        return nn_ops.log_softmax(output, axis)
    small = default_epsilon()
    probabilities = output / math.reduce_sum(output, axis, keepdims=True)
    return math.log(math.minimum(math.maximum(probabilities, small), 1.0 - small))


def sparse_categorical_crossentropy(
    target: TensorLike, output: TensorLike, from_logits: bool = False, axis: int = -1
) -> Tensor:
    """Compute `-log(o)` for the expected class.

    Args:
      target: Class indices.
      output: Predicted probabilities, which are scaled to a sum of 1, or logits.
      from_logits: Whether `output` contains logits.
      axis: Axis of the classes.

    Example:
      >>> print(ops.sparse_categorical_crossentropy([1], [[0.5, 0.5]]).numpy().round(4))
      [0.6931]
    """
    target, output = casting.cast(as_tensor(target), "int64"), as_float(output)
    if len(target.shape) == len(output.shape) and target.shape[-1] == 1:
        target = array_ops.squeeze(target, -1)
    if len(output.shape) < 1:
        raise ValueError(
            f"Argument `output` must be at least rank 1. Received: output.shape={tuple(output.shape)}"
        )
    classes = list(output.shape)
    count = classes.pop(axis)
    _check_shapes("sparse_categorical_crossentropy", target.shape, classes)
    is_target = array_ops.one_hot(target, count, True, False, axis, "bool")
    logarithms = _compute_log_probabilities(output, from_logits, axis)
    # A product would be NaN if another class has the logit -inf.
    return -math.reduce_sum(array_ops.where(is_target, logarithms, 0.0), axis)
