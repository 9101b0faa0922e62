"""Layers of Keras: `tf.keras.layers`."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from meshflow.environment.types import Config, Json
from meshflow.keras import registry, serialization
from meshflow.keras.engine.graph import instance_layers as _instance_layers
from meshflow.keras.engine.graph import op_layers as _op_layers
from meshflow.keras.engine.graph.input_layer import Input, InputLayer
from meshflow.keras.engine.layer.base_layer import Layer
from meshflow.keras.engine.symbolic.input_spec import InputSpec
from meshflow.keras.layers import experimental
from meshflow.keras.layers.activation import *
from meshflow.keras.layers.attention import *
from meshflow.keras.layers.bidirectional import *
from meshflow.keras.layers.borders import *
from meshflow.keras.layers.convolutional import *
from meshflow.keras.layers.convolutional_recurrent import *
from meshflow.keras.layers.core import *
from meshflow.keras.layers.einsum_dense import *
from meshflow.keras.layers.embedding import *
from meshflow.keras.layers.experts import *
from meshflow.keras.layers.gated_cells import *
from meshflow.keras.layers.global_pooling import *
from meshflow.keras.layers.jax_layers import *
from meshflow.keras.layers.lambda_layer import *
from meshflow.keras.layers.locally_connected import *
from meshflow.keras.layers.merging import *
from meshflow.keras.layers.multi_head_attention import *
from meshflow.keras.layers.normalization import *
from meshflow.keras.layers.pooling import *
from meshflow.keras.layers.preprocessing import *
from meshflow.keras.layers.recurrent import *
from meshflow.keras.layers.recurrent_cells import *
from meshflow.keras.layers.recurrent_layers import *
from meshflow.keras.layers.regularization import *
from meshflow.keras.layers.reshaping import *
from meshflow.keras.layers.saved_model_layer import *
from meshflow.keras.layers.separable_convolution import *
from meshflow.keras.layers.spectral_normalization import *
from meshflow.keras.layers.stage import *
from meshflow.keras.layers.transposed_convolution import *
from meshflow.keras.layers.upsampling import *
from meshflow.keras.layers.wrappers import *

# Public names are those in the `__all__` of the modules, and the names that are imported above.
__all__ = sorted(
    {
        name
        for name, value in globals().items()
        if getattr(value, "__module__", "").startswith("meshflow.keras.")
    }
    | {"DenseFeatures", "deserialize", "experimental", "serialize"}
)

if TYPE_CHECKING:
    from meshflow.keras.engine.layer.base_layer import UnknownLayer

    class DenseFeatures(Layer):
        """Declaration for type checkers; see `meshflow.legacy.feature_column.dense_features`."""

        def __init__(
            self,
            feature_columns: object,
            trainable: bool = True,
            name: str | None = None,
            partitioner: Callable[..., Any] | None = None,
            **kwargs: Any,
        ) -> None: ...


# Layers of older releases, by the module that is imported when one of them is first used.
_DEFERRED_LAYERS = {"DenseFeatures": "meshflow.legacy.feature_column.dense_features"}


def _select_layers(names: dict[str, Any]) -> dict[str, Any]:
    return {n: v for n, v in names.items() if isinstance(v, type) and issubclass(v, Layer)}


registry.LAYERS.add(
    *(_op_layers.TFOpLambda, _op_layers.SlicingOpLambda),
    *(_instance_layers.InstanceMethod, _instance_layers.InstanceProperty),
    **_select_layers(vars(experimental)) | _select_layers(globals()),
    **{name: registry.LazyObject(module, name) for name, module in _DEFERRED_LAYERS.items()},
    LinearModel=registry.LazyObject("meshflow.keras.linear_models", "LinearModel"),
    WideDeepModel=registry.LazyObject("meshflow.keras.linear_models", "WideDeepModel"),
    FeatureSpace=registry.LazyObject(
        "meshflow.keras.layers.preprocessing.feature_space", "FeatureSpace"
    ),
)


if not TYPE_CHECKING:  # Type checkers would accept any name of a module with `__getattr__`.

    def __getattr__(name):
        if name not in _DEFERRED_LAYERS:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(importlib.import_module(_DEFERRED_LAYERS[name]), name)


def serialize(layer: Layer, use_legacy_format: bool = False) -> Config:
    """Return the configuration of a layer: `{'class_name': ..., 'config': ...}`.

    Args:
      layer: Layer.
      use_legacy_format: Whether to use the format of Keras before 2.13, without modules.

    Returns:
      A dictionary from which `deserialize` creates a layer.

    Example:
      >>> config = tf.keras.layers.serialize(tf.keras.layers.Dense(3))
      >>> config["class_name"], config["config"]["units"]
      ('Dense', 3)
    """
    if getattr(layer, "_is_metric", False):
        raise ValueError(
            f"Cannot serialize {layer} since it is a metric. Please use `keras.metrics.serialize` and "
            "`keras.metrics.deserialize` for metrics."
        )
    return serialization.serialize(layer, use_legacy_format)


def deserialize(
    config: Config | str,
    custom_objects: dict[str, Any] | None = None,
    use_legacy_format: bool = False,
) -> UnknownLayer:
    """Create a layer from a configuration.

    Args:
      config: Result of `serialize`.
      custom_objects: Classes and functions by name.
      use_legacy_format: Whether the format is that of Keras before 2.13, without modules.

    Raises:
      ValueError: If the class is unknown.

    Example:
      >>> config = tf.keras.layers.serialize(tf.keras.layers.Dense(3, activation="relu"))
      >>> tf.keras.layers.deserialize(config).units
      3
    """
    layer = registry.LAYERS.deserialize(config, custom_objects)
    return serialization.build_and_compile(layer, config)
