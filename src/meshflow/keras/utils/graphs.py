"""Queries of graphs of layers."""

from __future__ import annotations

from typing import cast

from meshflow.core.values.tensor import Tensor
from meshflow.keras.engine.symbolic.keras_tensor import KerasTensor


def get_source_inputs(
    tensor: Tensor, layer: object = None, node_index: int | None = None
) -> list[Tensor]:
    """Return the symbolic inputs from which a symbolic tensor is computed.

    Args:
      tensor: The tensor.
      layer: Ignored: the tensor has a reference to its layer.
      node_index: Ignored: the tensor has a reference to its node.

    Returns:
      The `Input`s in the order of a depth-first search.

    Example:
      >>> x = tf.keras.Input([3])
      >>> tf.keras.utils.get_source_inputs(tf.keras.layers.Dense(2)(x))[0] is x
      True
    """
    del layer, node_index
    inputs: dict[int, KerasTensor] = {}
    seen: set[int] = set()
    stack = [cast(KerasTensor, tensor)]
    while stack:
        current = stack.pop()
        if id(current) in seen:
            continue
        seen.add(id(current))
        if current.node.is_input:
            inputs[id(current)] = current
        stack.extend(reversed(current.node.keras_inputs))
    return list(inputs.values())
