"""Ops of graphs that call public functions of Meshflow."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np

from meshflow.core.values.tensor import Tensor
from meshflow.environment.types import Array
from meshflow.saved_model.graph.format.node_attributes import (
    GraphNode,
    is_static,
    materialize_sizes,
)


def to_tensor(value: Array) -> Tensor:
    """Convert an array to a tensor. A NumPy array keeps its value known while a program is traced."""
    value = materialize_sizes(value)
    return Tensor(np.asarray(value) if is_static(value) else jnp.asarray(value))


def to_arrays(results: Tensor | list[Tensor] | tuple[Tensor, ...]) -> Any:
    """Return the array of a tensor, or a list with the arrays of several tensors."""
    if isinstance(results, (list, tuple)):
        return [r.array for r in results]
    return results.array


def make_op(function: Callable[..., Any], **attributes: str) -> Callable[..., Any]:
    """Return an op that calls a public function.

    Args:
      function: Function that takes the op's inputs as tensors.
      **attributes: Names of the op's attributes, by the function's arguments that they are passed
        as.
    """

    def run(node: GraphNode, *values: Array) -> Any:
        options = {name: _get_attribute(node, key) for name, key in attributes.items()}
        return to_arrays(function(*map(to_tensor, values), **options))

    return run


def _get_attribute(node: GraphNode, key: str) -> Any:
    value = node[key]
    return value.decode() if isinstance(value, bytes) else value
