"""Gather and scatter ops: read or write elements of a tensor by index, coordinates or mask.

Indices that are out of range raise TensorFlow's errors, in compiled functions on CPUs only; see
`tf.debugging.enable_bounds_check`. Elsewhere, gathers return NaN for floats and the nearest element for integers, and
scatters drop the updates.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from meshflow.core.dispatch.composite import IndexedSlices, make_gather_gradient
from meshflow.core.dispatch.dispatch import apply, op
from meshflow.core.dispatch.operands import cast_numpy, to_static_value
from meshflow.core.dispatch.operation import CAST, is_inexact
from meshflow.core.dispatch.symbolic_calls import (
    accept_symbolic,
    dispatch_composites,
    record_in_graph,
)
from meshflow.core.runtime.bounds_checks import (
    BoundsCheck,
    check_bounds,
    check_columns,
    check_indices,
)
from meshflow.core.runtime.context import context, suspend_autocast
from meshflow.core.runtime.errors import DtypeMismatchError, InvalidValueError
from meshflow.core.values import dtypes
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.symbolic_sizes import has_symbolic_size, pad_for_gather
from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.core.values.unknown_sizes import compute_on_host, host_function, is_unknown_size
from meshflow.core.variables import variable_rows
from meshflow.core.variables.indexing import select_by_mask
from meshflow.core.variables.variable import Variable
from meshflow.ops.array.joining import concat
from meshflow.ops.array.shaping import StaticInts, reshape
from meshflow.ops.array.sharded_gather import gather_from_shards, to_integer_tensor
from meshflow.ops.deferred_host_values import defer_host_values, find_recording
from meshflow.ops.signatures import TensorScatter

__all__ = [
    "boolean_mask",
    "dynamic_partition",
    "dynamic_stitch",
    "gather",
    "gather_nd",
    "scatter_nd",
    "tensor_scatter_nd_add",
    "tensor_scatter_nd_max",
    "tensor_scatter_nd_min",
    "tensor_scatter_nd_sub",
    "tensor_scatter_nd_update",
    "where",
]


@op(same=(), name="gather", strings="moves")
def _gather(params: TensorLike, indices: TensorLike, axis: int, batch_dims: int) -> Tensor:
    axis = axis % params.ndim
    params = pad_for_gather(params, axis)
    if not axis and any(map(is_unknown_size, indices.shape)):
        # `jnp.take` compares the number of indices with zero.
        return _gather_slices(params, indices[..., None])
    function = lambda p, i: jnp.take(
        p, i, axis=axis - batch_dims, mode="fill" if is_inexact(p) else "clip"
    )
    for _ in range(batch_dims):
        function = jax.vmap(function)
    return function(params, indices)


def _compute_gather_row_gradient(
    operands: Sequence[Tensor], static: tuple[int, int], gradient: Tensor | IndexedSlices
) -> IndexedSlices | None:
    table, indices = operands
    axis, batch_dims = static
    if axis % table.ndim or batch_dims:
        return None
    return make_gather_gradient(table, indices, convert_to_tensor(gradient))


_gather.op.row_gradient = _compute_gather_row_gradient  # type: ignore[attr-defined]


@dispatch_composites
@defer_host_values()
def gather(
    params: TensorLike,
    indices: TensorLike,
    validate_indices: bool | None = None,
    axis: StaticInts | None = None,
    batch_dims: int | None = 0,
    name: str | None = None,
) -> Tensor:
    """Gather slices along a dimension.

    On accelerators, an index out of range in a compiled function results in NaN (floats) or the nearest slice
    (integers), unless `tf.debugging.enable_bounds_check` was called.

    Args:
      params: The tensor to gather from.
      indices: Integers of any shape.
      validate_indices: Ignored.
      axis: The dimension; default `batch_dims`.
      batch_dims: Number of leading dimensions that both tensors share; None is 0.
      name: Ignored.

    Returns:
      Tensor of shape params.shape[:axis] + indices.shape[batch_dims:] + params.shape[axis + 1:].

    Raises:
      InvalidArgumentError: If an index is out of range.

    Example:
      >>> tf.gather([10, 20, 30], [2, 0]).numpy()
      array([30, 10], dtype=int32)
    """
    axis = None if axis is None else int(to_static_value(axis, "axis"))
    symbolic = hasattr(indices, "_keras_history")
    if getattr(params, "_is_sharded", False) and not axis and not batch_dims and not symbolic:
        return gather_from_shards(params.variables, indices)
    has_own_read = (
        isinstance(params, Variable) and type(params).sparse_read is not Variable.sparse_read
    )
    if has_own_read and not (axis or batch_dims or symbolic):
        return params.sparse_read(indices)
    if not symbolic:
        indices = to_integer_tensor(indices)
        dtype = params._find_autocast_dtype() if isinstance(params, Variable) else None
        if dtype is not None:
            # The rows are fewer than those of the table.
            with suspend_autocast():
                rows = gather(params, indices, axis=axis, batch_dims=batch_dims)
            return apply(CAST, (rows,), (dtype,))
    batch_dims = 0 if batch_dims is None else batch_dims
    if batch_dims < 0:
        batch_dims += len(indices.shape)
    if axis is None:
        axis = batch_dims
    if not hasattr(params, "_keras_history"):
        params = convert_to_tensor(params)
        if isinstance(params, Tensor) and isinstance(indices, Tensor):
            if not -params.ndim <= axis < params.ndim:
                least = axis + 1 if axis >= 0 else -axis
                raise InvalidValueError(
                    f"gather: Shape must be at least rank {least} but is rank {params.ndim}: axis {axis} is out of range "
                    "for params of this rank. [Op:GatherV2]"
                )
            if axis % params.ndim < batch_dims:
                # The batch dimensions must precede the dimension that is gathered from.
                raise InvalidValueError(
                    f"gather: batch_dims ({batch_dims}) must be at most axis ({axis})."
                )
            indices = check_indices(indices, params.array.shape[axis], deferred=True)
    return _gather(params, indices, axis, batch_dims)


def _gather_slices(params: jax.Array, indices: jax.Array) -> jax.Array:
    """Gather slices of `params` by coordinates, the rows of `indices`."""
    count, rank = indices.shape[-1], indices.ndim - 1
    slice_shape = params.shape[count:]
    if any(isinstance(size, int) and size == 0 for size in params.shape[:count]):
        value = np.nan if is_inexact(params) else 0
        return jnp.full((*indices.shape[:-1], *slice_shape), value, params.dtype)
    dimension_numbers = jax.lax.GatherDimensionNumbers(
        offset_dims=tuple(range(rank, rank + len(slice_shape))),
        collapsed_slice_dims=tuple(range(count)),
        start_index_map=tuple(range(count)),
    )
    mode = "fill" if is_inexact(params) else "clip"
    return jax.lax.gather(
        params, indices, dimension_numbers, (*(1,) * count, *slice_shape), mode=mode
    )


@op(same=(), name="gather_nd", strings="moves")
def _gather_nd(params: TensorLike, indices: TensorLike, batch_dims: int) -> Tensor:
    gather_fn = _gather_slices
    for _ in range(batch_dims):
        gather_fn = jax.vmap(gather_fn)
    return gather_fn(params, indices)


def _compute_gather_nd_row_gradient(
    operands: Sequence[Tensor], static: tuple[int], gradient: Tensor | IndexedSlices
) -> IndexedSlices | None:
    table, indices = operands
    if static[0] or indices.shape[-1] != 1:
        return None
    return make_gather_gradient(table, indices[..., 0], convert_to_tensor(gradient))


_gather_nd.op.row_gradient = _compute_gather_nd_row_gradient  # type: ignore[attr-defined]


@dispatch_composites
def gather_nd(
    params: TensorLike, indices: TensorLike, batch_dims: int = 0, name: str | None = None
) -> Tensor:
    """Gather elements or slices by coordinates.

    Args:
      params: The tensor to gather from.
      indices: Integers of shape [..., k]: coordinates in the first k dimensions.
      batch_dims: Number of leading dimensions that both tensors share.
      name: Ignored.

    Returns:
      Tensor of shape indices.shape[:-1] + params.shape[k:].

    Raises:
      InvalidArgumentError: If coordinates are out of range.

    Example:
      >>> x = [[1, 2], [3, 4]]
      >>> print(tf.gather_nd(x, [[0, 1], [1, 0]]).numpy(), tf.gather_nd(x, [[1]]).numpy())
      [2 3] [[3 4]]
    """
    params, indices = convert_to_tensor(params), convert_to_tensor(indices)
    if isinstance(indices, Tensor) and isinstance(params, Tensor):
        shape = params.array.shape[batch_dims:]
        indices = _check_coordinates(indices, shape, "gather_nd", is_gather=True)
    return _gather_nd(params, indices, batch_dims)


def _check_coordinates(
    indices: Tensor, shape: Sequence[int], op_name: str, is_gather: bool = False
) -> Tensor:
    """Return the coordinates after checking that they fit the rank and are in range."""
    if not indices.dtype.is_integer:
        raise DtypeMismatchError(
            f"{op_name}: {indices.dtype.name} of indices is not in the list of allowed values: int16, int32, int64. "
            f"[Op:{op_name}]"
        )
    depth = indices.array.shape[-1] if indices.ndim else 1
    if depth > len(shape):
        raise InvalidValueError(
            f"{op_name}: the last dimension of indices, {depth}, must be at most the rank, {len(shape)}."
        )
    checked: Tensor = check_columns(indices, shape, is_gather)
    return checked


@op(same=("updates",), name="scatter_nd", strings="moves")
def _scatter_nd(indices: TensorLike, updates: TensorLike, shape: Any) -> Tensor:
    _check_updates(indices, updates, shape, "scatter_nd")
    updater = jnp.zeros(shape, updates.dtype).at[tuple(jnp.moveaxis(indices, -1, 0))]
    return updater.max(updates) if updates.dtype == jnp.bool_ else updater.add(updates)


@dispatch_composites
def scatter_nd(
    indices: TensorLike, updates: TensorLike, shape: StaticInts, name: str | None = None
) -> Tensor:
    """Add updates at coordinates of a tensor of zeros; updates at equal coordinates are summed.

    Args:
      indices: Integers of shape [..., k].
      updates: Tensor of shape indices.shape[:-1] + shape[k:].
      shape: Shape of the result.
      name: Ignored.

    Raises:
      InvalidArgumentError: If coordinates are out of range.

    Example:
      >>> print(tf.scatter_nd([[1], [3], [1]], [5, 6, 7], [5]).numpy())
      [ 0 12  0  6  0]
    """
    if not hasattr(indices, "_keras_history"):
        indices, sizes = convert_to_tensor(indices), to_static_value(shape, "shape")
        indices = _check_coordinates(indices, sizes, "scatter_nd")
    return _scatter_nd(indices, updates, shape)


def _check_updates(
    indices: jax.Array, updates: jax.Array, shape: Sequence[int], op_name: str
) -> None:
    """Raise unless the updates have the shape that the indices require; a scalar fits all indices."""
    depth = indices.shape[-1] if indices.ndim else 1
    expected = (*indices.shape[:-1], *shape[depth:])
    has_symbols = has_symbolic_size((*expected, *updates.shape))
    if updates.ndim and tuple(updates.shape) != expected and not has_symbols:
        outer = len(indices.shape[:-1])
        is_outer = tuple(updates.shape[:outer]) != expected[:outer]
        detail = (
            f"Dimensions [0,{outer}) of indices[shape={list(indices.shape)}] must match dimensions [0,{outer}) of "
            f"updates[shape={list(updates.shape)}]"
            if is_outer
            else f"Dimensions [{depth},{len(shape)}) of input[shape={list(shape)}] must match dimensions "
            f"[{outer},{updates.ndim}) of updates[shape={list(updates.shape)}]"
        )
        raise InvalidValueError(
            f"{op_name}: {detail}: updates must have shape {list(expected)}. [Op:{op_name}]"
        )


def _make_tensor_scatter(jax_method: str, suffix: str, example_output: str) -> TensorScatter:
    """Define a scatter op by a method of `jax.numpy.ndarray.at[...]` (or "sub")."""
    name_ = f"tensor_scatter_nd_{suffix}"

    def updated(tensor: TensorLike, indices: TensorLike, updates: TensorLike) -> Tensor:
        _check_updates(indices, updates, tensor.shape, name_)
        updater = jnp.asarray(tensor).at[tuple(jnp.moveaxis(indices, -1, 0))]
        return (
            updater.add(-updates) if jax_method == "sub" else getattr(updater, jax_method)(updates)
        )

    # Files refer to the op by this name.
    updated.__name__ = f"_{name_}"
    as_op = op(
        same=("tensor", "updates"), name=name_, strings="moves" if jax_method == "set" else None
    )
    apply_updates: Any = as_op(updated)

    def scatter(
        tensor: TensorLike, indices: TensorLike, updates: TensorLike, name: str | None = None
    ) -> Tensor:
        if not hasattr(tensor, "_keras_history") and not hasattr(indices, "_keras_history"):
            tensor, indices = convert_to_tensor(tensor), convert_to_tensor(indices)
            indices = _check_coordinates(indices, tensor.array.shape, name_)
        return apply_updates(tensor, indices, updates)

    scatter.__name__ = scatter.__qualname__ = name_
    scatter.__doc__ = f"""Return a copy of a tensor with updates applied at coordinates ({suffix}).

    Args:
      tensor: A tensor.
      indices: Integers of shape [..., k]: coordinates in the first k dimensions.
      updates: Tensor of shape indices.shape[:-1] + tensor.shape[k:].
      name: Ignored.

    Raises:
      InvalidArgumentError: If coordinates are out of range.

    Example:
      >>> print(tf.{name_}([5, 5, 5], indices=[[0], [2]], updates=[3, 9]).numpy())
      {example_output}
    """
    return record_in_graph(scatter)


tensor_scatter_nd_update = _make_tensor_scatter("set", "update", "[3 5 9]")
tensor_scatter_nd_add = _make_tensor_scatter("add", "add", "[ 8  5 14]")
tensor_scatter_nd_sub = _make_tensor_scatter("sub", "sub", "[ 2  5 -4]")
tensor_scatter_nd_max = _make_tensor_scatter("max", "max", "[5 5 9]")
tensor_scatter_nd_min = _make_tensor_scatter("min", "min", "[3 5 5]")


@op(same=("x", "y"), name="where", strings="moves")
def _select(condition: TensorLike, x: TensorLike, y: TensorLike) -> Tensor:
    try:
        return jnp.where(condition, x, y)
    except ValueError:
        shapes = [list(operand.shape) for operand in (condition, x, y)]
        raise InvalidValueError(
            f"where: condition {shapes[0]}, then {shapes[1]}, and else {shapes[2]} must be broadcastable. "
            "[Op:SelectV2]"
        ) from None


@dispatch_composites
def where(condition: TensorLike, x: Any = None, y: Any = None, name: str | None = None) -> Tensor:
    """Select elements of two tensors by a condition, or find the indices of true elements.

    Args:
      condition: Booleans.
      x: Values where the condition is true; broadcasts.
      y: Values where the condition is false; broadcasts.
      name: Ignored.

    Returns:
      The selected values; without x and y the int64 coordinates of the true elements, shape [n,
      rank].

    Raises:
      ValueError: If only one of x and y is passed.

    Example:
      >>> tf.where([True, False], [1, 2], 0).numpy()
      array([1, 0], dtype=int32)
    """
    if (x is None) != (y is None):
        raise ValueError(
            "x and y must be either both None or both non-None: pass both, or neither."
        )
    if x is None:
        return find_true_indices(condition)
    if not hasattr(condition, "_keras_history"):
        condition = convert_to_tensor(cast_numpy(condition, dtypes.bool_))
        if not condition.dtype.is_bool:
            raise DtypeMismatchError(
                f"where: condition must be bool, got {condition.dtype.name}. Use tf.cast, or compare "
                "with 0. [Op:SelectV2]"
            )
    return _select(condition, x, y)


@accept_symbolic
def find_true_indices(condition: TensorLike) -> Tensor:
    """Find the int64 coordinates, [n, rank], of true, nonzero or (for strings) nonempty elements."""
    recording = find_recording(condition)
    if recording is not None:
        result: Tensor = recording.call(find_true_indices, (condition,), {})
        return result
    condition = convert_to_tensor(condition)
    (indices,) = compute_on_host(
        _list_true_indices,
        [condition],
        [((None, condition.ndim), np.int64)],
        "the condition of tf.where without x and y (its result's shape depends on the values)",
    )
    return indices


@host_function
def _list_true_indices(mask: np.ndarray) -> list[np.ndarray]:
    return [np.argwhere(mask)]


@accept_symbolic
def boolean_mask(
    tensor: TensorLike, mask: TensorLike, axis: int | None = None, name: str = "boolean_mask"
) -> Tensor:
    """Select the elements (or slices) for which a mask is true.

    The dimensions of the mask become one dimension with a data-dependent size; the others keep
    their sizes.

    Args:
      tensor: A tensor.
      mask: Booleans. A function with traced ones runs op by op; tf.where(mask, x, 0) is compiled.
      axis: First dimension that the mask covers; default 0.
      name: Ignored.

    Example:
      >>> print(tf.boolean_mask([1, 2, 3], [True, False, True]).numpy())
      [1 3]
    """
    if find_recording(mask) is not None:
        return _record_boolean_mask(tensor, mask, axis or 0)
    tensor = convert_to_tensor(tensor)
    mask = convert_to_tensor(mask)
    if not mask.ndim:
        raise ValueError("boolean_mask: the mask cannot be a scalar.")
    axis = 0 if axis is None else int(axis) % tensor.ndim
    return select_by_mask(tensor, mask, axis)


def _record_boolean_mask(tensor: Any, mask: Any, axis: int) -> Tensor:
    """Compute `boolean_mask` for a saved function, which finds the true indices when it runs."""
    sizes, mask_rank = tuple(tensor.shape), len(mask.shape)
    axis %= len(sizes)
    if mask_rank > 1:
        mask_size = functools.reduce(operator.mul, sizes[axis : axis + mask_rank])
        tensor = reshape(tensor, [*sizes[:axis], mask_size, *sizes[axis + mask_rank :]])
        mask = reshape(mask, [mask_size])
    return gather(tensor, find_true_indices(mask)[:, 0], axis=axis)


@record_in_graph
@dispatch_composites
def dynamic_partition(
    data: TensorLike, partitions: TensorLike, num_partitions: int, name: str | None = None
) -> list[Tensor]:
    """Split rows into `num_partitions` tensors.

    Args:
      data: A tensor; its shape starts with that of `partitions`.
      partitions: Integers below `num_partitions`: the partition of each row.
      num_partitions: Number of partitions.
      name: Ignored.

    Returns:
      `num_partitions` tensors; each keeps the order of the rows.

    Example:
      >>> even, odd = tf.dynamic_partition([3, 4, 5, 6], [1, 0, 1, 0], num_partitions=2)
      >>> print(even.numpy(), odd.numpy())
      [4 6] [3 5]
    """
    num_partitions = to_static_value(num_partitions, "num_partitions")
    if find_recording(partitions) is not None:
        return [boolean_mask(data, _equals_constant(partitions, i)) for i in range(num_partitions)]
    ids = convert_to_tensor(partitions)
    masks = compute_on_host(
        functools.partial(_select_partitions, num_partitions),
        [ids],
        [(ids.array.shape, np.bool_)] * num_partitions,
        "partitions (the results' shapes depend on them)",
    )
    return [boolean_mask(data, mask) for mask in masks]


@host_function
def _select_partitions(num_partitions: int, ids: np.ndarray) -> list[np.ndarray]:
    invalid_ids = ids[(ids < 0) | (ids >= num_partitions)]
    is_invented = context.value_probe is not None and context.value_probe.invents_sizes
    if is_invented:
        return [np.ones(ids.shape, np.bool_)] * num_partitions
    if invalid_ids.size:
        raise InvalidValueError(
            f"dynamic_partition: partitions must be in [0, {num_partitions}), got {invalid_ids.flat[0]}."
        )
    return [ids == i for i in range(num_partitions)]


@op(same=(), differentiable=False, name="equal")
def _equals_constant(numbers: TensorLike, number: int) -> Tensor:
    return numbers == number


def dynamic_stitch(indices: Sequence[Any], data: Sequence[Any], name: str | None = None) -> Tensor:
    """Interleave rows: row `indices[m][i]` of the result is `data[m][i]`.

    If indices are equal, the last row wins.

    Args:
      indices: A list of integer tensors.
      data: A list of tensors; the shape of each starts with that of its indices.
      name: Ignored.

    Example:
      >>> print(tf.dynamic_stitch([[1, 3], [0, 2]], [[10, 30], [0, 20]]).numpy())
      [ 0 10 20 30]
    """
    index_tensors = [convert_to_tensor(i) for i in indices]
    use = "indices of tf.dynamic_stitch"
    (order,) = compute_on_host(_order_rows, index_tensors, [((None,), np.int64)], use)
    rows = []
    for index, item in zip(index_tensors, data, strict=True):
        item = convert_to_tensor(item)
        count = functools.reduce(operator.mul, index.array.shape, 1)
        rows.append(reshape(item, (count, *item.array.shape[index.ndim :])))
    return gather(concat(rows, 0), order)


@host_function
def _order_rows(*indices: np.ndarray) -> list[np.ndarray]:
    """Return for each row of the result its index among all rows."""
    for index in indices:
        check_bounds(
            index, BoundsCheck("indices[{index}] is out of range", (0,), (np.iinfo(np.int64).max,))
        )
    flat = np.concatenate([n.reshape(-1) for n in indices])
    order = np.zeros(int(flat.max(initial=-1)) + 1, np.int64)
    # If indices are equal, the last row remains.
    order[flat] = np.arange(len(flat))
    return [order]


variable_rows.part_ops.update(
    gather=gather,
    gather_nd=gather_nd,
    scatter_nd_add=tensor_scatter_nd_add,
    scatter_nd_sub=tensor_scatter_nd_sub,
    scatter_nd_update=tensor_scatter_nd_update,
    scatter_nd_max=tensor_scatter_nd_max,
    scatter_nd_min=tensor_scatter_nd_min,
)
