"""Dense, activation, masking and layers of a function."""

from __future__ import annotations

from typing import Any

import numpy as np

from meshflow.core.values.dtypes import as_dtype
from meshflow.core.values.shapes import TensorShape
from meshflow.core.values.tensor import Tensor
from meshflow.core.variables.variable import Variable
from meshflow.keras import activations, constraints, initializers, regularizers, settings
from meshflow.keras.engine.layer.base_layer import Layer
from meshflow.keras.engine.layer.divided_products import divided_product
from meshflow.keras.engine.layer.float8_products import product
from meshflow.keras.engine.symbolic.input_spec import InputSpec
from meshflow.ops import array, math, nn

__all__ = ["Activation", "ActivityRegularization", "Dense", "Identity", "Masking"]


class Dense(Layer):
    """`activation(inputs @ kernel + bias)`.

    Args:
      units: size of the output's last dimension.
      activation: activation function.
      use_bias: whether a bias is added.
      kernel_initializer: initializer of the kernel, shape (inputs, units).
      bias_initializer: initializer of the bias, shape (units,).
      kernel_regularizer: penalty on the kernel.
      bias_regularizer: penalty on the bias.
      activity_regularizer: penalty on the output.
      kernel_constraint: projection of the kernel.
      bias_constraint: projection of the bias.
      **kwargs: arguments of `Layer`.

    Input shape:
      (batch, ..., inputs).

    Output shape:
      (batch, ..., units).

    Example:
      >>> import meshflow as tf
      >>> tf.keras.layers.Dense(4)(tf.ones([2, 3])).shape
      TensorShape([2, 4])
    """

    _weights_with_layouts: tuple[str, ...] = ("kernel", "bias")

    def __init__(
        self,
        units: int,
        activation: Any = None,
        use_bias: bool = True,
        kernel_initializer: Any = "glorot_uniform",
        bias_initializer: Any = "zeros",
        kernel_regularizer: Any = None,
        bias_regularizer: Any = None,
        activity_regularizer: Any = None,
        kernel_constraint: Any = None,
        bias_constraint: Any = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(activity_regularizer=activity_regularizer, **kwargs)
        if isinstance(units, (float, np.integer)) and int(units) == units:
            units = int(units)
        if not isinstance(units, int) or units <= 0:
            raise ValueError(
                f"Received an invalid value for `units`, expected a positive integer. Received: units={units}"
            )
        self.units = units
        self.activation = activations.get(activation)
        self.use_bias = use_bias
        self.kernel_initializer, self.bias_initializer = (
            initializers.get(kernel_initializer),
            initializers.get(bias_initializer),
        )
        self.kernel_regularizer, self.bias_regularizer = (
            regularizers.get(kernel_regularizer),
            regularizers.get(bias_regularizer),
        )
        self.kernel_constraint, self.bias_constraint = (
            constraints.get(kernel_constraint),
            constraints.get(bias_constraint),
        )
        self.input_spec = InputSpec(min_ndim=2)
        self.supports_masking = True
        self.bias: Variable | None = None

    def build(self, input_shape: Any) -> None:
        """Creates kernel and bias."""
        if not as_dtype(self.dtype or settings.floatx()).is_floating:
            raise TypeError(
                f"A Dense layer can only be built with a floating-point dtype. Received: dtype={self.dtype}"
            )
        size = TensorShape(input_shape)[-1]
        if size is None:
            raise ValueError(
                f"The last dimension of the inputs to a Dense layer should be defined. Found None. Full input shape received: {input_shape}"
            )
        self.input_spec = InputSpec(min_ndim=2, axes={-1: size})
        self.kernel = self.add_weight(
            "kernel",
            (size, self.units),
            initializer=self.kernel_initializer,
            regularizer=self.kernel_regularizer,
            constraint=self.kernel_constraint,
        )
        if self.use_bias:
            self.bias = self.add_weight(
                "bias",
                (self.units,),
                initializer=self.bias_initializer,
                regularizer=self.bias_regularizer,
                constraint=self.bias_constraint,
            )
        self.built = True

    def call(self, inputs: Any) -> Any:
        """The layer's output."""
        inputs = math.cast(inputs, self.compute_dtype)
        compute = divided_product(self, inputs) or _last_axis_product
        outputs = product(self, compute, inputs, self.kernel)
        if self.bias is not None:
            outputs = nn.bias_add(outputs, self.bias)
        # Scripts take the softmax off a finished model by `model.layers[-1].activation = None`.
        return outputs if self.activation is None else self.activation(outputs)

    def compute_output_shape(self, input_shape: Any) -> TensorShape:
        """The input's shape with `units` last."""
        return TensorShape([*TensorShape(input_shape).as_list()[:-1], self.units])

    def get_config(self) -> dict[str, Any]:
        """The configuration."""
        return {
            **super().get_config(),
            "units": self.units,
            "activation": activations.serialize(self.activation),
            "use_bias": self.use_bias,
            **weight_config(self, "kernel", "bias", activity=True),
        }


def _last_axis_product(inputs: Any, kernel: Any) -> Any:
    if len(inputs.shape) == 2:
        return math.matmul(inputs, kernel)
    return math.tensordot(inputs, kernel, 1)


def weight_config(
    layer: Any,
    *names: str,
    initialized: tuple[str, ...] = (),
    flags: tuple[str, ...] = (),
    activity: bool = False,
) -> dict[str, Any]:
    """Configurations of the initializers, regularizers and constraints of weights, in Keras' order.

    Args:
      layer: the layer.
      *names: what the weights are called in its attributes.
      initialized: further weights that have an initializer only.
      flags: plain attributes that stand after the initializers.
      activity: whether the layer's configuration has its `activity_regularizer`, too.
    """
    config = {}

    def describe(module: Any, suffix: str, named: tuple[str, ...]) -> None:
        for name in named:
            value = module.get(getattr(layer, f"{name}_{suffix}"))
            config[f"{name}_{suffix}"] = module.serialize(value)

    describe(initializers, "initializer", (*names, *initialized))
    config |= {flag: getattr(layer, flag) for flag in flags}
    describe(regularizers, "regularizer", (*names, "activity") if activity else names)
    describe(constraints, "constraint", names)
    return config


class Activation(Layer):
    """Applies an activation function.

    Args:
      activation: function or name.
      **kwargs: arguments of `Layer`.

    Input shape:
      Any: (batch, ...).

    Output shape:
      The same.

    Example:
      >>> import meshflow as tf
      >>> tf.keras.layers.Activation("relu")(tf.constant([-1.0, 2.0])).numpy().tolist()
      [0.0, 2.0]
    """

    def __init__(self, activation: Any, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.supports_masking = True
        self.activation = activations.get(activation)

    def call(self, inputs: Any) -> Any:
        """The activation."""
        return self.activation(inputs)

    def compute_output_shape(self, input_shape: Any) -> Any:
        """The input's shape."""
        return TensorShape(input_shape)

    def get_config(self) -> dict[str, Any]:
        """The configuration."""
        return {**super().get_config(), "activation": activations.serialize(self.activation)}


class Identity(Layer):
    """Passes its input on.

    Input shape:
      Any: (batch, ...).

    Output shape:
      The same.

    Example:
      >>> import meshflow as tf
      >>> tf.keras.layers.Identity()(tf.constant([1.0, 2.0])).numpy().tolist()
      [1.0, 2.0]
    """

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.supports_masking = True

    def compute_output_shape(self, input_shape: Any) -> Any:
        """The input's shape."""
        return TensorShape(input_shape)


class ActivityRegularization(Identity):
    """Adds a penalty on its input to the losses.

    Args:
      l1: factor of absolute values.
      l2: factor of squares.
      **kwargs: arguments of `Layer`.

    Input shape:
      Any: (batch, ...).

    Output shape:
      The same.

    Example:
      >>> import meshflow as tf
      >>> layer = tf.keras.layers.ActivityRegularization(l1=0.5)
      >>> layer(tf.constant([[1.0, -3.0]])).numpy().tolist()
      [[1.0, -3.0]]
      >>> float(layer.losses[0])
      2.0
    """

    def __init__(self, l1: float = 0.0, l2: float = 0.0, **kwargs: Any) -> None:
        super().__init__(activity_regularizer=regularizers.L1L2(l1, l2), **kwargs)
        self.l1, self.l2 = l1, l2

    def get_config(self) -> dict[str, Any]:
        """The configuration."""
        return {**super().get_config(), "l1": self.l1, "l2": self.l2}


class Masking(Layer):
    """Masks timesteps whose features all have one value.

    Args:
      mask_value: the value.
      **kwargs: arguments of `Layer`.

    Input shape:
      (batch, steps, ...).

    Output shape:
      The same, with a mask of shape (batch, steps).

    Example:
      >>> import meshflow as tf
      >>> masking = tf.keras.layers.Masking(mask_value=-1.0)
      >>> masking.compute_mask(tf.constant([[[5.0, 2.0], [-1.0, -1.0]]])).numpy().tolist()
      [[True, False]]
    """

    # A trace also finds the mask.
    _traced_shape = True

    def __init__(self, mask_value: float = 0.0, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.supports_masking = True
        self.mask_value = mask_value

    def compute_mask(self, inputs: Any, mask: Any = None) -> Any:
        """True where a timestep counts."""
        return math.reduce_any(math.not_equal(inputs, self.mask_value), axis=-1)

    def call(self, inputs: Any) -> Any:
        """The inputs, 0 where masked."""
        kept = math.reduce_any(math.not_equal(inputs, self.mask_value), axis=-1, keepdims=True)
        outputs = inputs * math.cast(kept, inputs.dtype)
        if isinstance(outputs, Tensor):
            outputs._keras_mask = array.squeeze(kept, -1)
        return outputs

    def compute_output_shape(self, input_shape: Any) -> Any:
        """The input's shape."""
        return TensorShape(input_shape)

    def get_config(self) -> dict[str, Any]:
        """The configuration."""
        return {**super().get_config(), "mask_value": self.mask_value}
