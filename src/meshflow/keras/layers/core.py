"""Dense, activation, embedding and reshaping layers."""

from __future__ import annotations

import math as _python_math
from typing import Any

import numpy as np

from meshflow.core.convert import convert_to_tensor
from meshflow.core.dtypes import as_dtype
from meshflow.core.shapes import TensorShape
from meshflow.core.tensor import Tensor
from meshflow.core.variable import Variable
from meshflow.keras import activations, backend, constraints, initializers, regularizers
from meshflow.keras.engine.base_layer import Layer
from meshflow.keras.engine.float8_products import product
from meshflow.keras.engine.input_spec import InputSpec
from meshflow.ops import array, math, nn

__all__ = [
    "Activation",
    "ActivityRegularization",
    "Dense",
    "Embedding",
    "Flatten",
    "Identity",
    "Masking",
    "Permute",
    "RepeatVector",
    "Reshape",
]


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

    Example:
      >>> import meshflow as tf
      >>> tf.keras.layers.Dense(4)(tf.ones([2, 3])).shape
      TensorShape([2, 4])
    """

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
        if not isinstance(units, (int, np.integer)) or units <= 0:
            raise ValueError(
                f"Received an invalid value for `units`, expected a positive integer. Received: units={units}"
            )
        self.units = int(units)
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
        if not as_dtype(self.dtype or backend.floatx()).is_floating:
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
        outputs = product(self, _last_axis_product, inputs, self.kernel)
        if self.bias is not None:
            outputs = nn.bias_add(outputs, self.bias)
        return self.activation(outputs)

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
            **weight_config(self, "kernel", "bias"),
            "activity_regularizer": regularizers.serialize(
                regularizers.get(self.activity_regularizer)
            ),
        }


def _last_axis_product(inputs: Any, kernel: Any) -> Any:
    if len(inputs.shape) == 2:
        return math.matmul(inputs, kernel)
    return math.tensordot(inputs, kernel, 1)


def weight_config(layer: Any, *names: str) -> dict[str, Any]:
    """Configurations of the initializers, regularizers and constraints of weights."""
    config = {}
    for module, suffix in (
        (initializers, "initializer"),
        (regularizers, "regularizer"),
        (constraints, "constraint"),
    ):
        for name in names:
            config[f"{name}_{suffix}"] = module.serialize(getattr(layer, f"{name}_{suffix}"))
    return config


class Activation(Layer):
    """Applies an activation function.

    Args:
      activation: function or name.
      **kwargs: arguments of `Layer`.
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
    """Passes its input on."""

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
    """

    def __init__(self, l1: float = 0.0, l2: float = 0.0, **kwargs: Any) -> None:
        super().__init__(activity_regularizer=regularizers.L1L2(l1, l2), **kwargs)
        self.l1, self.l2 = l1, l2

    def get_config(self) -> dict[str, Any]:
        """The configuration."""
        return {**super().get_config(), "l1": self.l1, "l2": self.l2}


class Flatten(Layer):
    """All dimensions but the batch in one.

    Args:
      data_format: 'channels_first' moves channels last before flattening.
      **kwargs: arguments of `Layer`.
    """

    def __init__(self, data_format: str | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.data_format = backend.standard_data_format(data_format)
        self.input_spec = InputSpec(min_ndim=1)

    def call(self, inputs: Any) -> Any:
        """The flat tensor."""
        rank = len(inputs.shape)
        if self.data_format == "channels_first" and rank > 2:
            inputs = array.transpose(inputs, [0, *range(2, rank), 1])
        return array.reshape(inputs, [inputs.shape[0], int(np.prod(inputs.shape.as_list()[1:]))])

    def compute_output_shape(self, input_shape: Any) -> Any:
        """[batch, product of the other sizes]."""
        batch, *sizes = TensorShape(input_shape).as_list()
        return TensorShape([batch, None if None in sizes else int(np.prod(sizes, dtype=np.int64))])

    def get_config(self) -> dict[str, Any]:
        """The configuration."""
        return {**super().get_config(), "data_format": self.data_format}


class Reshape(Layer):
    """Another shape for each example.

    Args:
      target_shape: sizes without the batch; one may be -1.
      **kwargs: arguments of `Layer`.
    """

    def __init__(self, target_shape: Any, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.target_shape = tuple(target_shape)

    def call(self, inputs: Any) -> Any:
        """The reshaped tensor."""
        return array.reshape(inputs, [inputs.shape[0], *self._sizes(inputs.shape.as_list()[1:])])

    def _sizes(self, sizes: list[Any]) -> list[Any]:
        if None in sizes:
            return [None if s == -1 else s for s in self.target_shape]
        total = int(np.prod(sizes, dtype=np.int64))
        known = int(np.prod([s for s in self.target_shape if s != -1], dtype=np.int64))
        if (-1 not in self.target_shape and known != total) or known == 0 or total % known:
            raise ValueError(
                f"total size of new array must be unchanged, input_shape = {sizes}, output_shape = {list(self.target_shape)} (layer {self.name})"
            )
        return [total // known if s == -1 else s for s in self.target_shape]

    def compute_output_shape(self, input_shape: Any) -> Any:
        """[batch, *target_shape]."""
        batch, *sizes = TensorShape(input_shape).as_list()
        return TensorShape([batch, *self._sizes(sizes)])

    def get_config(self) -> dict[str, Any]:
        """The configuration."""
        return {**super().get_config(), "target_shape": self.target_shape}


class Permute(Layer):
    """Dimensions in another order.

    Args:
      dims: positions of the dimensions, counted from 1, without the batch.
      **kwargs: arguments of `Layer`.
    """

    def __init__(self, dims: Any, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.dims = tuple(dims)
        if sorted(self.dims) != list(range(1, len(self.dims) + 1)):
            raise ValueError(
                f"Invalid permutation argument `dims` for Permute Layer. The set of indices in `dims` must be consecutive and start from 1. Received dims={dims}"
            )
        self.input_spec = InputSpec(ndim=len(self.dims) + 1)

    def call(self, inputs: Any) -> Any:
        """The permuted tensor."""
        return array.transpose(inputs, (0, *self.dims))

    def compute_output_shape(self, input_shape: Any) -> Any:
        """The permuted shape."""
        sizes = TensorShape(input_shape).as_list()
        return TensorShape([sizes[0], *(sizes[d] for d in self.dims)])

    def get_config(self) -> dict[str, Any]:
        """The configuration."""
        return {**super().get_config(), "dims": self.dims}


class RepeatVector(Layer):
    """Repeats a vector n times: [batch, features] to [batch, n, features].

    Args:
      n: number of repetitions.
      **kwargs: arguments of `Layer`.
    """

    def __init__(self, n: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        if not isinstance(n, int):
            raise TypeError(f"Expected an integer value for `n`, got {type(n)}.")
        self.n = n
        self.input_spec = InputSpec(ndim=2)

    def call(self, inputs: Any) -> Any:
        """The repeated vectors."""
        return array.tile(array.expand_dims(inputs, 1), [1, self.n, 1])

    def compute_output_shape(self, input_shape: Any) -> Any:
        """[batch, n, features]."""
        batch, size = TensorShape(input_shape).as_list()
        return TensorShape([batch, self.n, size])

    def get_config(self) -> dict[str, Any]:
        """The configuration."""
        return {**super().get_config(), "n": self.n}


class Masking(Layer):
    """Masks timesteps whose features all have one value.

    Args:
      mask_value: the value.
      **kwargs: arguments of `Layer`.
    """

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


class Embedding(Layer):
    """Vectors for numbers.

    Args:
      input_dim: how many numbers there are.
      output_dim: size of the vectors.
      embeddings_initializer: initializer of the table, shape (input_dim, output_dim).
      embeddings_regularizer: penalty on the table.
      activity_regularizer: penalty on the output.
      embeddings_constraint: projection of the table.
      mask_zero: whether the number 0 is padding, to be masked.
      input_length: length of sequences, when fixed.
      sparse: accepted.
      **kwargs: arguments of `Layer`.
    """

    def __init__(
        self,
        input_dim: int,
        output_dim: int,
        embeddings_initializer: Any = "uniform",
        embeddings_regularizer: Any = None,
        activity_regularizer: Any = None,
        embeddings_constraint: Any = None,
        mask_zero: bool = False,
        input_length: Any = None,
        sparse: bool = False,
        **kwargs: Any,
    ) -> None:
        if (
            "input_shape" not in kwargs
            and "batch_input_shape" not in kwargs
            and input_length is not None
        ):
            kwargs["input_shape"] = (input_length,)
        if input_dim <= 0 or output_dim <= 0:
            raise ValueError(
                f"Both `input_dim` and `output_dim` should be positive, Received input_dim = {input_dim} and output_dim = {output_dim}"
            )
        kwargs["autocast"] = False
        super().__init__(activity_regularizer=activity_regularizer, **kwargs)
        self.input_dim, self.output_dim, self.mask_zero, self.input_length = (
            input_dim,
            output_dim,
            mask_zero,
            input_length,
        )
        self.embeddings_initializer = initializers.get(embeddings_initializer)
        self.embeddings_regularizer = regularizers.get(embeddings_regularizer)
        self.embeddings_constraint = constraints.get(embeddings_constraint)
        self.supports_masking = mask_zero

    def build(self, input_shape: Any = None) -> None:
        """Creates the table."""
        self.embeddings = self.add_weight(
            "embeddings",
            (self.input_dim, self.output_dim),
            initializer=self.embeddings_initializer,
            regularizer=self.embeddings_regularizer,
            constraint=self.embeddings_constraint,
        )
        self.built = True

    def compute_mask(self, inputs: Any, mask: Any = None) -> Any:
        """True where the number is not 0, if 0 is padding."""
        return math.not_equal(inputs, 0) if self.mask_zero else None

    def call(self, inputs: Any) -> Any:
        """The vectors."""
        if not inputs.dtype.is_integer:
            inputs = math.cast(inputs, "int32")
        return nn.embedding_lookup(self.embeddings, inputs)

    def compute_output_shape(self, input_shape: Any) -> Any:
        """[*input shape, output_dim]."""
        return TensorShape([*TensorShape(input_shape).as_list(), self.output_dim])

    def get_config(self) -> dict[str, Any]:
        """The configuration."""
        return {
            **super().get_config(),
            "input_dim": self.input_dim,
            "output_dim": self.output_dim,
            **weight_config(self, "embeddings"),
            "mask_zero": self.mask_zero,
            "input_length": self.input_length,
        }


_ = (_python_math, convert_to_tensor)
