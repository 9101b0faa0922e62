"""`tf.compat.v1.layers`: classes of Keras, and functions that create a layer and call it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.legacy.compat.public_package import tf
from meshflow.legacy.compat.variables import get_variable_scope

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


def _make_function(name: str) -> Callable[..., Tensor]:
    class_name = _FUNCTIONS[name]

    def function(inputs: TensorLike, *args: Any, **kwargs: Any) -> Tensor:
        options = {k: v for k, v in kwargs.items() if k not in (*_DROPPED, *_CALL_ARGUMENTS)}
        if options.get("kernel_initializer", "") is None:
            del options["kernel_initializer"]
        scope, create = get_variable_scope(), getattr(tf.keras.layers, class_name)
        if scope.store is None:
            layer = create(*args, **options)
        else:
            path = f"{scope.name}/{options.get('name') or name}".lstrip("/")
            path = path if options.get("name") else scope.store.name_layer(path)
            options["name"] = path.rpartition("/")[2]
            layer = scope.store.get_or_create_layer(path, lambda: create(*args, **options))
        named = {k: kwargs[k] for k in _CALL_ARGUMENTS if k in kwargs}
        if scope.store is None:
            return layer(inputs, **named)
        with tf.name_scope(f"{scope.name}/" if scope.name else ""):
            return layer(inputs, **named)

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
        base.__init__(self, *args, **options)

    def apply(self: Any, *args: Any, **kwargs: Any) -> Any:
        """Call the layer."""
        return self(*args, **kwargs)

    return type(name, (base,), {"__init__": __init__, "apply": apply, "__module__": __name__, "__doc__": base.__doc__})  # fmt: skip


globals().update({_name: _make_class(_name) for _name in _CLASSES - {"InputSpec"}})
InputSpec = tf.keras.layers.InputSpec
globals().update({_name: _make_function(_name) for _name in _FUNCTIONS})
__all__ = sorted({*_CLASSES, *_FUNCTIONS})
