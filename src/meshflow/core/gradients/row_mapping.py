"""Mapping of tensor functions over rows with `jax.vmap`, for Jacobians and `tf.vectorized_map`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax

from meshflow.core.dispatch.dispatch import apply
from meshflow.core.dispatch.operation import Op
from meshflow.core.tracing.trace import TracedFunction, trace
from meshflow.core.values import nest
from meshflow.core.values.specs import TensorSpec
from meshflow.core.values.tensor import Tensor
from meshflow.environment.types import PyTree


def map_rows(fn: Callable[..., PyTree], elements: PyTree) -> PyTree:
    """Apply `fn` to every row of the tensors in `elements`, all rows at once.

    Args:
      fn: A traceable function of one structure like `elements`, without its first dimension.
      elements: A nested structure of tensors of shape [n, ...].

    Returns:
      The structure that `fn` returns, each tensor with a first dimension of n; None remains None.

    Raises:
      NotImplementedError: If `fn` writes variables, because the rows would overwrite each other.
    """
    tensors = nest.flatten(elements)
    first = nest.pack_sequence_as(elements, [_make_row_spec(t) for t in tensors])
    traced = trace(fn, (first,))
    if traced.writes:
        names = [v.name for v in traced.writes]
        raise NotImplementedError(
            f"A function mapped over rows may not assign variables, got {names}."
        )
    op = Op(
        f"map_rows_{traced.name}", lambda operands, _: _run_vmapped(traced, *operands), heavy=True
    )
    outputs = apply(op, (tensors, traced.get_captured_tensors()))
    return traced.rebuild_result(outputs)


def _run_vmapped(traced: TracedFunction, arguments: list[Any], captures: list[Any]) -> list[Any]:
    # JAX's rules for loops do not accept NumPy arrays as mapped values.
    rows = [jax.numpy.asarray(a) for a in arguments]
    return jax.vmap(lambda args: traced.run_row(args, captures, True))(rows)


def _make_row_spec(tensor: Tensor) -> TensorSpec:
    return TensorSpec(tensor.shape[1:], tensor.dtype)
