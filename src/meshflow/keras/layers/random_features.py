"""Random features that approximate kernel functions (Rahimi and Recht 2007).

Reference: "Random features for large-scale kernel machines", NIPS 2007.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from meshflow.core.values.shapes import ShapeLike, TensorShape
from meshflow.core.values.tensor import Tensor
from meshflow.core.variables.random_streams import make_host_generator
from meshflow.environment.types import Config
from meshflow.keras import initializers
from meshflow.keras.engine.layer.base_layer import Layer
from meshflow.keras.engine.layer.helpers import Identifier
from meshflow.keras.engine.symbolic.input_spec import InputSpec
from meshflow.ops import math


class Cauchy(initializers.Initializer):
    """Initializer of the Cauchy distribution; its Fourier transform is the Laplacian kernel."""

    _needs_floating_dtype = True

    def values(self, shape: tuple[int, ...]) -> np.ndarray:
        """Draw the values."""
        return make_host_generator().standard_cauchy(shape)


KERNELS = {"gaussian": initializers.RandomNormal(stddev=1.0), "laplacian": Cauchy()}


class RandomFourierFeatures(Layer):
    """Random features, `cos(inputs @ unscaled_kernel / scale + bias)`, of a kernel function.

    For two rows x and y of the inputs, the mean of the products of their features is about half of
    `exp(-|x - y|^2 / (2 scale^2))` with "gaussian", where |.| is the Euclidean norm, and half of
    `exp(-|x - y|_1 / scale)` with "laplacian", where |.|_1 is the sum of magnitudes. A linear model
    of the features therefore approximates a kernel machine.

    Args:
      output_dim: Number of features.
      kernel_initializer: "gaussian", "laplacian", or an initializer of `unscaled_kernel`, shape
        (inputs, output_dim), which is not trained.
      scale: Scale of distances; default `sqrt(inputs / 2)` for "gaussian", else 1.
      trainable: Whether `scale` is trained.
      name: Name of the layer.
      **kwargs: Arguments of `Layer`.

    Input shape:
      (batch, inputs).

    Output shape:
      (batch, output_dim).

    Raises:
      ValueError: For a size or scale that is not positive, and for an unknown kernel.

    Example:
      >>> layer = tf.keras.layers.experimental.RandomFourierFeatures(4000, scale=2.0)
      >>> x, y = layer(tf.constant([[1.0, 0.0], [3.0, 0.0]]))
      >>> abs(2 * float(tf.reduce_mean(x * y)) - 0.6065) < 0.1  # exp(-2^2 / (2 * 2^2))
      True
    """

    def __init__(
        self,
        output_dim: int,
        kernel_initializer: Identifier = "gaussian",
        scale: float | None = None,
        trainable: bool = False,
        name: str | None = None,
        **kwargs: Any,
    ) -> None:
        if output_dim <= 0:
            raise ValueError(f"`output_dim` should be a positive integer. Received: {output_dim}")
        if isinstance(kernel_initializer, str) and kernel_initializer.lower() not in KERNELS:
            raise ValueError(
                f"Unsupported `kernel_initializer`: {kernel_initializer}. Expected one of {sorted(KERNELS)} "
                f"or an initializer."
            )
        if scale is not None and scale <= 0:
            raise ValueError(
                f"When provided, `scale` should be a positive float. Received: {scale}"
            )
        super().__init__(trainable=trainable, name=name, **kwargs)
        self.output_dim, self.scale = output_dim, scale
        self.kernel_initializer = (
            kernel_initializer
            if isinstance(kernel_initializer, str)
            else initializers.get(kernel_initializer)
        )

    def build(self, input_shape: ShapeLike) -> None:
        """Create the random kernel and bias, and the scale."""
        shape = TensorShape(input_shape)
        if shape.rank != 2 or shape[1] is None:
            raise ValueError(
                f"RandomFourierFeatures takes inputs of shape (batch, inputs) with a known number of inputs. "
                f"Received: input_shape={input_shape} (layer {self.name})."
            )
        size = shape[1]
        self.input_spec = InputSpec(ndim=2, axes={1: size})
        initializer = self.kernel_initializer
        kernel_name = initializer.lower() if isinstance(initializer, str) else None
        if self.scale is None:
            self.scale = float(np.sqrt(size / 2.0)) if kernel_name == "gaussian" else 1.0
        self.unscaled_kernel = self.add_weight(
            "unscaled_kernel",
            (size, self.output_dim),
            dtype="float32",
            initializer=initializers.copy_unseeded(
                KERNELS[kernel_name] if kernel_name else initializer
            ),
            trainable=False,
        )
        self.bias = self.add_weight(
            "bias",
            (self.output_dim,),
            dtype="float32",
            initializer=initializers.RandomUniform(0.0, 2 * np.pi),
            trainable=False,
        )
        self.kernel_scale = self.add_weight(
            "kernel_scale",
            (1,),
            dtype="float32",
            initializer=initializers.Constant(self.scale),
            constraint="NonNeg",
        )
        self.built = True

    def call(self, inputs: Tensor) -> Tensor:
        """Compute the features."""
        kernel = self.unscaled_kernel / self.kernel_scale
        return math.cos(math.matmul(math.cast(inputs, "float32"), kernel) + self.bias)

    def compute_output_shape(self, input_shape: ShapeLike) -> TensorShape:
        """Compute the shape of the output."""
        return TensorShape([*TensorShape(input_shape)[:-1], self.output_dim])

    def get_config(self) -> Config:
        """Return the configuration: the constructor arguments as Python values."""
        kernel: Any = self.kernel_initializer
        kernel = kernel if isinstance(kernel, str) else initializers.serialize(kernel)
        config = {**super().get_config(), "output_dim": self.output_dim}
        return config | {"kernel_initializer": kernel, "scale": self.scale}
