"""Creation of variables in shards, which may be on different servers."""

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
from meshflow.core.values.dtypes import DTypeLike
from meshflow.core.values.shapes import ShapeLike, TensorShape, as_shape
from meshflow.core.variables.sharded_variable import ShardedVariable, can_shard
from meshflow.core.variables.variable import Variable
from meshflow.core.variables.variable_creation import add_name_scopes
from meshflow.distribute.parameter_server.variables.hosted_variable import place_on_servers
from meshflow.distribute.parameter_server.variables.partitioners import PartitionFunction


def create_sharded_variable(
    create: Callable[..., Variable],
    num_servers: int,
    partitioner: PartitionFunction,
    kwargs: dict[str, Any],
) -> Variable | ShardedVariable:
    """Create a variable on parameter servers, in shards if the partitioner requests them.

    Args:
      create: Function that creates one hosted variable from the arguments of `tf.Variable`.
      num_servers: Number of parameter servers.
      partitioner: Function that returns the number of shards along each axis.
      kwargs: Arguments of `tf.Variable`.
    """

    def shard_scope(index: int, count: int) -> AbstractContextManager[Any]:
        # As in TensorFlow, shards are assigned to the servers in turn if there is at least one for
        # each server. Fewer shards are placed on the servers with the least data.
        return place_on_servers([index % num_servers]) if count >= num_servers else nullcontext()

    return create_in_shards(create, partitioner, shard_scope, **kwargs)


def compute_shard_sizes(
    partitioner: PartitionFunction | None, shape: ShapeLike, dtype: DTypeLike
) -> list[int]:
    """Compute the number of rows of each shard of a variable.

    The first shards have the extra rows.

    Args:
      partitioner: A `Partitioner`, or a function with the same arguments; None for one shard.
      shape: Shape of the variable.
      dtype: Dtype of the variable.

    Returns:
      The number of rows of each shard: one number for an unsharded variable, none for a scalar.

    Raises:
      ValueError: If the result of the partitioner does not fit the shape: another number of axes,
        shards along another axis than the first, or more shards than rows.
    """
    sizes = as_shape(shape).as_list()
    if not sizes:
        return []
    if partitioner is None:
        return [sizes[0]]
    result = partitioner(shape=TensorShape(sizes), dtype=dtypes.as_dtype(dtype))
    prefix = (
        f"variable_partitioner: {type(partitioner).__name__} cuts the shape {tuple(sizes)} into"
    )
    counts = list(result) if isinstance(result, (list, tuple)) else []
    if len(counts) != len(sizes) or not all(_is_positive_integer(n) for n in counts):
        raise InvalidValueError(
            f"{prefix} {result!r}, but must return a list with a positive number of parts for each of "
            f"its {len(sizes)} axes."
        )
    if any(n > 1 for n in counts[1:]):
        raise InvalidValueError(
            f"{prefix} {result!r} parts: only the first axis can be cut, the others must have 1 part."
        )
    if counts[0] > max(1, sizes[0]):
        raise InvalidValueError(
            f"{prefix} {counts[0]} parts, but it has only {sizes[0]} rows: request at most {sizes[0]}."
        )
    rows_per_shard, extra_rows = divmod(sizes[0], counts[0])
    return [rows_per_shard + (i < extra_rows) for i in range(counts[0])]


def create_in_shards(
    create: Callable[..., Variable],
    partitioner: PartitionFunction | None,
    shard_scope: Callable[[int, int], AbstractContextManager[Any]] | None = None,
    **kwargs: Any,
) -> Variable | ShardedVariable:
    """Create a variable, in shards if a partitioner requests them.

    The initial value is computed once, so the shards together have the value of the unsharded
    variable.

    Args:
      create: Function that creates one variable from the arguments of `tf.Variable`.
      partitioner: See `compute_shard_sizes`.
      shard_scope: Function that returns the context in which a shard is created, from its index and
        the number of shards.
      **kwargs: The arguments of `tf.Variable`.

    Returns:
      A variable, or a `ShardedVariable` of variables named `name/part_0`, `name/part_1` and so on.

    Raises:
      ValueError: See `compute_shard_sizes`.
    """
    if partitioner is None or not can_shard() or kwargs.get("initial_value") is None:
        return create(**kwargs)
    initial_value, dtype = kwargs["initial_value"], kwargs.get("dtype")
    with init_scope():
        value = convert_to_tensor(
            initial_value() if callable(initial_value) else initial_value, dtype=dtype
        )
    if isinstance(value.array, jax.core.Tracer):
        return create(**{**kwargs, "initial_value": value})
    sizes = compute_shard_sizes(partitioner, value.shape, value.dtype)
    static_shape = kwargs.get("shape")
    fits = static_shape is None or as_shape(static_shape).is_compatible_with(value.shape)
    if len(sizes) < 2 or not fits:
        return create(**{**kwargs, "initial_value": value})
    # The shape argument describes the full variable, and not a shard.
    kwargs = {**kwargs, "shape": None}
    name, rows, start, shards = kwargs.get("name") or "Variable", np.asarray(value), 0, []
    for i, size in enumerate(sizes):
        part = rows[start : start + size]
        with nullcontext() if shard_scope is None else shard_scope(i, len(sizes)):
            shards.append(create(**{**kwargs, "initial_value": part, "name": f"{name}/part_{i}"}))
        start += size
    return ShardedVariable(shards, add_name_scopes(name))


def _is_positive_integer(value: Any) -> bool:
    try:
        return int(value) == value and value > 0
    except (TypeError, ValueError):
        return False
