"""`tf.keras.layers`: the layers."""

from __future__ import annotations

from typing import Any

from meshflow.keras import registry
from meshflow.keras.engine.graph import op_layers as _op_layers
from meshflow.keras.engine.graph.input_layer import Input, InputLayer
from meshflow.keras.engine.layer.base_layer import Layer
from meshflow.keras.engine.symbolic.input_spec import InputSpec
from meshflow.keras.layers import activation as _activation
from meshflow.keras.layers import attention as _attention
from meshflow.keras.layers import bidirectional as _bidirectional
from meshflow.keras.layers import convolutional as _convolutional
from meshflow.keras.layers import convolutional_recurrent as _convolutional_recurrent
from meshflow.keras.layers import core as _core
from meshflow.keras.layers import dense_features as _dense_features
from meshflow.keras.layers import einsum_dense as _einsum_dense
from meshflow.keras.layers import embedding as _embedding
from meshflow.keras.layers import experimental
from meshflow.keras.layers import gated_cells as _gated_cells
from meshflow.keras.layers import lambda_layer as _lambda_layer
from meshflow.keras.layers import local as _local
from meshflow.keras.layers import merging as _merging
from meshflow.keras.layers import normalization as _normalization
from meshflow.keras.layers import pooling as _pooling
from meshflow.keras.layers import recurrent as _recurrent
from meshflow.keras.layers import recurrent_cells as _recurrent_cells
from meshflow.keras.layers import recurrent_layers as _recurrent_layers
from meshflow.keras.layers import regularization as _regularization
from meshflow.keras.layers import reshaping as _reshaping
from meshflow.keras.layers import separable_convolution as _separable_convolution
from meshflow.keras.layers import spectral_normalization as _spectral_normalization
from meshflow.keras.layers import transposed_convolution as _transposed_convolution
from meshflow.keras.layers import wrappers as _wrappers
from meshflow.keras.layers.activation import *
from meshflow.keras.layers.attention import *
from meshflow.keras.layers.bidirectional import *
from meshflow.keras.layers.convolutional import *
from meshflow.keras.layers.convolutional_recurrent import *
from meshflow.keras.layers.core import *
from meshflow.keras.layers.dense_features import *
from meshflow.keras.layers.einsum_dense import *
from meshflow.keras.layers.embedding import *
from meshflow.keras.layers.gated_cells import *
from meshflow.keras.layers.lambda_layer import *
from meshflow.keras.layers.local import *
from meshflow.keras.layers.merging import *
from meshflow.keras.layers.normalization import *
from meshflow.keras.layers.pooling import *
from meshflow.keras.layers.preprocessing import *
from meshflow.keras.layers.preprocessing import PUBLIC_MODULES as _PREPROCESSING
from meshflow.keras.layers.recurrent import *
from meshflow.keras.layers.recurrent_cells import *
from meshflow.keras.layers.recurrent_layers import *
from meshflow.keras.layers.regularization import *
from meshflow.keras.layers.reshaping import *
from meshflow.keras.layers.separable_convolution import *
from meshflow.keras.layers.spectral_normalization import *
from meshflow.keras.layers.transposed_convolution import *
from meshflow.keras.layers.wrappers import *

_MODULES = (
    _activation,
    _attention,
    _bidirectional,
    _convolutional,
    _convolutional_recurrent,
    _core,
    _dense_features,
    _einsum_dense,
    _lambda_layer,
    _local,
    _embedding,
    _gated_cells,
    _merging,
    _normalization,
    _pooling,
    _recurrent,
    _recurrent_cells,
    _recurrent_layers,
    _regularization,
    _reshaping,
    _separable_convolution,
    _transposed_convolution,
    _spectral_normalization,
    _wrappers,
    *_PREPROCESSING,
)
__all__ = sorted(
    {n for m in _MODULES for n in m.__all__}
    | {"Input", "InputLayer", "InputSpec", "Layer", "deserialize", "experimental", "serialize"}
)


registry.LAYERS.table |= {
    name: value
    for name, value in list(globals().items())
    if name in __all__ and isinstance(value, type) and issubclass(value, Layer)
}
registry.LAYERS.add(
    experimental.SyncBatchNormalization, _op_layers.TFOpLambda, _op_layers.SlicingOpLambda
)


def serialize(layer: Any) -> Any:
    """The configuration of a layer: `{'class_name': ..., 'config': ...}`.

    Args:
      layer: the layer.

    Returns:
      A dictionary that `deserialize` makes a layer of.

    Example:
      >>> import meshflow as tf
      >>> config = tf.keras.layers.serialize(tf.keras.layers.Dense(3))
      >>> config["class_name"], config["config"]["units"]
      ('Dense', 3)
    """
    return registry.serialize(layer)


def deserialize(config: Any, custom_objects: Any = None) -> Any:
    """The layer with a configuration.

    Args:
      config: what `serialize` gave.
      custom_objects: classes and functions by name.

    Raises:
      ValueError: for an unknown class.

    Example:
      >>> import meshflow as tf
      >>> config = tf.keras.layers.serialize(tf.keras.layers.Dense(3, activation="relu"))
      >>> tf.keras.layers.deserialize(config).units
      3
    """
    return registry.LAYERS.deserialize(config, custom_objects)
