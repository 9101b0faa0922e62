"""Ops of sparse tensors that compute with their elements only.

Where the number of elements of a result depends on the indices, NumPy selects them (`compute_on_host`).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any, overload

import jax
import jax.numpy as jnp
import numpy as np
from jax.export import is_symbolic_dim

from meshflow.core.dispatch.composite import SparseTensor
from meshflow.core.dispatch.dispatch import op
from meshflow.core.dispatch.operands import to_static_value
from meshflow.core.runtime.bounds_checks import PADDING_INDEX, is_padding
from meshflow.core.runtime.errors import InvalidArgumentError, InvalidValueError
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.dtypes import int64
from meshflow.core.values.shapes import ShapeLike, TensorShape
from meshflow.core.values.symbolic_sizes import has_symbolic_size
from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.core.values.unknown_sizes import (
    Result,
    can_have_unknown_sizes,
    compute_on_host,
    compute_size,
    host_function,
    is_recorded,
)
from meshflow.environment.types import Array, PyTree
from meshflow.ops import array, math
from meshflow.ops.array.shaping import normalize_axis
from meshflow.ops.coordinates import (
    INVALID,
    add_elements,
    get_row_ids,
    get_sizes_list,
    has_static_indices,
    make_sparse,
    map_indices,
    merge_rows,
    sort_elements,
    sum_elements,
    take_elements,
    unique_rows,
)
from meshflow.ops.math.segments import count_segments
from meshflow.ops.ragged.partition import find_true, get_namespace, take
from meshflow.ops.signatures import RowSegments

__all__ = [
    "add",
    "bincount",
    "concat",
    "expand_dims",
    "fill_empty_rows",
    "map_values",
    "maximum",
    "minimum",
    "reset_shape",
    "reshape",
    "retain",
    "segment_mean",
    "segment_sqrt_n",
    "segment_sum",
    "slice",
    "softmax",
    "split",
    "to_indicator",
]


def check_sparse(value: object, name: str) -> SparseTensor:
    if not isinstance(value, SparseTensor):
        raise TypeError(f"{name} must be a SparseTensor, got {type(value).__name__}.")
    return value


def _merge(a: SparseTensor, b: SparseTensor, name: str) -> Sequence[Tensor]:
    """Return the indices of elements of either sparse tensor, and for each element of both its position among them."""
    sizes = get_sizes_list(a)
    if len(sizes) != len(b.shape) or sizes != get_sizes_list(b):
        raise InvalidValueError(f"Operands' shapes do not match: {a.shape} and {b.shape}.")
    results: list[Result] = [
        ((None, len(sizes)), np.int64),
        (a.values.array.shape, np.int64),
        (b.values.array.shape, np.int64),
    ]
    operands, use = [a.indices, b.indices], f"the indices of tf.sparse.{name}"
    # Assertions of a saved function compare its sizes; otherwise the host does, which then merges the elements.
    is_compared = not has_symbolic_size(sizes) or is_recorded(operands)
    return compute_on_host(
        _merge_indices if is_compared else _merge_on_host, operands, results, use
    )


def _sum_merged(
    a: SparseTensor,
    b: SparseTensor,
    indices: Tensor,
    owners: Sequence[Tensor],
    combine: Callable[[Tensor, Tensor], Tensor],
) -> SparseTensor:
    """Combine two sparse tensors; an element that is missing in one of them is 0."""
    count = indices.array.shape[0]
    parts = [sum_elements(s.values, o, count) for s, o in zip((a, b), owners, strict=True)]
    return SparseTensor(indices, combine(*parts), a.dense_shape)


@host_function
def _merge_indices(first: Any, second: Any) -> list[Array]:
    if get_namespace(first, second) is not np:
        indices, owner = _find_different_rows(jnp.concatenate([first, second]))
        return [indices, *jnp.split(owner, [first.shape[0]])]
    return _merge_on_host(first, second)


@host_function
def _merge_on_host(first: np.ndarray, second: np.ndarray) -> list[np.ndarray]:
    merged = merge_rows(first, second)
    if merged is not None:
        return [merged[0], *merged[1]]
    # TensorFlow merges the elements in their order, so each one is combined with at most one of the other tensor.
    parts, positions = (first, second), [0, 0]
    owners = [np.zeros(len(part), np.int64) for part in parts]
    rows: list[tuple[int, ...]] = []
    while positions != [len(first), len(second)]:
        heads = [
            tuple(part[i]) if i < len(part) else None
            for part, i in zip(parts, positions, strict=True)
        ]
        row = min(head for head in heads if head is not None)
        for k, head in enumerate(heads):
            if head == row:
                owners[k][positions[k]] = len(rows)
                positions[k] += 1
        rows.append(row)
    return [np.array(rows, np.int64).reshape(len(rows), first.shape[1]), *owners]


def _find_different_rows(rows: Array) -> tuple[Array, Array]:
    """Return the different rows in order, and the index of each row among them."""
    order = jnp.lexsort(rows.T[::-1])
    in_order = rows[order]
    # A symbolic number of rows may be 0.
    places = jnp.arange(rows.shape[0])
    changes = in_order != jnp.take(in_order, places - 1, axis=0, mode="clip")
    is_first = (places == 0) | changes.any(1)
    groups = jnp.cumsum(is_first) - 1
    return in_order[find_true(is_first)], jnp.zeros_like(groups).at[order].set(groups)


def _compare(
    a: SparseTensor, b: SparseTensor, combine: Callable[[Tensor, Tensor], Tensor], name: str
) -> SparseTensor:
    a, b = _check_operand(a, "sp_a"), _check_operand(b, "sp_b")
    indices, *owners = _merge(a, b, name)
    return _sum_merged(a, b, indices, owners, combine)


def _check_operand(operand: SparseTensor, label: str) -> SparseTensor:
    message = "Sparse index tuple indices[{index}, :] = [{value}] is out of bounds"
    indices = check_sparse(operand, label).check_indices(message)
    return SparseTensor(indices, operand.values, operand.dense_shape)


@overload
def add(a: SparseTensor, b: SparseTensor, threshold: float | Tensor = 0) -> SparseTensor: ...
@overload
def add(
    a: TensorLike | SparseTensor, b: TensorLike | SparseTensor, threshold: float | Tensor = 0
) -> Tensor: ...
def add(
    a: TensorLike | SparseTensor, b: TensorLike | SparseTensor, threshold: float | Tensor = 0
) -> Tensor | SparseTensor:
    """Add two tensors, at least one of them sparse.

    Args:
      a: A sparse or dense tensor.
      b: A sparse or dense tensor of the same dtype and shape.
      threshold: For two sparse tensors: elements that exist in both are removed if the magnitude of
        their sum is smaller.

    Returns:
      A sparse tensor if both arguments are sparse, otherwise a dense tensor.

    Raises:
      TypeError: If both arguments are dense.

    Example:
      >>> a = tf.SparseTensor([[0]], [1], [3])
      >>> b = tf.SparseTensor([[0], [2]], [5, 7], [3])
      >>> print(tf.sparse.to_dense(tf.sparse.add(a, b)).numpy(), tf.sparse.add(a, [1, 1, 1]).numpy())
      [6 0 7] [2 1 1]
    """
    if isinstance(a, SparseTensor) and isinstance(b, SparseTensor):
        indices, *owners = _merge(a, b, "add")
        total = _sum_merged(a, b, indices, owners, math.add)
        limit = to_static_value(threshold, "threshold")
        if not limit:
            return total
        # The threshold only applies to elements that exist in both tensors.
        first, second = (s.with_values(array.ones_like(s.values, "int32")) for s in (a, b))
        counts = _sum_merged(first, second, indices, owners, math.add).values
        return retain(total, (math.abs(total.values) >= limit) | (counts < 2))
    if not isinstance(a, SparseTensor) and not isinstance(b, SparseTensor):
        raise TypeError("tf.sparse.add: at least one argument must be a SparseTensor.")
    sparse, dense = (a, b) if isinstance(a, SparseTensor) else (b, a)
    dense = convert_to_tensor(dense, dtype_hint=sparse.dtype)
    if dense.shape != sparse.shape:
        raise InvalidValueError(f"Operands' shapes do not match: {dense.shape} and {sparse.shape}.")
    message = (
        "Sparse tensor has an invalid index on dimension {name}: a_indices({index},{name}) = {item}, "
        f"dense tensor shape: {' '.join(map(str, sparse.shape.as_list()))}"
    )
    return add_elements(dense, sparse.check_indices(message), sparse.values, False)


def maximum(sp_a: SparseTensor, sp_b: SparseTensor, name: str | None = None) -> SparseTensor:
    """Compute elementwise maxima of two sparse tensors of the same shape; a missing element is 0.

    Example:
      >>> a, b = tf.SparseTensor([[0]], [4], [3]), tf.SparseTensor([[0], [1]], [6, -1], [3])
      >>> print(tf.sparse.to_dense(tf.sparse.maximum(a, b)).numpy())
      [6 0 0]
    """
    return _compare(sp_a, sp_b, math.maximum, "maximum")


def minimum(sp_a: SparseTensor, sp_b: SparseTensor, name: str | None = None) -> SparseTensor:
    """Compute elementwise minima of two sparse tensors of the same shape; a missing element is 0.

    Example:
      >>> a, b = tf.SparseTensor([[0]], [4], [3]), tf.SparseTensor([[0], [1]], [6, -1], [3])
      >>> print(tf.sparse.to_dense(tf.sparse.minimum(a, b)).numpy())
      [ 4 -1  0]
    """
    return _compare(sp_a, sp_b, math.minimum, "minimum")


def map_values(op: Callable[..., Any], *args: Any, **kwargs: Any) -> SparseTensor:
    """Apply a function to the values of sparse tensors, keeping their indices.

    Args:
      op: Function of tensors that preserves the number of elements.
      *args: Arguments. Sparse arguments must have the same indices, and are replaced by their
        values.
      **kwargs: Keyword arguments, which may also be sparse.

    Returns:
      A sparse tensor of the same shape.

    Raises:
      ValueError: If no argument is sparse, or sparse arguments differ in shape or indices.

    Example:
      >>> a = tf.sparse.from_dense([[0, 2], [3, 0]])
      >>> print(tf.sparse.to_dense(tf.sparse.map_values(tf.add, a, 10)).numpy())
      [[ 0 12]
       [13  0]]
    """
    sparse = [v for v in (*args, *kwargs.values()) if isinstance(v, SparseTensor)]
    if not sparse:
        raise ValueError("No SparseTensor in argument list of map_values")
    for other in sparse[1:]:
        if not other.shape.is_compatible_with(sparse[0].shape):
            raise InvalidValueError(
                f"map_values: sparse arguments must have the same shape, got {sparse[0].shape} and {other.shape}."
            )
        if not _may_have_equal_indices(other, sparse[0]):
            raise InvalidValueError("map_values: sparse arguments must have the same indices.")
    values = [v.values if isinstance(v, SparseTensor) else v for v in args]
    named = {k: v.values if isinstance(v, SparseTensor) else v for k, v in kwargs.items()}
    result = convert_to_tensor(op(*values, **named))
    if result.shape[:1] != sparse[0].values.shape:
        raise InvalidValueError(
            f"map_values: the function must return {sparse[0].values.shape[0]} values, got shape {result.shape}."
        )
    return sparse[0].with_values(result)


def _may_have_equal_indices(a: SparseTensor, b: SparseTensor) -> bool:
    if not (has_static_indices(a) and has_static_indices(b)):
        return a.indices.shape == b.indices.shape
    return np.array_equal(np.asarray(a.indices.array), np.asarray(b.indices.array))


def retain(sp_input: SparseTensor, to_retain: TensorLike) -> SparseTensor:
    """Select some elements of a sparse tensor, keeping its shape.

    Args:
      sp_input: A sparse tensor of n elements.
      to_retain: n booleans.

    Raises:
      ValueError: If the number of booleans is not n.

    Example:
      >>> a = tf.sparse.from_dense([5, 0, 6, 7])
      >>> print(tf.sparse.retain(a, [True, False, True]).indices.numpy().tolist())
      [[0], [3]]
    """
    mask = convert_to_tensor(to_retain)
    if mask.shape != sp_input.values.shape:
        raise ValueError(
            f"to_retain must have shape {[sp_input.values.shape[0]]}, got {mask.shape.as_list()}."
        )
    return _select(sp_input, array.reshape(array.where(mask), [-1]))


def _select(sparse: SparseTensor, order: Tensor) -> SparseTensor:
    """Return the elements at some positions."""
    indices = map_indices(lambda xp, i, o: take(i, o), sparse.indices, order)
    return SparseTensor(indices, take_elements(sparse.values, order), sparse.dense_shape)


def concat(
    axis: int,
    sp_inputs: Sequence[SparseTensor],
    expand_nonconcat_dims: bool = False,
    name: str | None = None,
) -> SparseTensor:
    """Concatenate sparse tensors along an axis.

    Args:
      axis: The axis.
      sp_inputs: Sparse tensors of the same rank and dtype.
      expand_nonconcat_dims: Whether other sizes may differ; the result has the largest.
      name: Ignored.

    Raises:
      InvalidArgumentError: If other sizes differ and `expand_nonconcat_dims` is false.

    Example:
      >>> a = tf.sparse.from_dense([[1, 0]])
      >>> print(tf.sparse.to_dense(tf.sparse.concat(0, [a, a])).numpy())
      [[1 0]
       [1 0]]
    """
    if not isinstance(sp_inputs, (list, tuple)):
        raise TypeError(f"tf.sparse.concat: sp_inputs must be a list, got {sp_inputs!r}.")
    if not sp_inputs:
        raise InvalidValueError("tf.sparse.concat needs at least one sparse tensor, got none.")
    shapes = [get_sizes_list(check_sparse(s, "sp_inputs")) for s in sp_inputs]
    rank = len(shapes[0])
    if len({len(shape) for shape in shapes}) > 1:
        raise InvalidValueError(f"tf.sparse.concat: ranks differ: {shapes}.")
    if not -rank <= axis < rank:
        raise InvalidValueError(f"Concat dimension must be in [-{rank}, {rank}), got {axis}.")
    if len(sp_inputs) == 1:
        return sp_inputs[0]
    axis %= rank
    columns = list(zip(*shapes, strict=True))
    if not expand_nonconcat_dims and any(
        size != sizes[0] for k, sizes in enumerate(columns) if k != axis for size in sizes[1:]
    ):
        raise InvalidValueError(
            f"tf.sparse.concat: shapes differ outside of dimension {axis}: {shapes}."
        )
    shape = [sum(sizes) if k == axis else max(sizes) for k, sizes in enumerate(columns)]
    starts = [sum(columns[axis][:k]) for k in range(len(shapes))]

    def join(xp: ModuleType, *parts: Array) -> Array:
        rows = []
        for indices, sizes, start in zip(parts, shapes, starts, strict=True):
            offsets = xp.stack([xp.asarray(start if k == axis else 0) for k in range(rank)])
            # Padding must not overflow.
            padding = xp.asarray([xp.maximum(size, PADDING_INDEX) for size in shape])
            rows.append(xp.where(is_padding(indices, sizes), padding, indices + offsets))
        return xp.concatenate(rows)

    indices = map_indices(join, *[s.indices for s in sp_inputs])
    values = array.concat([s.values for s in sp_inputs], 0)
    return sort_elements(indices, values, shape)


def slice(
    sp_input: SparseTensor, start: TensorLike, size: TensorLike, name: str | None = None
) -> SparseTensor:
    """Extract a box from a sparse tensor.

    Args:
      sp_input: A sparse tensor.
      start: First index of the box in each dimension.
      size: Size of the box in each dimension; it is clipped to the tensor.
      name: Ignored.

    Example:
      >>> a = tf.sparse.from_dense([[1, 2, 0], [0, 3, 4]])
      >>> print(tf.sparse.to_dense(tf.sparse.slice(a, start=[0, 1], size=[2, 2])).numpy())
      [[2 0]
       [3 4]]
    """
    rank, use = len(sp_input.shape), "arguments of tf.sparse.slice"
    box = [convert_to_tensor(start, dtype_hint=int64), convert_to_tensor(size, dtype_hint=int64)]
    if any(part.shape != [rank] for part in box):
        raise InvalidValueError(
            f"tf.sparse.slice: start and size must have {rank} elements, got {[*map(str, box)]}."
        )
    operands = [*box, sp_input.dense_shape]
    sizes = compute_on_host(_clip_box, operands, [((rank,), np.int64)], use)[0]
    results: list[Result] = [(("n", rank), np.int64), (("n",), np.int64)]
    operands = [sp_input.indices, box[0], sizes]
    indices, order = compute_on_host(_select_box, operands, results, use)
    return SparseTensor(indices, take_elements(sp_input.values, order), sizes)


@host_function
def _clip_box(first: Array, sizes: Array, shape: Array) -> list[Array]:
    return [(shape - first).clip(0).clip(None, sizes).clip(0)]


@host_function
def _select_box(indices: Any, first: Array, sizes: Array) -> list[Any]:
    order = find_true(((indices >= first) & (indices < first + sizes)).all(1))
    return [take(indices, order) - first, order]


def split(
    sp_input: SparseTensor, num_split: int, axis: int, name: str | None = None
) -> list[SparseTensor]:
    """Split an axis into parts of equal size, or with the first parts larger by 1.

    Args:
      sp_input: A sparse tensor.
      num_split: Number of parts.
      axis: The axis.
      name: Ignored.

    Example:
      >>> a = tf.sparse.from_dense([[1, 0, 3]])
      >>> [tf.sparse.to_dense(part).numpy().tolist() for part in tf.sparse.split(a, 2, axis=1)]
      [[[1, 0]], [[3]]]
    """
    rank = len(sp_input.shape)
    if not -rank <= axis < rank:
        raise InvalidValueError(f"Input axis should be in [-{rank}, {rank}), got {axis}.")
    num_split = to_static_value(num_split, "num_split")
    if num_split < 1:
        raise InvalidValueError(f"num_split must be positive, got {num_split}.")
    find = functools.partial(_split_shape, int(num_split), int(axis))
    results: list[Result] = [((rank,), np.int64)] * (2 * num_split)
    boxes = compute_on_host(find, [sp_input.dense_shape], results, "the shape of tf.sparse.split")
    return [slice(sp_input, boxes[k], boxes[num_split + k]) for k in range(num_split)]


@host_function
def _split_shape(num_split: int, axis: int, shape: np.ndarray) -> list[np.ndarray]:
    """Return the first indices of the parts, then their sizes."""
    if num_split > shape[axis]:
        raise InvalidValueError(f"num_split must be in [1, {shape[axis]}], got {num_split}.")
    base, num_larger = divmod(shape[axis], num_split)
    sizes = np.repeat(shape[None], num_split, 0)
    sizes[:, axis] = base + (np.arange(num_split) < num_larger)
    starts = np.zeros_like(sizes)
    starts[:, axis] = np.cumsum(sizes[:, axis]) - sizes[:, axis]
    return [*starts, *sizes]


def reshape(sp_input: SparseTensor, shape: Any, name: str | None = None) -> SparseTensor:
    """Reshape a sparse tensor; one size of the new shape may be -1.

    Example:
      >>> a = tf.sparse.from_dense([[1, 0], [0, 2]])
      >>> print(tf.sparse.to_dense(tf.sparse.reshape(a, [-1])).numpy())
      [1 0 0 2]
    """
    new = convert_to_tensor(shape, dtype_hint=int64)
    if new.ndim != 1:
        raise InvalidValueError(f"tf.sparse.reshape: the shape must be a vector, got {new}.")
    rank, use = new.array.shape[0], "shapes of tf.sparse.reshape"
    results: list[Result] = [((rank,), np.int64)]
    (sizes,) = compute_on_host(_resolve_shape, [sp_input.dense_shape, new], results, use)

    def change_indices(xp: ModuleType, indices: Array, old: Array, new: Array) -> Array:
        ids = get_row_ids(xp, indices, old)
        if not rank:
            return indices[:, :0]
        strides = xp.cumprod(xp.concatenate([xp.ones(1, np.int64), new[:0:-1]]))[::-1]
        columns = ids[:, None] // strides
        columns = xp.concatenate([columns[:, :1], columns[:, 1:] % new[1:]], 1)
        padding = (indices >= xp.maximum(old, PADDING_INDEX)).any(1, keepdims=True)
        return xp.where(padding, xp.maximum(new, PADDING_INDEX), columns)

    indices = map_indices(change_indices, sp_input.indices, sp_input.dense_shape, sizes)
    return SparseTensor(indices, sp_input.values, sizes)


@host_function
def _resolve_shape(old: Any, new: Any) -> list[Any]:
    if get_namespace(old, new) is not np:
        known = jnp.prod(jnp.where(new == -1, 1, new))
        return [jnp.where(new == -1, jnp.prod(old) // jnp.maximum(known, 1), new)]
    size, unknown = int(np.prod(old)), np.flatnonzero(new == -1)
    sizes = new.copy()
    rest = int(np.prod(new[new != -1]))
    if len(unknown) == 1:
        sizes[unknown] = size // max(rest, 1)
    if len(unknown) > 1 or (sizes < 0).any() or int(np.prod(sizes)) != size:
        raise InvalidValueError(
            f"tf.sparse.reshape: a tensor of shape {old} cannot be reshaped to {new}."
        )
    return [sizes]


def reset_shape(sp_input: SparseTensor, new_shape: ShapeLike = None) -> SparseTensor:
    """Change the shape of a sparse tensor, keeping the indices of its elements.

    Args:
      sp_input: A sparse tensor.
      new_shape: Sizes that are at least those of the input; by default the smallest that contain
        all elements.

    Raises:
      InvalidArgumentError: If `new_shape` is too small or has another rank.

    Example:
      >>> a = tf.SparseTensor([[0, 1]], [5], [4, 4])
      >>> tf.sparse.reset_shape(a).shape, tf.sparse.reset_shape(a, [8, 9]).shape
      (TensorShape([1, 2]), TensorShape([8, 9]))
    """
    rank, use = len(sp_input.shape), "arguments of tf.sparse.reset_shape"
    results: list[Result] = [((rank,), np.int64)]
    if new_shape is None:

        def find_smallest(indices: np.ndarray) -> list[np.ndarray]:
            return [indices.max(0, initial=-1) + 1]

        (shape,) = compute_on_host(find_smallest, [sp_input.indices], results, use)
        return SparseTensor(sp_input.indices, sp_input.values, shape)
    requested = convert_to_tensor(
        new_shape.as_list() if isinstance(new_shape, TensorShape) else new_shape, dtype_hint=int64
    )
    operands = [sp_input.dense_shape, requested]
    (shape,) = compute_on_host(_check_larger_shape, operands, results, use)
    return SparseTensor(sp_input.indices, sp_input.values, shape)


@host_function
def _check_larger_shape(old: np.ndarray, new: np.ndarray) -> list[np.ndarray]:
    if new.shape != old.shape or (new < old).any():
        raise InvalidValueError(
            f"tf.sparse.reset_shape: new_shape must not be smaller than {old}, got {new}."
        )
    return [new]


def expand_dims(sp_input: SparseTensor, axis: Any = None, name: str | None = None) -> SparseTensor:
    """Insert an axis of size 1; by default, at the end.

    Example:
      >>> tf.sparse.expand_dims(tf.sparse.from_dense([1, 0]), axis=0).shape
      TensorShape([1, 2])
    """
    shape = get_sizes_list(sp_input)
    axis = normalize_axis(-1 if axis is None else int(axis), len(shape) + 1, "sparse.expand_dims")

    def insert(xp: ModuleType, i: Array) -> Array:
        return xp.concatenate([i[:, :axis], xp.zeros_like(i[:, :1]), i[:, axis:]], 1)

    indices = map_indices(insert, sp_input.indices)
    return make_sparse(indices, sp_input.values, [*shape[:axis], 1, *shape[axis:]])


def fill_empty_rows(
    sp_input: SparseTensor, default_value: TensorLike, name: str | None = None
) -> tuple[SparseTensor, Tensor]:
    """Add an element in the first column of each empty row of a sparse matrix.

    Args:
      sp_input: A sparse matrix [rows, columns].
      default_value: Value of the new elements.
      name: Ignored.

    Returns:
      The filled matrix, and a mask of the empty rows [rows].

    Example:
      >>> filled, empty = tf.sparse.fill_empty_rows(tf.sparse.from_dense([[1, 2], [0, 0]]), -1)
      >>> print(tf.sparse.to_dense(filled).numpy().tolist(), empty.numpy())
      [[1, 2], [-1, 0]] [False  True]
    """
    check_sparse(sp_input, "sp_input")
    default = convert_to_tensor(default_value, dtype=sp_input.dtype)
    if default.ndim:
        raise InvalidValueError(f"default_value must be a scalar, got shape {default.shape}.")
    rank = len(sp_input.shape)
    sizes = (get_sizes_list(sp_input)[0],)
    results: list[Result] = [(("n", rank), np.int64), (("n",), np.int64), (sizes, np.bool_)]
    operands = [sp_input.indices, sp_input.dense_shape]
    use = "the indices of tf.sparse.fill_empty_rows"
    indices, positions, is_empty = compute_on_host(_fill_rows, operands, results, use)
    values = array.concat([sp_input.values, array.reshape(default, [1])], 0)
    filled = SparseTensor(indices, take_elements(values, positions), sp_input.dense_shape)
    return filled, is_empty


@host_function
def _fill_rows(indices: np.ndarray, shape: np.ndarray) -> list[np.ndarray]:
    """Return the indices with those of new elements, the positions of the values, and a mask of the empty rows."""
    positions = np.flatnonzero(~is_padding(indices, shape)[:, 0])
    rows = indices[positions, 0]
    for i in np.flatnonzero((rows < 0) | (rows >= shape[0]))[:1]:
        raise InvalidArgumentError(f"indices({i}, 0) is invalid: {rows[i]} >= {shape[0]}")
    empty = np.bincount(rows, minlength=shape[0]) == 0
    extra = np.zeros((np.count_nonzero(empty), len(shape)), np.int64)
    extra[:, 0] = np.flatnonzero(empty)
    filled = np.concatenate([indices[positions], extra])
    order = np.argsort(filled[:, 0], kind="stable")
    # The default value follows the values.
    positions = np.concatenate([positions, np.full(len(extra), len(indices))])
    return [filled[order], positions[order], empty]


def softmax(sp_input: SparseTensor, name: str | None = None) -> SparseTensor:
    """Compute the softmax of each row, keeping the shape; missing elements are minus infinity.

    Example:
      >>> a = tf.sparse.from_dense([[1.0, 1.0, 0.0]])
      >>> print(tf.sparse.to_dense(tf.sparse.softmax(a)).numpy())
      [[0.5 0.5 0. ]]
    """
    if len(sp_input.shape) < 2 or not sp_input.dtype.is_floating:
        raise InvalidValueError(
            f"tf.sparse.softmax: expected floats of rank 2 or more, got {sp_input._type_spec}."
        )
    count = sp_input.values.array.shape[0]
    if not is_symbolic_dim(count) and not count:
        return sp_input
    indices = sp_input.check_indices()
    if can_have_unknown_sizes() or is_symbolic_dim(count) or has_static_indices(sp_input):
        operands, use = [indices, sp_input.dense_shape], "indices of tf.sparse.softmax"
        (owner,) = compute_on_host(_find_row_ids, operands, [((count,), np.int64)], use)
    else:
        sizes = get_sizes_list(sp_input)[:-1]

        def number_rows(xp: ModuleType, indices: Array) -> Array:
            # In a program, the number of different rows must be static.
            row_ids = get_row_ids(xp, indices, sizes)
            return xp.unique(row_ids, return_inverse=True, size=count)[1].reshape(-1)

        owner = map_indices(number_rows, indices)
    return SparseTensor(indices, softmax_of_groups(sp_input.values, owner), sp_input.dense_shape)


@op(same=("values",), name="sparse_softmax")
def softmax_of_groups(values: TensorLike, owner: TensorLike) -> Tensor:
    """Compute the softmax of the values with the same owner, the index of a group."""
    count = values.shape[0]
    largest = jax.ops.segment_max(jax.lax.stop_gradient(values), owner, count)
    powers = jnp.exp(values - largest[owner])
    return powers / jax.ops.segment_sum(powers, owner, count)[owner]


@host_function
def _find_row_ids(indices: Any, shape: Array) -> list[Any]:
    if get_namespace(indices) is not np:
        return [_find_different_rows(indices[:, :-1])[1]]
    return [unique_rows(indices[:, :-1])[1]]


def to_indicator(sp_input: SparseTensor, vocab_size: int, name: str | None = None) -> Tensor:
    """Return a mask of the integers that each row contains.

    Args:
      sp_input: Sparse integers of shape [..., n].
      vocab_size: Exclusive upper limit of the integers.
      name: Ignored.

    Returns:
      Booleans [..., vocab_size].

    Example:
      >>> a = tf.SparseTensor([[0, 0], [0, 1], [1, 0]], [0, 2, 1], [2, 2])
      >>> print(tf.sparse.to_indicator(a, vocab_size=3).numpy())
      [[ True False  True]
       [False  True False]]
    """
    shape = [*get_sizes_list(sp_input)[:-1], int(vocab_size)]
    indices = array.concat(
        [sp_input.indices[:, :-1], math.cast(sp_input.values, int64)[:, None]], 1
    )
    is_stored = make_sparse(indices, array.ones_like(sp_input.values, "bool"), shape)
    empty = array.zeros(is_stored.dense_shape, "bool")
    return add_elements(empty, is_stored.check_indices(INVALID), is_stored.values, True)


def bincount(
    values: TensorLike | SparseTensor,
    weights: TensorLike | SparseTensor | None = None,
    axis: int | None = 0,
    minlength: int | None = None,
    maxlength: int | None = None,
    binary_output: bool = False,
    name: str | None = None,
) -> SparseTensor:
    """Count integers like `tf.math.bincount`, with a sparse result.

    Args:
      values: A dense or sparse tensor of non-negative integers; missing elements are not counted.
      weights: Weight of each value, in the same form; 1 by default.
      axis: 0 or None to count in the entire tensor, -1 to count in each row.
      minlength: Minimum size of the last axis.
      maxlength: Size of the last axis; larger integers are ignored. Default: as large as necessary.
      binary_output: Whether to return 1 for any positive count.
      name: Ignored.

    Returns:
      A sparse tensor with the dtype of `values` or `weights`.

    Example:
      >>> print(tf.sparse.to_dense(tf.sparse.bincount([1, 3, 1])).numpy())
      [0 2 0 1]
    """
    if axis not in (0, -1, None):
        raise ValueError(f"tf.sparse.bincount: axis must be 0, -1 or None, got {axis}.")
    if binary_output and weights is not None:
        raise ValueError("tf.sparse.bincount: binary_output cannot be combined with weights.")
    forms = _name_form(values), _name_form(values if weights is None else weights)
    if forms[0] != forms[1]:
        raise ValueError(
            f"tf.sparse.bincount: `weights` must be a {forms[0]} if `values` is a {forms[0]}, got a {forms[1]}."
        )
    flat, rows, shape = _list_integers(values)
    by_row = axis == -1 and shape.array.shape[0] > 1
    is_dense = not hasattr(values, "dense_shape")
    if not flat.dtype.is_integer or (by_row and is_dense and shape.array.shape[0] > 2):
        raise InvalidValueError(
            f"tf.sparse.bincount: values must be integers of rank 1 or 2, got {flat.dtype.name} of shape {shape}."
        )
    amounts = array.ones_like(flat) if weights is None else _list_integers(weights)[0]
    if amounts.shape != flat.shape:
        raise InvalidValueError(
            f"tf.sparse.bincount: weights of shape {amounts.shape} do not match values of shape {flat.shape}."
        )
    lower, upper = (None if n is None else int(n) for n in (minlength, maxlength))
    count = functools.partial(_count_integers, by_row, lower, upper, bool(binary_output))
    rank = 2 if by_row else 1
    results: list[Result] = [
        (("n", rank), np.int64),
        (("n",), amounts.dtype.as_numpy_dtype),
        ((rank,), np.int64),
    ]
    operands = [flat, rows, amounts, shape[0] if shape.array.shape[0] else 1]
    return SparseTensor(*compute_on_host(count, operands, results, "values of tf.sparse.bincount"))


@host_function
def _count_integers(
    by_row: bool,
    minlength: int | None,
    maxlength: int | None,
    is_binary: bool,
    integers: np.ndarray,
    owner: np.ndarray,
    amounts: np.ndarray,
    num_rows: np.ndarray,
) -> list[np.ndarray]:
    if (integers < 0).any():
        raise InvalidValueError("tf.sparse.bincount: values must be non-negative.")
    size = max(int(integers.max(initial=0)) + 1, minlength or 0)
    size = size if maxlength is None else maxlength
    is_counted = integers < size
    indices = np.stack([owner, integers], 1)[is_counted].astype(np.int64)
    indices, owner = unique_rows(indices[:, 0 if by_row else 1 :])
    counts = np.zeros(len(indices), amounts.dtype)
    np.add.at(counts, owner, amounts[is_counted])
    counts = np.ones_like(counts) if is_binary else counts
    return [indices, counts, np.array([num_rows, size] if by_row else [size])]


def _name_form(value: PyTree) -> str:
    is_composite = isinstance(value, SparseTensor) or hasattr(value, "to_sparse")
    return type(value).__name__ if is_composite else "Tensor"


def _list_integers(value: PyTree) -> tuple[Tensor, Tensor, Tensor]:
    """Return the elements of a dense, sparse or ragged tensor, their rows, and the shape."""
    if hasattr(value, "to_sparse"):
        value = value.to_sparse()
    if isinstance(value, SparseTensor):
        return value.values, value.indices[:, 0], value.dense_shape
    dense = convert_to_tensor(value)
    shape = array.shape(dense, int64)
    size = array.size(dense, int64)
    columns = size // math.maximum(shape[0], 1) if dense.ndim else size
    return array.reshape(dense, [-1]), array.range(size) // math.maximum(columns, 1), shape


def _make_row_segments(reduction: str, example_result: str) -> RowSegments:
    """Create an op on segments of selected rows, with the result of the example in its docstring."""

    def segment(
        data: TensorLike,
        indices: TensorLike,
        segment_ids: TensorLike,
        num_segments: int | Tensor | None = None,
        sparse_gradient: bool = False,
        name: str | None = None,
    ) -> Tensor:
        rows = array.gather(data, indices)
        ids = convert_to_tensor(segment_ids)
        if num_segments is None:
            use = f"segment_ids of tf.sparse.segment_{reduction} without num_segments"
            num_segments = compute_size(count_segments, [ids], use)
        reduce = getattr(math, f"unsorted_segment_{reduction}")
        return reduce(rows, math.cast(ids, int64), num_segments)

    segment.__name__ = segment.__qualname__ = f"segment_{reduction}"
    segment.__doc__ = f"""Apply `tf.math.unsorted_segment_{reduction}` to selected rows of a tensor.

    Args:
      data: A tensor.
      indices: Indices of the selected rows.
      segment_ids: Segment of each selected row, in ascending order.
      num_segments: Number of segments; by default the last id plus 1.
      sparse_gradient: Ignored.
      name: Ignored.

    Returns:
      Tensor [num_segments, ...].

    Example:
      >>> data = tf.constant([1.0, 2.0, 4.0])
      >>> print(tf.sparse.segment_{reduction}(data, [0, 0, 2], segment_ids=[0, 0, 1]).numpy().round(3))
      {example_result}
    """
    return segment


segment_sum = _make_row_segments("sum", "[2. 4.]")
segment_mean = _make_row_segments("mean", "[1. 4.]")
segment_sqrt_n = _make_row_segments("sqrt_n", "[1.414 4.   ]")
