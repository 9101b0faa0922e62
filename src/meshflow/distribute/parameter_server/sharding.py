"""Variables cut into shards, each on a server of its own choice."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from meshflow.distribute.partitioners import create_in_shards

__all__ = ["sharded_variable"]


def sharded_variable(strategy: Any, partitioner: Callable[..., Any], kwargs: dict[str, Any]) -> Any:
    """The variable, in shards where the partitioner says so.

    Args:
      strategy: the strategy, whose `host(**kwargs)` makes each shard.
      partitioner: gives the number of shards along each axis.
      kwargs: arguments of `tf.Variable`.
    """
    return create_in_shards(strategy.host, partitioner, **kwargs)
