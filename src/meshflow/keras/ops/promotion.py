"""Which dtype operands of `keras.ops` meet in: JAX's lattice, with Keras' float type for Python's floats.

Python numbers are weak, integers become `floatx()` where a function of real numbers is asked for, and no
64 bits come out that did not go in.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np

from meshflow.core.values import dtypes
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.dtypes import DType
from meshflow.keras.settings import floatx
from meshflow.ops.casting import cast

__all__ = ["as_float", "as_sum", "common", "result_type", "tensor", "wide_float"]

_WEAK = (bool, int, float, complex)


def tensor(x: Any) -> Any:
    """A tensor, or the symbolic tensor itself."""
    return x if hasattr(x, "_keras_history") else convert_to_tensor(x)


def result_type(*kinds: Any) -> DType:
    """The dtype in which dtypes and Python types meet.

    Args:
      *kinds: dtypes, their names, or `bool`, `int`, `float`, `complex` for Python numbers.

    Example:
      >>> from meshflow.keras.ops.promotion import result_type
      >>> result_type("int32", float), result_type("int64", "float16"), result_type(int, bool)
      (tf.float32, tf.float16, tf.int32)
    """
    weak = [k for k in kinds if isinstance(k, type) and k in _WEAK]
    strong = [dtypes.as_dtype(k) for k in kinds if not (isinstance(k, type) and k in _WEAK)]
    rank = max((_WEAK.index(k) for k in weak), default=0)
    if not strong:
        return dtypes.as_dtype(("bool", "int32", floatx(), "complex64")[rank])
    if len(set(strong)) == 1:
        found = strong[0]
    else:
        found = _met(strong)
    whole = found.is_integer or found.is_bool
    if rank == 3 and not found.is_complex:
        return dtypes.complex64
    if rank == 2 and whole:
        return dtypes.as_dtype(floatx())
    return dtypes.int32 if rank == 1 and found.is_bool else found


def _met(strong: list[DType]) -> DType:
    numpy = [np.dtype(d.dtype) for d in strong]
    whole = all(d.is_integer or d.is_bool for d in strong)
    if whole and dtypes.uint64 in strong and not all(d.is_unsigned or d.is_bool for d in strong):
        # No integer holds both: JAX's lattice goes on to floats.
        return dtypes.as_dtype(floatx())
    if dtypes.complex64 in strong and dtypes.complex128 not in strong:
        return dtypes.complex64
    return dtypes.of_numpy(np.dtype(jnp.result_type(*numpy)))


def _kind(x: Any) -> Any:
    return type(x) if type(x) in _WEAK else x.dtype


def common(*values: Any, also: Any = None) -> list[Any]:
    """Tensors of one dtype: that of all of them, and of `also`, a dtype or Python type."""
    held = [v if type(v) in _WEAK else tensor(v) for v in values]
    dtype = result_type(*map(_kind, held), *(() if also is None else (also,)))
    return [_as(v, dtype) for v in held]


def _as(value: Any, dtype: DType) -> Any:
    if type(value) in _WEAK:
        return convert_to_tensor(value, dtype)
    return value if dtypes.as_dtype(value.dtype) is dtype else cast(value, dtype)


def as_float(x: Any) -> Any:
    """A tensor as it is when it is floating or complex, as `floatx()` when it is not."""
    x = tensor(x)
    kind = dtypes.as_dtype(x.dtype)
    return cast(x, floatx()) if kind.is_integer or kind.is_bool else x


def wide_float(x: Any) -> Any:
    """`as_float` with float64 for 64-bit integers."""
    x = tensor(x)
    return cast(x, dtypes.float64) if dtypes.as_dtype(x.dtype) is dtypes.int64 else as_float(x)


def as_sum(x: Any) -> Any:
    """A tensor in the dtype in which its elements are summed: small integers become 32 bits."""
    x = tensor(x)
    kind = dtypes.as_dtype(x.dtype)
    if kind.is_bool or (kind.is_integer and kind.size < 4):
        return cast(x, dtypes.uint32 if kind.is_integer and kind.is_unsigned else dtypes.int32)
    return x
