"""Mapping a function of tensors over rows with `jax.vmap`: jacobians and `tf.vectorized_map`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax

from meshflow.core.dispatch.dispatch import apply
from meshflow.core.dispatch.operation import Op
from meshflow.core.tracing.trace import Traced, trace
from meshflow.core.values import nest
from meshflow.core.values.specs import TensorSpec
from meshflow.core.values.tensor import Tensor


def map_rows(fn: Callable[..., Any], elements: Any) -> Any:
    """`fn` applied to every row of the tensors in `elements`, all rows at once.

    Args:
      fn: a traceable function of one structure like `elements`, without its first dimension.
      elements: a nested structure of tensors of shape [n, ...].

    Returns:
      The structure that `fn` returns, each tensor with a first dimension of n; None stays None.

    Raises:
      NotImplementedError: when `fn` writes variables, as the rows would race.
    """
    tensors = nest.flatten(elements)
    first = nest.pack_sequence_as(elements, [_row_spec(t) for t in tensors])
    traced = trace(fn, (first,))
    if traced.writes:
        names = [v.name for v in traced.writes]
        raise NotImplementedError(
            f"A function mapped over rows may not assign variables, got {names}."
        )
    rows = Op(f"rows_of_{traced.name}", lambda operands, _: _vmapped(traced, *operands), heavy=True)
    outputs = apply(rows, (tensors, traced.captured_tensors()))
    return traced.rebuild(outputs)


def _vmapped(traced: Traced, arguments: list[Any], captures: list[Any]) -> Any:
    return jax.vmap(lambda args: traced.arrays(args, captures))(arguments)


def _row_spec(tensor: Tensor) -> Any:
    return TensorSpec(tensor.shape[1:], tensor.dtype)


def rows_of_gradient(gradient: Callable[[Tensor], Any], basis: Tensor) -> Any:
    """A gradient function applied to every row of `basis`."""
    return map_rows(gradient, basis)
