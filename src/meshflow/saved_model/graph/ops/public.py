"""Ops of graphs that call public functions of Meshflow."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np

from meshflow.core.values.tensor import Tensor
from meshflow.environment.types import Array
from meshflow.saved_model.graph.attributes import Node, is_known, traced

__all__ = ["arrays_of", "by", "tensor_of"]


def tensor_of(value: Array) -> Tensor:
    """Convert an array to a tensor. A NumPy array keeps its value known while a program is traced."""
    value = traced(value)
    return Tensor(np.asarray(value) if is_known(value) else jnp.asarray(value))


def arrays_of(results: Tensor | list[Tensor] | tuple[Tensor, ...]) -> Any:
    """Return the array of a tensor, or a list with the arrays of several tensors."""
    if isinstance(results, (list, tuple)):
        return [r._value for r in results]
    return results._value


def by(function: Callable[..., Any], **attributes: str) -> Callable[..., Any]:
    """Return an op that calls a public function.

    Args:
      function: Function that takes the op's inputs as tensors.
      **attributes: Names of the op's attributes, by the function's arguments that they are passed
        as.
    """

    def run(node: Node, *values: Array) -> Any:
        options = {name: _plain(node, key) for name, key in attributes.items()}
        return arrays_of(function(*map(tensor_of, values), **options))

    return run


def _plain(node: Node, key: str) -> Any:
    value = node[key]
    return value.decode() if isinstance(value, bytes) else value
