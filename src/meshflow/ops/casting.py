"""Conversion between dtypes."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from meshflow.core.dispatch.composite import IndexedSlices, SparseTensor, make_elementwise_row_rule
from meshflow.core.dispatch.dispatch import op
from meshflow.core.dispatch.symbolic_calls import dispatch_composites
from meshflow.core.runtime.errors import UnimplementedError
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.dtypes import DType, DTypeLike, as_dtype, string
from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.core.variables.variable import Variable

__all__ = ["cast", "complex", "saturate_cast"]

# TensorFlow's error messages use these names.
_C_TYPE_NAMES = {"float16": "half", "float32": "float", "float64": "double"}


@op(same=(), name="cast")
def cast_tensor(x: TensorLike, dtype: DType) -> Tensor:
    if jnp.issubdtype(x.dtype, jnp.complexfloating) and not jnp.issubdtype(
        dtype.dtype, jnp.complexfloating
    ):
        x = jnp.real(x)
    if dtype.is_bool:
        return x != 0
    return jax.lax.convert_element_type(x, dtype.dtype)


cast_tensor.op.row_gradient = make_elementwise_row_rule(  # type: ignore[attr-defined]
    lambda operand, rows: rows.with_values(cast(rows.values, operand.dtype))
)


@dispatch_composites
def cast(x: TensorLike, dtype: Any, name: str | None = None) -> Tensor:
    """Convert a tensor to another dtype; floats are truncated toward zero to integers.

    Args:
      x: A tensor.
      dtype: The dtype of the result.
      name: Ignored.

    Returns:
      A tensor with the shape of `x`; `x` itself, also a variable, if it has the dtype.

    Raises:
      UnimplementedError: For strings; see `tf.strings.to_number` and `tf.strings.as_string`.

    Example:
      >>> tf.cast([1.8, -1.8], tf.int32).numpy()
      array([ 1, -1], dtype=int32)
    """
    target = as_dtype(dtype)
    if target is string and not isinstance(x, (SparseTensor, IndexedSlices)):
        x = convert_to_tensor(x)
    if isinstance(x, (Tensor, Variable)) and x.dtype is target:
        return x
    if isinstance(x, Tensor) and string in (x.dtype, target):
        names = [_C_TYPE_NAMES.get(d.name, d.name) for d in (x.dtype, target)]
        raise UnimplementedError(f"Cast {names[0]} to {names[1]} is not supported [Op:Cast]")
    if isinstance(x, (SparseTensor, IndexedSlices)):
        return x.with_values(cast(x.values, target))
    return cast_tensor(convert_to_tensor(x) if x is None else x, target)


@op(same=(), name="saturate_cast")
def _saturate_cast(value: TensorLike, dtype: DType) -> Tensor:
    if jnp.issubdtype(value.dtype, jnp.complexfloating) and not dtype.is_complex:
        value = jnp.real(value)
    if dtype.is_complex or dtype.is_bool:
        return value.astype(dtype.dtype)
    low, high = _get_common_range(value.dtype, dtype)
    return jnp.clip(value, low, high).astype(dtype.dtype)


def _get_common_range(source: jnp.dtype, target: DType) -> tuple[float | None, float | None]:
    """Return the smallest and largest value of dtype `source` that `target` can represent."""
    if source == jnp.bool_:
        return False, True
    if jnp.issubdtype(source, jnp.integer):
        if target.is_floating:
            return None, None
        limits = jnp.iinfo(source)
        return max(int(limits.min), int(target.min)), min(int(limits.max), int(target.max))
    floats = jnp.finfo(source)
    low = max(float(floats.min), float(target.min))
    high = min(float(floats.max), float(target.max))
    # Rounding to the nearest value may leave the range, so step back to the previous value.
    ends = np.asarray([low, high], source)
    outside = ends.astype(np.float64) > high
    ends = np.where(outside, np.nextafter(ends, np.zeros((), source)), ends)
    return ends[0], ends[1]


@dispatch_composites
def saturate_cast(value: TensorLike, dtype: DTypeLike, name: str | None = None) -> Tensor:
    """Convert a tensor to another dtype after clipping it to the range of that dtype.

    Args:
      value: A tensor of any shape.
      dtype: The dtype of the result.
      name: Ignored.

    Example:
      >>> print(tf.saturate_cast([-5, 100, 300], tf.uint8).numpy())
      [  0 100 255]
    """
    return _saturate_cast(value, as_dtype(dtype))


@op(kinds="f")
def complex(real: TensorLike, imag: TensorLike, name: str | None = None) -> Tensor:
    """Combine real and imaginary parts into complex numbers.

    Args:
      real: A floating-point tensor.
      imag: A tensor of the same dtype, with a shape that is broadcast with that of `real`.
      name: Ignored.

    Example:
      >>> print(tf.complex([1.0, 2.0], [0.0, 3.0]).numpy())
      [1.+0.j 2.+3.j]
    """
    return jax.lax.complex(*jnp.broadcast_arrays(real, imag))
