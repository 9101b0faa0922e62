"""Creation of variables: creators that replace the constructor, names, initial values."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np

from meshflow.core.runtime import transfers
from meshflow.core.runtime.context import context
from meshflow.core.tracing.trace import init_scope
from meshflow.core.values import dtypes
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.tensor import Tensor


class VariableNeedsEagerError(Exception):
    """Signal that an initial value depends on traced ops; the first call must run eagerly."""


def compute_initial_array(
    initial_value: Any, dtype: dtypes.DType | None
) -> tuple[Any, Tensor | None]:
    """Return the initial value as a device array, computed outside of any trace.

    Returns:
      The array, and None. If the traced program computes the initial value: zeros, and the value.

    Raises:
      VariableNeedsEagerError: If the value is computed by a program that may not run, or run again.
    """
    if isinstance(initial_value, jax.ShapeDtypeStruct):
        return initial_value, None
    with init_scope():
        value = initial_value() if callable(initial_value) else initial_value
    if isinstance(value, Tensor) and isinstance(value.array, jax.core.Tracer):
        known = getattr(value, "_known_value", None)
        if known is not None:
            value = Tensor(known.compute_value())
    if isinstance(value, Tensor) and isinstance(value.array, jax.core.Tracer):
        scope = context.trace
        if scope is None or not scope.runs_immediately:
            raise VariableNeedsEagerError(
                "A tf.Variable made inside a traced function has an initial value computed by traced "
                "ops. Pass a function (tf.Variable(lambda: ...)) or create the variable outside."
            )
        scope.mark_initialization()
        # The value is computed again as a part of the program.
        traced = convert_to_tensor(
            initial_value() if callable(initial_value) else value, dtype=dtype
        )
        with init_scope():
            return jax.numpy.zeros(traced.array.shape, traced.array.dtype), traced
    with init_scope():
        tensor = convert_to_tensor(value, dtype=dtype)
        array: Any = tensor.array
        if tensor.dtype is dtypes.string:
            return array, None
        # The buffer is a new one, because a compiled step may reuse it in place.
        on_host = isinstance(array, np.ndarray)
        return (transfers.transfer if on_host else transfers.duplicate)(array), None


@contextlib.contextmanager
def shapes_only() -> Iterator[None]:
    """Create weights and optimizer slots without values, for models that are planned but not run.

    Models of any size can be created in this way; reading a value raises an error.

    Example:
      >>> with tf.distribute.shapes_only():
      ...     model = tf.keras.Sequential([tf.keras.Input([10**6]), tf.keras.layers.Dense(10**6)])
      >>> model.count_params()
      1000001000000
    """
    saved, context.shapes_only = context.shapes_only, True
    try:
        yield
    finally:
        context.shapes_only = saved


def add_name_scopes(name: str) -> str:
    """Prefix `name` with the open name scopes, as in `"outer/inner/name"`."""
    return "/".join([*context.name_scopes, name])


def create_with_creators(
    constructor: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Call the innermost creator; `next_creator` leads to the others and the constructor."""
    creators = list(context.variable_creators)

    def default(**final: Any) -> object:
        saved, context.variable_creators = context.variable_creators, []
        try:
            return constructor(**final)
        finally:
            context.variable_creators = saved

    create: Callable[..., Any] = default
    for creator in creators:
        create = _bind_next_creator(creator, create)
    names = ("initial_value", "trainable", "validate_shape", "caching_device", "name")
    named = dict(zip(names, args, strict=False))
    return create(**named, **kwargs)


def _bind_next_creator(
    creator: Callable[..., Any], next_creator: Callable[..., Any]
) -> Callable[..., Any]:
    return lambda **kwargs: creator(next_creator, **kwargs)


@contextlib.contextmanager
def variable_creator_scope(variable_creator: Callable[..., Any]) -> Iterator[None]:
    """Replace the constructor of `tf.Variable` by a function inside of a `with` block.

    Args:
      variable_creator: Called as `variable_creator(next_creator, **kwargs)`; returns a variable.

    Example:
      >>> def frozen(next_creator, **kwargs):
      ...     return next_creator(**{**kwargs, "trainable": False})
      >>> with tf.variable_creator_scope(frozen):
      ...     tf.Variable(1.0).trainable
      False
    """
    context.variable_creators = [*context.variable_creators, variable_creator]
    try:
        yield
    finally:
        context.variable_creators = context.variable_creators[:-1]
