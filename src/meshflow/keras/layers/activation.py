"""Layers for activation functions with parameters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Unpack

from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.shapes import ShapeLike, TensorShape
from meshflow.core.values.tensor import Tensor
from meshflow.environment.types import Config
from meshflow.keras import activations, settings
from meshflow.keras.engine.layer.base_layer import Layer
from meshflow.keras.engine.layer.helpers import Identifier
from meshflow.keras.engine.symbolic.input_spec import InputSpec
from meshflow.keras.layers.keyword_arguments import LayerArguments, LeakyReLUArguments
from meshflow.keras.layers.weight_options import (
    add_weight,
    make_weight_config,
    set_weight_options,
)
from meshflow.keras.logits import attach_logits
from meshflow.ops import math, nn

__all__ = ["ELU", "LeakyReLU", "PReLU", "ReLU", "Softmax", "ThresholdedReLU"]


class _ElementwiseLayer(Layer):
    """Base class of layers that preserve the shape of their input."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.supports_masking = True

    def compute_output_shape(self, input_shape: ShapeLike) -> TensorShape:
        """Return the shape of the input."""
        return TensorShape(input_shape)


class ReLU(_ElementwiseLayer):
    """Rectified linear unit, `max(x, 0)`, with options.

    Args:
      max_value: Upper bound of the output, or None.
      negative_slope: Slope below the threshold.
      threshold: Value below which inputs are multiplied by `negative_slope`.
      **kwargs: Arguments of `Layer`.

    Input shape:
      Any: (batch, ...).

    Output shape:
      The shape of the input.

    Example:
      >>> tf.keras.layers.ReLU(max_value=6.0)(tf.constant([-2.0, 3.0, 9.0])).numpy().tolist()
      [0.0, 3.0, 6.0]
    """

    def __init__(
        self,
        max_value: float | None = None,
        negative_slope: float = 0.0,
        threshold: float = 0.0,
        **kwargs: Unpack[LayerArguments],
    ) -> None:
        super().__init__(**kwargs)
        if (max_value is not None and max_value < 0) or any(
            v is None or v < 0 for v in (negative_slope, threshold)
        ):
            raise ValueError(
                f"ReLU: max_value, negative_slope and threshold cannot be negative (nor the last two None), got {max_value}, {negative_slope}, {threshold}."
            )
        # Keras stores these values as floatx, too.
        self.max_value = None if max_value is None else settings.as_floatx(max_value)
        self.negative_slope = settings.as_floatx(negative_slope)
        self.threshold = settings.as_floatx(threshold)

    def call(self, inputs: Tensor) -> Tensor:
        """Apply the activation function."""
        return activations.relu(inputs, self.negative_slope, self.max_value, self.threshold)

    def get_config(self) -> Config:
        """Return the configuration."""
        return {
            **super().get_config(),
            "max_value": self.max_value,
            "negative_slope": self.negative_slope,
            "threshold": self.threshold,
        }


class LeakyReLU(_ElementwiseLayer):
    """x for positive x, else `alpha * x`.

    Args:
      alpha: Slope for negative inputs.
      **kwargs: Arguments of `Layer`.

    Input shape:
      Any: (batch, ...).

    Output shape:
      The shape of the input.

    Example:
      >>> tf.keras.layers.LeakyReLU(alpha=0.5)(tf.constant([-4.0, 3.0])).numpy().tolist()
      [-2.0, 3.0]
    """

    def __init__(self, alpha: float = 0.3, **kwargs: Unpack[LeakyReLUArguments]) -> None:
        alpha = kwargs.pop("negative_slope", alpha)
        super().__init__(**kwargs)
        if alpha is None:
            raise ValueError(
                "The alpha value of a Leaky ReLU layer cannot be None, expecting a float."
            )
        self.alpha = settings.as_floatx(alpha)

    def call(self, inputs: Tensor) -> Tensor:
        """Apply the activation function."""
        return nn.leaky_relu(inputs, self.alpha)

    def get_config(self) -> Config:
        """Return the configuration."""
        return {**super().get_config(), "alpha": self.alpha}


class ELU(_ElementwiseLayer):
    """x for positive x, else `alpha * (e^x - 1)`.

    Args:
      alpha: Scale for negative inputs.
      **kwargs: Arguments of `Layer`.

    Input shape:
      Any: (batch, ...).

    Output shape:
      The shape of the input.

    Example:
      >>> tf.keras.layers.ELU(alpha=2.0)(tf.constant([-100.0, 3.0])).numpy().tolist()
      [-2.0, 3.0]
    """

    def __init__(self, alpha: float = 1.0, **kwargs: Unpack[LayerArguments]) -> None:
        super().__init__(**kwargs)
        if alpha is None:
            raise ValueError(
                "Alpha of an ELU layer cannot be None, expecting a float. Received: None"
            )
        self.alpha = settings.as_floatx(alpha)

    def call(self, inputs: Tensor) -> Tensor:
        """Apply the activation function."""
        return activations.elu(inputs, self.alpha)

    def get_config(self) -> Config:
        """Return the configuration."""
        return {**super().get_config(), "alpha": self.alpha}


class ThresholdedReLU(_ElementwiseLayer):
    """x for x > theta, else 0.

    Args:
      theta: The threshold.
      **kwargs: Arguments of `Layer`.

    Input shape:
      Any: (batch, ...).

    Output shape:
      The shape of the input.

    Example:
      >>> tf.keras.layers.ThresholdedReLU(theta=2.0)(tf.constant([1.0, 2.0, 3.0])).numpy().tolist()
      [0.0, 0.0, 3.0]
    """

    def __init__(self, theta: float = 1.0, **kwargs: Unpack[LayerArguments]) -> None:
        super().__init__(**kwargs)
        if theta is None or theta < 0:
            raise ValueError(f"Theta must be >= 0, got {theta}.")
        self.theta = settings.as_floatx(theta)

    def call(self, inputs: Tensor) -> Tensor:
        """Apply the activation function."""
        inputs = convert_to_tensor(inputs)
        return inputs * math.cast(inputs > self.theta, inputs.dtype)

    def get_config(self) -> Config:
        """Return the configuration."""
        return {**super().get_config(), "theta": self.theta}


class Softmax(_ElementwiseLayer):
    """Softmax along an axis; masked positions have probability 0.

    Args:
      axis: Axis or list of axes.
      **kwargs: Arguments of `Layer`.

    Input shape:
      Any: (batch, ...).

    Output shape:
      The shape of the input.

    Example:
      >>> x, mask = tf.constant([[1.0, 1.0, 5.0]]), tf.constant([[True, True, False]])
      >>> tf.keras.layers.Softmax()(x, mask).numpy().tolist()
      [[0.5, 0.5, 0.0]]
    """

    def __init__(self, axis: int | Sequence[int] = -1, **kwargs: Unpack[LayerArguments]) -> None:
        super().__init__(**kwargs)
        self.axis: Any = axis
        # A trace checks the axis.
        self._traced_shape = True

    def call(self, inputs: Tensor, mask: Tensor | None = None) -> Tensor:
        """Compute the probabilities."""
        if mask is not None:
            low = -3e4 if inputs.dtype.name == "float16" else -1e9
            inputs = inputs + (1.0 - math.cast(mask, inputs.dtype)) * low
        if isinstance(self.axis, (list, tuple)):
            if len(self.axis) > 1:
                return math.exp(
                    inputs - math.reduce_logsumexp(inputs, axis=list(self.axis), keepdims=True)
                )
            return attach_logits(nn.softmax(inputs, axis=self.axis[0]), inputs)
        return attach_logits(nn.softmax(inputs, axis=self.axis), inputs)

    def get_config(self) -> Config:
        """Return the configuration."""
        return {**super().get_config(), "axis": self.axis}


class PReLU(_ElementwiseLayer):
    """x for positive x, else `alpha * x` with trained alpha (arXiv:1502.01852).

    Args:
      alpha_initializer: Initializer of alpha.
      alpha_regularizer: Regularizer of alpha.
      alpha_constraint: Constraint of alpha.
      shared_axes: Axes along which all positions share one value of alpha.
      **kwargs: Arguments of `Layer`.

    Input shape:
      Any: (batch, ...).

    Output shape:
      The shape of the input.

    Example:
      >>> layer = tf.keras.layers.PReLU(alpha_initializer=tf.keras.initializers.Constant(0.25))
      >>> layer(tf.constant([[-4.0, 8.0]])).numpy().tolist()
      [[-1.0, 8.0]]
      >>> layer.alpha.shape
      TensorShape([2])
    """

    _weights_with_layouts: tuple[str, ...] = ("alpha",)

    def __init__(
        self,
        alpha_initializer: Identifier = "zeros",
        alpha_regularizer: Identifier = None,
        alpha_constraint: Identifier = None,
        shared_axes: int | Sequence[int] | None = None,
        **kwargs: Unpack[LayerArguments],
    ) -> None:
        super().__init__(**kwargs)
        set_weight_options(self, locals(), "alpha")
        if isinstance(shared_axes, (list, tuple)):
            self.shared_axes: list[Any] | None = list(shared_axes)
        else:
            self.shared_axes = None if shared_axes is None else [shared_axes]

    def build(self, input_shape: ShapeLike) -> None:
        """Create alpha."""
        shape = TensorShape(input_shape).as_list()[1:]
        for axis in self.shared_axes or []:
            shape[axis - 1] = 1
        self.alpha = add_weight(self, "alpha", shape)
        axes = range(1, len(shape) + 1)
        shared_axes = self.shared_axes or []
        axis_sizes = {
            axis: shape[axis - 1] for axis in axes if shared_axes and axis not in shared_axes
        }
        self.input_spec = InputSpec(ndim=len(shape) + 1, axes=axis_sizes)
        self.built = True

    def call(self, inputs: Tensor) -> Tensor:
        """Apply the activation function."""
        return nn.relu(inputs) - self.alpha * nn.relu(-inputs)

    def get_config(self) -> Config:
        """Return the configuration."""
        return {
            **super().get_config(),
            **make_weight_config(self, "alpha"),
            "shared_axes": self.shared_axes,
        }
