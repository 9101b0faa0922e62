"""Sizes of a program that is exported for any size: `tf.shape` of a tensor whose batch is a symbol.

As a tensor such a size is known only when the program runs; as the size of another tensor the symbol is
enough, so the tensor remembers it (`Tensor._sizes`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import core
from jax.export import is_symbolic_dim

from meshflow.core.values.tensor import Tensor

__all__ = ["any_symbolic", "as_size", "computed", "part_of", "sizes_tensor", "symbols_of"]


def any_symbolic(sizes: Any) -> bool:
    """Whether one of the sizes is a symbol.

    Args:
      sizes: integers, None, or symbols of `jax.export`.
    """
    return any(map(is_symbolic_dim, sizes))


def as_size(size: Any) -> Any:
    """A size as an integer, unless it is a symbol."""
    return size if is_symbolic_dim(size) else int(size)


def sizes_tensor(sizes: Any, dtype: Any) -> Tensor:
    """A tensor of sizes that knows their symbols.

    Args:
      sizes: a symbol or integer, or a tuple of them.
      dtype: a NumPy dtype.
    """
    if isinstance(sizes, tuple):
        tensor = Tensor(jnp.stack([jnp.asarray(s, dtype) for s in sizes]))
    else:
        tensor = Tensor(jnp.asarray(sizes, dtype))
    tensor._sizes = sizes
    return tensor


def part_of(tensor: Tensor, key: Any) -> Tensor | None:
    """`tensor[key]` of a tensor that knows its symbols, or None for others.

    Args:
      tensor: a tensor.
      key: a number or slice; for other keys the result is None.
    """
    sizes = getattr(tensor, "_sizes", None)
    if isinstance(sizes, tuple) and isinstance(key, (int, slice)):
        return sizes_tensor(sizes[key], tensor._value.dtype)
    return None


def symbols_of(tensor: Any) -> Any:
    """A tensor's sizes as a NumPy array of symbols and integers, or None where they are not known.

    Args:
      tensor: a tensor, or anything else.
    """
    if not isinstance(tensor, Tensor):
        return None
    sizes = getattr(tensor, "_sizes", None)
    if sizes is not None:
        made = np.empty(len(sizes) if isinstance(sizes, tuple) else (), object)
        made[...] = sizes
        return made
    value = tensor._value
    if isinstance(value, np.ndarray) and value.dtype.kind in "iu" and value.ndim < 2:
        return value.astype(object)
    return None


def computed(name: str, operands: Sequence[Any], static: tuple[Any, ...], output: Any) -> None:
    """Has the result of arithmetic on sizes know its symbols, too.

    Args:
      name: the op's.
      operands: its operands.
      static: its static arguments.
      output: its result, which is a tensor of integers for ops that are known here.
    """
    if name not in _ARITHMETIC or not isinstance(output, Tensor) or output._value.ndim > 1:
        return
    flat = operands[0] if name in _JOINS else operands
    if not any(hasattr(t, "_sizes") for t in flat if isinstance(t, Tensor)):
        return
    values = [symbols_of(t) for t in flat]
    if any(v is None for v in values) or not np.issubdtype(output._value.dtype, np.integer):
        return
    made = np.asarray(_ARITHMETIC[name](values, static), object)
    if made.shape == output._value.shape:
        output._sizes = tuple(made.tolist()) if made.ndim else made.item()


def _pairs(function: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    return lambda values, static: np.frompyfunc(function, 2, 1)(*values)


_JOINS = ("concat", "stack")
_ARITHMETIC: dict[str, Callable[..., Any]] = {
    "add": _pairs(lambda x, y: x + y),
    "subtract": _pairs(lambda x, y: x - y),
    "multiply": _pairs(lambda x, y: x * y),
    "floordiv": _pairs(lambda x, y: x // y),
    "floormod": _pairs(lambda x, y: x % y),
    "maximum": _pairs(lambda x, y: core.max_dim(x, y)),
    "minimum": _pairs(lambda x, y: core.min_dim(x, y)),
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
