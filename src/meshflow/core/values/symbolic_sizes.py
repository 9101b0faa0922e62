"""Symbolic sizes in programs that are exported for any size.

An example is `tf.shape` of a tensor with an unknown batch size.

As a tensor, such a size is only known when the program runs. As the size of another tensor, its
symbol is sufficient, so the tensor stores the symbol (`Tensor._sizes`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import core
from jax.errors import InconclusiveDimensionOperation
from jax.export import is_symbolic_dim
from jax.typing import DTypeLike

from meshflow.core.runtime.context import context
from meshflow.core.values.tensor import Tensor
from meshflow.environment.types import Array, PyTree


def has_symbolic_size(sizes: Iterable[Any]) -> bool:
    """Check whether one of the sizes is a symbol.

    Args:
      sizes: Integers, None, or symbols of `jax.export`.
    """
    return any(map(is_symbolic_dim, sizes))


def as_size(size: Any) -> Any:
    """Convert a size to an integer, unless it is a symbol."""
    return size if is_symbolic_dim(size) else int(size)


def may_be_zero(size: Any) -> bool:
    """Check whether a size is 0, or a symbolic size that is not always positive.

    Example:
      >>> import jax
      >>> (n,) = jax.export.symbolic_shape("n")
      >>> may_be_zero(0), may_be_zero(3), may_be_zero(n), may_be_zero(n - 1)
      (True, False, False, True)
    """
    return may_be_smaller(size, 1)


def may_be_smaller(size: Any, limit: int) -> bool:
    """Check whether a size is smaller than a limit, or a symbolic size that is not always at least the limit.

    Example:
      >>> import jax
      >>> (n,) = jax.export.symbolic_shape("n")
      >>> may_be_smaller(2, 3), may_be_smaller(n, 3), may_be_smaller(n + 2, 3)
      (True, True, False)
    """
    with contextlib.suppress(InconclusiveDimensionOperation):
        return not size >= limit
    return True


def may_be_positive(size: Any) -> bool:
    """Check whether a size is positive, or a symbolic size that may be positive.

    Example:
      >>> import jax
      >>> (n,) = jax.export.symbolic_shape("n")
      >>> may_be_positive(0), may_be_positive(3), may_be_positive(n - 2), may_be_positive(1 - n)
      (False, True, True, False)
    """
    with contextlib.suppress(InconclusiveDimensionOperation):
        return bool(size > 0)
    return True


def make_range(size: Any) -> Any:
    """Return the integers below a size: a NumPy array, or a traced one if the size is a symbol.

    Example:
      >>> make_range(3)
      array([0, 1, 2])
    """
    return jnp.arange(size) if is_symbolic_dim(size) else np.arange(size)


def pad_empty(array: Array, axis: int, value: float = 0, least: int = 1) -> Array:
    """Add last slices to an array in a program for any sizes if the axis may have too few.

    XLA gathers from at least one slice, and sums over at least one. See `pad_for_gather` for known sizes.

    Args:
      array: An array.
      axis: The axis.
      value: Value of the elements of the slices.
      least: Number of slices that the axis needs; as many are added.

    Returns:
      The array itself if its axis is not symbolic or always has enough elements.
    """
    size = array.shape[axis]
    if not is_symbolic_dim(size) or not context.exporting or not may_be_smaller(size, least):
        return array
    paddings = [(0, least if a == axis % array.ndim else 0) for a in range(array.ndim)]
    return jnp.pad(array, paddings, constant_values=np.asarray(value, array.dtype))


def pad_for_gather(array: Array, axis: int) -> Array:
    """Add a slice to an array from which a program gathers an unknown number of slices, if the axis is or may be empty.

    Args:
      array: An array.
      axis: The axis.
    """
    size = array.shape[axis]
    if is_symbolic_dim(size) or size or context.unknown_sizes is None:
        return pad_empty(array, axis)
    return jnp.pad(array, [(0, int(a == axis % array.ndim)) for a in range(array.ndim)])


def make_sizes_tensor(sizes: Any, dtype: DTypeLike) -> Tensor:
    """Create a tensor of sizes that stores their symbols.

    Args:
      sizes: A symbol or integer, or a tuple of them.
      dtype: A NumPy dtype.
    """
    if isinstance(sizes, tuple):
        tensor = Tensor(jnp.stack([jnp.asarray(s, dtype) for s in sizes]))
    else:
        tensor = Tensor(jnp.asarray(sizes, dtype))
    tensor._sizes = sizes
    return tensor


def slice_sizes(tensor: Tensor, key: object) -> Tensor | None:
    """Return `tensor[key]` of a tensor that stores symbols, or None for other tensors.

    Args:
      tensor: A tensor.
      key: An integer or slice; the result is None for other keys.
    """
    sizes = getattr(tensor, "_sizes", None)
    if isinstance(sizes, tuple) and isinstance(key, (int, slice)):
        return make_sizes_tensor(sizes[key], tensor.array.dtype)
    return None


def get_sizes(tensor: object) -> Any:
    """Return the sizes that a tensor holds, or None if they are unknown.

    The result is a NumPy array of symbols and integers.

    Args:
      tensor: A tensor, or any other object.
    """
    if not isinstance(tensor, Tensor):
        return None
    sizes = getattr(tensor, "_sizes", None)
    if sizes is not None:
        symbols = np.empty(len(sizes) if isinstance(sizes, tuple) else (), object)
        symbols[...] = sizes
        return symbols
    value = None if tensor._is_in_graph else tensor.array
    if isinstance(value, np.ndarray) and value.dtype.kind in "iu" and value.ndim < 2:
        return value.astype(object)
    return None


def propagate_sizes(
    name: str, operands: Sequence[Any], static: tuple[Any, ...], output: PyTree
) -> None:
    """Store the symbols of a result of arithmetic on sizes.

    Args:
      name: Name of the op.
      operands: Operands of the op.
      static: Static arguments of the op.
      output: Result of the op.
    """
    if name not in _SIZE_RULES or not isinstance(output, Tensor) or output.array.ndim > 1:
        return
    flat = operands[0] if name in _JOIN_OPS and isinstance(operands[0], (list, tuple)) else operands
    if not any(hasattr(t, "_sizes") for t in flat if isinstance(t, Tensor)):
        return
    values = [get_sizes(t) for t in flat]
    if any(v is None for v in values) or not np.issubdtype(output.array.dtype, np.integer):
        return
    symbols = np.asarray(_SIZE_RULES[name](values, static), object)
    if symbols.shape == output.array.shape:
        output._sizes = tuple(symbols.tolist()) if symbols.ndim else symbols.item()


def _make_binary_rule(function: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    return lambda values, static: np.frompyfunc(function, 2, 1)(*values)


_JOIN_OPS = ("concat", "stack")
_SIZE_RULES: dict[str, Callable[..., Any]] = {
    "add": _make_binary_rule(lambda x, y: x + y),
    "subtract": _make_binary_rule(lambda x, y: x - y),
    "multiply": _make_binary_rule(lambda x, y: x * y),
    "floordiv": _make_binary_rule(lambda x, y: x // y),
    "floormod": _make_binary_rule(lambda x, y: x % y),
    "maximum": _make_binary_rule(lambda x, y: core.max_dim(x, y)),
    "minimum": _make_binary_rule(lambda x, y: core.min_dim(x, y)),
    "negative": lambda values, static: -values[0],
    "cast": lambda values, static: values[0],
    "concat": lambda values, static: np.concatenate(values),
    "stack": lambda values, static: np.stack(values),
    "reduce_prod": lambda values, static: np.prod(values[0]),
    "reduce_sum": lambda values, static: np.sum(values[0]),
    "expand_dims": lambda values, static: values[0].reshape(1),
    "reshape": lambda values, static: values[0].reshape(static[0]),
    "squeeze": lambda values, static: values[0].reshape(()),
    "gather": lambda values, static: values[0][values[1].astype(int)],
}
