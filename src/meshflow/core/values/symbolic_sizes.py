"""Sizes of a program that is exported for any size: `tf.shape` of a tensor whose batch is a symbol.

As a tensor such a size is known only when the program runs; as the size of another tensor the symbol is
enough, so the tensor remembers it (`Tensor._sizes`).
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jax.export import is_symbolic_dim

from meshflow.core.values.tensor import Tensor

__all__ = ["any_symbolic", "part_of", "sizes_tensor"]


def any_symbolic(sizes: Any) -> bool:
    """Whether one of the sizes is a symbol.

    Args:
      sizes: integers, None, or symbols of `jax.export`.
    """
    return any(map(is_symbolic_dim, sizes))


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
