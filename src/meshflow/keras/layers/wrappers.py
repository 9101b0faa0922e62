"""Layers that wrap other layers, and `Rescaling`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Unpack, cast

from meshflow.core.values.shapes import ShapeLike, TensorShape
from meshflow.core.values.specs import TensorSpec
from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.environment.types import Config, PyTree
from meshflow.keras import registry, serialization
from meshflow.keras.engine.layer.base_layer import Layer, build_sublayer
from meshflow.keras.engine.layer.helpers import has_override
from meshflow.keras.engine.layer.layer_arguments import RegularizedArguments
from meshflow.keras.engine.symbolic.call_signature import get_call_signature
from meshflow.keras.engine.symbolic.keras_tensor import KerasTensor
from meshflow.ops import array, math
from meshflow.ops.ragged import RaggedTensor

__all__ = ["Rescaling", "TimeDistributed", "Wrapper"]

if TYPE_CHECKING:
    from meshflow.keras.engine.layer.base_layer import UnknownLayer


class Wrapper(Layer):
    """Base class of layers that wrap another layer.

    Args:
      layer: Wrapped layer.
      **kwargs: Arguments of `Layer`.

    Input shape:
      The input shape of the wrapped layer.

    Output shape:
      The output shape of the wrapped layer.

    Example:
      >>> wrapper = tf.keras.layers.Wrapper(tf.keras.layers.Dense(2))
      >>> wrapper.get_config()["layer"]["config"]["units"]
      2
    """

    def __init__(self, layer: Layer, **kwargs: Unpack[RegularizedArguments]) -> None:
        if not isinstance(layer, Layer):
            raise ValueError(
                f"Please initialize `{type(self).__name__}` layer with a `tf.keras.layers.Layer` instance. Received: "
                f"{layer}"
            )
        super().__init__(**kwargs)
        self.layer = cast("UnknownLayer", layer)

    def build(self, input_shape: PyTree = None) -> None:
        """Build the wrapped layer, unless it is built."""
        if not self.layer.built:
            self.layer.build(input_shape)
            self.layer.built = True
        super().build(input_shape)

    def get_config(self) -> Config:
        """Return the configuration."""
        return {**super().get_config(), "layer": serialization.serialize(self.layer)}

    @classmethod
    def from_config(cls, config: Config, custom_objects: dict[str, Any] | None = None) -> Any:
        """Create a layer from a configuration."""
        config = dict(config)
        return cls(registry.LAYERS.deserialize(config.pop("layer"), custom_objects), **config)


class TimeDistributed(Wrapper):
    """Wrapper that applies a layer to each time step, by merging the time axis into the batch.

    Args:
      layer: Wrapped layer, for which each step of each example is one example.
      **kwargs: Arguments of `Layer`.

    Input shape:
      (batch, time, ...).

    Output shape:
      (batch, time, ...): the output shape of the layer with the time after the batch.

    Example:
      >>> images = tf.ones([2, 5, 8, 8, 3])
      >>> tf.keras.layers.TimeDistributed(tf.keras.layers.Conv2D(4, 3))(images).shape
      TensorShape([2, 5, 6, 6, 4])
    """

    def __init__(self, layer: Layer, **kwargs: Unpack[RegularizedArguments]) -> None:
        super().__init__(layer, **kwargs)
        self.supports_masking = True

    def call(
        self, inputs: TensorLike, training: bool | Tensor | None = None, mask: Tensor | None = None
    ) -> PyTree:
        """Apply the layer to all steps."""
        if isinstance(inputs, RaggedTensor):
            return inputs.with_flat_values(self.layer(inputs.flat_values))
        shape = self._get_sizes(inputs)
        flat = array.reshape(inputs, [shape[0] * shape[1], *shape[2:]])
        takes_mask = mask is not None and get_call_signature(type(self.layer)).expects_mask_arg
        outputs = self.layer(flat, **({"mask": _merge_steps(mask)} if takes_mask else {}))
        return array.reshape(outputs, [shape[0], shape[1], *outputs.shape.as_list()[1:]])

    def build(self, input_shape: PyTree = None) -> None:
        """Mark the layer as built; the wrapped layer is built for the shape of one step."""
        Layer.build(self, input_shape)

    def _get_sizes(self, inputs: TensorLike) -> list[Any]:
        """Return the sizes of the inputs; raise an error if there is no time axis."""
        shape = TensorShape(inputs.shape).as_list()
        if len(shape) < 2:
            raise ValueError(
                f"TimeDistributed({self.layer.name}) needs inputs [batch, time, ...], got shape {tuple(shape)}."
            )
        return shape

    def compute_mask(self, inputs: PyTree, mask: Tensor | None = None) -> Tensor | None:
        """Compute the mask of the layer for all steps; without one, mask the steps that are masked entirely."""
        if isinstance(inputs, RaggedTensor):
            return None
        if mask is None and not has_override(self.layer, "compute_mask", Layer):
            return None
        step_mask = None if mask is None else _merge_steps(mask)
        output_mask = self.layer.compute_mask(_merge_steps(inputs), step_mask)
        if output_mask is None:
            return None if mask is None else math.reduce_any(mask, list(range(2, mask.ndim)))
        sizes = array.concat([[-1], array.shape(inputs)[1:2], array.shape(output_mask)[1:]], 0)
        return array.reshape(output_mask, sizes)

    def compute_output_shape(self, input_shape: ShapeLike) -> TensorShape:
        """Compute the shape of the output."""
        shape = TensorShape(input_shape).as_list()
        inner = self.layer.compute_output_shape([shape[0], *shape[2:]]).as_list()
        return TensorShape([inner[0], shape[1], *inner[1:]])

    def _maybe_build(
        self, inputs: PyTree, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> None:
        super()._maybe_build(inputs, args, kwargs)
        if not self.layer.built:
            shape = self._get_sizes(inputs)
            dtype = getattr(inputs, "dtype", None) or self.compute_dtype
            # Keras calls `build` of the wrapped layer, so its weights have no prefix, except for
            # those of models.
            step = KerasTensor(TensorSpec([shape[0], *shape[2:]], dtype))
            build_sublayer(self.layer, step, named=hasattr(self.layer, "layers"))


def _merge_steps(value: TensorLike) -> Tensor:
    """Merge the axes of batch and time."""
    return array.reshape(value, array.concat([[-1], array.shape(value)[2:]], 0))


class Rescaling(Layer):
    """Linear rescaling, `inputs * scale + offset`.

    Args:
      scale: Factor.
      offset: Number to add.
      **kwargs: Arguments of `Layer`.

    Input shape:
      (batch, ...), of any rank.

    Output shape:
      The same as the input shape.

    Example:
      >>> tf.keras.layers.Rescaling(2.0, offset=-1.0)(tf.constant([0.0, 0.5, 1.0])).numpy().tolist()
      [-1.0, 0.0, 1.0]
    """

    def __init__(
        self, scale: TensorLike, offset: TensorLike = 0.0, **kwargs: Unpack[RegularizedArguments]
    ) -> None:
        super().__init__(**kwargs)
        self.scale, self.offset = scale, offset

    def call(self, inputs: TensorLike) -> Tensor:
        """Rescale the inputs, in the compute dtype."""
        return math.cast(inputs, self.compute_dtype) * self.scale + self.offset

    def compute_output_shape(self, input_shape: ShapeLike) -> TensorShape:
        """Return the shape of the input."""
        return TensorShape(input_shape)

    def get_config(self) -> Config:
        """Return the configuration."""
        return {**super().get_config(), "scale": self.scale, "offset": self.offset}
