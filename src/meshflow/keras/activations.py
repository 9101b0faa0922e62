"""`tf.keras.activations`: activation functions by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from meshflow.core.dispatch import op_names
from meshflow.core.runtime.tracebacks import hide_frames_of_errors
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.environment.types import Config
from meshflow.keras import registry, serialization
from meshflow.keras.logits import attach_logits
from meshflow.keras.registry import CustomObjects
from meshflow.ops import math, nn
from meshflow.ops.array import where

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


def relu(
    x: TensorLike, alpha: float = 0.0, max_value: float | None = None, threshold: float = 0.0
) -> Tensor:
    """Apply the rectified linear unit, optionally with a slope, a ceiling and a threshold.

    Args:
      x: Tensor.
      alpha: Slope below the threshold.
      max_value: Largest value of the result; None for no limit.
      threshold: Values up to this one count as negative.

    Returns:
      A tensor of the shape of `x`.

    Example:
      >>> x = tf.constant([-4.0, 0.5, 9.0])
      >>> tf.keras.activations.relu(x, alpha=0.5, max_value=6.0).numpy().tolist()
      [-2.0, 0.5, 6.0]
      >>> tf.keras.activations.relu(x, threshold=1.0).numpy().tolist()
      [0.0, 0.0, 9.0]
    """
    if not alpha and max_value is None and not threshold:
        return nn.relu(x)

    x = convert_to_tensor(x)
    result = nn.relu(x) if not threshold else where(x > threshold, x, 0)
    if max_value is not None:
        result = math.minimum(result, max_value)
    return result - alpha * nn.relu(threshold - x) if alpha else result


def elu(x: TensorLike, alpha: float = 1.0) -> Tensor:
    """Return `x` where it is positive, and `alpha * (e^x - 1)` otherwise.

    Example:
      >>> tf.keras.activations.elu(tf.constant([-100.0, 2.0]), alpha=0.5).numpy().tolist()
      [-0.5, 2.0]
    """
    result = nn.elu(x)
    if alpha == 1:
        return result

    return where(result > 0, result, alpha * result)


def leaky_relu(x: TensorLike, negative_slope: float = 0.2) -> Tensor:
    """Return `x` where it is positive, and `negative_slope * x` otherwise.

    Example:
      >>> tf.keras.activations.leaky_relu(tf.constant([-4.0, 2.0]), negative_slope=0.5).numpy().tolist()
      [-2.0, 2.0]
    """
    return nn.leaky_relu(x, negative_slope)


def selu(x: TensorLike) -> Tensor:
    """Apply the scaled exponential linear unit.

    Example:
      >>> tf.keras.activations.selu(tf.constant([-1.0, 0.0, 1.0])).numpy().round(3)
      array([-1.111,  0.   ,  1.051], dtype=float32)
    """
    return nn.selu(x)


def gelu(x: TensorLike, approximate: bool = False) -> Tensor:
    """Apply the Gaussian error linear unit, exactly or by its tanh approximation.

    Example:
      >>> tf.keras.activations.gelu(tf.constant([-1.0, 0.0, 1.0])).numpy().round(3)
      array([-0.159,  0.   ,  0.841], dtype=float32)
    """
    return nn.gelu(x, approximate)


def relu6(x: TensorLike) -> Tensor:
    """Compute `min(max(x, 0), 6)`.

    Example:
      >>> tf.keras.activations.relu6(tf.constant([-4.0, 2.0, 9.0])).numpy().tolist()
      [0.0, 2.0, 6.0]
    """
    return nn.relu6(x)


def softmax(x: TensorLike, axis: int = -1) -> Tensor:
    """Compute the softmax along an axis.

    Raises:
      ValueError: If `x` is a vector, which has no batch dimension.

    Example:
      >>> tf.keras.activations.softmax(tf.constant([[2.0, 2.0, 2.0, 2.0]])).numpy().tolist()
      [[0.25, 0.25, 0.25, 0.25]]
    """
    if len(x.shape) < 2:
        raise ValueError(f"Cannot apply softmax to a tensor that is 1D. Received input: {x}")
    return attach_logits(nn.softmax(x, axis=axis), x)


def sigmoid(x: TensorLike) -> Tensor:
    """Compute `1 / (1 + e^-x)`.

    Example:
      >>> tf.keras.activations.sigmoid(tf.constant([-100.0, 0.0, 100.0])).numpy().tolist()
      [0.0, 0.5, 1.0]
    """
    return attach_logits(nn.sigmoid(x), x)


def tanh(x: TensorLike) -> Tensor:
    """Compute the hyperbolic tangent.

    Example:
      >>> tf.keras.activations.tanh(tf.constant([-100.0, 0.0, 100.0])).numpy().tolist()
      [-1.0, 0.0, 1.0]
    """
    return nn.tanh(x)


def softplus(x: TensorLike) -> Tensor:
    """Compute `log(1 + e^x)`.

    Example:
      >>> tf.keras.activations.softplus(tf.constant([0.0, 100.0])).numpy().round(3)
      array([  0.693, 100.   ], dtype=float32)
    """
    return nn.softplus(x)


def softsign(x: TensorLike) -> Tensor:
    """Compute `x / (1 + |x|)`.

    Example:
      >>> tf.keras.activations.softsign(tf.constant([-3.0, 0.0, 1.0])).numpy().tolist()
      [-0.75, 0.0, 0.5]
    """
    return nn.softsign(x)


def silu(x: TensorLike) -> Tensor:
    """Compute `x * sigmoid(x)`.

    Example:
      >>> tf.keras.activations.silu(tf.constant([-1.0, 0.0, 1.0])).numpy().round(3)
      array([-0.269,  0.   ,  0.731], dtype=float32)
    """
    return nn.silu(x)


def swish(x: TensorLike) -> Tensor:
    """Compute `x * sigmoid(x)`.

    Example:
      >>> tf.keras.activations.swish(tf.constant([-1.0, 0.0, 1.0])).numpy().round(3)
      array([-0.269,  0.   ,  0.731], dtype=float32)
    """
    return nn.silu(x)


def mish(x: TensorLike) -> Tensor:
    """Compute `x * tanh(softplus(x))`.

    Example:
      >>> tf.keras.activations.mish(tf.constant([-1.0, 0.0, 1.0])).numpy().round(3)
      array([-0.303,  0.   ,  0.865], dtype=float32)
    """
    return x * nn.tanh(nn.softplus(x))


def exponential(x: TensorLike) -> Tensor:
    """Compute `e^x`.

    Example:
      >>> tf.keras.activations.exponential(tf.constant([0.0, 1.0])).numpy().round(3)
      array([1.   , 2.718], dtype=float32)
    """
    return math.exp(x)


def hard_sigmoid(x: TensorLike) -> Tensor:
    """Compute `0.2 x + 0.5`, clipped to [0, 1].

    Example:
      >>> tf.keras.activations.hard_sigmoid(tf.constant([-3.0, 0.0, 3.0])).numpy().tolist()
      [0.0, 0.5, 1.0]
    """
    return math.clip_by_value(x * 0.2 + 0.5, 0.0, 1.0)


def linear(x: TensorLike) -> Tensor:
    """Return the input.

    Example:
      >>> tf.keras.activations.linear(tf.constant([-4.0, 2.0])).numpy().tolist()
      [-4.0, 2.0]
    """
    return x


_REGISTRY = registry.create_registry(
    "activation function",
    "keras.activations",
    {
        f.__name__: f
        for f in (
            *(elu, exponential, gelu, hard_sigmoid, leaky_relu, linear, mish, relu, relu6),
            *(selu, sigmoid, silu, softmax, softplus, softsign, swish, tanh),
        )
    },
)


for _function in _REGISTRY.table.values():
    op_names.register_name(_function)

# Only Keras 3 has these activations. Its `hard_sigmoid` is another function than the one above.
_KERAS_3_NAMES = [
    "celu",
    "glu",
    "hard_shrink",
    "hard_silu",
    "hard_swish",
    "hard_tanh",
    "log_sigmoid",
    "log_softmax",
    "soft_shrink",
    "sparse_plus",
    "sparse_sigmoid",
    "sparsemax",
    "squareplus",
    "tanh_shrink",
    "threshold",
]
_REGISTRY.add(
    **{name: registry.LazyObject("meshflow.keras.ops", name) for name in _KERAS_3_NAMES},
    **{"keras.ops.hard_sigmoid": registry.LazyObject("meshflow.keras.ops", "hard_sigmoid")},
)


@hide_frames_of_errors
def get(identifier: object) -> Callable[..., Any]:
    """Return the activation function for a name, function, layer or configuration.

    Args:
      identifier: The name, function, layer or configuration; None means `linear`.

    Raises:
      ValueError: If the name is unknown.
      TypeError: If the identifier has another type.

    Example:
      >>> tf.keras.activations.get("relu").__name__
      'relu'
    """
    if identifier is None:
        return linear
    if isinstance(identifier, dict):
        return deserialize(identifier)
    if not isinstance(identifier, str) and not callable(identifier):
        raise TypeError(f"Could not interpret activation function identifier: {identifier}")
    return _REGISTRY.get(identifier)


def serialize(activation: object, use_legacy_format: bool = False) -> Config | str | None:
    """Return the name of an activation function, or the configuration of a layer.

    Example:
      >>> tf.keras.activations.serialize(tf.keras.activations.tanh)
      'tanh'
    """
    serialized = serialization.serialize(activation, use_legacy_format)
    if isinstance(serialized, dict) and serialized.get("class_name") == "function":
        name = serialized["config"]
        return name if name in _REGISTRY.table else serialized
    return serialized


def deserialize(
    name: str | Config | None, custom_objects: CustomObjects = None, use_legacy_format: bool = False
) -> Callable[..., Any]:
    """Return the activation function for a name or configuration.

    Example:
      >>> tf.keras.activations.deserialize("relu").__name__
      'relu'
    """
    if isinstance(name, dict) and name.get("class_name") != "function":
        return registry.LAYERS.deserialize(name, custom_objects)
    return _REGISTRY.deserialize(name, custom_objects)
