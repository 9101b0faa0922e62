"""`tf.compat.v1.keras.utils`: variables and layers of version 1 in methods of layers and modules."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from meshflow.legacy.compat.public_package import tf
from meshflow.legacy.compat.variables import VariableStore, get_variable_scope

__all__ = ["get_or_create_layer", "track_tf1_style_variables"]


def track_tf1_style_variables(method: Callable[..., Any]) -> Callable[..., Any]:
    """Make a method reuse the variables that it creates by `tf.compat.v1.get_variable` and `tf.compat.v1.layers`.

    The object tracks the variables like those of its attributes. Penalties of regularizers are losses of a layer.

    Args:
      method: Method of a `tf.Module`, layer or model, such as `call`.

    Raises:
      ValueError: When the method is called, if its object is none of these.

    Example:
      >>> class Scale(tf.keras.layers.Layer):
      ...     @tf.compat.v1.keras.utils.track_tf1_style_variables
      ...     def call(self, inputs):
      ...         with tf.compat.v1.variable_scope("scale"):
      ...             return inputs * tf.compat.v1.get_variable("factor", [])
      >>> layer = Scale()
      >>> _ = layer(tf.ones([2])), layer(tf.ones([2]))
      >>> [v.name for v in layer.trainable_variables]
      ['scale/factor:0']
    """

    @functools.wraps(method)
    def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not isinstance(self, tf.Module):
            raise ValueError(
                "`@tf.compat.v1.keras.utils.track_tf1_style_variables` must be applied to a method of a subclassed "
                f"`tf.Module`, `tf.keras.layers.Layer` or `tf.keras.Model`; the first argument is {self!r}."
            )
        store: VariableStore | None = getattr(self, "_tf1_style_var_store", None)
        if store is None:
            self._tf1_style_var_store = store = VariableStore()
        scope = get_variable_scope()
        outer_store, scope.store = scope.store, store
        if outer_store is not store:
            store.start_call()
        try:
            result = method(self, *args, **kwargs)
        finally:
            scope.store = outer_store
        if isinstance(self, tf.keras.layers.Layer):
            # Some of them belong to earlier calls that raised an error.
            for penalize in list(store.regularizers.values()):
                self.add_loss(penalize)
            for layer in store.new_layers:
                for index in range(len(layer.losses)):
                    self.add_loss(functools.partial(_read_loss, layer, index))
            store.regularizers.clear()
            store.new_layers.clear()
        return result

    return run


def _read_loss(layer: Any, index: int) -> Any:
    return layer.losses[index]


def get_or_create_layer(name: str, create_layer_method: Callable[[], Any]) -> Any:
    """Return the layer with a name below the current scope, which is created at first.

    Args:
      name: Name below the current scope.
      create_layer_method: Function that creates the layer.

    Raises:
      ValueError: Outside of a method with the decorator `track_tf1_style_variables`.
    """
    scope = get_variable_scope()
    if scope.store is None:
        raise ValueError(
            "Tried to call get_or_create_layer in eager mode from a method not decorated with "
            "@tf.compat.v1.keras.utils.track_tf1_style_variables."
        )
    return scope.store.get_or_create_layer(f"{scope.name}/{name}", create_layer_method)
