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
from meshflow.saved_model.graph.format.node_attributes import (
    Node,
    as_host_array,
    as_sizes_array,
    as_static_ints,
    is_static,
    is_string_array,
)

__all__ = ["TENSOR_LIST_OPS", "TensorList"]


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

    def with_element_shape(self, shape: Sequence[int]) -> TensorList:
        """Return a list of empty strings or zeros of this shape if the shape is not known yet."""
        if self.items is not None:
            return self
        sizes = (self.count, *shape)
        has_strings = self.dtype == np.dtype(object)
        items = np.full(sizes, b"", object) if has_strings else jnp.zeros(sizes, self.dtype)
        return TensorList(items, self.count, self.dtype)


def _get_element_shape(shape: Array) -> tuple[int, ...] | None:
    if not is_static(shape) or np.ndim(shape) == 0:
        return None
    sizes = as_static_ints(shape)
    return None if any(n < 0 for n in sizes) else tuple(sizes)


def _reserve(node: Node, shape: Array, count: Array) -> TensorList:
    (size,) = as_static_ints(count)
    empty = TensorList(None, size, node.dtype("element_dtype"))
    sizes = _get_element_shape(shape)
    return empty if sizes is None else empty.with_element_shape(sizes)


def _make_empty(node: Node, shape: Array, max_count: Array) -> TensorList:
    return TensorList(None, 0, node.dtype("element_dtype"))


def _unstack(node: Node, x: Array, shape: Array) -> TensorList:
    return TensorList(x if is_string_array(x) else jnp.asarray(x), np.shape(x)[0], x.dtype)


def _stack(node: Node, items: TensorList, shape: Array) -> Array:
    sizes = _get_element_shape(shape)
    if items.items is None and sizes is None:
        raise UnimplementedError("the element shape of an empty list of tensors is unknown")
    return items.with_element_shape(sizes or ()).items


def _get_item(node: Node, items: TensorList, index: Array, shape: Array) -> Array:
    items = items.with_element_shape(_get_element_shape(shape) or ())
    if is_string_array(items.items):
        return np.asarray(items.items[int(as_host_array(index))], object)
    return lax.dynamic_index_in_dim(items.items, index, keepdims=False)


def _set_item(node: Node, items: TensorList, index: Array, value: Array) -> TensorList:
    items = items.with_element_shape(np.shape(value))
    if node["resize_if_index_out_of_bounds"]:
        position = int(as_host_array(index))
        items = _resize_list(items, max(items.count, position + 1))
    if is_string_array(items.items):
        strings = items.items.copy()
        # NumPy would store an array without axes, not the object in it.
        strings[int(as_host_array(index))] = np.asarray(value, object)[()]
        return TensorList(strings, items.count, items.dtype)
    updated = lax.dynamic_update_index_in_dim(items.items, jnp.asarray(value), index, 0)
    return TensorList(updated, items.count, items.dtype)


def _resize(node: Node, items: TensorList, size: Array) -> TensorList:
    (count,) = as_static_ints(size)
    return _resize_list(items, count)


def _resize_list(items: TensorList, count: int) -> TensorList:
    """Return a list of another length, with empty strings or zeros as new tensors."""
    if items.items is None or items.count == count:
        return TensorList(items.items, count, items.dtype)
    kept = items.items[:count]
    fill = TensorList(None, count - len(kept), items.dtype).with_element_shape(kept.shape[1:])
    join = np.concatenate if is_string_array(kept) else jnp.concatenate
    return TensorList(join([kept, fill.items]), count, items.dtype)


def _pop_back(node: Node, items: TensorList, shape: Array) -> list[Any]:
    last = items.items[items.count - 1]
    return [_resize_list(items, items.count - 1), last]


def _concatenate(node: Node, items: TensorList, shape: Array, sizes: Array) -> list[Array]:
    """Return the tensors of a list joined along their first axes, and the sizes of these."""
    stacked = _stack(node, items, shape)
    lengths = np.full(items.count, stacked.shape[1], np.int64)
    return [stacked.reshape(-1, *stacked.shape[2:]), lengths]


def _gather(node: Node, items: TensorList, indices: Array, shape: Array) -> Array:
    return items.with_element_shape(_get_element_shape(shape) or ()).items[indices]


def _scatter(node: Node, x: Array, indices: Array, shape: Array, count: Array) -> TensorList:
    places = as_host_array(indices)
    size = max(*as_static_ints(count), int(places.max(initial=-1)) + 1)
    empty = TensorList(None, size, x.dtype).with_element_shape(np.shape(x)[1:])
    return _scatter_into(node, empty, x, places)


def _scatter_into(node: Node, items: TensorList, x: Array, indices: Array) -> TensorList:
    items = items.with_element_shape(np.shape(x)[1:])
    if is_string_array(items.items):
        texts = items.items.copy()
        texts[as_host_array(indices)] = x
        return TensorList(texts, items.count, items.dtype)
    return TensorList(items.items.at[jnp.asarray(indices)].set(x), items.count, items.dtype)


def _push_back(node: Node, items: TensorList, value: Array) -> TensorList:
    last = jnp.asarray(value)[None]
    updated = last if items.items is None else jnp.concatenate([items.items, last])
    return TensorList(updated, items.count + 1, items.dtype)


TENSOR_LIST_OPS: dict[str, Callable[..., Any]] = {
    "TensorListReserve": _reserve,
    "EmptyTensorList": _make_empty,
    "TensorListFromTensor": _unstack,
    "TensorListStack": _stack,
    "TensorListGetItem": _get_item,
    "TensorListSetItem": _set_item,
    "TensorListPushBack": _push_back,
    "TensorListPopBack": _pop_back,
    "TensorListResize": _resize,
    "TensorListConcatV2": _concatenate,
    "TensorListGather": _gather,
    "TensorListScatterV2": _scatter,
    "TensorListScatterIntoExistingList": _scatter_into,
    "TensorListLength": lambda node, items: as_sizes_array(items.count, np.int32),
}
