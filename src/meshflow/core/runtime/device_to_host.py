"""Copies of device arrays on the host, including arrays that are distributed over several processes."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np

from meshflow.core.runtime.bounds_checks import translate_bounds_failure
from meshflow.core.runtime.errors import UnavailableError
from meshflow.core.runtime.memory_errors import translate_memory_error
from meshflow.environment.jax_internals import read_from_device

# JAX caches the host copy that `numpy.asarray` makes. Larger arrays are read without this cache,
# because it would hold a second copy of an entire model.
_MAX_CACHED_BYTES = 1 << 20

# Parts of the messages of collective libraries when another process has died.
_LOST_WORKER_SIGNS = (
    "Gloo",
    "gloo",
    "NCCL operation",
    "Connection closed by peer",
    "Connection reset by peer",
)


def to_host(value: Any) -> np.ndarray:
    """Return the value of an array on the host.

    The result is writable only if it is a copy that is not shared. An array with shards on other
    processes is gathered first, so every process must call this function.

    Args:
      value: A JAX array, or an object that NumPy converts to an array.
    """
    try:
        if not isinstance(value, jax.Array) or not value.is_fully_addressable:
            return np.asarray(value)
        if not value.is_fully_replicated:
            return _join_shards(value)
        return read_uncached(value) if value.nbytes > _MAX_CACHED_BYTES else np.asarray(value)
    except (RuntimeError, MemoryError, ValueError) as error:
        translated = (
            translate_bounds_failure(error)
            or translate_memory_error(error, f"a tensor of shape {tuple(value.shape)}")
            or translate_lost_worker(error)
        )
        if translated is not None:
            raise translated from error
        if not isinstance(value, jax.Array) or value.is_fully_addressable:
            raise
        return np.asarray(replicate(value))


def read_uncached(value: Any) -> np.ndarray:
    """Return the value of a fully replicated array without caching the host copy.

    `numpy.asarray` would make JAX cache the copy as long as the array exists.

    Args:
      value: A JAX array, or an object that NumPy converts to an array.
    """
    if read_from_device is None or not isinstance(value, jax.Array) or value.is_deleted():
        return np.asarray(value)
    array, is_copy = read_from_device(value)
    if not is_copy:
        array.flags.writeable = False
    return array


def iterate_owned_shards(value: jax.Array) -> Iterator[tuple[tuple[slice, ...], jax.Array]]:
    """Yield the index and data of each shard that this process must write.

    Each part of the array belongs to exactly one process: the owner of its first replica.

    Args:
      value: The array.
    """
    for shard in value.addressable_shards:
        if shard.replica_id == 0:
            yield shard.index, shard.data


def copy_owned_shards(target: np.ndarray, value: jax.Array) -> None:
    """Copy this process's shards of an array into a host array, one shard at a time.

    Args:
      target: Host array with the shape of the array.
      value: The array.
    """
    for index, part in iterate_owned_shards(value):
        target[index] = read_uncached(part)


def _join_shards(value: jax.Array) -> np.ndarray:
    """Return the value of a sharded array that is fully addressable."""
    result = np.empty(value.shape, value.dtype)
    copy_owned_shards(result, value)
    return result


def translate_lost_worker(error: Exception) -> UnavailableError | None:
    """Return the error to raise if another process was lost; None for any other error."""
    text = str(error)
    if jax.process_count() == 1 or not any(word in text for word in _LOST_WORKER_SIGNS):
        return None
    first = text.strip().splitlines()[0]
    return UnavailableError(
        f"Worker {jax.process_index()} of {jax.process_count()} has lost another worker during a collective: "
        f"that process has ended, or the network failed ({first}). Its own output says why. `meshflow "
        "launch --max-restarts` starts such a job again."
    )


def replicate(value: jax.Array) -> jax.Array:
    """Return a global array that is fully replicated over the devices of its mesh."""
    mesh = value.sharding.mesh  # type: ignore[attr-defined]  # a global array has a NamedSharding
    spec = jax.sharding.PartitionSpec()
    return _make_replicate(jax.sharding.NamedSharding(mesh, spec))(value)


@functools.cache
def _make_replicate(sharding: jax.sharding.Sharding) -> Callable[[jax.Array], jax.Array]:
    def replicate(array: jax.Array) -> jax.Array:
        return array

    return jax.jit(replicate, out_shardings=sharding)
