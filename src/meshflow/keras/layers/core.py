"""Dense, activation, masking and identity layers."""

from __future__ import annotations

import contextlib
from typing import Unpack

from meshflow.core.dispatch.composite import SparseTensor
from meshflow.core.values.dtypes import as_dtype
from meshflow.core.values.shapes import ShapeLike, TensorShape
from meshflow.core.values.tensor import Tensor
from meshflow.core.variables.variable import Variable
from meshflow.environment.types import Config, PyTree
from meshflow.keras import activations, regularizers, settings
from meshflow.keras.engine.layer.base_layer import Layer
from meshflow.keras.engine.layer.float8_products import compute_product
from meshflow.keras.engine.layer.helpers import Identifier
from meshflow.keras.engine.layer.sharded_layer_products import (
    make_sharded_product,
    read_for_positions,
)
from meshflow.keras.engine.symbolic.input_spec import InputSpec
from meshflow.keras.layers.keyword_arguments import (
    KernelArguments,
    LayerArguments,
    RegularizedArguments,
)
from meshflow.keras.layers.weight_options import (
    KernelLayer,
    add_weight,
    make_weight_config,
    set_weight_options,
)
from meshflow.ops import array, math, nn
from meshflow.ops.coordinates import multiply_elements
from meshflow.ops.ragged import RaggedTensor

__all__ = ["Activation", "ActivityRegularization", "Dense", "Identity", "Masking"]


class Dense(KernelLayer):
    """Fully connected layer, `activation(inputs @ kernel + bias)`.

    Args:
      units: Size of the last axis of the output.
      activation: Activation function.
      use_bias: Whether to add a bias.
      kernel_initializer: Initializer of the kernel, shape (inputs, units).
      bias_initializer: Initializer of the bias, shape (units,).
      kernel_regularizer: Regularizer of the kernel.
      bias_regularizer: Regularizer of the bias.
      activity_regularizer: Regularizer of the output.
      kernel_constraint: Constraint of the kernel.
      bias_constraint: Constraint of the bias.
      **kwargs: Arguments of `Layer`.

    Input shape:
      (batch, ..., inputs). A `tf.SparseTensor` (batch, inputs) is not converted to a dense one.

    Output shape:
      (batch, ..., units).

    Example:
      >>> tf.keras.layers.Dense(4)(tf.ones([2, 3])).shape
      TensorShape([2, 4])
    """

    bias: Variable | None = None

    def __init__(
        self,
        units: int,
        activation: Identifier = None,
        use_bias: bool = True,
        kernel_initializer: Identifier = "glorot_uniform",
        bias_initializer: Identifier = "zeros",
        kernel_regularizer: Identifier = None,
        bias_regularizer: Identifier = None,
        activity_regularizer: Identifier = None,
        kernel_constraint: Identifier = None,
        bias_constraint: Identifier = None,
        **kwargs: Unpack[KernelArguments],
    ) -> None:
        super().__init__(activity_regularizer=activity_regularizer, **kwargs)
        if not isinstance(units, int):
            with contextlib.suppress(TypeError, ValueError):
                units = int(units)
        if not isinstance(units, int) or units < 0:
            raise ValueError(
                f"Received an invalid value for `units`, expected a positive integer. Received: units={units}"
            )
        self.units = units
        self.activation = activations.get(activation)
        self.use_bias = use_bias
        set_weight_options(self, locals(), "kernel", "bias")
        self.input_spec = InputSpec(min_ndim=2)
        self.supports_masking = True

    def build(self, input_shape: ShapeLike) -> None:
        """Create kernel and bias."""
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
        self.kernel = add_weight(self, "kernel", (size, self.units))
        if self.use_bias:
            self.bias = add_weight(self, "bias", (self.units,))
        self.built = True

    def call(self, inputs: Tensor | SparseTensor | RaggedTensor) -> PyTree:
        """Compute the output."""
        inputs = math.cast(inputs, self.compute_dtype)
        if isinstance(inputs, RaggedTensor):
            return inputs.with_flat_values(self.call(inputs.flat_values))
        if isinstance(inputs, SparseTensor):
            return self._call_sparse(inputs)
        compute = make_sharded_product(self, inputs) or _multiply_last_axis
        return self._activate(compute_product(self, compute, inputs, self.kernel))

    def _call_sparse(self, inputs: SparseTensor) -> Tensor:
        """Compute the output for a sparse matrix from its elements only."""
        if len(inputs.shape) != 2:
            raise ValueError(
                f"{type(self).__name__}(name={self.name!r}): a sparse input must be a matrix, got shape "
                f"{inputs.shape}. Reshape it with tf.sparse.reshape."
            )
        kernel = math.cast(self.kernel, inputs.dtype)
        return self._activate(multiply_elements(inputs, kernel))

    def _activate(self, outputs: Tensor) -> Tensor:
        """Add the bias and apply the activation function."""
        if self.bias is not None:
            bias = read_for_positions(self.bias, outputs)
            outputs = nn.bias_add(outputs, self.bias) if bias is None else outputs + bias
        # Users remove the softmax of a finished model by `model.layers[-1].activation = None`.
        return outputs if self.activation is None else self.activation(outputs)

    def compute_output_shape(self, input_shape: ShapeLike) -> TensorShape:
        """Return the shape of the input with `units` as the last size."""
        return TensorShape([*TensorShape(input_shape).as_list()[:-1], self.units])

    def get_config(self) -> Config:
        """Return the configuration."""
        return {
            **super().get_config(),
            "units": self.units,
            "activation": activations.serialize(self.activation),
            "use_bias": self.use_bias,
            **make_weight_config(self, "kernel", "bias", activity=True),
        }


def _multiply_last_axis(inputs: Tensor, kernel: Tensor) -> Tensor:
    if len(inputs.shape) == 2:
        return math.matmul(inputs, kernel)
    return math.tensordot(inputs, kernel, 1)


class Activation(Layer):
    """Layer that applies an activation function.

    Args:
      activation: Activation function or its name.
      **kwargs: Arguments of `Layer`.

    Input shape:
      Any: (batch, ...).

    Output shape:
      The shape of the input.

    Example:
      >>> tf.keras.layers.Activation("relu")(tf.constant([-1.0, 2.0])).numpy().tolist()
      [0.0, 2.0]
    """

    def __init__(self, activation: Identifier, **kwargs: Unpack[LayerArguments]) -> None:
        super().__init__(**kwargs)
        self.supports_masking = True
        self.activation = activations.get(activation)

    def call(self, inputs: Tensor) -> Tensor:
        """Apply the activation function."""
        return self.activation(inputs)

    def compute_output_shape(self, input_shape: ShapeLike) -> TensorShape:
        """Return the shape of the input."""
        return TensorShape(input_shape)

    def get_config(self) -> Config:
        """Return the configuration."""
        return {**super().get_config(), "activation": activations.serialize(self.activation)}


class Identity(Layer):
    """Layer that returns its input.

    Input shape:
      Any: (batch, ...).

    Output shape:
      The shape of the input.

    Example:
      >>> tf.keras.layers.Identity()(tf.constant([1.0, 2.0])).numpy().tolist()
      [1.0, 2.0]
    """

    def __init__(self, **kwargs: Unpack[RegularizedArguments]) -> None:
        super().__init__(**kwargs)
        self.supports_masking = True

    def compute_output_shape(self, input_shape: ShapeLike) -> TensorShape:
        """Return the shape of the input."""
        return TensorShape(input_shape)


class ActivityRegularization(Identity):
    """Layer that adds a regularization loss on its input.

    Args:
      l1: Factor of the sum of absolute values.
      l2: Factor of the sum of squares.
      **kwargs: Arguments of `Layer`.

    Input shape:
      Any: (batch, ...).

    Output shape:
      The shape of the input.

    Example:
      >>> layer = tf.keras.layers.ActivityRegularization(l1=0.5)
      >>> layer(tf.constant([[1.0, -3.0]])).numpy().tolist()
      [[1.0, -3.0]]
      >>> float(layer.losses[0])
      2.0
    """

    def __init__(self, l1: float = 0.0, l2: float = 0.0, **kwargs: Unpack[LayerArguments]) -> None:
        super().__init__(activity_regularizer=regularizers.L1L2(l1, l2), **kwargs)
        self.l1, self.l2 = l1, l2

    def get_config(self) -> Config:
        """Return the configuration."""
        return {**super().get_config(), "l1": self.l1, "l2": self.l2}


class Masking(Layer):
    """Layer that masks time steps in which all features have one value.

    Args:
      mask_value: Value of the features in masked steps.
      **kwargs: Arguments of `Layer`.

    Input shape:
      (batch, steps, ...).

    Output shape:
      The shape of the input, with a mask of shape (batch, steps).

    Example:
      >>> masking = tf.keras.layers.Masking(mask_value=-1.0)
      >>> masking.compute_mask(tf.constant([[[5.0, 2.0], [-1.0, -1.0]]])).numpy().tolist()
      [[True, False]]
    """

    # The mask of symbolic outputs is found by a trace, so the output shape is, too.
    _traced_shape = True

    def __init__(self, mask_value: float = 0.0, **kwargs: Unpack[LayerArguments]) -> None:
        super().__init__(**kwargs)
        self.supports_masking = True
        self.mask_value = mask_value

    def compute_mask(self, inputs: Tensor, mask: PyTree = None) -> Tensor:
        """Return True for each time step that is not masked."""
        return math.reduce_any(math.not_equal(inputs, self.mask_value), axis=-1)

    def call(self, inputs: Tensor) -> Tensor:
        """Return the inputs with masked steps set to 0."""
        mask = math.reduce_any(math.not_equal(inputs, self.mask_value), axis=-1, keepdims=True)
        outputs = inputs * math.cast(mask, inputs.dtype)
        if isinstance(outputs, Tensor):
            outputs._keras_mask = array.squeeze(mask, -1)
        return outputs

    def compute_output_shape(self, input_shape: ShapeLike) -> TensorShape:
        """Return the shape of the input."""
        return TensorShape(input_shape)

    def get_config(self) -> Config:
        """Return the configuration."""
        return {**super().get_config(), "mask_value": self.mask_value}
