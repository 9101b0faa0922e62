"""Values that wait in files while a program runs: each device puts what it needs later, and takes it when it does."""

from __future__ import annotations

import functools
import math
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import PartitionSpec

from meshflow.placement.file_store import FileStore, OpenFile

__all__ = ["Scratch", "put_in_files"]

# Places begin at multiples of so many bytes, so that 32 bits number those of eight terabytes.
_BLOCK = 4096


class Scratch:
    """A file for each device of this process, in which a program's values wait until it takes them.

    Calls are pure: what a program is given depends on its operands alone, so that compilers may leave calls out or
    make them twice. Places stay taken until the program asks for `fresh` ones.

    Args:
      store: the store whose folder has the files, and which counts the bytes.
    """

    def __init__(self, store: FileStore) -> None:
        self.store = store
        self._files = [_Places(store) for _ in store.mesh.local_devices]
        # By the numbers that devices give themselves, in the order in which they come.
        self._of_device: dict[int, _Places] = {}
        self._finding = threading.Lock()
        # Blocks of the program that is traced.
        self._wanted = 0

    def fresh(self, zero: Any, after: Any) -> Any:
        """The zero that programs hand from call to call, with all of a device's places free.

        Args:
          zero: a zero that no compiler knows.
          after: an array that comes first.
        """
        self._wanted = 0
        return self._each(self._fresh, _like(zero), zero, after.reshape(-1)[:1])

    def put(
        self, values: Sequence[Any], zero: Any
    ) -> tuple[list[Any], Callable[[Sequence[Any], Sequence[Any]], list[Any]], Any]:
        """Has a program put values into files; see `Waiting` of `meshflow.core.gradients.recompute`.

        Raises:
          ResourceExhaustedError: when the disk has no room for them.
        """
        shapes = tuple(map(_like, values))
        # Whatever is put once in a program has its room before the program is compiled.
        self._wanted += _blocks(sum(_bytes(s) for s in shapes))
        for places in self._files:
            places.reserve(self._wanted)
        number = jax.ShapeDtypeStruct((), np.int32)

        place, zero = self._each(self._put, (number, _like(zero)), zero, *values)
        return [place], functools.partial(self._back, shapes), zero

    def _back(
        self, shapes: tuple[Any, ...], kept: Sequence[Any], after: Sequence[Any]
    ) -> list[Any]:
        return list(self._each(functools.partial(self._take, shapes), shapes, kept[0], *after))

    def _each(self, callback: Callable[..., Any], shapes: Any, *operands: Any) -> Any:
        """What Python gives to each device of a program, which it is told by number."""
        mesh = jax.sharding.get_abstract_mesh()
        names = self.store.mesh.axis_names
        inside = tuple(n for n in names if not mesh.empty and n in mesh.manual_axes)
        others = tuple(n for n in names if n not in inside)
        number: Any = lax.axis_index(inside) if inside else jnp.int32(0)
        if not others:
            return jax.pure_callback(callback, shapes, number, *operands)
        count = math.prod(self.store.mesh.shape[n] for n in others)

        def local(number: Any, *operands: Any) -> Any:
            own = number * count + lax.axis_index(others)
            return jax.pure_callback(callback, shapes, own, *operands)

        # What rules split over the other dimensions comes together: each device has a copy of its own.
        return jax.shard_map(
            local,
            mesh=self.store.mesh if mesh.empty else mesh,
            in_specs=PartitionSpec(),
            out_specs=PartitionSpec(),
            axis_names=set(others),
            check_vma=False,
        )(number, *operands)

    # ---- called by programs ----------------------------------------------------------------

    def _places(self, number: Any) -> _Places:
        number = int(number)
        with self._finding:
            if number not in self._of_device:
                self._of_device[number] = self._files[len(self._of_device)]
            return self._of_device[number]

    def _fresh(self, number: Any, zero: Any, after: Any) -> np.ndarray:
        self._places(number).top = 0
        return np.asarray(zero)

    def _put(self, number: Any, zero: Any, *values: Any) -> tuple[np.ndarray, np.ndarray]:
        arrays = [np.ascontiguousarray(v) for v in values]
        places = self._places(number)
        place = places.next(_blocks(sum(a.nbytes for a in arrays)))
        for at, array in zip(_offsets(place, arrays), arrays, strict=True):
            places.file.write(array, at)
        self.store.count(written=sum(a.nbytes for a in arrays))
        return np.asarray(place, np.int32), np.asarray(zero)

    def _take(self, shapes: tuple[Any, ...], number: Any, place: Any, *after: Any) -> Any:
        arrays = [np.empty(s.shape, s.dtype) for s in shapes]
        for at, array in zip(_offsets(int(place), arrays), arrays, strict=True):
            self._places(number).file.read(array, at)
        self.store.count(read=sum(a.nbytes for a in arrays))
        return tuple(arrays)


def put_in_files(equation: Any) -> int:
    """How many bytes an equation of a program puts into files."""
    called = getattr(equation.params.get("callback"), "callback_func", None)
    if getattr(called, "__func__", None) is not Scratch._put:
        return 0
    # Numbers of devices and zeros are no values.
    return sum(_bytes(v.aval) for v in equation.invars[2:])


class _Places:
    """The blocks of one device's file; `top` is the first that is free."""

    def __init__(self, store: FileStore) -> None:
        self.file = OpenFile(store.folder)
        self.top = self._size = 0

    def reserve(self, blocks: int) -> None:
        """Has the file hold so many blocks at least."""
        if blocks > self._size:
            self.file.grow(blocks * _BLOCK)
            self._size = blocks

    def next(self, blocks: int) -> int:
        """The first of so many blocks that were free."""
        place, self.top = self.top, self.top + blocks
        # Layers in loops put more than once.
        self.reserve(self.top)
        return place


def _like(value: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(value.shape, value.dtype)


def _bytes(shape: jax.ShapeDtypeStruct) -> int:
    return math.prod(shape.shape) * shape.dtype.itemsize


def _blocks(count: int) -> int:
    return -(-count // _BLOCK)


def _offsets(place: int, arrays: Sequence[np.ndarray]) -> Iterator[int]:
    at = place * _BLOCK
    for array in arrays:
        yield at
        at += array.nbytes
