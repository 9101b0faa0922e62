"""Functions of each element: mathematics, comparisons and activations."""

from __future__ import annotations

from typing import Any

from meshflow.core.convert import convert_to_tensor
from meshflow.keras.backend.settings import floatx
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


def abs(x: Any) -> Any:
    """Absolute values."""
    return math.abs(x)


def cast(x: Any, dtype: Any) -> Any:
    """`x` with another dtype."""
    return math.cast(x, dtype)


def cast_to_floatx(x: Any) -> Any:
    """`x` as `floatx()`: a tensor for a tensor, a NumPy array for anything else."""
    from meshflow.core.tensor import is_tensor

    if is_tensor(x):
        return math.cast(x, floatx())
    import numpy as np

    return np.asarray(x, dtype=floatx())


def clip(x: Any, min_value: Any, max_value: Any) -> Any:
    """`x` no smaller than `min_value` and no larger than `max_value`, either of which may be None.

    Example:
      >>> import meshflow as tf
      >>> tf.keras.backend.clip([-2.0, 0.5, 2.0], 0.0, 1.0).numpy()
      array([0. , 0.5, 1. ], dtype=float32)
    """
    if isinstance(min_value, (int, float)) and isinstance(max_value, (int, float)):
        max_value = max(min_value, max_value)
    low = -float("inf") if min_value is None else min_value
    high = float("inf") if max_value is None else max_value
    return math.clip_by_value(x, low, high)


def cos(x: Any) -> Any:
    """Cosines."""
    return math.cos(x)


def sin(x: Any) -> Any:
    """Sines."""
    return math.sin(x)


def exp(x: Any) -> Any:
    """Exponentials."""
    return math.exp(x)


def log(x: Any) -> Any:
    """Natural logarithms."""
    return math.log(x)


def pow(x: Any, a: Any) -> Any:
    """`x` to the power of `a`."""
    return math.pow(x, a)


def round(x: Any) -> Any:
    """Nearest integers, halves to even."""
    return math.round(x)


def sign(x: Any) -> Any:
    """-1, 0 or 1."""
    return math.sign(x)


def sqrt(x: Any) -> Any:
    """Square roots; 0 for negative numbers."""
    x = convert_to_tensor(x)
    return math.sqrt(math.maximum(x, array.zeros_like(x)))


def square(x: Any) -> Any:
    """Squares."""
    return math.square(x)


def maximum(x: Any, y: Any) -> Any:
    """The larger of each two elements."""
    return math.maximum(x, y)


def minimum(x: Any, y: Any) -> Any:
    """The smaller of each two elements."""
    return math.minimum(x, y)


def equal(x: Any, y: Any) -> Any:
    """Whether `x == y`, element by element."""
    return math.equal(x, y)


def not_equal(x: Any, y: Any) -> Any:
    """Whether `x != y`, element by element."""
    return math.not_equal(x, y)


def greater(x: Any, y: Any) -> Any:
    """Whether `x > y`, element by element."""
    return math.greater(x, y)


def greater_equal(x: Any, y: Any) -> Any:
    """Whether `x >= y`, element by element."""
    return math.greater_equal(x, y)


def less(x: Any, y: Any) -> Any:
    """Whether `x < y`, element by element."""
    return math.less(x, y)


def less_equal(x: Any, y: Any) -> Any:
    """Whether `x <= y`, element by element."""
    return math.less_equal(x, y)


def relu(x: Any, alpha: float = 0.0, max_value: float | None = None, threshold: float = 0.0) -> Any:
    """`x` above `threshold`, at most `max_value`; `alpha * (x - threshold)` below it."""
    from meshflow.keras import activations

    return activations.relu(x, alpha=alpha, max_value=max_value, threshold=threshold)


def elu(x: Any, alpha: float = 1.0) -> Any:
    """`x` where positive, `alpha * (exp(x) - 1)` elsewhere."""
    from meshflow.keras import activations

    return activations.elu(x, alpha)


def hard_sigmoid(x: Any) -> Any:
    """`0.2 * x + 0.5` between 0 and 1."""
    return math.clip_by_value(0.2 * convert_to_tensor(x) + 0.5, 0.0, 1.0)


def sigmoid(x: Any) -> Any:
    """`1 / (1 + exp(-x))`."""
    return math.sigmoid(x)


def softmax(x: Any, axis: int = -1) -> Any:
    """`exp(x)` divided by its sum over a dimension."""
    return nn.softmax(x, axis=axis)


def softplus(x: Any) -> Any:
    """`log(1 + exp(x))`."""
    return nn.softplus(x)


def softsign(x: Any) -> Any:
    """`x / (1 + |x|)`."""
    return nn.softsign(x)


def tanh(x: Any) -> Any:
    """Hyperbolic tangents."""
    return math.tanh(x)
