"""`Lambda`: a layer of a Python function."""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable
from typing import Any

import numpy as np

from meshflow.core.dispatch import op_names
from meshflow.keras import function_code, registry, serialization
from meshflow.keras.engine.graph import op_table
from meshflow.keras.engine.layer.base_layer import Layer
from meshflow.keras.safe_mode import HeldName

__all__ = ["Lambda"]


class Lambda(Layer):
    """Applies a Python function of tensors. Variables it uses are not tracked.

    Args:
      function: the function.
      output_shape: accepted; shapes are found by tracing.
      mask: mask of the output, or a function of (inputs, mask).
      arguments: further keyword arguments of the function.
      **kwargs: arguments of `Layer`.

    Input shape:
      What the function takes.

    Output shape:
      What the function gives; `output_shape` where that cannot be found.

    Example:
      >>> import meshflow as tf
      >>> layer = tf.keras.layers.Lambda(lambda x, power: x**power, arguments={"power": 2})
      >>> layer(tf.constant([3.0, 4.0])).numpy().tolist()
      [9.0, 16.0]
    """

    def __init__(
        self,
        function: Callable[..., Any],
        output_shape: Any = None,
        mask: Any = None,
        arguments: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.function, self.arguments, self.mask = function, arguments or {}, mask
        self._output_shape = output_shape
        self.supports_masking = mask is not None

    def call(self, inputs: Any, mask: Any = None, training: Any = None) -> Any:
        """The function's value."""
        try:
            names = inspect.signature(self.function).parameters
        except (TypeError, ValueError):
            names = {}  # type: ignore[assignment]
        extra = {k: v for k, v in (("mask", mask), ("training", training)) if k in names}
        return self.function(inputs, **{**self.arguments, **extra})

    def compute_mask(self, inputs: Any, mask: Any = None) -> Any:
        """The given mask."""
        return self.mask(inputs, mask) if callable(self.mask) else self.mask

    def get_config(self) -> dict[str, Any]:
        """The configuration: the function's registered name, or its byte code."""
        function: Any = self.function
        kind = "function"
        if _is_registered(function) or not isinstance(function, types.FunctionType):
            data: Any = HeldName(registry.get_registered_name(function), function)
        elif str(function.__module__).startswith("meshflow."):
            data = HeldName(op_table.public_name(function), function)
        else:
            data, kind = function_code.to_data(function), "lambda"
        return {
            **super().get_config(),
            "function": data,
            "function_type": kind,
            "module": getattr(function, "__module__", None),
            "output_shape": self._output_shape if not callable(self._output_shape) else None,
            "output_shape_type": "raw",
            "output_shape_module": None,
            "arguments": self.arguments,
        }

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Any = None) -> Lambda:
        """The layer with a configuration.

        Raises:
          ValueError: for a name that is neither that of an op nor in `custom_objects`, for code in safe mode, or
            code that cannot be read.
        """
        config = dict(config)
        home = config.get("module")
        for name in ("function_type", "module", "output_shape_type", "output_shape_module"):
            config.pop(name, None)
        data = config["function"]
        if isinstance(data, dict):
            # As later versions of Keras write it.
            inner = data.get("config", data)
            data = [inner["code"], inner.get("defaults"), inner.get("closure")]
        if isinstance(data, (list, tuple)):
            names = dict(custom_objects or {})
            config["function"] = function_code.from_data(data, names, f"layer {config.get('name')}")
        else:
            config["function"] = _named_function(data, home, custom_objects)
        arguments = config.get("arguments") or {}
        config["arguments"] = {name: _argument(value) for name, value in arguments.items()}
        return cls(**config)


def _argument(value: Any) -> Any:
    """An argument of the function, of which configurations hold arrays as lists."""
    if isinstance(value, dict) and value.get("type") == "ndarray" and "value" in value:
        # As Keras 2 writes it.
        return np.array(value["value"])
    return serialization.deserialize_keras_object(value)


def _is_registered(function: Any) -> bool:
    name = registry.get_registered_name(function)
    return name != getattr(function, "__name__", name) or (
        registry.get_registered_object(name) is function
    )


def _named_function(name: str, home: Any, custom_objects: Any) -> Any:
    """The function that a configuration names, of the program itself, of `custom_objects`, or an op.

    Args:
      name: its name.
      home: the module that it was in, as Keras 2 writes it beside names such as 'square'.
      custom_objects: functions by name.
    """
    if isinstance(name, HeldName):
        return name.value
    if not isinstance(name, str):
        raise ValueError(f"A Lambda layer's function is given by its name or code, got {name!r}.")
    found = registry.get_registered_object(name, custom_objects, {})
    if found is None and str(home).endswith("keras.backend"):
        found = op_names.find(f"keras.backend.{name}")
    if found is not None:
        return found
    try:
        return op_table.find_function(name)
    except ValueError:
        found = registry.get_registered_object(name.rpartition(".")[2], custom_objects, {})
        if found is None:
            raise
        return found
