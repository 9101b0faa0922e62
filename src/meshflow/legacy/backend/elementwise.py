"""Elementwise functions: mathematics, comparisons and activations."""

from __future__ import annotations

import numpy as np

from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.dtypes import DTypeLike
from meshflow.core.values.tensor import Tensor, TensorLike, is_tensor
from meshflow.keras import activations
from meshflow.keras.logits import attach_logits
from meshflow.keras.settings import floatx
from meshflow.ops import array, math, nn

__all__ = [
    "abs",
    "cast",
    "cast_to_floatx",
    "clip",
    "cos",
    "elu",
    "equal",
    "exp",
    "greater",
    "greater_equal",
    "hard_sigmoid",
    "less",
    "less_equal",
    "log",
    "maximum",
    "minimum",
    "not_equal",
    "pow",
    "relu",
    "round",
    "sigmoid",
    "sign",
    "sin",
    "softmax",
    "softplus",
    "softsign",
    "sqrt",
    "square",
    "tanh",
]


def abs(x: TensorLike) -> Tensor:
    """Compute absolute values.

    Example:
      >>> tf.keras.backend.abs(tf.constant([-2.0, 3.0])).numpy().tolist()
      [2.0, 3.0]
    """
    return math.abs(x)


def cast(x: TensorLike, dtype: DTypeLike) -> Tensor:
    """Cast `x` to another dtype.

    Example:
      >>> tf.keras.backend.cast(tf.constant([1.7, -1.7]), "int32").numpy().tolist()
      [1, -1]
    """
    return math.cast(x, dtype)


def cast_to_floatx(x: TensorLike) -> Tensor | np.ndarray:
    """Cast `x` to `floatx()`: a tensor to a tensor, other values to a NumPy array.

    Example:
      >>> tf.keras.backend.cast_to_floatx([1, 2])
      array([1., 2.], dtype=float32)
    """
    if is_tensor(x):
        return math.cast(x, floatx())

    return np.asarray(x, dtype=floatx())


def clip(x: TensorLike, min_value: TensorLike, max_value: TensorLike) -> Tensor:
    """Clip `x` to [`min_value`, `max_value`]; either bound may be None.

    Example:
      >>> tf.keras.backend.clip([-2.0, 0.5, 2.0], 0.0, 1.0).numpy()
      array([0. , 0.5, 1. ], dtype=float32)
    """
    if isinstance(min_value, (int, float)) and isinstance(max_value, (int, float)):
        max_value = max(min_value, max_value)
    low = -float("inf") if min_value is None else min_value
    high = float("inf") if max_value is None else max_value
    return math.clip_by_value(x, low, high)


def cos(x: TensorLike) -> Tensor:
    """Compute cosines.

    Example:
      >>> tf.keras.backend.cos(tf.constant([0.0])).numpy().tolist()
      [1.0]
    """
    return math.cos(x)


def sin(x: TensorLike) -> Tensor:
    """Compute sines.

    Example:
      >>> tf.keras.backend.sin(tf.constant([0.0])).numpy().tolist()
      [0.0]
    """
    return math.sin(x)


def exp(x: TensorLike) -> Tensor:
    """Compute exponentials.

    Example:
      >>> tf.keras.backend.exp(tf.constant([0.0, 1.0])).numpy().round(3)
      array([1.   , 2.718], dtype=float32)
    """
    return math.exp(x)


def log(x: TensorLike) -> Tensor:
    """Compute natural logarithms.

    Example:
      >>> tf.keras.backend.log(tf.constant([1.0, 10.0])).numpy().round(3)
      array([0.   , 2.303], dtype=float32)
    """
    return math.log(x)


def pow(x: TensorLike, a: TensorLike) -> Tensor:
    """Raise `x` to the power of `a`.

    Example:
      >>> tf.keras.backend.pow(tf.constant([2.0, 3.0]), 2).numpy().tolist()
      [4.0, 9.0]
    """
    return math.pow(x, a)


def round(x: TensorLike) -> Tensor:
    """Round to the nearest integers, halves to even.

    Example:
      >>> tf.keras.backend.round(tf.constant([0.5, 1.5, 2.4])).numpy().tolist()
      [0.0, 2.0, 2.0]
    """
    return math.round(x)


def sign(x: TensorLike) -> Tensor:
    """Return the signs: -1, 0 or 1.

    Example:
      >>> tf.keras.backend.sign(tf.constant([-3.0, 0.0, 5.0])).numpy().tolist()
      [-1.0, 0.0, 1.0]
    """
    return math.sign(x)


def sqrt(x: TensorLike) -> Tensor:
    """Compute square roots; negative elements count as 0.

    Example:
      >>> tf.keras.backend.sqrt(tf.constant([9.0, -1.0])).numpy().tolist()
      [3.0, 0.0]
    """
    x = convert_to_tensor(x)
    return math.sqrt(math.maximum(x, array.zeros_like(x)))


def square(x: TensorLike) -> Tensor:
    """Compute squares.

    Example:
      >>> tf.keras.backend.square(tf.constant([-3.0, 2.0])).numpy().tolist()
      [9.0, 4.0]
    """
    return math.square(x)


def maximum(x: TensorLike, y: TensorLike) -> Tensor:
    """Return the elementwise maximum.

    Example:
      >>> tf.keras.backend.maximum(tf.constant([1.0, 5.0]), 2.0).numpy().tolist()
      [2.0, 5.0]
    """
    return math.maximum(x, y)


def minimum(x: TensorLike, y: TensorLike) -> Tensor:
    """Return the elementwise minimum.

    Example:
      >>> tf.keras.backend.minimum(tf.constant([1.0, 5.0]), 2.0).numpy().tolist()
      [1.0, 2.0]
    """
    return math.minimum(x, y)


def equal(x: TensorLike, y: TensorLike) -> Tensor:
    """Compute `x == y`, element by element.

    Example:
      >>> tf.keras.backend.equal(tf.constant([1, 2, 3]), 2).numpy().tolist()
      [False, True, False]
    """
    return math.equal(x, y)


def not_equal(x: TensorLike, y: TensorLike) -> Tensor:
    """Compute `x != y`, element by element.

    Example:
      >>> tf.keras.backend.not_equal(tf.constant([1, 2, 3]), 2).numpy().tolist()
      [True, False, True]
    """
    return math.not_equal(x, y)


def greater(x: TensorLike, y: TensorLike) -> Tensor:
    """Compute `x > y`, element by element.

    Example:
      >>> tf.keras.backend.greater(tf.constant([1, 2, 3]), 2).numpy().tolist()
      [False, False, True]
    """
    return math.greater(x, y)


def greater_equal(x: TensorLike, y: TensorLike) -> Tensor:
    """Compute `x >= y`, element by element.

    Example:
      >>> tf.keras.backend.greater_equal(tf.constant([1, 2, 3]), 2).numpy().tolist()
      [False, True, True]
    """
    return math.greater_equal(x, y)


def less(x: TensorLike, y: TensorLike) -> Tensor:
    """Compute `x < y`, element by element.

    Example:
      >>> tf.keras.backend.less(tf.constant([1, 2, 3]), 2).numpy().tolist()
      [True, False, False]
    """
    return math.less(x, y)


def less_equal(x: TensorLike, y: TensorLike) -> Tensor:
    """Compute `x <= y`, element by element.

    Example:
      >>> tf.keras.backend.less_equal(tf.constant([1, 2, 3]), 2).numpy().tolist()
      [True, True, False]
    """
    return math.less_equal(x, y)


def relu(
    x: TensorLike, alpha: float = 0.0, max_value: float | None = None, threshold: float = 0.0
) -> Tensor:
    """Compute `min(x, max_value)` above `threshold`, and `alpha * (x - threshold)` below it.

    Example:
      >>> tf.keras.backend.relu(tf.constant([-4.0, 2.0, 9.0]), alpha=0.5, max_value=6.0).numpy().tolist()
      [-2.0, 2.0, 6.0]
    """
    return activations.relu(x, alpha=alpha, max_value=max_value, threshold=threshold)


def elu(x: TensorLike, alpha: float = 1.0) -> Tensor:
    """Return `x` where it is positive, and `alpha * (exp(x) - 1)` where it is not.

    Example:
      >>> tf.keras.backend.elu(tf.constant([-100.0, 2.0]), alpha=0.5).numpy().tolist()
      [-0.5, 2.0]
    """
    return activations.elu(x, alpha)


def hard_sigmoid(x: TensorLike) -> Tensor:
    """Compute `0.2 * x + 0.5`, clipped to [0, 1].

    Example:
      >>> tf.keras.backend.hard_sigmoid(tf.constant([-3.0, 0.0, 3.0])).numpy().tolist()
      [0.0, 0.5, 1.0]
    """
    return math.clip_by_value(0.2 * convert_to_tensor(x) + 0.5, 0.0, 1.0)


def sigmoid(x: TensorLike) -> Tensor:
    """Compute `1 / (1 + exp(-x))`.

    Example:
      >>> tf.keras.backend.sigmoid(tf.constant([-100.0, 0.0, 100.0])).numpy().tolist()
      [0.0, 0.5, 1.0]
    """
    return attach_logits(math.sigmoid(x), x)


def softmax(x: TensorLike, axis: int = -1) -> Tensor:
    """Compute `exp(x)` divided by its sum over an axis.

    Example:
      >>> tf.keras.backend.softmax(tf.constant([[2.0, 2.0]])).numpy().tolist()
      [[0.5, 0.5]]
    """
    return attach_logits(nn.softmax(x, axis=axis), x)


def softplus(x: TensorLike) -> Tensor:
    """Compute `log(1 + exp(x))`.

    Example:
      >>> tf.keras.backend.softplus(tf.constant([0.0, 100.0])).numpy().round(3)
      array([  0.693, 100.   ], dtype=float32)
    """
    return nn.softplus(x)


def softsign(x: TensorLike) -> Tensor:
    """Compute `x / (1 + |x|)`.

    Example:
      >>> tf.keras.backend.softsign(tf.constant([-3.0, 0.0, 1.0])).numpy().tolist()
      [-0.75, 0.0, 0.5]
    """
    return nn.softsign(x)


def tanh(x: TensorLike) -> Tensor:
    """Compute hyperbolic tangents.

    Example:
      >>> tf.keras.backend.tanh(tf.constant([-100.0, 0.0])).numpy().tolist()
      [-1.0, 0.0]
    """
    return math.tanh(x)
