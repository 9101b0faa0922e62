"""Values of arrays on the host, also of arrays that lie on the devices of several processes."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from meshflow.core.runtime.errors import UnavailableError
from meshflow.core.runtime.exhaustion import exhausted
from meshflow.environment.jax_internals import read_from_device

__all__ = ["fill", "lost_worker", "own_parts", "read", "to_host"]

# Values of more bytes, and of split arrays, are not kept beside their arrays: a model's would be all of it once more.
_KEPT = 1 << 20

# What the libraries of collectives say when a process is gone.
_LOST = ("Gloo", "gloo", "NCCL operation", "Connection closed by peer", "Connection reset by peer")


def to_host(value: Any) -> np.ndarray:
    """An array's value; it can be written to when it is a copy that nobody else has.

    An array of which other processes hold parts is first gathered, so all processes must ask for it.
    """
    try:
        if not isinstance(value, jax.Array) or not value.is_fully_addressable:
            return np.asarray(value)
        if not value.is_fully_replicated:
            return _joined(value)
        return read(value) if value.nbytes > _KEPT else np.asarray(value)
    except (RuntimeError, MemoryError, ValueError) as error:
        known = exhausted(error, f"a tensor of shape {tuple(value.shape)}") or lost_worker(error)
        if known is not None:
            raise known from error
        if not isinstance(value, jax.Array) or value.is_fully_addressable:
            raise
        return np.asarray(replicated(value))


def read(value: Any) -> np.ndarray:
    """The value of an array that each of its devices has whole; other than by `numpy.asarray`, JAX does not keep it.

    Args:
      value: the array, or what makes a NumPy array.
    """
    if read_from_device is None or not isinstance(value, jax.Array) or value.is_deleted():
        return np.asarray(value)
    found, is_copy = read_from_device(value)
    if not is_copy:
        found.flags.writeable = False
    return found


def own_parts(value: jax.Array) -> Iterator[tuple[Any, jax.Array]]:
    """The parts of an array that this process writes where all write theirs: their places in it, and what they hold.

    Args:
      value: the array. Of equal parts on several devices, the first counts.
    """
    for shard in value.addressable_shards:
        if shard.replica_id == 0:
            yield shard.index, shard.data


def fill(whole: np.ndarray, value: jax.Array) -> None:
    """Writes this process's parts of an array where they belong, one after the other.

    Args:
      whole: what to write to, of the array's shape.
      value: the array.
    """
    for index, part in own_parts(value):
        whole[index] = read(part)


def _joined(value: jax.Array) -> np.ndarray:
    """The parts of a split array, put together."""
    found = np.empty(value.shape, value.dtype)
    fill(found, value)
    return found


def lost_worker(error: Exception) -> UnavailableError | None:
    """What to raise when an error says that another process is gone; None for other errors."""
    text = str(error)
    if jax.process_count() == 1 or not any(word in text for word in _LOST):
        return None
    first = text.strip().splitlines()[0]
    return UnavailableError(
        f"Worker {jax.process_index()} of {jax.process_count()} has lost another worker during a collective: "
        f"that process has ended, or the network failed ({first}). Its own output says why. `meshflow "
        "launch --max-restarts` starts such a job again."
    )


def replicated(value: Any) -> Any:
    """A global array with its whole value on every device of its mesh."""
    spec = jax.sharding.PartitionSpec()
    return _copy_everywhere(jax.sharding.NamedSharding(value.sharding.mesh, spec))(value)


@functools.cache
def _copy_everywhere(sharding: Any) -> Any:
    def replicate(array: Any) -> Any:
        return array

    return jax.jit(replicate, out_shardings=sharding)
