"""Conversions of dtypes and complex numbers, and the error function.

Example:
  >>> ops.cast([1.7], "int32").numpy().tolist()
  [1]
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np

from meshflow.core.dispatch.dispatch import op
from meshflow.core.values import dtypes
from meshflow.core.values.dtypes import DTypeLike
from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.keras.ops.graph_calls import as_single_layer
from meshflow.keras.ops.op_factories import array_op, make_unary
from meshflow.keras.ops.promotion import as_float, as_tensor, promote
from meshflow.keras.settings import floatx
from meshflow.ops import casting, math

__all__ = [
    "cast",
    "erf",
    "erfc",
    "erfinv",
    "polar",
    "rsqrt",
    "saturate_cast",
    "view_as_complex",
    "view_as_real",
]


rsqrt = make_unary("rsqrt", math.rsqrt, "`1 / sqrt(x)`")
erf = make_unary("erf", math.erf, "the error function")
erfc = make_unary("erfc", math.erfc, "`1 - erf(x)`")
erfinv = make_unary("erfinv", math.erfinv, "the inverse of `erf`")


def cast(x: TensorLike, dtype: DTypeLike | None) -> Tensor:
    """Convert a tensor to another dtype.

    Args:
      x: A tensor.
      dtype: Dtype or its name; None for `floatx()`.

    Example:
      >>> ops.cast([1.7, -1.7], "int32").numpy().tolist()
      [1, -1]
    """
    return casting.cast(
        as_tensor(x), dtypes.as_dtype(floatx() if dtype in (None, float) else dtype)
    )


def saturate_cast(x: TensorLike, dtype: DTypeLike | None) -> Tensor:
    """Convert a tensor to another dtype; values out of its range become its minimum or maximum.

    Args:
      x: A tensor.
      dtype: Dtype or its name; None for `floatx()`.

    Example:
      >>> ops.saturate_cast([-3.0, 300.0], "uint8").numpy().tolist()
      [0, 255]
    """
    return casting.saturate_cast(as_tensor(x), dtypes.as_dtype(dtype or floatx()))


@op(same=("x1", "x2"), name="polar")
def _polar(x1: TensorLike, x2: TensorLike) -> Any:
    return (x1 * jnp.cos(x2) + 1j * (x1 * jnp.sin(x2))).astype(
        np.complex128 if x1.dtype == np.float64 else np.complex64
    )


@as_single_layer()
def polar(abs_: TensorLike, angle: TensorLike) -> Tensor:
    """Create complex numbers from absolute values and angles.

    Args:
      abs_: Absolute values.
      angle: Angles in radians.

    Example:
      >>> ops.polar([2.0], [0.0]).numpy().tolist()
      [(2+0j)]
    """
    return _polar(*promote(abs_, angle, also=float))


@op(same=(), name="view_as_complex")
def _pairs_to_complex(x: TensorLike) -> Any:
    return (x[..., 0] + 1j * x[..., 1]).astype(
        np.complex128 if x.dtype == np.float64 else np.complex64
    )


@as_single_layer()
def view_as_complex(x: TensorLike) -> Tensor:
    """Convert pairs of numbers in the last axis to complex numbers.

    Args:
      x: A floating-point tensor with a last axis of size 2.

    Example:
      >>> ops.view_as_complex([[1.0, 2.0]]).numpy().tolist()
      [(1+2j)]
    """
    x = as_float(x)
    if x.shape[-1:] != [2]:
        raise ValueError(
            f"view_as_complex: the last axis must have size 2 (real and imaginary part), got shape {tuple(x.shape)}."
        )
    return _pairs_to_complex(x)


@array_op()
def view_as_real(x: TensorLike) -> Tensor:
    """Convert complex numbers to pairs of real numbers in a new last axis.

    Args:
      x: A complex tensor.

    Example:
      >>> ops.view_as_real(ops.array([1 + 2j])).numpy().tolist()
      [[1.0, 2.0]]
    """
    return jnp.stack([jnp.real(x), jnp.imag(x)], -1)
