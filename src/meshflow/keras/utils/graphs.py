"""Questions about graphs of layers."""

from __future__ import annotations

from typing import Any


def get_source_inputs(tensor: Any, layer: Any = None, node_index: int | None = None) -> list[Any]:
    """The symbolic inputs that a symbolic tensor is made from.

    Args:
      tensor: the tensor.
      layer: accepted; the tensor knows the layer that makes it.
      node_index: accepted likewise.

    Returns:
      The `Input`s, in the order in which they are met.

    Example:
      >>> import meshflow as tf
      >>> x = tf.keras.Input([3])
      >>> tf.keras.utils.get_source_inputs(tf.keras.layers.Dense(2)(x))[0] is x
      True
    """
    del layer, node_index
    found: dict[int, Any] = {}
    seen: set[int] = set()
    stack = [tensor]
    while stack:
        current = stack.pop()
        if id(current) in seen:
            continue
        seen.add(id(current))
        if current.node.is_input:
            found[id(current)] = current
        stack.extend(reversed(current.node.keras_inputs))
    return list(found.values())
