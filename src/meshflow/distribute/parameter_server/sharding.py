"""Variables cut into shards, each on a server of its own choice."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from meshflow.distribute.parameter_server.hosting import placed_on
from meshflow.distribute.parameter_server.partitioners import create_in_shards

__all__ = ["sharded_variable"]


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
