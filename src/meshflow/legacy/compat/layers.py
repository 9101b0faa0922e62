"""`tf.compat.v1.layers`: classes of Keras, and functions that create a layer and call it."""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import Callable, Iterator
from typing import Any

from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.keras.engine.layer.base_layer import Layer
from meshflow.legacy.compat.public_package import tf
from meshflow.legacy.compat.variables import (
    VariableScope,
    check_reuse,
    get_variable_scope,
    variable_scope,
)
from meshflow.legacy.graph.graph import get_default_graph, has_explicit_graph

# Classes by the names of functions.
_FUNCTIONS = {
    **{f"average_pooling{n}d": f"AveragePooling{n}D" for n in (1, 2, 3)},
    **{f"max_pooling{n}d": f"MaxPooling{n}D" for n in (1, 2, 3)},
    **{f"conv{n}d": f"Conv{n}D" for n in (1, 2, 3)},
    **{f"conv{n}d_transpose": f"Conv{n}DTranspose" for n in (2, 3)},
    **{f"separable_conv{n}d": f"SeparableConv{n}D" for n in (1, 2)},
    "batch_normalization": "BatchNormalization",
    "dense": "Dense",
    "dropout": "Dropout",
    "flatten": "Flatten",
}
_CLASSES = {*_FUNCTIONS.values(), "Layer", "InputSpec"}
# Default arguments of layers and of their calls that differ from those of Keras.
_DEFAULTS: dict[str, dict[str, Any]] = {"Dropout": {"rate": 0.5}}
_CALL_DEFAULTS = {"batch_normalization": {"training": False}, "dropout": {"training": False}}
# Arguments of TensorFlow 1 that Keras does not have.
_DROPPED = (
    "reuse",
    "_reuse",
    "_scope",
    "fused",
    "renorm",
    "renorm_clipping",
    "renorm_momentum",
    "virtual_batch_size",
    "adjustment",
)
# Arguments of the calls of layers.
_CALL_ARGUMENTS = ("training",)


@contextlib.contextmanager
def _enter_layer_scope(name: str | VariableScope | None, default: str, reuse: object = None) -> Iterator[VariableScope]:  # fmt: skip
    """Enter the scope of a layer, below which its variables are named, also in scopes of names such as those of Keras layers."""
    outer = get_variable_scope()
    if name is None and not outer.name and outer.store is not None:
        name = outer.store.name_layer(default)
    prefix = f"{outer.name}/" if outer.name else ""
    scope = variable_scope(name, default, reuse=reuse, auxiliary_name_scope=False)
    with scope as inner, tf.name_scope(prefix):
        yield inner


def _check_sizes(known: Layer, layer: Layer) -> None:
    """Raise an error if the weights of a layer that is used again have other sizes than those of a new layer."""
    for name in ("units", "filters", "kernel_size"):
        found, expected = (getattr(owner, name, None) for owner in (known, layer))
        if found != expected:
            raise ValueError(
                f"Trying to share variable {known.name}/kernel, but specified {name}={expected} and found {name}={found}."
            )


def _collect_penalties(layer: Layer) -> None:
    """Add the penalties of the weights of a new layer to the collection of the graph."""
    if has_explicit_graph():
        for variable, regularize in layer._regularized:
            get_default_graph().add_to_collection("regularization_losses", regularize(variable))


def _collect_updates(layer: Layer, result: Tensor, training: object) -> None:
    """Add operations for the updates of moving averages to the collection of the graph.

    The call of a layer updates them, so these operations only run it.
    """
    is_normalization = isinstance(layer, tf.keras.layers.BatchNormalization) and layer.trainable
    if not (is_normalization and has_explicit_graph()) or training is False:
        return
    graph = get_default_graph()
    for _ in layer.non_trainable_weights:
        update = graph.group([result], f"{layer.name}/AssignMovingAvg")
        graph.add_to_collection("update_ops", update)


def _make_function(name: str) -> Callable[..., Tensor]:
    class_name = _FUNCTIONS[name]

    def function(inputs: TensorLike, *args: Any, **kwargs: Any) -> Tensor:
        options = {k: v for k, v in kwargs.items() if k not in (*_DROPPED, *_CALL_ARGUMENTS)}
        if options.get("kernel_initializer", "") is None:
            del options["kernel_initializer"]
        if not args:
            options = _DEFAULTS.get(class_name, {}) | options
        named = _CALL_DEFAULTS.get(name, {}) | {
            k: kwargs[k] for k in _CALL_ARGUMENTS if k in kwargs
        }
        store, create = get_variable_scope().store, getattr(tf.keras.layers, class_name)
        if store is None:
            return create(*args, **options)(inputs, **named)
        with _enter_layer_scope(options.get("name"), name, kwargs.get("reuse")) as scope:
            options["name"] = scope.name.rpartition("/")[2]
            known = store.layers_by_name.get(scope.name)
            if known is not None and known.weights and has_explicit_graph():
                check_reuse(known.weights[0].name.partition(":")[0], scope, known.weights[0])
            layer = store.get_or_create_layer(scope.name, lambda: create(*args, **options))
            if known is not None:
                _check_sizes(known, create(*args, **options))
            result: Tensor = layer(inputs, **named)
            _collect_updates(layer, result, named.get("training"))
            if known is None and has_explicit_graph():
                if scope.reuse is True and layer.weights:
                    check_reuse(layer.weights[0].name.partition(":")[0], scope, None)
                _collect_penalties(layer)
            return result

    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"Create a `tf.keras.layers.{class_name}` with these arguments, and call it."
    return function


def _make_class(name: str) -> type:
    """Return a class of Keras that also takes the arguments of TensorFlow 1, and has its method `apply`."""
    base: Any = getattr(tf.keras.layers, name)

    @functools.wraps(base.__init__)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        options = {k: v for k, v in kwargs.items() if k not in _DROPPED}
        if options.get("kernel_initializer", "") is None:
            del options["kernel_initializer"]
        if not args:
            options = _DEFAULTS.get(name, {}) | options
        self._layer_scope = None
        self._has_default_name = options.get("name") is None
        base.__init__(self, *args, **options)

    def __call__(self: Any, *args: Any, **kwargs: Any) -> Any:
        # The scope of the first call determines the names of the variables.
        if get_variable_scope().store is None or (self.built and self._layer_scope is None):
            return base.__call__(self, *args, **kwargs)
        own_name = None if self._has_default_name else self.name
        default = re.sub(r"_\d+$", "", self.name)
        with _enter_layer_scope(self._layer_scope or own_name, default) as scope:
            is_first = self._layer_scope is None
            if is_first:
                self._layer_scope, self._name = scope, scope.name.rpartition("/")[2]
            result = base.__call__(self, *args, **kwargs)
            _collect_updates(self, result, kwargs.get("training", False))
            if is_first:
                _collect_penalties(self)
            return result

    def apply(self: Any, *args: Any, **kwargs: Any) -> Any:
        """Call the layer."""
        return self(*args, **kwargs)

    return type(name, (base,), {"__init__": __init__, "__call__": __call__, "apply": apply, "__module__": __name__, "__doc__": base.__doc__})  # fmt: skip


globals().update({_name: _make_class(_name) for _name in _CLASSES - {"InputSpec"}})
InputSpec = tf.keras.layers.InputSpec
globals().update({_name: _make_function(_name) for _name in _FUNCTIONS})
__all__ = sorted({*_CLASSES, *_FUNCTIONS})
