"""Layers around layers, and scaling of images."""

from __future__ import annotations

from typing import Any

from meshflow.core.values.shapes import TensorShape
from meshflow.core.values.specs import TensorSpec
from meshflow.keras import registry, serialization
from meshflow.keras.engine.layer.base_layer import Layer
from meshflow.keras.engine.symbolic.keras_tensor import KerasTensor
from meshflow.ops import array, math

__all__ = ["Rescaling", "TimeDistributed", "Wrapper"]


class Wrapper(Layer):
    """A layer that holds another.

    Args:
      layer: the inner layer.
      **kwargs: arguments of `Layer`.

    Input shape:
      That of the wrapped layer.

    Output shape:
      That of the wrapped layer.

    Example:
      >>> import meshflow as tf
      >>> wrapper = tf.keras.layers.Wrapper(tf.keras.layers.Dense(2))
      >>> wrapper.get_config()["layer"]["config"]["units"]
      2
    """

    def __init__(self, layer: Layer, **kwargs: Any) -> None:
        if not isinstance(layer, Layer):
            raise ValueError(
                f"Please initialize `{type(self).__name__}` layer with a `tf.keras.layers.Layer` instance. Received: "
                f"{layer}"
            )
        super().__init__(**kwargs)
        self.layer = layer

    def get_config(self) -> dict[str, Any]:
        """The configuration."""
        return {**super().get_config(), "layer": serialization.serialize(self.layer)}

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Any = None) -> Any:
        """The layer with a configuration."""
        config = dict(config)
        return cls(registry.LAYERS.deserialize(config.pop("layer"), custom_objects), **config)


class TimeDistributed(Wrapper):
    """Applies a layer to every timestep: dimension 1 is merged into the batch and split off again.

    Args:
      layer: the layer; sees each timestep of each example as one example.
      **kwargs: arguments of `Layer`.

    Input shape:
      (batch, time, ...).

    Output shape:
      (batch, time, ...): what the layer makes of each (batch, ...).

    Example:
      >>> import meshflow as tf
      >>> images = tf.ones([2, 5, 8, 8, 3])
      >>> tf.keras.layers.TimeDistributed(tf.keras.layers.Conv2D(4, 3))(images).shape
      TensorShape([2, 5, 6, 6, 4])
    """

    def __init__(self, layer: Layer, **kwargs: Any) -> None:
        super().__init__(layer, **kwargs)
        self.supports_masking = True

    def call(self, inputs: Any, training: Any = None, mask: Any = None) -> Any:
        """The outputs for all timesteps."""
        shape = inputs.shape.as_list()
        if len(shape) < 2:
            raise ValueError(
                f"TimeDistributed({self.layer.name}) needs inputs [batch, time, ...], got shape {tuple(shape)}."
            )
        flat = array.reshape(inputs, [shape[0] * shape[1], *shape[2:]])
        outputs = self.layer(flat)
        return array.reshape(outputs, [shape[0], shape[1], *outputs.shape.as_list()[1:]])

    def compute_output_shape(self, input_shape: Any) -> Any:
        """Shape of the output."""
        shape = TensorShape(input_shape).as_list()
        inner = self.layer.compute_output_shape([shape[0], *shape[2:]]).as_list()
        return TensorShape([inner[0], shape[1], *inner[1:]])

    def _maybe_build(self, inputs: Any, args: Any = (), kwargs: Any = None) -> None:
        super()._maybe_build(inputs, args, kwargs)
        if not self.layer.built:
            shape = TensorShape(inputs.shape).as_list()
            dtype = getattr(inputs, "dtype", None) or self.compute_dtype
            # Keras calls the inner layer's `build`; only models put names before those of their layers' weights.
            with self.layer._calling(None, named=hasattr(self.layer, "layers")):
                self.layer._maybe_build(KerasTensor(TensorSpec([shape[0], *shape[2:]], dtype)))


class Rescaling(Layer):
    """`inputs * scale + offset`.

    Args:
      scale: factor.
      offset: added.
      **kwargs: arguments of `Layer`.

    Input shape:
      Any: (batch, ...).

    Output shape:
      The same.

    Example:
      >>> import meshflow as tf
      >>> tf.keras.layers.Rescaling(2.0, offset=-1.0)(tf.constant([0.0, 0.5, 1.0])).numpy().tolist()
      [-1.0, 0.0, 1.0]
    """

    def __init__(self, scale: Any, offset: Any = 0.0, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.scale, self.offset = scale, offset

    def call(self, inputs: Any) -> Any:
        """The scaled tensor, in the compute dtype."""
        return math.cast(inputs, self.compute_dtype) * self.scale + self.offset

    def compute_output_shape(self, input_shape: Any) -> Any:
        """The input's shape."""
        return TensorShape(input_shape)

    def get_config(self) -> dict[str, Any]:
        """The configuration."""
        return {**super().get_config(), "scale": self.scale, "offset": self.offset}
