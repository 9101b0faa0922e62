"""Layers that read properties and call methods of symbolic ragged and sparse tensors.

`x.to_tensor()` on a ragged `tf.keras.Input` adds an `InstanceMethod` to the model, and `x.values` an
`InstanceProperty`. Keras' files contain layers of the same names.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from meshflow.core.dispatch.composite import SparseTensor
from meshflow.core.values.composite import is_composite_spec
from meshflow.environment.types import Config, PyTree
from meshflow.keras import settings
from meshflow.keras.engine.graph.op_layers import TFOpLambda
from meshflow.keras.engine.symbolic.keras_tensor import (
    KerasTensor,
    RaggedKerasTensor,
    SparseKerasTensor,
    register_keras_tensor_specialization,
)
from meshflow.ops.ragged.tensor import RaggedTensor

__all__ = ["InstanceMethod", "InstanceProperty"]


class _AttributeLayer(TFOpLambda):
    """Base class of layers that use an attribute of their input.

    Args:
      attr_name: Name of the attribute.
      **kwargs: `name` and other arguments of `Layer`.
    """

    def __init__(self, attr_name: str, **kwargs: Any) -> None:
        if "name" not in kwargs:
            kwargs["name"] = settings.make_unreserved_name(f"input.{attr_name}")
        self._attr_name = attr_name
        super().__init__(self._use_attribute, **kwargs)

    def _use_attribute(self, x: Any, *args: Any, **kwargs: Any) -> PyTree:
        raise NotImplementedError

    def get_config(self) -> Config:
        """Return the configuration, which contains the name of the attribute."""
        common = {"name": self.name, "trainable": self.trainable, "dtype": self.dtype}
        return common | {"attr_name": self._attr_name}

    @classmethod
    def from_config(cls, config: Config) -> _AttributeLayer:
        """Create the layer from its configuration."""
        return cls(**config)


class InstanceProperty(_AttributeLayer):
    """Layer that returns a property of its input, such as `x.flat_values`."""

    def _use_attribute(self, x: Any, *args: Any, **kwargs: Any) -> PyTree:
        return getattr(x, self._attr_name)


class InstanceMethod(_AttributeLayer):
    """Layer that calls a method of its input, such as `x.to_tensor()`."""

    def _use_attribute(
        self, x: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> PyTree:
        return getattr(x, self._attr_name)(*args, **(kwargs or {}))


def _find_attribute(self: KerasTensor, name: str) -> Any:
    """Return an attribute of a symbolic composite tensor, or NotImplemented if its class has none."""
    spec = self.type_spec
    attribute = getattr(spec.value_type, name, None) if is_composite_spec(spec) else None
    if name.startswith("_") or attribute is None:
        return NotImplemented
    if isinstance(attribute, property):
        return InstanceProperty(name)(self)
    return _make_method(name).__get__(self)


def _make_method(name: str) -> Callable[..., PyTree]:
    return lambda self, *args, **kwargs: InstanceMethod(name)(self, args=list(args), kwargs=kwargs)


def delegate_property(keras_tensor_cls: type[KerasTensor], property_name: str) -> None:
    """Define a property of symbolic tensors by that of their values."""
    setattr(keras_tensor_cls, property_name, property(InstanceProperty(property_name)))


def delegate_method(keras_tensor_cls: type[KerasTensor], method_name: str) -> None:
    """Define a method of symbolic tensors by that of their values."""
    setattr(keras_tensor_cls, method_name, _make_method(method_name))


register_keras_tensor_specialization(SparseTensor, SparseKerasTensor)
register_keras_tensor_specialization(RaggedTensor, RaggedKerasTensor)
KerasTensor._find_attribute = _find_attribute  # type: ignore[method-assign]
