"""Arrays of different stages as buffers of one shape, one for each dtype.

All devices of a pipeline run one program, so what a stage has (weights, state, what is sent on) must look alike
in all stages: it is laid end to end, and filled up to the length of the longest.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

__all__ = ["Buffers", "Pack", "SplitPack", "chosen", "total"]

Buffers = dict[str, Any]


class Place(NamedTuple):
    """Where an array is: in which dtype's buffer, from where on, and its shape."""

    dtype: str
    offset: int
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        """How many numbers it has."""
        return math.prod(self.shape)


class Pack:
    """Arrays by number, some of which each stage has.

    Args:
      stages: for each stage the shapes and dtypes (of its arrays) by number, in order.

    Attributes:
      places: for each stage the places of its arrays.
      lengths: the length of the buffer of each dtype.
    """

    def __init__(self, stages: Sequence[Mapping[int, Any]]) -> None:
        self.places: list[dict[int, Place]] = []
        self.lengths: dict[str, int] = {}
        self.shapes: dict[int, Any] = {}
        for arrays in stages:
            ends: dict[str, int] = {}
            places: dict[int, Place] = {}
            for number, aval in arrays.items():
                name = np.dtype(aval.dtype).name
                places[number] = Place(name, ends.get(name, 0), tuple(aval.shape))
                ends[name] = ends.get(name, 0) + places[number].size
                self.shapes[number] = aval
            self.places.append(places)
            for name, end in ends.items():
                self.lengths[name] = max(self.lengths.get(name, 0), end)

    def bytes(self) -> int:
        """Bytes of a stage's buffers."""
        return sum(n * np.dtype(name).itemsize for name, n in self.lengths.items())

    def zeros(self, floats: bool = False) -> Buffers:
        """Buffers of zeros; only those that have gradients when `floats`."""
        return {
            name: jnp.zeros(length, name)
            for name, length in self.lengths.items()
            if not floats or is_float(name)
        }

    def take(self, buffers: Buffers, stage: int) -> dict[int, Any]:
        """The arrays of a stage."""
        return {
            number: jax.lax.slice(buffers[p.dtype], (p.offset,), (p.offset + p.size,)).reshape(
                p.shape
            )
            for number, p in self.places[stage].items()
            if p.dtype in buffers
        }

    def put(self, arrays: Mapping[int, Any], stage: int, floats: bool = False) -> Buffers:
        """The buffers of a stage with its arrays; without those of dtypes that have no gradient when `floats`."""
        parts: dict[str, list[Any]] = {name: [] for name in self.zeros(floats)}
        for number, p in self.places[stage].items():
            if p.dtype in parts:
                parts[p.dtype].append(arrays[number].astype(p.dtype).reshape(-1))
        return {name: self._filled(name, rows) for name, rows in parts.items()}

    def _filled(self, name: str, rows: list[Any]) -> Any:
        rest = self.lengths[name] - sum(row.size for row in rows)
        return jnp.concatenate([*rows, *([jnp.zeros(rest, name)] if rest else [])])

    def own(self, arrays: Mapping[int, Any], stage: Any) -> Buffers:
        """The buffers of the stage with a number that only devices know."""
        return chosen(stage, [lambda s=s: self.put(arrays, s) for s in range(len(self.places))])

    def spread(self, buffers: Buffers, stage: Any) -> Buffers:
        """A stage's arrays among zeros for all others: buffers of all numbers, to be added over stages."""

        def of(s: int) -> Buffers:
            mine = self.take(buffers, s)
            rows: dict[str, list[Any]] = {}
            for number, aval in self.shapes.items():
                name = np.dtype(aval.dtype).name
                if name in buffers:
                    row = mine.get(number, jnp.zeros(aval.shape, name))
                    rows.setdefault(name, []).append(row.reshape(-1))
            return {name: jnp.concatenate(parts) for name, parts in rows.items()}

        return chosen(stage, [lambda s=s: of(s) for s in range(len(self.places))])

    def gathered(self, buffers: Buffers) -> dict[int, Any]:
        """The arrays by number out of what `spread` gave."""
        found, ends = {}, dict.fromkeys(buffers, 0)
        for number, aval in self.shapes.items():
            name = np.dtype(aval.dtype).name
            if name in buffers:
                begin, size = ends[name], math.prod(aval.shape)
                found[number] = buffers[name][begin : begin + size].reshape(aval.shape)
                ends[name] = begin + size
        return found


class SplitPack:
    """Weights whose parts lie on all devices of the pipeline; in a step each device gets the whole of its own.

    Args:
      stages: for each stage the shapes of its weights by number.
      axes: for each number the axis along which the weight is split.
      parts: into how many parts: the size of the pipeline's dimension.
    """

    def __init__(
        self, stages: Sequence[Mapping[int, Any]], axes: Mapping[int, int], parts: int
    ) -> None:
        self.axes, self.parts = dict(axes), parts
        self._pack = Pack(
            [
                {
                    n: jax.ShapeDtypeStruct(self._part(n, a.shape), a.dtype)
                    for n, a in arrays.items()
                }
                for arrays in stages
            ]
        )
        self.places, self.lengths = self._pack.places, self._pack.lengths

    def _part(self, number: int, shape: Sequence[int]) -> tuple[int, ...]:
        sizes = list(shape)
        sizes[self.axes[number]] //= self.parts
        return tuple(sizes)

    def bytes(self) -> int:
        """Bytes of a stage's buffers."""
        return self._pack.bytes() * self.parts

    def zeros(self, floats: bool = False) -> Buffers:
        """Buffers of zeros, [parts, length]."""
        return {n: jnp.zeros((self.parts, z.size), n) for n, z in self._pack.zeros(floats).items()}

    def take(self, buffers: Buffers, stage: int) -> dict[int, Any]:
        """The whole weights of a stage."""
        found = {}
        for number, p in self.places[stage].items():
            axis = self.axes[number]
            rows = buffers[p.dtype][:, p.offset : p.offset + p.size]
            parts = jnp.moveaxis(rows.reshape(self.parts, *p.shape), 0, axis)
            whole = list(p.shape)
            whole[axis] *= self.parts
            found[number] = parts.reshape(whole)
        return found

    def put(self, arrays: Mapping[int, Any], stage: int, floats: bool = False) -> Buffers:
        """The buffers of whole weights, or of their gradients."""
        rows: dict[str, list[Any]] = {name: [] for name in self._pack.zeros(floats)}
        for number, p in self.places[stage].items():
            axis = self.axes[number]
            shape = [*p.shape[:axis], self.parts, *p.shape[axis:]]
            parts = jnp.moveaxis(arrays[number].reshape(shape), axis, 0)
            rows[p.dtype].append(parts.reshape(self.parts, -1))
        made = {}
        for name, found in rows.items():
            rest = self.lengths[name] - sum(row.shape[1] for row in found)
            made[name] = jnp.concatenate([*found, jnp.zeros((self.parts, rest), name)], axis=1)
        return made

    def own(self, arrays: Mapping[int, Any], over: str) -> list[Buffers]:
        """For each of a device's stages its whole weights, from the parts that all devices have.

        Args:
          arrays: this device's parts by number.
          over: the mesh dimension of the pipeline.
        """
        rows = [self._pack.put(arrays, s) for s in range(len(self.places))]
        chunks = len(rows) // self.parts
        found: list[Buffers] = []
        for c in range(chunks):
            stacked = {
                name: jnp.stack([row[name] for row in rows[c * self.parts : (c + 1) * self.parts]])
                for name in self.lengths
            }
            found.append({n: _exchanged(b, over) for n, b in stacked.items()})
        return found

    def gathered(self, buffers: Sequence[Buffers], over: str) -> dict[int, Any]:
        """This device's parts of the gradients, from those of the whole weights of its stages."""
        found: dict[int, Any] = {}
        for c, of_chunk in enumerate(buffers):
            exchanged = {n: _exchanged(b, over) for n, b in of_chunk.items()}
            for d in range(self.parts):
                row = {n: b[d] for n, b in exchanged.items()}
                for number, value in self._pack.take(row, c * self.parts + d).items():
                    found[number] = found[number] + value if number in found else value
        return found


def _exchanged(rows: Any, over: str) -> Any:
    """Row j of device i becomes row i of device j."""
    return jax.lax.all_to_all(rows, over, split_axis=0, concat_axis=0, tiled=True)


def is_float(name: str) -> bool:
    """Whether a dtype has gradients."""
    return bool(jnp.issubdtype(np.dtype(name), jnp.inexact))


def chosen(number: Any, makers: Sequence[Any]) -> Any:
    """What one of several functions makes, by a number that is known when the program runs."""
    if len(makers) == 1:
        return makers[0]()
    return jax.lax.switch(number, list(makers))


def total(buffers: Buffers, over: Sequence[str]) -> Buffers:
    """Buffers added over mesh dimensions."""
    return {name: jax.lax.psum(b, tuple(over)) for name, b in buffers.items()} if over else buffers
