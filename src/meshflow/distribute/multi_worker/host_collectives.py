"""Host values exchanged between the processes of a job; every process must call, in the same order."""

from __future__ import annotations

import functools
import json
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from meshflow.core.values import dtypes

__all__ = ["all_gathered", "barrier", "broadcast_from_first"]


@functools.cache
def _mesh() -> Mesh:
    """One device of each process."""
    first: dict[int, Any] = {}
    for device in sorted(jax.devices(), key=lambda d: (d.process_index, d.id)):
        first.setdefault(device.process_index, device)
    return Mesh(np.array([first[i] for i in sorted(first)]), ("process",))


def _stacked(row: np.ndarray) -> jax.Array:
    """The processes' rows as one array, split by process."""
    mesh = _mesh()
    own = mesh.devices[jax.process_index()]
    sharding = NamedSharding(mesh, PartitionSpec("process"))
    shape = (mesh.devices.size, *row.shape)
    return jax.make_array_from_single_device_arrays(
        shape, sharding, [jax.device_put(row[None], own)]
    )


def _of_first(rows: Any) -> Any:
    return rows[0]


def _all(rows: Any) -> Any:
    return rows


@functools.cache
def _program(function: Any) -> Any:
    return jax.jit(function, out_shardings=NamedSharding(_mesh(), PartitionSpec()))


def _run(function: Any, row: np.ndarray) -> np.ndarray:
    return np.asarray(_program(function)(_stacked(row)))


def _padded(data: bytes, size: int) -> np.ndarray:
    """Bytes as 32-bit words; few different sizes, since each is compiled."""
    words = 256
    while words * 4 < size:
        words *= 4
    row = np.zeros(words, np.uint32)
    row.view(np.uint8)[: len(data)] = np.frombuffer(data, np.uint8)
    return row


def broadcast_from_first(array: np.ndarray) -> np.ndarray:
    """Worker 0's value of an array that has the same shape and dtype on all workers.

    Args:
      array: this worker's.
    """
    row = _padded(array.tobytes(), array.nbytes)
    found = _run(_of_first, row).view(np.uint8)[: array.nbytes]
    return found.view(array.dtype).reshape(array.shape) if array.nbytes else array


def all_gathered(value: Any) -> list[Any]:
    """The values of all workers, in their order.

    Args:
      value: this worker's: None, numbers, text, bytes or arrays, in tuples, lists and dictionaries.

    Raises:
      TypeError: for anything else.
    """
    data = packed(value)
    sizes = _run(_all, np.array([len(data)], np.int64)).reshape(-1)
    rows = _run(_all, _padded(data, int(sizes.max())))
    return [
        unpacked(row.view(np.uint8)[:size].tobytes()) for row, size in zip(rows, sizes, strict=True)
    ]


def barrier() -> None:
    """Waits until all workers are here."""
    _run(_all, np.array([0], np.int64))


def packed(value: Any) -> bytes:
    """A value as bytes: its structure as JSON, and what it holds of bytes after that.

    Args:
      value: as for `all_gathered`.

    Raises:
      TypeError: for other values.
    """
    buffers: list[bytes] = []
    text = json.dumps(_described(value, buffers)).encode()
    return b"".join([len(text).to_bytes(8, "little"), text, *buffers])


def unpacked(data: bytes) -> Any:
    """The value of what `packed` made; it is data only, whoever sent it.

    Args:
      data: the bytes.
    """
    start = 8 + int.from_bytes(data[:8], "little")
    return _Reader(data, start).value(json.loads(data[8:start]))


def _described(value: Any, buffers: list[bytes]) -> Any:
    """What JSON can hold of a value; everything but the plainest is a list that begins with its kind."""
    if value is None or type(value) in (bool, int, float, str):
        return value
    if type(value) is bytes:
        buffers.append(value)
        return ["bytes", len(value)]
    if type(value) in (tuple, list):
        return [type(value).__name__, *(_described(v, buffers) for v in value)]
    if type(value) is dict:
        return ["dict", *([_described(part, buffers) for part in pair] for pair in value.items())]
    if isinstance(value, (np.ndarray, np.generic)):
        kind = "array" if isinstance(value, np.ndarray) else "scalar"
        if value.dtype == object:
            words = np.asarray(value).reshape(-1).tolist()
            return [kind, "object", value.shape, [_described(w, buffers) for w in words]]
        buffers.append(np.ascontiguousarray(value).tobytes())
        return [kind, dtypes.as_dtype(value.dtype).name, value.shape, len(buffers[-1])]
    raise TypeError(f"Workers do not exchange values of type {type(value).__name__}: {value!r}.")


class _Reader:
    """Takes values from bytes, in their order."""

    def __init__(self, data: bytes, start: int) -> None:
        self._data, self._start = data, start

    def value(self, described: Any) -> Any:
        if not isinstance(described, list):
            return described
        kind, *rest = described
        if kind == "bytes":
            return self._next(rest[0])
        if kind == "tuple":
            return tuple(self.value(v) for v in rest)
        if kind == "list":
            return [self.value(v) for v in rest]
        if kind == "dict":
            return {self.value(key): self.value(value) for key, value in rest}
        name, shape, content = rest
        if name == "object":
            array = np.empty(len(content), object)
            for i, word in enumerate(content):
                array[i] = self.value(word)
        else:
            dtype = dtypes.as_dtype(name).as_numpy_dtype
            array = np.frombuffer(bytearray(self._next(content)), dtype)
        array = array.reshape(shape)
        return array if kind == "array" else array[()]

    def _next(self, size: int) -> bytes:
        found = self._data[self._start : self._start + size]
        self._start += size
        return found
