"""Packing of arrays of different stages into buffers of one shape, one for each dtype.

All devices of a pipeline run one program, so the values of a stage (weights, state, sent values)
must have the same shapes in all stages: they are concatenated, and padded to the length of the
largest stage.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec

from meshflow.environment.types import PyTree

__all__ = [
    "Buffers",
    "StagePack",
    "UnpackedBuffers",
    "concatenate_rows",
    "constrain_sharding",
    "is_float",
    "separate_equal_arrays",
    "sum_buffers",
    "switch_on_index",
]

Buffers = dict[str, Any]


class AbstractArray(Protocol):
    """A shape and a dtype."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def dtype(self) -> Any: ...


class BufferSpan(NamedTuple):
    """Position of an array in the buffers: dtype, offset in elements, and shape."""

    dtype: str
    offset: int
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        """Return the number of elements."""
        return math.prod(self.shape)


class StagePack:
    """Layout of the arrays of all stages in buffers; an index identifies each array.

    Args:
      stages: For each stage the shapes and dtypes of its arrays by index, in order.
      divided: Whether XLA may shard arrays without a constraint, so that buffers need one.

    Attributes:
      spans: For each stage the spans of its arrays.
      lengths: Length of the buffer of each dtype.
      shapes: Shape and dtype of each array by index.
    """

    def __init__(
        self, stages: Sequence[Mapping[int, AbstractArray]], divided: bool = False
    ) -> None:
        self._divided = divided
        self.spans: list[dict[int, BufferSpan]] = []
        self.lengths: dict[str, int] = {}
        self.shapes: dict[int, AbstractArray] = {}
        for arrays in stages:
            ends: dict[str, int] = {}
            spans: dict[int, BufferSpan] = {}
            for index, aval in arrays.items():
                name = np.dtype(aval.dtype).name
                spans[index] = BufferSpan(name, ends.get(name, 0), tuple(aval.shape))
                ends[name] = ends.get(name, 0) + spans[index].size
                self.shapes[index] = aval
            self.spans.append(spans)
            for name, end in ends.items():
                self.lengths[name] = max(self.lengths.get(name, 0), end)

    def count_bytes(self) -> int:
        """Return the bytes of a stage's buffers."""
        return sum(n * np.dtype(name).itemsize for name, n in self.lengths.items())

    def make_zeros(self, floats: bool = False) -> Buffers:
        """Create buffers of zeros; with `floats` only those of dtypes that have gradients."""
        return {
            name: jnp.zeros(length, name)
            for name, length in self.lengths.items()
            if not floats or is_float(name)
        }

    def unpack(self, buffers: Buffers, stage: int) -> dict[int, jax.Array]:
        """Return the arrays of a stage."""
        return {
            index: self._replicate(
                jax.lax.slice(
                    self._replicate(buffers[p.dtype]), (p.offset,), (p.offset + p.size,)
                ).reshape(p.shape)
            )
            for index, p in self.spans[stage].items()
            if p.dtype in buffers
        }

    def pack(self, arrays: Mapping[int, jax.Array], stage: int, floats: bool = False) -> Buffers:
        """Pack the arrays of a stage; with `floats` only those that have gradients."""
        parts: dict[str, list[jax.Array]] = {name: [] for name in self.make_zeros(floats)}
        for index, p in self.spans[stage].items():
            if p.dtype in parts:
                array = self._replicate(arrays[index].astype(p.dtype))
                parts[p.dtype].append(self._replicate(array.reshape(-1)))
        return {name: self._concatenate(name, rows) for name, rows in parts.items()}

    def _replicate(self, array: jax.Array) -> jax.Array:
        return constrain_sharding(array, []) if self._divided else array

    def _concatenate(self, name: str, rows: list[jax.Array]) -> jax.Array:
        rest = self.lengths[name] - sum(row.size for row in rows)
        padding = [jnp.zeros(rest, name)] if rest else []
        return self._replicate(concatenate_rows([*rows, *padding]))

    def pack_own_stage(self, arrays: Mapping[int, jax.Array], stage: jax.Array) -> Buffers:
        """Pack the arrays of a stage with an index that is a value of the program."""
        return switch_on_index(
            stage, [lambda s=s: self.pack(arrays, s) for s in range(len(self.spans))]
        )

    def pack_for_sum(self, buffers: Buffers, stage: jax.Array) -> Buffers:
        """Return buffers of all arrays, with zeros for other stages, to be summed over stages."""

        def spread_stage(s: int) -> Buffers:
            arrays = self.unpack(buffers, s)
            rows: dict[str, list[jax.Array]] = {}
            for index, aval in self.shapes.items():
                name = np.dtype(aval.dtype).name
                if name in buffers:
                    row = arrays.get(index, jnp.zeros(aval.shape, name))
                    rows.setdefault(name, []).append(row.reshape(-1))
            return {name: jnp.concatenate(parts) for name, parts in rows.items()}

        return switch_on_index(stage, [lambda s=s: spread_stage(s) for s in range(len(self.spans))])

    def unpack_sum(self, buffers: Buffers) -> dict[int, jax.Array]:
        """Return all arrays by index from the summed buffers of `pack_for_sum`."""
        arrays, ends = {}, dict.fromkeys(buffers, 0)
        for index, aval in self.shapes.items():
            name = np.dtype(aval.dtype).name
            if name in buffers:
                start, size = ends[name], math.prod(aval.shape)
                arrays[index] = buffers[name][start : start + size].reshape(aval.shape)
                ends[name] = start + size
        return arrays


class UnpackedBuffers:
    """Layout of arrays as separate buffers; arrays of different stages with equal shapes share one.

    It needs more memory than a `StagePack` if stages differ, but arrays keep their shardings.

    Args:
      stages: For each stage the shapes and dtypes of its arrays by index, in order.
    """

    def __init__(self, stages: Sequence[Mapping[int, AbstractArray]]) -> None:
        self._buffer_names: list[dict[int, str]] = []
        self._avals: dict[str, AbstractArray] = {}
        for arrays in stages:
            counts: dict[str, int] = {}
            names: dict[int, str] = {}
            for index, aval in arrays.items():
                kind = f"{np.dtype(aval.dtype).name}{tuple(aval.shape)}"
                counts[kind] = counts.get(kind, 0) + 1
                names[index] = f"{kind} {counts[kind]}"
                self._avals[names[index]] = aval
            self._buffer_names.append(names)

    def count_bytes(self) -> int:
        """Return the bytes of all buffers, without sharding."""
        return sum(math.prod(a.shape) * np.dtype(a.dtype).itemsize for a in self._avals.values())

    def make_zeros(self) -> Buffers:
        """Create buffers of zeros."""
        return {name: jnp.zeros(a.shape, a.dtype) for name, a in self._avals.items()}

    def unpack(self, buffers: Buffers, stage: int) -> dict[int, jax.Array]:
        """Return the arrays of a stage."""
        return {index: buffers[name] for index, name in self._buffer_names[stage].items()}

    def pack(self, arrays: Mapping[int, jax.Array], stage: int) -> Buffers:
        """Return the buffers with a stage's arrays, and zeros in those of other stages."""
        own = {name: arrays[index] for index, name in self._buffer_names[stage].items()}
        return self.make_zeros() | own


def separate_equal_arrays(
    stages: Sequence[Mapping[int, AbstractArray]],
) -> list[list[dict[int, AbstractArray]]]:
    """Separate arrays of several stages, and those that have a counterpart of equal size in each stage.

    Counterparts can share a buffer without padding, and programs use it without slices.

    Args:
      stages: For each stage the shapes and dtypes of its arrays by index, in order.

    Returns:
      Lists of the arrays of each stage: some with an array of several stages, some with one array
      of each stage, and one with the rest.
    """
    counts = Counter(index for arrays in stages for index in arrays)
    shared = [i for i, n in counts.items() if n > 1]
    copies = [[{i: arrays[i]} if i in arrays else {} for arrays in stages] for i in shared]
    stages = [{i: a for i, a in arrays.items() if counts[i] == 1} for arrays in stages]
    queues: list[dict[Any, list[int]]] = []
    for arrays in stages:
        queue: dict[Any, list[int]] = {}
        for index, aval in arrays.items():
            queue.setdefault((np.dtype(aval.dtype), math.prod(aval.shape)), []).append(index)
        queues.append(queue)
    parts: list[list[dict[int, AbstractArray]]] = []
    rest = [dict(arrays) for arrays in stages]
    for key in queues[0]:
        for indices in zip(*(queue.get(key, []) for queue in queues), strict=False):
            parts.append([{i: r.pop(i)} for i, r in zip(indices, rest, strict=True)])
    return [*copies, *parts, rest] if any(rest) else [*copies, *parts]


def concatenate_rows(arrays: Sequence[jax.Array]) -> jax.Array:
    """Concatenate arrays along their last axis."""
    if arrays[0].ndim > 1:
        return jnp.concatenate(arrays, axis=-1)
    # XLA would fuse a concatenation of vectors with the operation that reads it: on CPUs, the
    # program would choose an operand for each element instead of copying operands.
    return jnp.concatenate([array[None] for array in arrays], axis=-1)[0]


def constrain_sharding(
    array: jax.Array, entries: Sequence[str | tuple[str, ...] | None]
) -> jax.Array:
    """Constrain the sharding of an array over the mesh dimensions that XLA partitions.

    Args:
      array: The array.
      entries: Mesh dimensions of each axis; None, or no entry, is an unsharded axis.

    Returns:
      The constrained array.
    """
    return jax.lax.with_sharding_constraint(array, PartitionSpec(*entries))


def is_float(name: str) -> bool:
    """Check whether a dtype has gradients."""
    return bool(jnp.issubdtype(np.dtype(name), jnp.inexact))


def switch_on_index(index: jax.Array, branches: Sequence[Callable[..., Any]]) -> PyTree:
    """Call one of several functions, selected by an index that is a value of the program."""
    if len(branches) == 1:
        return branches[0]()
    return jax.lax.switch(index, list(branches))


def sum_buffers(buffers: Buffers, over: Sequence[str]) -> Buffers:
    """Sum buffers over mesh dimensions."""
    return {name: jax.lax.psum(b, tuple(over)) for name, b in buffers.items()} if over else buffers
