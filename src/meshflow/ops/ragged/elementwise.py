"""Elementwise ops on ragged tensors, with broadcasting."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from meshflow.core.runtime.context import context
from meshflow.core.runtime.errors import InvalidArgumentError, InvalidValueError
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.symbolic_sizes import has_symbolic_size, make_range
from meshflow.core.values.tensor import Tensor
from meshflow.core.values.unknown_sizes import Result, compute_on_host
from meshflow.environment.types import Array, PyTree
from meshflow.ops import array, debugging
from meshflow.ops.deferred_host_values import DeferredValue
from meshflow.ops.ragged.indexing import gather_values
from meshflow.ops.ragged.partition import (
    SPLITS_USE,
    RowPartition,
    expand_rows,
    find_value,
    have_different_values,
    take,
)
from meshflow.ops.ragged.tensor import RaggedTensor


def contains_ragged(value: object) -> bool:
    """Check whether a value is a ragged tensor, or a list with one."""
    if isinstance(value, list | tuple):
        return any(map(contains_ragged, value))
    return isinstance(value, RaggedTensor)


def get_op_name(public: Callable[..., Any]) -> str:
    """Return the name by which ops are dispatched."""
    return str(getattr(getattr(public, "op", None), "name", public.__name__))


def have_same_rows(first: RaggedTensor, second: RaggedTensor) -> bool:
    """Check whether two ragged tensors have the same partitions, as far as that is known."""
    partitions = first.nested_partitions, second.nested_partitions
    if len(partitions[0]) != len(partitions[1]):
        return False
    for a, b in zip(*partitions, strict=True):
        if a.static_uniform_row_length != b.static_uniform_row_length:
            return False
        x, y = a.row_splits(), b.row_splits()
        if x is y or x.array is y.array:
            continue
        known = find_value(x), find_value(y)
        if known[0] is None or known[1] is None or not np.array_equal(known[0], known[1]):
            return False
    return True


class _Axes:
    """The axes of an operand from the first one to the last ragged one: sizes, or row splits."""

    def __init__(self, operand: PyTree, rank: int, depth: int) -> None:
        self.rows: list[Any] = [1] * (rank - len(operand.shape))
        flat = operand
        if len(self.rows) <= depth:
            self.rows.append(operand.shape[0] if len(operand.shape) else 1)
        while isinstance(flat, RaggedTensor):
            partition, flat = flat.partition, flat.values
            length = partition.static_uniform_row_length
            self.rows.append(partition.row_splits() if length is None else length)
        sizes = flat.shape.as_list()
        missing = depth + 1 - len(self.rows)
        self.rows += sizes[1 : 1 + missing]
        if missing >= 0:
            flat = array.reshape(flat, [math.prod(sizes[: 1 + missing]), *sizes[1 + missing :]])
        elif len(operand.shape) == 0 or (missing < 0 and not isinstance(operand, RaggedTensor)):
            flat = array.reshape(flat, [1, *sizes])
        self.values = flat
        self.rows = self.rows[: depth + 1]


_MISMATCH = "Unable to broadcast: dimension size mismatch in ragged rows."


def check_splits_dtypes(ragged: Sequence[RaggedTensor]) -> None:
    """Check that the row splits of ragged tensors have the same dtype.

    Raises:
      ValueError: If they differ.
    """
    names = {x.partition.dtype.name for x in ragged}
    if len(names) > 1:
        raise ValueError(
            f"ragged operands must have row splits of the same dtype, got {' and '.join(sorted(names))}. Use "
            "with_row_splits_dtype to convert them."
        )


def broadcast(operands: Sequence[PyTree]) -> tuple[list[PyTree], Callable[[Any], PyTree]]:
    """Broadcast ragged and dense tensors.

    Returns:
      The innermost values of the operands, and a function that makes ragged tensors of results.

    Raises:
      InvalidArgumentError: If the rows do not have compatible lengths.
      ValueNeededError: If the row lengths are traced, and the operands do not have the same partitions.
    """
    ragged = [x for x in operands if isinstance(x, RaggedTensor)]
    check_splits_dtypes(ragged)
    model = max(ragged, key=lambda x: x.ragged_rank)
    rank = max(len(x.shape) for x in operands)
    if all(have_same_rows(x, model) for x in ragged) and rank == len(model.shape):
        flat = [_align(x, model) for x in operands]
        if all(x is not None for x in flat):
            return flat, model.with_flat_values
    depth = max(rank - len(x.shape) + x.ragged_rank for x in ragged)
    axes = [_Axes(x, rank, depth) for x in operands]
    count = _broadcast_sizes([a.rows[0] for a in axes])
    splits = [n for a in axes for n in a.rows[1:] if isinstance(n, Tensor)]
    is_repeated = [isinstance(a.rows[0], int) and a.rows[0] == 1 for a in axes]
    dtype = model.partition.dtype

    def find(positions: Array, *known: Array) -> list[Array]:
        supply = iter(known)
        rows = [[next(supply) if isinstance(n, Tensor) else n for n in a.rows[1:]] for a in axes]
        maps = [positions * 0 if r else positions for r in is_repeated]
        all_lengths = []
        for axis in range(depth):
            lengths, maps = _broadcast_rows([sizes[axis] for sizes in rows], maps)
            all_lengths.append(lengths)
        return [*all_lengths, *maps]

    sizes = [n for a in axes for n in a.rows[1:] if not isinstance(n, Tensor)]
    if has_symbolic_size(sizes) or all(find_value(t) is not None for t in splits):
        parts: list[Any] = find(np.arange(count), *[t.require_value(SPLITS_USE) for t in splits])
    else:
        results: list[Result] = [
            ((f"rows of axis {k}" if k else count,), dtype.dtype) for k in range(depth)
        ]
        results += [(("values",), np.int64)] * len(axes)
        parts = compute_on_host(find, [Tensor(make_range(count)), *splits], results, SPLITS_USE)
    maps = parts[depth:]
    partitions = []
    for axis, lengths in enumerate(parts[:depth], 1):
        widths = {n if isinstance(n, int) else None for n in (a.rows[axis] for a in axes)} - {1}
        following = parts[axis] if axis < depth else maps[0]
        num_values = following.shape[0]
        if None in widths:
            partition = RowPartition.from_row_lengths(lengths, False, dtype, num_values=num_values)
        else:
            size = np.asarray(widths.pop() if widths else 1, dtype.dtype)
            partition = RowPartition.from_uniform_row_length(size, num_values, lengths.shape[0])
        partitions.append(partition)
    values = [
        a.values if _is_identity(m, a.values.shape[0]) else gather_values(a.values, m)
        for a, m in zip(axes, maps, strict=True)
    ]
    make = lambda result: functools.reduce(
        RaggedTensor.from_partition, reversed(partitions), result
    )
    return values, make


def _is_identity(positions: np.ndarray | Tensor, count: int) -> bool:
    if isinstance(positions, Tensor):
        return False
    return len(positions) == count and bool((positions == np.arange(count)).all())


def _align(operand: PyTree, model: RaggedTensor) -> PyTree:
    """Return the values of an operand for the innermost values of a ragged tensor, or None."""
    if isinstance(operand, RaggedTensor):
        return operand.flat_values
    rank, inner = len(operand.shape), len(model.flat_values.shape) - 1
    if rank <= inner:
        return operand
    sizes = operand.shape.as_list()
    outer = sizes[: rank - inner]
    if len(outer) <= model.ragged_rank or any(n != 1 for n in outer[1:]):
        # A dense tensor with fewer dimensions is constant over rows only if all its outer sizes are 1.
        if any(n != 1 for n in outer):
            return None
        return array.reshape(operand, [1, *sizes[rank - inner :]])
    flat = array.reshape(operand, [outer[0], *sizes[rank - inner :]])
    if outer[0] == 1:
        return flat
    if outer[0] != model.partition.static_nrows:
        return None
    ids = model.partition.value_rowids()
    for partition in model.nested_partitions[1:]:
        ids = array.gather(ids, partition.value_rowids())
    return array.gather(flat, ids)


def _broadcast_sizes(sizes: Sequence[int]) -> int:
    others = {n for n in sizes if n != 1}
    if len(others) > 1:
        raise InvalidValueError(f"Unable to broadcast: dimension size mismatch {sorted(others)}.")
    return others.pop() if others else 1


def _broadcast_rows(rows: Sequence[Any], maps: list[Array]) -> tuple[Array, list[Array]]:
    """Broadcast one axis; return its row lengths, and the rows of the operands at the next axis."""
    ones = 0 * maps[0] + 1
    target: Any = None
    for sizes, positions in zip(rows, maps, strict=True):
        if isinstance(sizes, int) and sizes == 1:
            continue
        is_uniform = isinstance(sizes, int)
        lengths = ones * sizes if is_uniform else take(sizes[1:] - sizes[:-1], positions)
        is_known = isinstance(lengths, np.ndarray) and isinstance(target, np.ndarray)
        if is_known and not np.array_equal(target, lengths):
            # TensorFlow compares the row splits, those of a dense tensor first.
            pair = (lengths, target) if is_uniform else (target, lengths)
            x, y = (Tensor(np.cumsum([0, *n])) for n in pair)
            try:
                debugging.assert_equal(x, y, message=_MISMATCH)
            except InvalidArgumentError as error:
                # TensorFlow raises a ValueError in some of its ops.
                raise InvalidValueError(str(error)) from None
        if target is not None and not is_known and context.exporting:
            debugging.record_assertion(Tensor(target == lengths), _MISMATCH)
        target = lengths
    if target is None:
        target = ones
    results = []
    ids, offsets = expand_rows(target)
    for sizes, positions in zip(rows, maps, strict=True):
        repeated = take(positions, ids)
        if isinstance(sizes, int) and sizes == 1:
            results.append(repeated)
        elif isinstance(sizes, int):
            results.append(repeated * sizes + offsets)
        else:
            results.append(take(sizes[:-1], repeated) + offsets)
    return target, results


def apply_elementwise(
    public: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    names: Sequence[str | None],
) -> PyTree:
    """Apply an elementwise op to operands with broadcasting.

    Args:
      public: The op.
      args: Positional arguments.
      kwargs: Keyword arguments.
      names: Names of the parameters of the op; those of its operands, with None for other parameters.
    """
    slots: list[tuple[Any, ...]] = []
    operands: list[Any] = []
    filled, named = list(args), dict(kwargs)
    pairs = [(filled, i, names[i]) for i in range(min(len(filled), len(names)))]
    pairs += [(named, key, key if key in names else None) for key in named]  # type: ignore[misc]
    for holder, key, name in pairs:
        value = holder[key]
        if name is None or value is None:
            continue
        if isinstance(value, list | tuple) and contains_ragged(value):
            slots.append((holder, key, len(value)))
            operands += value
        else:
            slots.append((holder, key, None))
            operands.append(value)
    dtype = next(x.dtype for x in operands if isinstance(x, RaggedTensor))
    operands = [
        x if isinstance(x, RaggedTensor | DeferredValue) else convert_to_tensor(x, dtype_hint=dtype)
        for x in operands
    ]
    flat, make = broadcast(operands)
    supply = iter(flat)
    for holder, key, count in slots:
        holder[key] = next(supply) if count is None else [next(supply) for _ in range(count)]
    result = _call_on_values(public, filled, named)
    # An assertion returns nothing.
    return None if result is None else make(result)


def _call_on_values(op: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> PyTree:
    """Call an op on innermost values, which may be strings of a function that is being saved."""
    recorder = context.host_recorder
    if recorder is not None and recorder.should_record(args, kwargs):
        return recorder.call(op, args, kwargs)
    return op(*args, **kwargs)


def map_flat_values(op: Callable[..., Any], *args: Any, **kwargs: Any) -> PyTree:
    """Apply a function to the innermost values of ragged tensors with the same rows.

    Example:
      >>> tf.ragged.map_flat_values(tf.square, tf.ragged.constant([[1, 2], [3]])).to_list()
      [[1, 4], [9]]
    """
    found: list[RaggedTensor] = []

    def replace(value: Any) -> Any:
        if isinstance(value, RaggedTensor):
            found.append(value)
            return value.flat_values
        if type(value) in (list, tuple):
            return type(value)(map(replace, value))
        return value

    flat_args = [replace(value) for value in args]
    flat_kwargs = {key: replace(value) for key, value in kwargs.items()}
    if not found:
        return op(*flat_args, **flat_kwargs)
    check_splits_dtypes(found)
    is_uniform = lambda x: [p.is_uniform() for p in x.nested_partitions]
    model = max(found, key=lambda x: (x.ragged_rank, is_uniform(x)))
    for value in found:
        _check_rows(value, model)
    result = _call_on_values(op, flat_args, flat_kwargs)
    if not isinstance(result, Tensor | RaggedTensor | DeferredValue):
        result = convert_to_tensor(result)
    if not len(result.shape) or result.shape[0] != model.flat_values.shape[0]:
        raise ValueError(
            "tf.ragged.map_flat_values requires that the output of `op` have the same outer-dimension size as "
            f"flat_values of any ragged inputs. (output shape: {result.shape}; expected outer dimension size: "
            f"{model.flat_values.shape[0]})"
        )
    return model.with_flat_values(result)


def _check_rows(value: RaggedTensor, model: RaggedTensor) -> None:
    """Check that known partitions are equal, like in TensorFlow."""
    if value.ragged_rank != model.ragged_rank:
        raise ValueError("All ragged inputs must have the same ragged_rank.")
    if any(map(have_different_values, value.nested_row_splits, model.nested_row_splits)):
        raise InvalidValueError(
            "Inputs must have identical ragged splits: the partitions have incompatible row_splits."
        )
