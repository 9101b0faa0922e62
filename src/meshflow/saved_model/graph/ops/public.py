"""Ops of graphs that a public function does here, as functions of arrays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np

from meshflow.core.values.tensor import Tensor
from meshflow.saved_model.graph.attributes import Node, is_known, traced

__all__ = ["arrays_of", "by", "tensor_of"]


def tensor_of(value: Any) -> Tensor:
    """An array as a tensor; what is known stays known.

    Args:
      value: the array.
    """
    value = traced(value)
    return Tensor(np.asarray(value) if is_known(value) else jnp.asarray(value))


def arrays_of(results: Any) -> Any:
    """The arrays of tensors.

    Args:
      results: a tensor, or a sequence of them.
    """
    if isinstance(results, (list, tuple)):
        return [r._value for r in results]
    return results._value


def by(function: Callable[..., Any], **attributes: str) -> Callable[..., Any]:
    """An op that a public function does.

    Args:
      function: takes the op's inputs as tensors.
      **attributes: the op's attribute, by the name of the argument that it is.
    """

    def run(node: Node, *values: Any) -> Any:
        more = {name: _plain(node, key) for name, key in attributes.items()}
        return arrays_of(function(*map(tensor_of, values), **more))

    return run


def _plain(node: Node, key: str) -> Any:
    value = node[key]
    return value.decode() if isinstance(value, bytes) else value
