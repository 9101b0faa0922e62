"""Functions of `keras.ops` in graphs of layers: each is one layer, under the name that users know.

Functions that are one of TensorFlow's need nothing: what they call becomes a layer of TensorFlow's name, which
tf-keras reads, too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from meshflow.core.dispatch import op_names
from meshflow.core.dispatch.symbolic import in_graphs

__all__ = ["one_layer"]

F = TypeVar("F", bound=Callable[..., Any])


def one_layer(space: str | None = None) -> Callable[[F], F]:
    """Makes calls of a function with symbolic tensors one layer, and lets files name the function.

    Args:
      space: the namespace in `keras.ops`, such as 'image', of which it is part; default `keras.ops` itself.

    Example:
      >>> import meshflow as tf
      >>> x = tf.keras.Input([3])
      >>> model = tf.keras.Model(x, tf.keras.ops.flip(x, axis=1))
      >>> model.get_config()["layers"][1]["config"]["function"]
      'keras.ops.flip'
    """
    place = "keras.ops." if space is None else f"keras.ops.{space}."

    def decorated(function: F) -> F:
        return op_names.nameable(in_graphs(function), f"{place}{function.__name__}")

    return decorated
