"""Wrapper that divides a layer's kernel by its largest singular value (arXiv:1802.05957)."""

from __future__ import annotations

from typing import Unpack

from meshflow.core.runtime.context import suspend_autocast
from meshflow.core.values.shapes import ShapeLike, TensorShape
from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.environment.types import Config
from meshflow.keras import initializers
from meshflow.keras.engine.layer.base_layer import Layer
from meshflow.keras.engine.layer.layer_arguments import RegularizedArguments
from meshflow.keras.layers.wrappers import Wrapper
from meshflow.ops import array, math

__all__ = ["SpectralNormalization"]


class SpectralNormalization(Wrapper):
    """Wrapper that divides the kernel of a layer by its largest singular value, in each training call.

    The singular value is estimated by power iteration, which continues from call to call.

    Args:
      layer: Layer with a `kernel` or `embeddings` with the outputs in the last axis.
      power_iterations: Number of iterations in each call.
      **kwargs: Arguments of `Layer`.

    Input shape:
      The input shape of the wrapped layer.

    Output shape:
      The output shape of the wrapped layer.

    Raises:
      ValueError: If `power_iterations` is not positive, or the layer has no kernel.

    Example:
      >>> layer = tf.keras.layers.SpectralNormalization(tf.keras.layers.Dense(2), power_iterations=50)
      >>> _ = layer(tf.ones([1, 3]), training=True)
      >>> round(float(tf.linalg.svd(layer.layer.kernel, compute_uv=False)[0]), 2)
      1.0
    """

    def __init__(
        self, layer: Layer, power_iterations: int = 1, **kwargs: Unpack[RegularizedArguments]
    ) -> None:
        super().__init__(layer, **kwargs)
        if power_iterations <= 0:
            raise ValueError(
                "`power_iterations` should be greater than zero. Received: "
                f"`power_iterations={power_iterations}`"
            )
        self.power_iterations = power_iterations

    def build(self, input_shape: ShapeLike = None) -> None:
        """Build the layer, and create the vector of the power iteration."""
        if not self.layer.built:
            self.layer.build(input_shape)
            self.layer.built = True
        for name in ("kernel", "embeddings"):
            if hasattr(self.layer, name):
                self.kernel = getattr(self.layer, name)
                break
        else:
            raise ValueError(
                f"{type(self.layer).__name__} object has no attribute 'kernel' nor 'embeddings'"
            )
        self.vector_u = self.add_weight(
            "vector_u",
            (1, self.kernel.shape[-1]),
            initializer=initializers.TruncatedNormal(stddev=0.02),
            trainable=False,
            dtype=self.kernel.dtype,
        )
        self.built = True

    def call(self, inputs: TensorLike, training: bool | Tensor | None = False) -> Tensor:
        """Normalize the kernel in training, and call the layer."""
        if training:
            # The iteration runs in the dtype of the variables, not in the compute dtype.
            with suspend_autocast():
                self.normalize_weights()
        return self.layer(inputs)

    def normalize_weights(self) -> None:
        """Divide the kernel by its estimated largest singular value, unless it is zero."""
        rows = array.reshape(self.kernel, [-1, self.kernel.shape[-1]])
        u = self.vector_u.value()
        for _ in range(self.power_iterations):
            v = math.l2_normalize(math.matmul(u, rows, transpose_b=True))
            u = math.l2_normalize(math.matmul(v, rows))
        sigma = math.matmul(math.matmul(v, rows), u, transpose_b=True)
        self.vector_u.assign(u)
        self.kernel.assign(array.reshape(math.divide_no_nan(rows, sigma), self.kernel.shape))

    def compute_output_shape(self, input_shape: ShapeLike) -> TensorShape:
        """Compute the output shape of the layer."""
        return TensorShape(self.layer.compute_output_shape(input_shape))

    def get_config(self) -> Config:
        """Return the configuration."""
        return {**super().get_config(), "power_iterations": self.power_iterations}
