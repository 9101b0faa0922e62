"""Lists of tensors, which loops read and write, as arrays with an additional first axis."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from meshflow.core.runtime.errors import UnimplementedError
from meshflow.environment.types import Array
from meshflow.saved_model.graph.attributes import (
    Node,
    as_sizes,
    is_known,
    is_words,
    numbers,
    on_host,
)

__all__ = ["LISTS", "TensorList"]


@jax.tree_util.register_pytree_node_class
class TensorList:
    """List of tensors with the same shape.

    Args:
      items: The stacked tensors, or None if their shape is not known yet.
      count: Number of tensors, which may be a symbolic dimension.
      dtype: Dtype of the tensors.
    """

    def __init__(self, items: Array | None, count: Any, dtype: np.dtype) -> None:
        self.items: Any = items
        self.count, self.dtype = count, dtype

    def tree_flatten(self) -> tuple[tuple[Array | None], tuple[Any, np.dtype]]:
        """Return the arrays that JAX's loops carry, and the static rest."""
        return (self.items,), (self.count, self.dtype)

    @classmethod
    def tree_unflatten(cls, static: Any, arrays: Any) -> TensorList:
        """Create a list from the parts that `tree_flatten` returns."""
        return cls(arrays[0], *static)

    def filled(self, shape: Sequence[int]) -> TensorList:
        """Return a list of empty strings or zeros of this shape if the shape is not known yet."""
        if self.items is not None:
            return self
        sizes = (self.count, *shape)
        has_strings = self.dtype == np.dtype(object)
        items = np.full(sizes, b"", object) if has_strings else jnp.zeros(sizes, self.dtype)
        return TensorList(items, self.count, self.dtype)


def _element_shape(shape: Array) -> tuple[int, ...] | None:
    if not is_known(shape) or np.ndim(shape) == 0:
        return None
    sizes = numbers(shape)
    return None if any(n < 0 for n in sizes) else tuple(sizes)


def _reserved(node: Node, shape: Array, count: Array) -> TensorList:
    (size,) = numbers(count)
    empty = TensorList(None, size, node.dtype("element_dtype"))
    sizes = _element_shape(shape)
    return empty if sizes is None else empty.filled(sizes)


def _empty(node: Node, shape: Array, max_count: Array) -> TensorList:
    return TensorList(None, 0, node.dtype("element_dtype"))


def _from_tensor(node: Node, x: Array, shape: Array) -> TensorList:
    return TensorList(x if is_words(x) else jnp.asarray(x), np.shape(x)[0], x.dtype)


def _stacked(node: Node, items: TensorList, shape: Array) -> Array:
    sizes = _element_shape(shape)
    if items.items is None and sizes is None:
        raise UnimplementedError("the element shape of an empty list of tensors is unknown")
    return items.filled(sizes or ()).items


def _item(node: Node, items: TensorList, index: Array, shape: Array) -> Array:
    items = items.filled(_element_shape(shape) or ())
    if is_words(items.items):
        return np.asarray(items.items[int(on_host(index))], object)
    return lax.dynamic_index_in_dim(items.items, index, keepdims=False)


def _with_item(node: Node, items: TensorList, index: Array, value: Array) -> TensorList:
    items = items.filled(np.shape(value))
    if is_words(items.items):
        strings = items.items.copy()
        strings[int(on_host(index))] = value
        return TensorList(strings, items.count, items.dtype)
    updated = lax.dynamic_update_index_in_dim(items.items, jnp.asarray(value), index, 0)
    return TensorList(updated, items.count, items.dtype)


def _pushed(node: Node, items: TensorList, value: Array) -> TensorList:
    last = jnp.asarray(value)[None]
    updated = last if items.items is None else jnp.concatenate([items.items, last])
    return TensorList(updated, items.count + 1, items.dtype)


LISTS: dict[str, Callable[..., Any]] = {
    "TensorListReserve": _reserved,
    "EmptyTensorList": _empty,
    "TensorListFromTensor": _from_tensor,
    "TensorListStack": _stacked,
    "TensorListGetItem": _item,
    "TensorListSetItem": _with_item,
    "TensorListPushBack": _pushed,
    "TensorListLength": lambda node, items: as_sizes(items.count, np.int32),
}
