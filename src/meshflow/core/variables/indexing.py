"""Indexing of tensors and variables: Python indices and slices, which may contain tensors."""

from __future__ import annotations

import builtins
import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.export import is_symbolic_dim

from meshflow.core.dispatch.dispatch import apply
from meshflow.core.dispatch.operands import NumpyRules
from meshflow.core.dispatch.operation import Op
from meshflow.core.runtime import errors
from meshflow.core.runtime.bounds_checks import check_slice_index
from meshflow.core.runtime.context import suspend_autocast
from meshflow.core.runtime.tracebacks import hide_frames_of_errors
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.symbolic_sizes import (
    get_sizes,
    make_sizes_tensor,
    pad_for_gather,
    slice_sizes,
)
from meshflow.core.values.tensor import Tensor, TensorLike, read_tensor
from meshflow.core.values.unknown_sizes import (
    can_have_unknown_sizes,
    compute_on_host,
    host_function,
    read_sizes,
)
from meshflow.core.variables.variable import Variable, get_value_shape
from meshflow.environment.types import Array


class _DynamicIndex:
    """Placeholder of a dynamic index in an index template."""

    def __repr__(self) -> str:
        return "index"


_DYNAMIC = _DynamicIndex()


def _index_array(operands: Sequence[Array], template: tuple[Any, ...]) -> Array:
    array, *dynamic = operands
    # NumPy cannot index a constant by a traced value.
    array = jax.numpy.asarray(array) if dynamic else array
    if 0 in array.shape:
        axes = (item for item in template if item is not None)
        for axis in [a for a, item in enumerate(axes) if item is _DYNAMIC and array.shape[a] == 0]:
            array = pad_for_gather(array, axis)
    return array[_fill_template(template, dynamic)]


def _assign_index(operands: Sequence[Array], template: tuple[Any, ...]) -> jax.Array:
    array, value, *dynamic = operands
    return jax.numpy.asarray(array).at[_fill_template(template, dynamic)].set(value)


def _fill_template(template: tuple[Any, ...], dynamic: list[Any]) -> tuple[Any, ...]:
    remaining = iter(dynamic)
    return tuple(
        next(remaining)
        if item is _DYNAMIC
        else slice(*item[1:])
        if isinstance(item, tuple)
        else item
        for item in template
    )


_getitem = Op("strided_slice", _index_array, strings="moves")
_setitem = Op("strided_slice_assign", _assign_index, strings="moves")


@hide_frames_of_errors
def parse_index(shape: tuple[int, ...], key: Any) -> tuple[tuple[Any, ...], list[Tensor]]:
    """Split an index into a hashable template and the tensors with unknown values.

    Raises:
      InvalidArgumentError: If an integer is out of range or there are too many indices.
      TypeError: If an index is not an integer, slice, Ellipsis, None or integer tensor.
    """
    is_list = isinstance(key, list) and not NumpyRules.indexing
    items = tuple(key) if isinstance(key, tuple) or is_list else (key,)
    if builtins.sum(1 for i in items if i is Ellipsis) > 1:
        raise errors.InvalidValueError("Multiple ellipses in slice spec not allowed")
    template: list[Any] = []
    dynamic: list[Tensor] = []
    used = builtins.sum(1 for i in items if i is not None and i is not Ellipsis)
    if used > len(shape):
        raise errors.InvalidValueError(
            f"Index out of range using input dim {len(shape)}; input has only {len(shape)} dims"
        )
    dim = 0
    for item in items:
        if item is Ellipsis:
            dim += len(shape) - used
            template.append(Ellipsis)
        elif item is None:
            template.append(None)
        elif isinstance(item, slice):
            bounds = [_parse_bound(b) for b in (item.start, item.stop, item.step)]
            if bounds[2] == 0:
                raise errors.InvalidValueError(f"strides[{dim}] must be non-zero")
            template.append(("slice", *bounds))
            dim += 1
        else:
            entry = _parse_integer(item)
            if isinstance(entry, int):
                template.append(_check_in_range(entry, shape[dim], dim))
            else:
                template.append(_DYNAMIC)
                if not entry.ndim:
                    entry = check_slice_index(entry, shape[dim], dim)
                dynamic.append(entry)
            dim += 1
    return tuple(template), dynamic


def _parse_bound(value: Any) -> Any:
    """Return a bound as None, an integer or a symbolic size."""
    if value is None or type(value) is int or is_symbolic_dim(value):
        return value
    value = read_tensor(value)
    if isinstance(value, Tensor) and isinstance(value.array, jax.core.Tracer):
        sizes = get_sizes(value)
        if sizes is not None and not sizes.ndim:
            return sizes.item()
        return read_sizes(
            value,
            "a bound of a slice, which determines the shape of the result (tf.slice accepts a computed begin with a "
            "known size),",
        )
    if isinstance(value, (float, str)):
        raise errors.InvalidValueError(f"Slice bounds must be integers or None, got {value!r}.")
    return int(value)


def _parse_integer(item: Any) -> int | Tensor:
    if isinstance(item, bool):
        raise TypeError(
            f"Only integers, slices, ellipsis, tf.newaxis and scalar integer tensors are valid indices, got {item!r}."
        )
    if isinstance(item, (int, np.integer)):
        return int(item)
    if isinstance(item, np.ndarray) and not item.ndim and item.dtype.kind in "iu":
        return int(item)
    item = read_tensor(item)
    if isinstance(item, Tensor) and item.dtype.is_integer:
        if item.ndim == 0:
            return item if isinstance(item.array, jax.core.Tracer) else int(item)
        if NumpyRules.indexing:
            return item
    if NumpyRules.indexing:
        raise IndexError(
            "only integers, slices (`:`), ellipsis (`...`), tnp.newaxis (`None`) and integer or boolean arrays "
            f"are valid indices, got {item!r}"
        )
    raise TypeError(
        "Only integers, slices (`:`), ellipsis (`...`), tf.newaxis (`None`) and scalar tf.int32/tf.int64 "
        f"tensors are valid indices, got {item!r}. Use tf.gather for a list of positions and "
        "tf.boolean_mask for a mask."
    )


def _check_in_range(index: int, size: int, dim: int) -> int:
    if not -size <= index < size:
        raise errors.InvalidValueError(f"slice index {index} of dimension {dim} out of bounds.")
    return index


def getitem(tensor: Tensor, key: Any) -> Tensor:
    """Return `tensor[key]`; a Boolean key selects the elements at which it is True."""
    mask = _to_mask(key)
    if mask is not None:
        return select_by_mask(tensor, mask)
    if NumpyRules.indexing:
        key = _convert_numpy_index(tensor.array.shape, key)
    sizes = slice_sizes(tensor, key)
    if sizes is not None:
        return sizes
    if can_have_unknown_sizes():
        tensor, key = _take_computed_slices(tensor, key)
    template, dynamic = parse_index(tensor.array.shape, key)
    return apply(_getitem, (tensor, *dynamic), template)


def _take_computed_slices(tensor: Tensor, key: Any) -> tuple[Tensor, Any]:
    """Apply the slices with a computed bound; return the result, and the index with full slices instead."""
    items = list(key) if isinstance(key, tuple) else [key]
    used = builtins.sum(1 for i in items if i is not None and i is not Ellipsis)
    dim = 0
    for position, item in enumerate(items):
        if isinstance(item, slice) and any(map(_is_computed, (item.start, item.stop, item.step))):
            bounds = [item.start, item.stop, item.step]
            given = [i for i, b in enumerate(bounds) if b is not None]
            indices = compute_on_host(
                functools.partial(_list_indices, tuple(given)),
                [make_sizes_tensor(tensor.array.shape[dim], np.int64), *(bounds[i] for i in given)],
                [((None,), np.int64)],
                "bounds of a slice",
            )
            tensor = take_slices(tensor, indices[0], dim)
            items[position] = slice(None)
        dim += len(tensor.array.shape) - used if item is Ellipsis else item is not None
    return tensor, tuple(items) if isinstance(key, tuple) else items[0]


def _is_computed(bound: Any) -> bool:
    bound = read_tensor(bound)
    is_traced = isinstance(bound, Tensor) and isinstance(bound.array, jax.core.Tracer)
    return is_traced and get_sizes(bound) is None and bound.find_known_value() is None


@host_function
def _list_indices(positions: Sequence[int], size: Any, *given: Any) -> list[np.ndarray]:
    """Return the indices that a slice selects from a dimension."""
    bounds: list[Any] = [None, None, None]
    for position, bound in zip(positions, given, strict=True):
        bounds[position] = int(bound)
    return [np.arange(*slice(*bounds).indices(int(size)))]


_take = Op("gather", lambda o, s: jnp.take(o[0], o[1], axis=s[0], mode="clip"), strings="moves")


def take_slices(tensor: Tensor, indices: Tensor, axis: int) -> Tensor:
    """Return the slices at some indices, which are in range, of a dimension."""
    result: Tensor = apply(_take, (tensor, indices), (axis,))
    return result


def select_by_mask(tensor: Tensor, mask: Tensor, axis: int = 0) -> Tensor:
    """Return the elements at which a mask is True.

    Args:
      tensor: The tensor.
      mask: Booleans, in the shape of the dimensions from `axis` on.
      axis: The first dimension that the mask covers.

    Returns:
      A tensor with one dimension instead of the masked ones.

    Raises:
      InvalidValueError: If the shapes differ.
      ValueNeededError: If the mask is traced, and the program is compiled.
    """
    sizes = mask.array.shape
    shape = tensor.array.shape[axis : axis + mask.ndim]
    if sizes != shape:
        raise errors.InvalidValueError(
            f"Shapes {shape} and {sizes} are incompatible: a mask must have the dimensions of the tensor, "
            f"from axis {axis} on."
        )
    template = (("slice", None, None, None),) * axis + (_DYNAMIC,) * mask.ndim
    return apply(_getitem, (tensor, *_find_true(mask)), template)


def _find_true(mask: Tensor) -> list[Tensor]:
    """Return the indices of the true elements of a mask, by dimension."""
    use = "a mask (the result's shape depends on it; use tf.where)"
    return compute_on_host(_find_nonzero, [mask], [(("count",), np.int64)] * mask.ndim, use)


@host_function
def _find_nonzero(mask: np.ndarray) -> tuple[np.ndarray, ...]:
    return np.nonzero(mask)


def _to_mask(key: Any) -> Tensor | None:
    if isinstance(key, np.ndarray):
        return Tensor(key) if key.dtype == bool and key.ndim else None
    key = read_tensor(key) if isinstance(key, Variable) else key
    return key if isinstance(key, Tensor) and key.dtype.is_bool and key.ndim else None


def _convert_numpy_index(shape: tuple[int, ...], key: Any) -> Any:
    """Replace the sequences and masks of a NumPy index by arrays of checked indices."""
    items = key if isinstance(key, tuple) else (key,)
    converted: list[Any] = []
    used = builtins.sum(_count_dimensions(i) for i in items)
    dim = 0
    for item in items:
        if isinstance(item, (list, tuple)):
            # An empty list contains no indices, but NumPy would convert it to floats.
            item = np.array(item) if item else np.zeros(0, np.int64)
        mask = _to_mask(item)
        if mask is not None:
            if mask.array.shape != shape[dim : dim + mask.ndim]:
                raise errors.InvalidValueError(
                    f"boolean index of shape {mask.shape} did not match dimensions {shape[dim : dim + mask.ndim]} "
                    f"of the indexed tensor, from dimension {dim} on."
                )
            converted.extend(_find_true(mask))
        elif isinstance(item, np.ndarray) and item.ndim and item.dtype.kind in "iu":
            converted.append(convert_to_tensor(item))
        else:
            converted.append(item)
        if isinstance(item, (np.ndarray, Tensor)) and mask is None and dim < len(shape):
            check_indices(item, shape[dim], dim)
        dim += len(shape) - used if item is Ellipsis else _count_dimensions(item)
    return tuple(converted) if isinstance(key, tuple) or len(converted) > 1 else converted[0]


def _count_dimensions(item: Any) -> int:
    """Return the number of dimensions that one part of an index covers."""
    if item is None or item is Ellipsis:
        return 0
    if isinstance(item, (list, tuple)):
        item = np.array(item)
    dtype = getattr(item, "dtype", None)
    is_mask = dtype is not None and (
        dtype == np.bool_ if isinstance(item, np.ndarray) else dtype.is_bool
    )
    return item.ndim if is_mask else 1


def check_indices(indices: Tensor | np.ndarray, size: int, dim: int) -> None:
    """Check that known indices are in the range of a dimension.

    Raises:
      InvalidArgumentError: If an index is out of range.
    """
    value = indices.array if isinstance(indices, Tensor) else indices
    if isinstance(value, jax.core.Tracer) or value.dtype.kind not in "iu":
        return
    array = np.asarray(value)
    invalid = array[(array < -size) | (array >= size)]
    if invalid.size:
        raise errors.InvalidValueError(
            f"index {invalid[0]} is out of bounds for dimension {dim} with size {size}."
        )


def variable_getitem(variable: Variable, key: Any) -> Tensor:
    """Return `variable[key]`, a tensor with an `assign` method that writes that part."""
    result = getitem(variable.value(), key)
    if result.array is variable._value:
        result = Tensor(result.array)

    def assign(value: TensorLike, name: str | None = None, **_: Any) -> Variable:
        template, dynamic = parse_index(get_value_shape(variable), key)
        tensor = variable._check_value(value, "assign a slice")
        with suspend_autocast():
            variable._set(apply(_setitem, (variable.value(), tensor, *dynamic), template))
        return variable

    result._assign_slice = assign
    return result


Tensor.__getitem__ = getitem  # type: ignore[method-assign, assignment]
Variable.__getitem__ = variable_getitem  # type: ignore[method-assign, assignment]
