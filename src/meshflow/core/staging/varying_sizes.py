"""Sizes that differ between the iterations of a loop, or between branches.

JAX requires that the state of a loop keeps its shape. So a size that changes becomes a symbol before
the loop and at the end of each iteration, by an equation that returns its operand. The interpreter reads
the value of the symbol from the state at the start of each iteration. After the loop, the result gets new
symbols.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import jax.numpy as jnp

from meshflow.core.dispatch.dispatch import apply
from meshflow.core.dispatch.operation import Op
from meshflow.core.runtime.context import context
from meshflow.core.values.tensor import Tensor
from meshflow.core.values.unknown_sizes import (
    can_have_unknown_sizes,
    is_same_size,
    is_varying,
    set_sizes,
)

_set_sizes = Op("identity", lambda o, shape: set_sizes(jnp.asarray(o[0]), shape), is_opaque=True)


def replace_sizes(tensor: Tensor, shape: Iterable[Any]) -> Tensor:
    """Return a tensor with other symbols for its sizes."""
    sizes = tuple(shape)
    if all(map(is_same_size, tensor.array.shape, sizes)):
        return tensor
    result: Tensor = apply(_set_sizes, (tensor,), sizes)
    return result


def vary_sizes(tensor: Tensor, axes: Iterable[bool]) -> Tensor:
    """Return a tensor with new symbols, which differ between iterations, for the sizes of some axes.

    Args:
      tensor: The tensor.
      axes: For each axis, whether its size varies.
    """
    return replace_sizes(tensor, _make_sizes(tensor.array.shape, list(axes), varies=True))


def renew_sizes(tensor: Tensor) -> Tensor:
    """Return the result of a loop, with new symbols for the sizes that differ between iterations."""
    shape = tensor.array.shape
    return replace_sizes(tensor, _make_sizes(shape, list(map(is_varying, shape)), varies=False))


def _make_sizes(shape: Sequence[Any], is_new: Sequence[bool], varies: bool) -> list[Any]:
    sizes = context.unknown_sizes
    if sizes is None or not any(is_new):
        return list(shape)
    return [
        sizes.add_unknown(varies) if replaces else size
        for size, replaces in zip(shape, is_new, strict=True)
    ]


def merge_shapes(shapes: Sequence[Sequence[Any]]) -> list[Any] | None:
    """Return a shape of the results of several branches, with new symbols for sizes that differ.

    Returns None if the shapes have different ranks, or if sizes differ in a program that is compiled.
    """
    if len({len(s) for s in shapes}) > 1:
        return None
    differs = [
        not all(is_same_size(n, column[0]) for n in column) for column in zip(*shapes, strict=True)
    ]
    if any(differs) and not can_have_unknown_sizes():
        return None
    return _make_sizes(shapes[0], differs, varies=False)
