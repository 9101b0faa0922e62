"""`Lambda`: a layer that calls a Python function."""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable
from typing import Any, Unpack

import numpy as np

from meshflow.core.dispatch import op_names
from meshflow.core.values.shapes import ShapeLike
from meshflow.core.values.tensor import Tensor
from meshflow.environment.types import Config, Json, PyTree
from meshflow.keras import function_code, registry, serialization
from meshflow.keras.engine.graph import op_table
from meshflow.keras.engine.layer.base_layer import Layer
from meshflow.keras.engine.layer.layer_arguments import RegularizedArguments
from meshflow.keras.safe_mode import BoundName

__all__ = ["Lambda"]


class Lambda(Layer):
    """Layer that calls a Python function; variables that the function uses are not tracked.

    Args:
      function: Function of the inputs; `mask` and `training` are passed if it accepts them.
      output_shape: Saved in the configuration only; shapes are inferred by tracing the function.
      mask: Mask of the output, or a function of (inputs, mask).
      arguments: Further keyword arguments of the function.
      **kwargs: Arguments of `Layer`.

    Input shape:
      Any structure of tensors that the function accepts.

    Output shape:
      The shape of the result of the function.

    Example:
      >>> layer = tf.keras.layers.Lambda(lambda x, power: x**power, arguments={"power": 2})
      >>> layer(tf.constant([3.0, 4.0])).numpy().tolist()
      [9.0, 16.0]
    """

    def __init__(
        self,
        function: Callable[..., Any],
        output_shape: ShapeLike | Callable[..., ShapeLike] = None,
        mask: Tensor | Callable[..., Tensor | None] | None = None,
        arguments: dict[str, Any] | None = None,
        **kwargs: Unpack[RegularizedArguments],
    ) -> None:
        super().__init__(**kwargs)
        self.function, self.arguments, self.mask = function, arguments or {}, mask
        self._output_shape = output_shape
        self.supports_masking = mask is not None

    def call(
        self,
        inputs: PyTree,
        mask: Tensor | None = None,
        training: bool | Tensor | None = None,
    ) -> PyTree:
        """Call the function."""
        try:
            names = inspect.signature(self.function).parameters
        except (TypeError, ValueError):
            names = {}  # type: ignore[assignment]
        extra = {k: v for k, v in (("mask", mask), ("training", training)) if k in names}
        return self.function(inputs, **{**self.arguments, **extra})

    def compute_mask(self, inputs: PyTree, mask: Tensor | None = None) -> Tensor | None:
        """Return the constructor argument `mask`, or the result of calling it."""
        return self.mask(inputs, mask) if callable(self.mask) else self.mask

    def get_config(self) -> Config:
        """Return the configuration, with the registered name or the byte code of the function."""
        function: Any = self.function
        kind = "function"
        if _is_registered(function) or not isinstance(function, types.FunctionType):
            data: Any = BoundName(registry.get_registered_name(function), function)
        elif str(function.__module__).startswith("meshflow."):
            data = BoundName(op_table.get_public_name(function), function)
        else:
            data, kind = function_code.serialize_code(function), "lambda"
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
    def from_config(cls, config: Config, custom_objects: dict[str, Any] | None = None) -> Lambda:
        """Create a layer from a configuration.

        Raises:
          ValueError: If the name is neither that of an op nor in `custom_objects`, or if the
            configuration contains code in safe mode or code that cannot be read.
        """
        config = dict(config)
        home = config.get("module")
        for name in ("function_type", "module", "output_shape_type", "output_shape_module"):
            config.pop(name, None)
        data = config["function"]
        if isinstance(data, dict):
            # Keras 3 writes the code as a dictionary.
            inner = data.get("config", data)
            data = [inner["code"], inner.get("defaults"), inner.get("closure")]
        if isinstance(data, (list, tuple)):
            names = dict(custom_objects or {})
            config["function"] = function_code.deserialize_code(
                data, names, f"layer {config.get('name')}"
            )
        else:
            config["function"] = _find_function(data, home, custom_objects)
        arguments = config.get("arguments") or {}
        config["arguments"] = {
            name: _deserialize_argument(value) for name, value in arguments.items()
        }
        return cls(**config)


def _deserialize_argument(value: Json) -> PyTree:
    """Convert an argument of the function from its form in a configuration, where arrays are lists."""
    if isinstance(value, dict) and value.get("type") == "ndarray" and "value" in value:
        # Keras 2 writes arrays in this form.
        return np.array(value["value"])
    return serialization.deserialize_keras_object(value)


def _is_registered(function: Callable[..., Any]) -> bool:
    name = registry.get_registered_name(function)
    return name != getattr(function, "__name__", name) or (
        registry.get_registered_object(name) is function
    )


def _find_function(
    name: object, module: str | None, custom_objects: dict[str, Any] | None
) -> Callable[..., Any]:
    """Find a function by its name: in `custom_objects`, or a registered function or op.

    Args:
      name: Name of the function.
      module: Module of the function, which Keras 2 writes for names such as 'square'.
      custom_objects: Functions by name.
    """
    if isinstance(name, BoundName):
        return name.value
    if not isinstance(name, str):
        raise ValueError(
            f"A Lambda layer's function is given by its name or code, got {name!r}. Register the function, or pass it "
            "in `custom_objects`."
        )
    function = registry.get_registered_object(name, custom_objects, {})
    if function is None and str(module).endswith("keras.backend"):
        function = op_names.find_function(f"keras.backend.{name}")
    if function is not None:
        return function
    try:
        return op_table.find_function(name)
    except ValueError:
        function = registry.get_registered_object(name.rpartition(".")[2], custom_objects, {})
        if function is None:
            raise
        return function
