"""Variables cut into shards, each on a server of its own choice."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import jax
import numpy as np

from meshflow.core.runtime.errors import InvalidValueError
from meshflow.core.tracing.trace import init_scope
from meshflow.core.values import dtypes
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.shapes import TensorShape, as_shape
from meshflow.core.variables.sharded_variable import ShardedVariable, may_be_cut
from meshflow.core.variables.variable import Variable
from meshflow.core.variables.variable_creation import scoped_name
from meshflow.distribute.parameter_server.hosting import placed_on

__all__ = ["create_in_shards", "shard_sizes", "sharded_variable"]


def sharded_variable(strategy: Any, partitioner: Callable[..., Any], kwargs: dict[str, Any]) -> Any:
    """The variable, in shards where the partitioner says so.

    Args:
      strategy: the strategy, whose `host(**kwargs)` makes each shard.
      partitioner: gives the number of shards along each axis.
      kwargs: arguments of `tf.Variable`.
    """
    servers = len(strategy.cluster.servers)

    def around(number: int, count: int) -> AbstractContextManager[Any]:
        # As in TensorFlow in turn, where each server gets a shard; fewer go where there is most room.
        return placed_on([number % servers]) if count >= servers else nullcontext()

    return create_in_shards(strategy.host, partitioner, around, **kwargs)


def shard_sizes(partitioner: Any, shape: Any, dtype: Any) -> list[int]:
    """How many rows each part of a variable has: the first parts get the rows that are left over.

    Args:
      partitioner: a `Partitioner`, or a function with its arguments; None for one part.
      shape: the variable's shape.
      dtype: its dtype.

    Returns:
      The numbers of rows; one number for a variable that stays whole, none for a scalar.

    Raises:
      ValueError: when the partitioner's answer does not fit the shape: another number of axes, parts
        along another axis than the first, or more parts than rows.
    """
    sizes = as_shape(shape).as_list()
    if not sizes:
        return []
    if partitioner is None:
        return [sizes[0]]
    answer = partitioner(shape=TensorShape(sizes), dtype=dtypes.as_dtype(dtype))
    named = f"variable_partitioner: {type(partitioner).__name__} cuts the shape {tuple(sizes)} into"
    parts = list(answer) if isinstance(answer, (list, tuple)) else []
    if len(parts) != len(sizes) or not all(_is_count(n) for n in parts):
        raise InvalidValueError(
            f"{named} {answer!r}, but must return a list with a positive number of parts for each of "
            f"its {len(sizes)} axes."
        )
    if any(n > 1 for n in parts[1:]):
        raise InvalidValueError(
            f"{named} {answer!r} parts: only the first axis can be cut, the others must have 1 part."
        )
    if parts[0] > max(1, sizes[0]):
        raise InvalidValueError(
            f"{named} {parts[0]} parts, but it has only {sizes[0]} rows: ask for at most {sizes[0]}."
        )
    each, more = divmod(sizes[0], parts[0])
    return [each + (i < more) for i in range(parts[0])]


def create_in_shards(
    create: Callable[..., Variable],
    partitioner: Any,
    around: Callable[[int, int], AbstractContextManager[Any]] | None = None,
    **kwargs: Any,
) -> Variable | ShardedVariable:
    """Makes a variable, in shards where a partitioner says so.

    The initial value is computed once, so it is that of a variable which stays whole.

    Args:
      create: makes one variable of the arguments of `tf.Variable`.
      partitioner: see `shard_sizes`.
      around: the context in which a shard is made, from its number and how many there are.
      **kwargs: the arguments of `tf.Variable`.

    Returns:
      A variable, or a `ShardedVariable` of variables named `name/part_0`, `name/part_1` and so on.

    Raises:
      ValueError: see `shard_sizes`.
    """
    if partitioner is None or not may_be_cut() or kwargs.get("initial_value") is None:
        return create(**kwargs)
    given, dtype = kwargs["initial_value"], kwargs.get("dtype")
    with init_scope():
        value = convert_to_tensor(given() if callable(given) else given, dtype=dtype)
    if isinstance(value._value, jax.core.Tracer):
        return create(**{**kwargs, "initial_value": value})
    sizes = shard_sizes(partitioner, value.shape, value.dtype)
    wanted = kwargs.get("shape")
    fits = wanted is None or as_shape(wanted).is_compatible_with(value.shape)
    if len(sizes) < 2 or not fits:
        return create(**{**kwargs, "initial_value": value})
    # Shards have shapes of their own.
    kwargs = {**kwargs, "shape": None}
    name, rows, first, shards = kwargs.get("name") or "Variable", np.asarray(value), 0, []
    for i, size in enumerate(sizes):
        part = rows[first : first + size]
        with nullcontext() if around is None else around(i, len(sizes)):
            shards.append(create(**{**kwargs, "initial_value": part, "name": f"{name}/part_{i}"}))
        first += size
    return ShardedVariable(shards, scoped_name(name))


def _is_count(value: Any) -> bool:
    try:
        return int(value) == value and value > 0
    except (TypeError, ValueError):
        return False
