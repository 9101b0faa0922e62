"""From one dtype to another."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from meshflow.core.dispatch.composite import IndexedSlices, SparseTensor, passes_rows
from meshflow.core.dispatch.dispatch import op
from meshflow.core.runtime.errors import UnimplementedError
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.dtypes import DType, as_dtype, string
from meshflow.core.values.tensor import Tensor, TensorLike

__all__ = ["cast", "complex", "saturate_cast"]

# As TensorFlow's messages call them.
_OLD_NAMES = {"float16": "half", "float32": "float", "float64": "double"}


@op(same=(), name="cast")
def _cast(x: TensorLike, dtype: DType) -> Tensor:
    if jnp.issubdtype(x.dtype, jnp.complexfloating) and not jnp.issubdtype(
        dtype.dtype, jnp.complexfloating
    ):
        x = jnp.real(x)
    if dtype.is_bool:
        return x != 0
    return jax.lax.convert_element_type(x, dtype.dtype)


_cast.op.by_rows = passes_rows(  # type: ignore[attr-defined]
    lambda operand, rows: rows.with_values(cast(rows.values, operand.dtype))
)


def cast(x: TensorLike, dtype: Any, name: str | None = None) -> Tensor:
    """Converts to another dtype; floats become integers by dropping the fraction.

    Args:
      x: a tensor.
      dtype: the dtype of the result.
      name: ignored.

    Returns:
      A tensor of the shape of `x`; `x` itself when it has the dtype.

    Raises:
      UnimplementedError: from strings to numbers or back; see `tf.strings.to_number`, `tf.strings.as_string`.

    Example:
      >>> import meshflow as tf
      >>> tf.cast([1.8, -1.8], tf.int32).numpy()
      array([ 1, -1], dtype=int32)
    """
    wanted = as_dtype(dtype)
    if isinstance(x, Tensor):
        if x.dtype is wanted:
            return x
        if string in (x.dtype, wanted):
            names = [_OLD_NAMES.get(d.name, d.name) for d in (x.dtype, wanted)]
            raise UnimplementedError(f"Cast {names[0]} to {names[1]} is not supported [Op:Cast]")
    if isinstance(x, (SparseTensor, IndexedSlices)):
        return x.with_values(cast(x.values, wanted))
    return _cast(convert_to_tensor(x) if x is None else x, wanted)


@op(same=(), name="saturate_cast")
def _saturate_cast(value: TensorLike, dtype: DType) -> Tensor:
    if jnp.issubdtype(value.dtype, jnp.complexfloating) and not dtype.is_complex:
        value = jnp.real(value)
    if dtype.is_complex or dtype.is_bool:
        return value.astype(dtype.dtype)
    low, high = _ends(value.dtype, dtype)
    return jnp.clip(value, low, high).astype(dtype.dtype)


def _ends(own: Any, wanted: DType) -> tuple[Any, Any]:
    """The least and largest numbers of dtype `own` that `wanted` can hold."""
    if own == jnp.bool_:
        return False, True
    if jnp.issubdtype(own, jnp.integer):
        if wanted.is_floating:
            return None, None
        limits = jnp.iinfo(own)
        return max(int(limits.min), int(wanted.min)), min(int(limits.max), int(wanted.max))
    floats = jnp.finfo(own)
    low = max(float(floats.min), float(wanted.min))
    high = min(float(floats.max), float(wanted.max))
    # Rounding to the nearest may lead out of the range: step back to the number before.
    ends = np.asarray([low, high], own)
    outside = ends.astype(np.float64) > high
    ends = np.where(outside, np.nextafter(ends, np.zeros((), own)), ends)
    return ends[0], ends[1]


def saturate_cast(value: TensorLike, dtype: Any, name: str | None = None) -> Tensor:
    """Converts to another dtype, clipping to its range first.

    The result has the shape of the argument.

    Example:
      >>> import meshflow as tf
      >>> print(tf.saturate_cast([-5, 100, 300], tf.uint8).numpy())
      [  0 100 255]
    """
    return _saturate_cast(value, as_dtype(dtype))


@op(kinds="f")
def complex(real: TensorLike, imag: TensorLike, name: str | None = None) -> Tensor:
    """Complex numbers from real and imaginary parts.

    Arguments are broadcast; the result has the broadcast shape.

    Example:
      >>> import meshflow as tf
      >>> print(tf.complex([1.0, 2.0], [0.0, 3.0]).numpy())
      [1.+0.j 2.+3.j]
    """
    return jax.lax.complex(*jnp.broadcast_arrays(real, imag))
