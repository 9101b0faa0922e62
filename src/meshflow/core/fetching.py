"""Values of arrays on the host, also of arrays that lie on the devices of several processes."""

from __future__ import annotations

import functools
from typing import Any

import jax
import numpy as np

__all__ = ["to_host"]


def to_host(value: Any) -> np.ndarray:
    """An array's value.

    An array of which other processes hold parts is first gathered, so all processes must ask for it.
    """
    try:
        return np.asarray(value)
    except RuntimeError:
        if not isinstance(value, jax.Array) or value.is_fully_addressable:
            raise
        return np.asarray(replicated(value))


def replicated(value: Any) -> Any:
    """A global array with its whole value on every device of its mesh."""
    spec = jax.sharding.PartitionSpec()
    return _copy_everywhere(jax.sharding.NamedSharding(value.sharding.mesh, spec))(value)


@functools.cache
def _copy_everywhere(sharding: Any) -> Any:
    def replicate(array: Any) -> Any:
        return array

    return jax.jit(replicate, out_shardings=sharding)
