"""Functions of `keras.ops` in graphs of layers: each call is one layer, with the public name.

Functions that equal one of TensorFlow's do not need the decorator: the op that they call becomes a
layer with TensorFlow's name, which tf-keras can read, too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from meshflow.core.dispatch import op_names
from meshflow.core.dispatch.symbolic_calls import accept_symbolic_unnamed

F = TypeVar("F", bound=Callable[..., Any])


def as_single_layer(space: str | None = None) -> Callable[[F], F]:
    """Create a decorator that makes calls with symbolic tensors one layer, with a name in files.

    Args:
      space: Namespace of the function in `keras.ops`, for example 'image'; default `keras.ops`
        itself.

    Example:
      >>> x = tf.keras.Input([3])
      >>> model = tf.keras.Model(x, tf.keras.ops.flip(x, axis=1))
      >>> model.get_config()["layers"][1]["config"]["function"]
      'keras.ops.flip'
    """
    prefix = "keras.ops." if space is None else f"keras.ops.{space}."

    def decorate(function: F) -> F:
        return op_names.register_name(
            accept_symbolic_unnamed(function), f"{prefix}{function.__name__}"
        )

    return decorate
