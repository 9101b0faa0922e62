"""The initializer, regularizer and constraint of each weight of a layer.

A layer with a weight `kernel` has the arguments and attributes `kernel_initializer`,
`kernel_regularizer` and `kernel_constraint`. The functions of this module set these attributes,
create the weight, and describe them in configurations.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from meshflow.core.variables.variable import Variable
from meshflow.environment.types import Config
from meshflow.keras import constraints, initializers, regularizers
from meshflow.keras.engine.layer.base_layer import Layer
from meshflow.keras.registry import KerasObject

_MODULES: dict[str, Any] = {
    "initializer": initializers,
    "regularizer": regularizers,
    "constraint": constraints,
}


class KernelLayer(Layer):
    """Base class of layers with a kernel and a bias, which have these options."""

    _weights_with_layouts: tuple[str, ...] = ("kernel", "bias")

    kernel_initializer: KerasObject
    bias_initializer: KerasObject
    kernel_regularizer: KerasObject
    bias_regularizer: KerasObject
    kernel_constraint: KerasObject
    bias_constraint: KerasObject


def set_weight_options(
    layer: Layer, arguments: Mapping[str, Any], *weights: str, prefix: str = ""
) -> None:
    """Set the attributes of weights to the objects that arguments of a constructor identify.

    Args:
      layer: The layer.
      arguments: Arguments by name, usually `locals()` of the constructor; the default is None.
      *weights: Names of the weights, as in the names of the arguments.
      prefix: Prefix of the names of the attributes.

    Raises:
      ValueError: If an argument does not identify an object.

    Example:
      >>> layer = tf.keras.layers.Layer()
      >>> set_weight_options(layer, {"kernel_initializer": "ones"}, "kernel")
      >>> type(layer.kernel_initializer).__name__, layer.kernel_regularizer
      ('Ones', None)
    """
    for weight in weights:
        for kind, module in _MODULES.items():
            name = f"{weight}_{kind}"
            setattr(layer, prefix + name, module.get(arguments.get(name)))


def add_weight(
    layer: Layer, name: str, shape: Sequence[int | None], option: str | None = None, **kwargs: Any
) -> Variable:
    """Add a weight with the initializer, regularizer and constraint that the layer has for it.

    Args:
      layer: The layer.
      name: Name of the weight.
      shape: Shape of the weight.
      option: Name of the weight in the attributes of the layer; default `name`.
      **kwargs: Further arguments of `Layer.add_weight`, and replacements of the attributes.
    """
    source = option or name
    options: Config = {kind: getattr(layer, f"{source}_{kind}", None) for kind in _MODULES}
    return layer.add_weight(name, shape, **(options | kwargs))


def make_weight_config(
    layer: Layer,
    *names: str,
    initialized: tuple[str, ...] = (),
    flags: tuple[str, ...] = (),
    activity: bool = False,
) -> Config:
    """Return the configurations of the initializers, regularizers and constraints of weights.

    The order of the keys is that of Keras.

    Args:
      layer: The layer.
      *names: Names of the weights in its attributes.
      initialized: Further weights, which have an initializer only.
      flags: Attributes that follow the initializers.
      activity: Whether to include the `activity_regularizer` of the layer.
    """
    config = {}

    def describe(kind: str, named: tuple[str, ...]) -> None:
        for name in named:
            value = _MODULES[kind].get(getattr(layer, f"{name}_{kind}"))
            config[f"{name}_{kind}"] = _MODULES[kind].serialize(value)

    describe("initializer", (*names, *initialized))
    config |= {flag: getattr(layer, flag) for flag in flags}
    describe("regularizer", (*names, "activity") if activity else names)
    describe("constraint", names)
    return config
