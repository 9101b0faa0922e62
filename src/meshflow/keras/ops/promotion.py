"""Dtype promotion of `keras.ops`: JAX's type lattice, with `floatx()` for Python floats.

Python numbers are weak, functions of real numbers convert integers to `floatx()`, and a result has
64 bits only if an operand has.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import jax.numpy as jnp
import numpy as np

from meshflow.core.values import dtypes
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.dtypes import DType, DTypeLike
from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.keras.settings import floatx
from meshflow.ops.casting import cast

# An axis, several axes, or all of them; and a size or step for all or for each spatial axis.
Axis: TypeAlias = int | Sequence[int] | None
Sizes: TypeAlias = int | Sequence[int]
# Types of Python numbers, in the order of promotion.
_WEAK = (bool, int, float, complex)


def as_tensor(x: TensorLike) -> Tensor:
    """Convert a value to a tensor; symbolic tensors are returned unchanged."""
    return x if hasattr(x, "_keras_history") else convert_to_tensor(x)


def result_type(*types: DTypeLike) -> DType:
    """Return the common dtype of dtypes and Python types.

    Args:
      *types: Dtypes, their names, or `bool`, `int`, `float`, `complex` for Python numbers.

    Example:
      >>> from meshflow.keras.ops.promotion import result_type
      >>> result_type("int32", float), result_type("int64", "float16"), result_type(int, bool)
      (tf.float32, tf.float16, tf.int32)
    """
    weak = [k for k in types if isinstance(k, type) and k in _WEAK]
    strong = [dtypes.as_dtype(k) for k in types if not (isinstance(k, type) and k in _WEAK)]
    rank = max((_WEAK.index(k) for k in weak), default=0)
    if not strong:
        return dtypes.as_dtype(("bool", "int32", floatx(), "complex64")[rank])
    if len(set(strong)) == 1:
        dtype = strong[0]
    else:
        dtype = _promote_dtypes(strong)
    is_integral = dtype.is_integer or dtype.is_bool
    if rank == 3 and not dtype.is_complex:
        return dtypes.complex64
    if rank == 2 and is_integral:
        return dtypes.as_dtype(floatx())
    return dtypes.int32 if rank == 1 and dtype.is_bool else dtype


def _promote_dtypes(strong: list[DType]) -> DType:
    numpy_dtypes = [np.dtype(d.dtype) for d in strong]
    is_integral = all(d.is_integer or d.is_bool for d in strong)
    if (
        is_integral
        and dtypes.uint64 in strong
        and not all(d.is_unsigned or d.is_bool for d in strong)
    ):
        # No integer dtype holds both, and JAX's type lattice continues with floats.
        return dtypes.as_dtype(floatx())
    if dtypes.complex64 in strong and dtypes.complex128 not in strong:
        return dtypes.complex64
    return dtypes.from_numpy_dtype(np.dtype(jnp.result_type(*numpy_dtypes)))


def _get_type(x: TensorLike) -> type | DType:
    return type(x) if type(x) in _WEAK else x.dtype


def promote(*values: TensorLike, also: DTypeLike | None = None) -> list[Tensor]:
    """Convert values to tensors of their common dtype, which includes `also`, a dtype or Python type."""
    operands = [v if type(v) in _WEAK else as_tensor(v) for v in values]
    dtype = result_type(*map(_get_type, operands), *(() if also is None else (also,)))
    return [_convert(v, dtype) for v in operands]


def _convert(value: TensorLike, dtype: DType) -> Tensor:
    if type(value) in _WEAK:
        return convert_to_tensor(value, dtype)
    return value if dtypes.as_dtype(value.dtype) is dtype else cast(value, dtype)


def as_float(x: TensorLike) -> Tensor:
    """Convert a tensor to `floatx()` unless it is floating-point or complex."""
    x = as_tensor(x)
    kind = dtypes.as_dtype(x.dtype)
    return cast(x, floatx()) if kind.is_integer or kind.is_bool else x


def as_wide_float(x: TensorLike) -> Tensor:
    """Convert 64-bit integers to float64, and other values as `as_float` does."""
    x = as_tensor(x)
    return cast(x, dtypes.float64) if dtypes.as_dtype(x.dtype) is dtypes.int64 else as_float(x)


def as_sum(x: TensorLike) -> Tensor:
    """Convert a tensor to the dtype of its sums: small integers become 32-bit integers."""
    x = as_tensor(x)
    kind = dtypes.as_dtype(x.dtype)
    if kind.is_bool or (kind.is_integer and kind.size < 4):
        return cast(x, dtypes.uint32 if kind.is_integer and kind.is_unsigned else dtypes.int32)
    return x
