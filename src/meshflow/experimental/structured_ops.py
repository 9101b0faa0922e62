"""Ops on `tf.experimental.StructuredTensor`, which apply to the fields."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from meshflow.core.dispatch import symbolic_calls
from meshflow.core.dispatch.operands import to_static_value
from meshflow.core.values.dtypes import DTypeLike, float32, int32
from meshflow.core.values.shapes import TensorShape
from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.environment.types import PyTree
from meshflow.experimental.structured_tensor import StructuredTensor
from meshflow.ops import array, random
from meshflow.ops.ragged import DynamicRaggedShape
from meshflow.ops.ragged.construction import convert_values
from meshflow.ops.ragged.elementwise import get_op_name
from meshflow.ops.ragged.tensor import get_positive_axis


def _make_zeros(value: StructuredTensor) -> PyTree:
    shape: PyTree = value.ragged_shape
    return array.zeros(shape, int32)


def _map_fields(
    function: Callable[..., PyTree], values: Sequence[StructuredTensor], rank: int
) -> StructuredTensor:
    """Apply a function to the corresponding fields of structured tensors.

    Raises:
      ValueError: If they do not have the same fields.
    """
    names = values[0].field_names()
    if any(set(v.field_names()) != set(names) for v in values):
        raise ValueError(
            f"Structured tensors must have the same fields, got {[v.field_names() for v in values]}."
        )
    if not names:
        # The shape of an int32 tensor in the place of the fields is that of the result.
        zeros = [_make_zeros(v) for v in values]
        return StructuredTensor.from_shape(DynamicRaggedShape.from_tensor(function(*zeros)))
    fields = {name: function(*[v.field_value(name) for v in values]) for name in names}
    return StructuredTensor.from_fields(fields, TensorShape([None] * rank))


def _concat(values: Sequence[Any], axis: PyTree) -> StructuredTensor:
    if isinstance(values, StructuredTensor) or not all(
        isinstance(v, StructuredTensor) for v in values
    ):
        raise ValueError("values must be a list of StructuredTensors.")
    ranks = {v.rank for v in values}
    if len(ranks) > 1:
        raise ValueError(f"Ranks of sub-message do not match: {sorted(ranks)}.")
    rank = ranks.pop()
    if rank == 0:
        raise ValueError("axis=0 out of bounds: structured scalars cannot be concatenated.")
    axis = get_positive_axis(int(to_static_value(axis, "axis")), rank)
    return _map_fields(lambda *parts: array.concat(list(parts), axis), values, rank)


def _expand_dims(input: StructuredTensor, axis: PyTree) -> StructuredTensor:
    rank = input.rank + 1
    axis = get_positive_axis(int(to_static_value(axis, "axis")), rank)
    return _map_fields(lambda part: array.expand_dims(part, axis), [input], rank)


def _gather(
    params: StructuredTensor,
    indices: TensorLike,
    validate_indices: bool | None = None,
    axis: PyTree = None,
    batch_dims: int = 0,
) -> StructuredTensor:
    rank = params.rank
    if not rank:
        raise ValueError("axis=0 out of bounds: a structured scalar has no rows to gather.")
    batch_dims = get_positive_axis(batch_dims, rank, "batch_dims")
    axis = batch_dims if axis is None else int(to_static_value(axis, "axis"))
    axis = get_positive_axis(axis, rank)
    if batch_dims > axis:
        raise ValueError(f"batch_dims={batch_dims} out of bounds: it must be at most axis={axis}.")
    indices = convert_values(indices)
    count = len(indices.shape)
    take = lambda part: array.gather(part, indices, axis=axis, batch_dims=batch_dims)
    return _map_fields(take, [params], rank - 1 + count - batch_dims)


def _shuffle(value: StructuredTensor, seed: int | None = None) -> StructuredTensor:
    if not value.rank:
        raise ValueError("Cannot shuffle a scalar StructuredTensor.")
    order = random.shuffle(array.range(value.nrows()), seed=seed)
    return _gather(value, order)


def _fill(fill: Callable[..., PyTree], input: StructuredTensor, dtype: DTypeLike | None) -> PyTree:
    return fill(input.ragged_shape, float32 if dtype is None else dtype)


def _count(input: StructuredTensor, out_type: DTypeLike | None = int32) -> Tensor:
    return array.size(_make_zeros(input), out_type=out_type or int32)


_OPS: dict[str, Callable[..., Any]] = {
    "concat": _concat,
    "expand_dims": _expand_dims,
    "gather": _gather,
    "ones_like": lambda input, dtype=None, **_: _fill(array.ones, input, dtype),
    "rank": lambda input: Tensor(np.array(input.rank, np.int32)),
    "shape": lambda input, out_type=int32: input.ragged_shape.with_dtype(out_type),
    "shuffle": _shuffle,
    "size": _count,
    "zeros_like": lambda input, dtype=None, **_: _fill(array.zeros, input, dtype),
}


def _call(public: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> PyTree:
    name = get_op_name(public)
    if name not in _OPS or not symbolic_calls.has_symbolic(args, kwargs, StructuredTensor):
        return NotImplemented
    return _OPS[name](*args, **{k: v for k, v in kwargs.items() if k != "name"})


symbolic_calls.register_composite_type(StructuredTensor, _call)
