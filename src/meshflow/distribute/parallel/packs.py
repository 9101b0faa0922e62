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
from jax.sharding import PartitionSpec

__all__ = ["Buffers", "Pack", "Shelf", "alike", "chosen", "is_float", "total"]

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
      divided: whether XLA may divide what is not said to be whole, as these buffers are.

    Attributes:
      places: for each stage the places of its arrays.
      lengths: the length of the buffer of each dtype.
    """

    def __init__(self, stages: Sequence[Mapping[int, Any]], divided: bool = False) -> None:
        self._divided = divided
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
            number: self._whole(
                jax.lax.slice(
                    self._whole(buffers[p.dtype]), (p.offset,), (p.offset + p.size,)
                ).reshape(p.shape)
            )
            for number, p in self.places[stage].items()
            if p.dtype in buffers
        }

    def put(self, arrays: Mapping[int, Any], stage: int, floats: bool = False) -> Buffers:
        """The buffers of a stage with its arrays; without those of dtypes that have no gradient when `floats`."""
        parts: dict[str, list[Any]] = {name: [] for name in self.zeros(floats)}
        for number, p in self.places[stage].items():
            if p.dtype in parts:
                whole = self._whole(arrays[number].astype(p.dtype))
                parts[p.dtype].append(self._whole(whole.reshape(-1)))
        return {name: self._filled(name, rows) for name, rows in parts.items()}

    def _whole(self, array: Any) -> Any:
        return alike(array, []) if self._divided else array

    def _filled(self, name: str, rows: list[Any]) -> Any:
        rest = self.lengths[name] - sum(row.size for row in rows)
        return self._whole(jnp.concatenate([*rows, *([jnp.zeros(rest, name)] if rest else [])]))

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


class Shelf:
    """Arrays by number that lie as they are, as XLA may have divided them; those of one shape share a place.

    Takes more memory than a `Pack` where stages are unlike, and brings nothing together that is divided.

    Args:
      stages: for each stage the shapes and dtypes (of its arrays) by number, in order.
    """

    def __init__(self, stages: Sequence[Mapping[int, Any]]) -> None:
        self._places: list[dict[int, str]] = []
        self._avals: dict[str, Any] = {}
        for arrays in stages:
            counts: dict[str, int] = {}
            places: dict[int, str] = {}
            for number, aval in arrays.items():
                kind = f"{np.dtype(aval.dtype).name}{tuple(aval.shape)}"
                counts[kind] = counts.get(kind, 0) + 1
                places[number] = f"{kind} {counts[kind]}"
                self._avals[places[number]] = aval
            self._places.append(places)

    def bytes(self) -> int:
        """Bytes of all places, undivided."""
        return sum(math.prod(a.shape) * np.dtype(a.dtype).itemsize for a in self._avals.values())

    def zeros(self) -> Buffers:
        """Zeros in all places."""
        return {name: jnp.zeros(a.shape, a.dtype) for name, a in self._avals.items()}

    def take(self, buffers: Buffers, stage: int) -> dict[int, Any]:
        """The arrays of a stage."""
        return {number: buffers[name] for number, name in self._places[stage].items()}

    def put(self, arrays: Mapping[int, Any], stage: int) -> Buffers:
        """The places with a stage's arrays, and zeros in those of others."""
        own = {name: arrays[number] for number, name in self._places[stage].items()}
        return self.zeros() | own


def alike(array: Any, entries: Sequence[Any]) -> Any:
    """An array whose axes are split over mesh dimensions that XLA divides programs along; by None, or no entry, whole."""
    return jax.lax.with_sharding_constraint(array, PartitionSpec(*entries))


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
