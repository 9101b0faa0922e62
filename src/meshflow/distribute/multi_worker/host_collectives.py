"""Collectives of host values, which all processes of a job must call in the same order."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from typing import Any, TypeAlias

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from meshflow.core.values import dtypes
from meshflow.environment.types import Json

# A value that processes exchange: None, numbers, strings, bytes and arrays, nested in tuples, lists and dictionaries.
Message: TypeAlias = Any


@functools.cache
def _create_process_mesh() -> Mesh:
    """Create a mesh of one device of each process."""
    first: dict[int, jax.Device] = {}
    for device in sorted(jax.devices(), key=lambda d: (d.process_index, d.id)):
        first.setdefault(device.process_index, device)
    return Mesh(np.array([first[i] for i in sorted(first)]), ("process",))


def _stack_rows(row: np.ndarray) -> jax.Array:
    """Create an array of the rows of all processes, sharded by process."""
    mesh = _create_process_mesh()
    device = mesh.devices[jax.process_index()]
    sharding = NamedSharding(mesh, PartitionSpec("process"))
    shape = (mesh.devices.size, *row.shape)
    return jax.make_array_from_single_device_arrays(
        shape, sharding, [jax.device_put(row[None], device)]
    )


def _select_first(rows: jax.Array) -> jax.Array:
    return rows[0]


def _select_all(rows: jax.Array) -> jax.Array:
    return rows


@functools.cache
def _compile(function: Callable[[jax.Array], jax.Array]) -> Callable[[jax.Array], jax.Array]:
    return jax.jit(function, out_shardings=NamedSharding(_create_process_mesh(), PartitionSpec()))


def _run_collective(function: Callable[[jax.Array], jax.Array], row: np.ndarray) -> np.ndarray:
    return np.asarray(_compile(function)(_stack_rows(row)))


def _pad_words(data: bytes, size: int) -> np.ndarray:
    """Pack bytes into 32-bit words; sizes are rounded up, because each size is compiled."""
    words = 256
    while words * 4 < size:
        words *= 4
    row = np.zeros(words, np.uint32)
    row.view(np.uint8)[: len(data)] = np.frombuffer(data, np.uint8)
    return row


def broadcast_from_first(array: np.ndarray) -> np.ndarray:
    """Return worker 0's value of an array that has the same shape and dtype on all workers."""
    row = _pad_words(array.tobytes(), array.nbytes)
    data = _run_collective(_select_first, row).view(np.uint8)[: array.nbytes]
    return data.view(array.dtype).reshape(array.shape) if array.nbytes else array


def all_gather_values(value: Message) -> list[Any]:
    """Return the values of all workers, in their order.

    Args:
      value: Value of this worker: None, numbers, strings, bytes or arrays, in tuples, lists and
        dictionaries.

    Raises:
      TypeError: If the value has another type.
    """
    data = pack_value(value)
    sizes = _run_collective(_select_all, np.array([len(data)], np.int64)).reshape(-1)
    rows = _run_collective(_select_all, _pad_words(data, int(sizes.max())))
    return [
        unpack_value(row.view(np.uint8)[:size].tobytes())
        for row, size in zip(rows, sizes, strict=True)
    ]


def barrier() -> None:
    """Wait until all workers have called this function."""
    _run_collective(_select_all, np.array([0], np.int64))


def pack_value(value: Message) -> bytes:
    """Serialize a value: its structure as JSON, followed by the contents of bytes and arrays.

    Raises:
      TypeError: If the value has another type.
    """
    buffers: list[bytes] = []
    text = json.dumps(_describe_value(value, buffers)).encode()
    return b"".join([len(text).to_bytes(8, "little"), text, *buffers])


def unpack_value(data: bytes) -> Any:
    """Deserialize a value; the bytes cannot execute code, so the sender does not have to be trusted."""
    start = 8 + int.from_bytes(data[:8], "little")
    return _ValueUnpacker(data, start).unpack(json.loads(data[8:start]))


def _describe_value(value: Message, buffers: list[bytes]) -> Json:
    """Describe a value in JSON; types that JSON does not have become lists with their type first."""
    if value is None or type(value) in (bool, int, float, str):
        return value
    if type(value) is bytes:
        buffers.append(value)
        return ["bytes", len(value)]
    if type(value) in (tuple, list):
        return [type(value).__name__, *(_describe_value(v, buffers) for v in value)]
    if type(value) is dict:
        return [
            "dict",
            *([_describe_value(part, buffers) for part in pair] for pair in value.items()),
        ]
    if isinstance(value, (np.ndarray, np.generic)):
        kind = "array" if isinstance(value, np.ndarray) else "scalar"
        if value.dtype == object:
            words = np.asarray(value).reshape(-1).tolist()
            return [kind, "object", value.shape, [_describe_value(w, buffers) for w in words]]
        buffers.append(np.ascontiguousarray(value).tobytes())
        return [kind, dtypes.as_dtype(value.dtype).name, value.shape, len(buffers[-1])]
    raise TypeError(f"Workers do not exchange values of type {type(value).__name__}: {value!r}.")


class _ValueUnpacker:
    """Reader of the values of a buffer, in their order."""

    def __init__(self, data: bytes, start: int) -> None:
        self._data, self._start = data, start

    def unpack(self, description: Json) -> Any:
        if not isinstance(description, list):
            return description
        kind, *rest = description
        if kind == "bytes":
            return self._take_bytes(rest[0])
        if kind == "tuple":
            return tuple(self.unpack(v) for v in rest)
        if kind == "list":
            return [self.unpack(v) for v in rest]
        if kind == "dict":
            return {self.unpack(key): self.unpack(value) for key, value in rest}
        name, shape, content = rest
        if name == "object":
            array = np.empty(len(content), object)
            for i, word in enumerate(content):
                array[i] = self.unpack(word)
        else:
            dtype = dtypes.as_dtype(name).as_numpy_dtype
            array = np.frombuffer(bytearray(self._take_bytes(content)), dtype)
        array = array.reshape(shape)
        return array if kind == "array" else array[()]

    def _take_bytes(self, size: int) -> bytes:
        data = self._data[self._start : self._start + size]
        self._start += size
        return data
