"""Lists of tensors, which loops read and write: an array with one more dimension."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from meshflow.core.runtime.errors import UnimplementedError
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
    """Tensors of one shape.

    Args:
      items: them stacked, or None while nothing tells their shape.
      count: how many there are; may be a symbol.
      dtype: theirs.
    """

    def __init__(self, items: Any, count: Any, dtype: Any) -> None:
        self.items, self.count, self.dtype = items, count, dtype

    def tree_flatten(self) -> Any:
        """What JAX's loops carry."""
        return (self.items,), (self.count, self.dtype)

    @classmethod
    def tree_unflatten(cls, about: Any, parts: Any) -> TensorList:
        """The list again."""
        return cls(parts[0], *about)

    def filled(self, shape: Any) -> TensorList:
        """A list whose elements have a shape now."""
        if self.items is not None:
            return self
        sizes = (self.count, *shape)
        words = self.dtype == np.dtype(object)
        items = np.full(sizes, b"", object) if words else jnp.zeros(sizes, self.dtype)
        return TensorList(items, self.count, self.dtype)


def _element_shape(shape: Any) -> tuple[int, ...] | None:
    if not is_known(shape) or np.ndim(shape) == 0:
        return None
    sizes = numbers(shape)
    return None if any(n < 0 for n in sizes) else tuple(sizes)


def _reserved(node: Node, shape: Any, count: Any) -> TensorList:
    (size,) = numbers(count)
    made = TensorList(None, size, node.dtype("element_dtype"))
    sizes = _element_shape(shape)
    return made if sizes is None else made.filled(sizes)


def _empty(node: Node, shape: Any, most: Any) -> TensorList:
    return TensorList(None, 0, node.dtype("element_dtype"))


def _from_tensor(node: Node, x: Any, shape: Any) -> TensorList:
    return TensorList(x if is_words(x) else jnp.asarray(x), np.shape(x)[0], x.dtype)


def _stacked(node: Node, items: TensorList, shape: Any) -> Any:
    sizes = _element_shape(shape)
    if items.items is None and sizes is None:
        raise UnimplementedError("a list of tensors has no element whose shape is known")
    return items.filled(sizes or ()).items


def _item(node: Node, items: TensorList, index: Any, shape: Any) -> Any:
    items = items.filled(_element_shape(shape) or ())
    if is_words(items.items):
        return np.asarray(items.items[int(on_host(index))], object)
    return lax.dynamic_index_in_dim(items.items, index, keepdims=False)


def _with_item(node: Node, items: TensorList, index: Any, value: Any) -> TensorList:
    items = items.filled(np.shape(value))
    if is_words(items.items):
        words = items.items.copy()
        words[int(on_host(index))] = value
        return TensorList(words, items.count, items.dtype)
    stored = lax.dynamic_update_index_in_dim(items.items, jnp.asarray(value), index, 0)
    return TensorList(stored, items.count, items.dtype)


def _pushed(node: Node, items: TensorList, value: Any) -> TensorList:
    last = jnp.asarray(value)[None]
    stored = last if items.items is None else jnp.concatenate([items.items, last])
    return TensorList(stored, items.count + 1, items.dtype)


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
