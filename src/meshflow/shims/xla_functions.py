"""Functions of TensorFlow's private module `tf2xla.python.xla`, which wraps operations of XLA.

Keras Core and libraries that decode text call `dynamic_update_slice` and others directly. Names that only
rename a mathematical op of TensorFlow are in the module table.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from meshflow.core.dispatch.dispatch import op
from meshflow.core.dispatch.operands import to_static_value
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.dtypes import DTypeLike, as_dtype
from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.environment.types import Array

__all__ = [
    "broadcast",
    "clamp",
    "concatenate",
    "dot_general",
    "dynamic_slice",
    "dynamic_update_slice",
    "key_value_sort",
    "optimization_barrier",
    "pad",
    "reduce_precision",
    "rev",
    "slice",
]

# Ops are annotated with the tensors that their callers get, but compute with arrays.
_lax: Any = jax.lax


def _to_ints(values: TensorLike) -> list[int]:
    """Return the elements of a vector that are known while a function is traced."""
    static = np.asarray(to_static_value(values))
    return [int(v) for v in static.reshape(-1)]


def _split_indices(indices: Array) -> list[Array]:
    """Return the elements of a vector of start indices as scalars."""
    return [indices[i] for i in range(indices.shape[0])]


@op(name="xla_dynamic_slice", same=["input"])
def _dynamic_slice(input: TensorLike, start_indices: TensorLike, sizes: Sequence[int]) -> Tensor:
    return _lax.dynamic_slice(input, _split_indices(start_indices), sizes)


def dynamic_slice(
    input: TensorLike, start_indices: TensorLike, size_indices: TensorLike, name: str | None = None
) -> Tensor:
    """Return a part of a tensor; a part that would exceed the tensor is moved inside.

    Args:
      input: A tensor of n dimensions.
      start_indices: Integer tensor of shape [n], the first index of each dimension.
      size_indices: n sizes, which must be known.
      name: Ignored.

    Example:
      >>> from meshflow.shims import xla_functions
      >>> xla_functions.dynamic_slice([1, 2, 3, 4], [3], [2]).numpy()
      array([3, 4], dtype=int32)
    """
    return _dynamic_slice(input, start_indices, tuple(_to_ints(size_indices)))


@op(name="xla_dynamic_update_slice", same=["input", "update"])
def dynamic_update_slice(
    input: TensorLike, update: TensorLike, indices: TensorLike, name: str | None = None
) -> Tensor:
    """Return a tensor in which a part is replaced; a part that would exceed the tensor is moved inside.

    Args:
      input: A tensor of n dimensions.
      update: The part, a tensor of n dimensions.
      indices: Integer tensor of shape [n], the first index of each dimension.
      name: Ignored.

    Example:
      >>> from meshflow.shims import xla_functions
      >>> xla_functions.dynamic_update_slice([1, 2, 3, 4], [7, 8], [1]).numpy()
      array([1, 7, 8, 4], dtype=int32)
    """
    return _lax.dynamic_update_slice(input, update, _split_indices(indices))


@op(name="xla_dot_general", kinds="ifc", heavy=True)
def _dot_general(lhs: TensorLike, rhs: TensorLike, dimensions: Any, dtype: Any) -> Tensor:
    return _lax.dot_general(lhs, rhs, dimensions, preferred_element_type=dtype)


def dot_general(
    lhs: TensorLike,
    rhs: TensorLike,
    dimension_numbers: Any,
    precision_config: Any = None,
    preferred_element_type: DTypeLike | None = None,
    name: str | None = None,
    use_v2: bool = False,
) -> Tensor:
    """Return products of two tensors, summed over contracted dimensions.

    Args:
      lhs: A tensor.
      rhs: A tensor.
      dimension_numbers: XLA's `DotDimensionNumbers`, or ((lhs contracted, rhs contracted), (lhs batch,
        rhs batch)).
      precision_config: Ignored.
      preferred_element_type: Dtype of the result; default that of the operands.
      name: Ignored.
      use_v2: Ignored.

    Returns:
      A tensor with the batch dimensions and the other dimensions of `lhs` and of `rhs`.
    """
    if hasattr(dimension_numbers, "lhs_contracting_dimensions"):
        n = dimension_numbers
        dimension_numbers = (
            (n.lhs_contracting_dimensions, n.rhs_contracting_dimensions),
            (n.lhs_batch_dimensions, n.rhs_batch_dimensions),
        )
    dimensions = tuple(tuple(tuple(axes) for axes in pair) for pair in dimension_numbers)
    dtype = None if preferred_element_type is None else as_dtype(preferred_element_type)
    return _dot_general(lhs, rhs, dimensions, None if dtype is None else dtype.as_numpy_dtype)


@op(name="xla_key_value_sort", same=["keys"], differentiable=False)
def key_value_sort(
    keys: TensorLike, values: TensorLike, name: str | None = None
) -> tuple[Tensor, Tensor]:
    """Sort keys and the values that belong to them along the last dimension, in ascending order of the keys."""
    sorted_keys, sorted_values = _lax.sort((keys, values), num_keys=1)
    return sorted_keys, sorted_values


@op(name="xla_pad")
def _pad(input: TensorLike, padding_value: TensorLike, padding: Any) -> Tensor:
    return _lax.pad(input, padding_value, padding)


def pad(
    input: TensorLike,
    padding_value: TensorLike,
    padding_low: TensorLike,
    padding_high: TensorLike,
    padding_interior: TensorLike,
    name: str | None = None,
) -> Tensor:
    """Pad each dimension before, after and between elements; negative numbers before and after crop.

    Example:
      >>> from meshflow.shims import xla_functions
      >>> xla_functions.pad([1, 2], 0, [1], [0], [2]).numpy()
      array([0, 1, 0, 0, 2], dtype=int32)
    """
    triples = zip(*map(_to_ints, (padding_low, padding_high, padding_interior)), strict=True)
    return _pad(input, padding_value, tuple(triples))


@op(name="xla_clamp")
def clamp(a: TensorLike, x: TensorLike, b: TensorLike, name: str | None = None) -> Tensor:
    """Limit `x` to the range from `a` to `b`, each a scalar or of the shape of `x`."""
    return _lax.clamp(a, x, b)


@op(name="xla_rev")
def _rev(x: TensorLike, axes: Sequence[int]) -> Tensor:
    return _lax.rev(x, axes)


def rev(x: TensorLike, y: TensorLike, name: str | None = None) -> Tensor:
    """Reverse the dimensions `y` of `x`."""
    return _rev(x, tuple(_to_ints(y)))


def slice(
    x: TensorLike, start_dims: TensorLike, limit_dims: TensorLike, strides: TensorLike
) -> Tensor:
    """Return `x[start:limit:stride, ...]` with an entry of each argument for each dimension."""
    bounds = zip(*map(_to_ints, (start_dims, limit_dims, strides)), strict=True)
    index = tuple(_slice(*b) for b in bounds)
    result: Tensor = convert_to_tensor(x)[index]
    return result


# The function `slice` above has the name of the built-in class.
_slice = type(np.s_[:])


@op(name="xla_broadcast")
def _broadcast(x: TensorLike, sizes: Sequence[int]) -> Tensor:
    return _lax.broadcast(x, sizes)


def broadcast(x: TensorLike, dims: TensorLike, name: str | None = None) -> Tensor:
    """Repeat a tensor along new dimensions in front."""
    return _broadcast(x, tuple(_to_ints(dims)))


@op(name="xla_concatenate")
def concatenate(values: Sequence[TensorLike], axis: int, name: str = "concat") -> Tensor:
    """Concatenate tensors along a dimension."""
    return _lax.concatenate(list(values), axis)


@op(name="xla_reduce_precision", kinds="f")
def reduce_precision(operand: TensorLike, exponent_bits: int, mantissa_bits: int) -> Tensor:
    """Round floating-point numbers to a format with fewer bits, without a change of the dtype."""
    return _lax.reduce_precision(operand, exponent_bits, mantissa_bits)


def optimization_barrier(*args: TensorLike) -> tuple[Tensor, ...]:
    """Return the arguments as tensors; XLA's compiler for processors removes such barriers."""
    return tuple(convert_to_tensor(a) for a in args)
