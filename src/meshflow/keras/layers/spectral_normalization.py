"""A wrapper that keeps the largest singular value of a layer's kernel at 1 (arXiv:1802.05957)."""

from __future__ import annotations

from typing import Any

from meshflow.core.runtime.context import as_stored
from meshflow.core.values.shapes import TensorShape
from meshflow.keras import initializers
from meshflow.keras.engine.layer.base_layer import Layer
from meshflow.keras.layers.wrappers import Wrapper
from meshflow.ops import array, math

__all__ = ["SpectralNormalization"]


class SpectralNormalization(Wrapper):
    """Divides the kernel of a layer by its largest singular value, at each call in training.

    The value is found by power iteration, which goes on from one call to the next.

    Args:
      layer: a layer with a `kernel`, or `embeddings`; its last dimension is that of the outputs.
      power_iterations: steps of the iteration at each call; default 1.
      **kwargs: arguments of `Layer`.

    Input shape:
      That of the wrapped layer.

    Output shape:
      That of the wrapped layer.

    Raises:
      ValueError: for less than one step, or when the layer has no kernel.

    Example:
      >>> import meshflow as tf
      >>> layer = tf.keras.layers.SpectralNormalization(tf.keras.layers.Dense(2), power_iterations=50)
      >>> _ = layer(tf.ones([1, 3]), training=True)
      >>> round(float(tf.linalg.svd(layer.layer.kernel, compute_uv=False)[0]), 2)
      1.0
    """

    def __init__(self, layer: Layer, power_iterations: int = 1, **kwargs: Any) -> None:
        super().__init__(layer, **kwargs)
        if power_iterations <= 0:
            raise ValueError(
                "`power_iterations` should be greater than zero. Received: "
                f"`power_iterations={power_iterations}`"
            )
        self.power_iterations = power_iterations

    def build(self, input_shape: Any) -> None:
        """Builds the layer, and the vector that the iteration goes on from."""
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

    def call(self, inputs: Any, training: Any = False) -> Any:
        """The layer's output, with a normalized kernel in training."""
        if training:
            # The iteration goes on in the variables' dtype, whatever the layer computes in.
            with as_stored():
                self.normalize_weights()
        return self.layer(inputs)

    def normalize_weights(self) -> None:
        """Divides the kernel by what the iteration finds; a kernel of zeros stays."""
        rows = array.reshape(self.kernel, [-1, self.kernel.shape[-1]])
        u = self.vector_u.value()
        for _ in range(self.power_iterations):
            v = math.l2_normalize(math.matmul(u, rows, transpose_b=True))
            u = math.l2_normalize(math.matmul(v, rows))
        sigma = math.matmul(math.matmul(v, rows), u, transpose_b=True)
        self.vector_u.assign(u)
        self.kernel.assign(array.reshape(math.divide_no_nan(rows, sigma), self.kernel.shape))

    def compute_output_shape(self, input_shape: Any) -> TensorShape:
        """The layer's output shape."""
        return TensorShape(self.layer.compute_output_shape(input_shape))

    def get_config(self) -> dict[str, Any]:
        """The configuration."""
        return {**super().get_config(), "power_iterations": self.power_iterations}
