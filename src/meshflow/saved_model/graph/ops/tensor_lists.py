"""Lists of tensors, which loops read and write, as arrays with an additional first axis."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from meshflow.core.runtime.errors import InvalidArgumentError, UnimplementedError
from meshflow.environment.types import Array
from meshflow.saved_model.graph.format.node_attributes import (
    GraphNode,
    as_host_array,
    as_sizes_array,
    as_static_ints,
    is_static,
    is_string_array,
)


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


def _check_size(size: Any) -> None:
    if isinstance(size, int) and size < 0:
        raise InvalidArgumentError(f"a list of tensors cannot have {size} tensors.")


def _check_positions(positions: Array, count: Any = None) -> None:
    """Check that known positions are not negative, and less than the number of tensors."""
    if isinstance(positions, jax.core.Tracer):
        return
    host = np.asarray(positions)
    limit = count if isinstance(count, int) else host.max(initial=0) + 1
    if host.size and not 0 <= host.min() <= host.max() < limit:
        size = "" if count is None else f" of {count} tensors"
        raise InvalidArgumentError(f"no position {host.tolist()} in a list{size}.")


def _reserve(node: GraphNode, shape: Array, count: Array) -> TensorList:
    (size,) = as_static_ints(count)
    _check_size(size)
    empty = TensorList(None, size, node.dtype("element_dtype"))
    sizes = _get_element_shape(shape)
    return empty if sizes is None else empty.with_element_shape(sizes)


def _make_empty(node: GraphNode, shape: Array, max_count: Array) -> TensorList:
    return TensorList(None, 0, node.dtype("element_dtype"))


def _unstack(node: GraphNode, x: Array, shape: Array) -> TensorList:
    return TensorList(x if is_string_array(x) else jnp.asarray(x), np.shape(x)[0], x.dtype)


def _stack(node: GraphNode, items: TensorList, shape: Array) -> Array:
    return _with_elements(items, shape).items


def _with_elements(items: TensorList, shape: Array) -> TensorList:
    sizes = _get_element_shape(shape)
    if items.items is None and sizes is None:
        raise UnimplementedError("the element shape of an empty list of tensors is unknown")
    return items.with_element_shape(sizes or ())


def _get_item(node: GraphNode, items: TensorList, index: Array, shape: Array) -> Array:
    items = items.with_element_shape(_get_element_shape(shape) or ())
    _check_positions(index, items.count)
    if is_string_array(items.items):
        return np.asarray(items.items[int(as_host_array(index))], object)
    return lax.dynamic_index_in_dim(items.items, index, keepdims=False)


def _set_item(node: GraphNode, items: TensorList, index: Array, value: Array) -> TensorList:
    items = items.with_element_shape(np.shape(value))
    if node["resize_if_index_out_of_bounds"]:
        position = int(as_host_array(index))
        _check_positions(index)
        items = _resize_list(items, max(items.count, position + 1))
    _check_positions(index, items.count)
    if is_string_array(items.items):
        strings = items.items.copy()
        # NumPy would store an array without axes, not the object in it.
        strings[int(as_host_array(index))] = np.asarray(value, object)[()]
        return TensorList(strings, items.count, items.dtype)
    updated = lax.dynamic_update_index_in_dim(items.items, jnp.asarray(value), index, 0)
    return TensorList(updated, items.count, items.dtype)


def _resize(node: GraphNode, items: TensorList, size: Array) -> TensorList:
    (count,) = as_static_ints(size)
    _check_size(count)
    return _resize_list(items, count)


def _resize_list(items: TensorList, count: int) -> TensorList:
    """Return a list of another length, with empty strings or zeros as new tensors."""
    if items.items is None or items.count == count:
        return TensorList(items.items, count, items.dtype)
    kept = items.items[:count]
    fill = TensorList(None, count - len(kept), items.dtype).with_element_shape(kept.shape[1:])
    join = np.concatenate if is_string_array(kept) else jnp.concatenate
    return TensorList(join([kept, fill.items]), count, items.dtype)


def _pop_back(node: GraphNode, items: TensorList, shape: Array) -> list[Any]:
    items = _with_elements(items, shape)
    _check_positions(np.zeros((), np.int32), items.count)
    return [_resize_list(items, items.count - 1), items.items[items.count - 1]]


def _concatenate(node: GraphNode, items: TensorList, shape: Array, sizes: Array) -> list[Array]:
    """Return the tensors of a list joined along their first axes, and the sizes of these."""
    if items.items is None and items.count == 0 and np.ndim(shape):
        items = items.with_element_shape([max(n, 0) for n in as_static_ints(shape)])
    stacked = _with_elements(items, shape).items
    lengths = np.full(items.count, stacked.shape[1], np.int64)
    return [stacked.reshape(items.count * stacked.shape[1], *stacked.shape[2:]), lengths]


def _gather(node: GraphNode, items: TensorList, indices: Array, shape: Array) -> Array:
    items = _with_elements(items, shape)
    _check_positions(indices, items.count)
    return items.items[indices]


def _scatter(node: GraphNode, x: Array, indices: Array, shape: Array, count: Array) -> TensorList:
    places, (size,) = as_host_array(indices), as_static_ints(count)
    _check_size(size + 1)
    if size >= 0:
        _check_positions(places, size)
    return _scatter_into(node, TensorList(None, max(size, 0), x.dtype), x, places)


def _scatter_into(node: GraphNode, items: TensorList, x: Array, indices: Array) -> TensorList:
    """Replace tensors of a list, which grows if it is too short."""
    places = as_host_array(indices)
    _check_positions(places)
    if np.shape(x)[:1] != places.shape:
        raise InvalidArgumentError(f"{places.size} positions of {np.shape(x)[0]} tensors.")
    items = items.with_element_shape(np.shape(x)[1:])
    if isinstance(items.count, int):
        items = _resize_list(items, max(items.count, int(places.max(initial=-1)) + 1))
    if is_string_array(items.items):
        texts = items.items.copy()
        texts[places] = x
        return TensorList(texts, items.count, items.dtype)
    return TensorList(items.items.at[places].set(x), items.count, items.dtype)


def _push_back(node: GraphNode, items: TensorList, value: Array) -> TensorList:
    join = np.concatenate if is_string_array(value) else jnp.concatenate
    rows = items.with_element_shape(np.shape(value)).items
    updated = join([rows, (np if is_string_array(value) else jnp).asarray(value)[None]])
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
