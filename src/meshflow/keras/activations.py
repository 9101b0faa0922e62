"""`tf.keras.activations`: activation functions by name."""

from __future__ import annotations

from typing import Any

from meshflow.keras import identify
from meshflow.ops import math, nn

__all__ = [
    "deserialize",
    "elu",
    "exponential",
    "gelu",
    "get",
    "hard_sigmoid",
    "leaky_relu",
    "linear",
    "mish",
    "relu",
    "relu6",
    "selu",
    "serialize",
    "sigmoid",
    "silu",
    "softmax",
    "softplus",
    "softsign",
    "swish",
    "tanh",
]


def relu(x: Any, alpha: float = 0.0, max_value: float | None = None, threshold: float = 0.0) -> Any:
    """Rectifier with optional slope, ceiling and threshold.

    Args:
      x: a tensor.
      alpha: slope below the threshold.
      max_value: ceiling.
      threshold: values below it count as small.

    Returns:
      A tensor of the shape of `x`.
    """
    if not alpha and max_value is None and not threshold:
        return nn.relu(x)
    from meshflow.ops.array import where

    result = nn.relu(x) if not threshold else where(x > threshold, x, 0)
    if max_value is not None:
        result = math.minimum(result, max_value)
    return result - alpha * nn.relu(threshold - x) if alpha else result


def elu(x: Any, alpha: float = 1.0) -> Any:
    """x where positive, `alpha * (e^x - 1)` elsewhere."""
    result = nn.elu(x)
    if alpha == 1:
        return result
    from meshflow.ops.array import where

    return where(x > 0, result, alpha * result)


def leaky_relu(x: Any, negative_slope: float = 0.2) -> Any:
    """x where positive, `negative_slope * x` elsewhere."""
    return nn.leaky_relu(x, negative_slope)


def selu(x: Any) -> Any:
    """Scaled ELU."""
    return nn.selu(x)


def gelu(x: Any, approximate: bool = False) -> Any:
    """Gaussian error linear unit."""
    return nn.gelu(x, approximate)


def relu6(x: Any) -> Any:
    """`min(max(x, 0), 6)`."""
    return nn.relu6(x)


def softmax(x: Any, axis: int = -1) -> Any:
    """Softmax along a dimension.

    Raises:
      ValueError: for a vector, which has no batch dimension.
    """
    if len(x.shape) < 2:
        raise ValueError(f"Cannot apply softmax to a tensor that is 1D. Received input: {x}")
    return nn.softmax(x, axis=axis)


def sigmoid(x: Any) -> Any:
    """`1 / (1 + e^-x)`."""
    return nn.sigmoid(x)


def tanh(x: Any) -> Any:
    """Hyperbolic tangent."""
    return nn.tanh(x)


def softplus(x: Any) -> Any:
    """`log(1 + e^x)`."""
    return nn.softplus(x)


def softsign(x: Any) -> Any:
    """`x / (1 + |x|)`."""
    return nn.softsign(x)


def silu(x: Any) -> Any:
    """`x * sigmoid(x)`."""
    return nn.silu(x)


def swish(x: Any) -> Any:
    """`x * sigmoid(x)`."""
    return nn.silu(x)


def mish(x: Any) -> Any:
    """`x * tanh(softplus(x))`."""
    return x * nn.tanh(nn.softplus(x))


def exponential(x: Any) -> Any:
    """`e^x`."""
    return math.exp(x)


def hard_sigmoid(x: Any) -> Any:
    """`0.2 x + 0.5`, clipped to [0, 1]."""
    return math.clip_by_value(x * 0.2 + 0.5, 0.0, 1.0)


def linear(x: Any) -> Any:
    """The input itself."""
    return x


_TABLE = {
    f.__name__: f
    for f in (
        *(
            elu,
            exponential,
            gelu,
            hard_sigmoid,
            leaky_relu,
            linear,
            mish,
            relu,
            relu6,
            selu,
            sigmoid,
            silu,
        ),
        *(softmax, softplus, softsign, swish, tanh),
    )
}


def get(identifier: Any) -> Any:
    """An activation function from a name, function, layer or configuration; None is `linear`.

    Raises:
      ValueError: for an unknown name.
      TypeError: for what is no name, function, layer or configuration.

    Example:
      >>> import meshflow as tf
      >>> tf.keras.activations.get("relu").__name__
      'relu'
    """
    if identifier is None:
        return linear
    if isinstance(identifier, dict):
        return deserialize(identifier)
    if not isinstance(identifier, str) and not callable(identifier):
        raise TypeError(f"Could not interpret activation function identifier: {identifier}")
    return identify.lookup(identifier, _TABLE, "activation function")


def serialize(activation: Any, use_legacy_format: bool = False) -> Any:
    """The name of an activation function, or a layer's configuration."""
    return identify.serialize(activation)


def deserialize(name: Any, custom_objects: Any = None, use_legacy_format: bool = False) -> Any:
    """The activation with a name or configuration."""
    if isinstance(name, dict):
        from meshflow.keras import layers

        return layers.deserialize(name, custom_objects)
    return identify.lookup(name, _TABLE, "activation function", custom_objects)
