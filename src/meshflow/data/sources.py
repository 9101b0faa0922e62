"""Where elements come from: arrays, ranges, generators, numbers drawn at random."""

from __future__ import annotations

import glob as globbing
import itertools
import mmap
from collections import abc
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from meshflow.core.dispatch.composite import SparseTensorSpec
from meshflow.core.runtime.errors import InvalidArgumentError, InvalidValueError, error_of_python
from meshflow.core.values import dtypes, nest
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.specs import TensorSpec, TypeSpec
from meshflow.core.variables.random import dataset_seed
from meshflow.data import structure
from meshflow.data.arguments import INFINITE_CARDINALITY, UNKNOWN_CARDINALITY, integer
from meshflow.data.dataset import Dataset, Vector
from meshflow.data.epoch import Epoch
from meshflow.data.execution.batched_gather import BatchedGather, LeafGather
from meshflow.data.execution.resumable import Resuming

__all__ = ["Generator", "Random", "Range", "TensorSlices", "Tensors", "list_files"]

_BLOCK = 4096
# Bytes read from a memory-mapped array after which its pages are given back. The system maps up
# to 16 pages where one is read, so many times as much may be resident.
_MAPPED = 1 << 25


def index_blocks(count: int) -> Iterator[np.ndarray]:
    """0 to count - 1 in blocks; a block is a view that costs nothing."""
    for start in range(0, count, _BLOCK):
        yield np.arange(start, min(start + _BLOCK, count))


class TensorSlices(Dataset):
    """The rows of arrays."""

    def __init__(self, tensors: Any) -> None:
        arrays = structure.to_arrays(tensors)
        self._leaves = nest.flatten(arrays)
        if not self._leaves:
            raise ValueError("from_tensor_slices needs at least one tensor.")
        if any(a.ndim == 0 for a in self._leaves):
            raise ValueError(
                "Unbatching a tensor is only supported for rank >= 1: from_tensor_slices got a scalar."
            )
        sizes = [len(a) for a in self._leaves]
        if len(set(sizes)) > 1:
            raise ValueError(
                f"Dimensions {sizes} are not compatible: all components of from_tensor_slices must have "
                "the same first dimension."
            )
        self._size = sizes[0]
        # Not those that keep changes to themselves, which would be lost with their pages.
        self._mapped: list[Any] = [
            a for a in self._leaves if isinstance(a, np.memmap) and a.mode != "c"
        ]
        self._read = 0
        self._own_spec = structure.unbatched(structure.spec_of(arrays))

    def _known_spec(self) -> Any:
        return self._own_spec

    def _count(self) -> int:
        return self._size

    def _vector(self, epoch: Epoch) -> Vector:
        return rows_of(self._leaves, self._note)

    def _note(self, rows: list[Any]) -> None:
        """Told of rows that were read."""
        if self._mapped:
            self._read += sum(r.nbytes for r in rows)
            if self._read > _MAPPED:
                # Pages that were read stay in the system's cache, but no longer count as ours.
                self._read = 0
                for array in self._mapped:
                    array._mmap.madvise(mmap.MADV_DONTNEED)


def rows_of(
    arrays: list[np.ndarray], note: Callable[[list[np.ndarray]], None] = lambda rows: None
) -> Vector:
    """The rows of arrays of one length.

    Args:
      arrays: the arrays.
      note: told of rows that were read.
    """
    count = len(arrays[0])
    return Vector(
        BatchedGather([LeafGather(a) for a in arrays], note),
        index_blocks(count),
        mapped=lambda wanted: BatchedGather(
            [LeafGather(arrays[c.leaf], c.steps, c.shape) for c in wanted], note
        ),
        in_order=True,
        extent=count,
    )


class Indexed(Dataset):
    """Elements that are reached by number.

    Args:
      count: how many there are.
      gather: from numbers to the stacked leaves of their elements.
      spec: the spec of the elements.
    """

    def __init__(self, count: int, gather: Callable[[np.ndarray], list[Any]], spec: Any) -> None:
        self._size, self._gather, self._own_spec = count, gather, spec

    def _known_spec(self) -> Any:
        return self._own_spec

    def _count(self) -> int:
        return self._size

    def _vector(self, epoch: Epoch) -> Vector:
        blocks = index_blocks(self._size)
        return Vector(self._gather, blocks, in_order=True, extent=self._size)


class Tensors(Dataset):
    """One element."""

    def __init__(self, tensors: Any) -> None:
        self._element = structure.to_arrays(tensors)

    def _known_spec(self) -> Any:
        return structure.spec_of(self._element)

    def _count(self) -> int:
        return 1

    def _elements(self, epoch: Epoch) -> abc.Generator[Any, None, None]:
        yield self._element


class Range(Dataset):
    """Numbers at equal distances; `endless` ones stop after 2 ** 62 of them."""

    def __init__(self, start: int, stop: int, step: int, dtype: Any, endless: bool = False) -> None:
        self._endless = endless
        if step == 0:
            raise InvalidArgumentError("step cannot be zero.")
        self._range = range(start, stop, step)
        self._dtype = dtypes.as_dtype(dtype)

    def _known_spec(self) -> Any:
        return TensorSpec([], self._dtype)

    def _count(self) -> int:
        return INFINITE_CARDINALITY if self._endless else len(self._range)

    def _vector(self, epoch: Epoch) -> Vector:
        start, step = self._range.start, self._range.step
        return Vector(
            lambda i: [(start + step * i).astype(self._dtype.as_numpy_dtype)],
            index_blocks(len(self._range)),
            in_order=True,
            extent=len(self._range),
        )


class Generator(Dataset):
    """What a Python generator yields."""

    def __init__(
        self, generator: Callable[..., Any], signature: Any, args: tuple[Any, ...]
    ) -> None:
        if not callable(generator):
            raise TypeError("`generator` must be a Python callable.")
        for spec in nest.flatten(signature):
            if not isinstance(spec, TypeSpec):
                raise TypeError(
                    f"`output_signature` must contain objects that are subclass of `tf.TypeSpec` but found {spec!r}."
                )
        self._generator, self._signature = generator, signature
        self._args = tuple(structure.to_array(a)[()] for a in args)

    def _known_spec(self) -> Any:
        return self._signature

    def _count(self) -> int:
        return UNKNOWN_CARDINALITY

    def _elements(self, epoch: Epoch) -> abc.Generator[Any, None, None]:
        specs = nest.flatten(self._signature)
        numbers = itertools.count()
        iterator: Any = None

        def checked() -> Iterator[Any]:
            nonlocal iterator
            for number in numbers:
                try:
                    if iterator is None:
                        iterator = iter(())
                        iterator = iter(self._generator(*self._args))
                    value = next(iterator)
                except StopIteration:
                    return
                except Exception as error:
                    made = error_of_python(error)
                    made.add_note(
                        f"(while element {number} of a dataset was made by its generator)"
                    )
                    raise made from error
                yield self._checked(value, specs, number)

        return Resuming(checked)

    def _checked(self, value: Any, specs: list[Any], number: int) -> Any:
        if isinstance(value, list):
            value = tuple(value) if isinstance(self._signature, tuple) else value
        nested = nest.is_nested(self._signature)
        try:
            leaves = _flatten_like(self._signature, value) if nested else [value]
        except (TypeError, ValueError, KeyError):
            raise InvalidValueError(
                f"`generator` yielded an element that did not match the expected structure. The expected "
                f"structure was {self._signature}, but the yielded element was {value!r} (element {number})."
            ) from None
        arrays = []
        for spec, leaf in zip(specs, leaves, strict=True):
            arrays.append(_converted(spec, leaf, number))
        return nest.pack_sequence_as(self._signature, arrays)


def _flatten_like(signature: Any, value: Any) -> list[Any]:
    """The leaves of a value where a signature has leaves."""
    if isinstance(signature, dict):
        if set(signature) != set(value):
            raise ValueError
        return [x for k in sorted(signature) for x in _flatten_like(signature[k], value[k])]
    if isinstance(signature, tuple):
        if not isinstance(value, (tuple, list)) or len(value) != len(signature):
            raise ValueError
        return [x for s, v in zip(signature, value, strict=True) for x in _flatten_like(s, v)]
    return [value]


def _converted(spec: Any, leaf: Any, number: int) -> Any:
    if isinstance(spec, SparseTensorSpec):
        if not spec.is_compatible_with(leaf):
            raise InvalidValueError(
                f"`generator` yielded {leaf!r} where {spec} was expected (element {number})."
            )
        return leaf
    try:
        array = np.asarray(convert_to_tensor(leaf, dtype=spec.dtype)._value)
    except (TypeError, ValueError) as error:
        try:
            array = np.asarray(leaf)
            # NumPy's numbers are cast, and Python's integers to other integers, as by TensorFlow.
            if not isinstance(leaf, (np.ndarray, np.generic)) and (
                array.dtype.kind not in "bi" or not spec.dtype.is_integer
            ):
                raise
            array = array.astype(spec.dtype.as_numpy_dtype)
        except (TypeError, ValueError):
            raise InvalidValueError(
                f"`generator` yielded an element that could not be converted to the expected type. The expected type "
                f"was {spec.dtype.name}, but the yielded element was {leaf!r} (element {number}): {error}"
            ) from None
    if not spec.shape.is_compatible_with(array.shape):
        raise InvalidValueError(
            f"`generator` yielded an element of shape {array.shape} where an element of shape {spec.shape} was "
            f"expected (element {number})."
        )
    return array


class Random(Dataset):
    """Uniform int64 numbers without end."""

    reshuffles = True

    def __init__(self, seed: int | None, rerandomize: bool | None) -> None:
        self._words = seed_of(seed)
        self.seeded = seed is not None
        self.reshuffles = bool(rerandomize)
        self.epoch = 0

    def seed(self) -> list[int]:
        """The words of the seed."""
        return self._words

    def _known_spec(self) -> Any:
        return TensorSpec([], dtypes.int64)

    def _count(self) -> int:
        return INFINITE_CARDINALITY

    def _elements(self, epoch: Epoch) -> abc.Generator[Any, None, None]:
        words = epoch.draws(self).words
        while True:
            yield from (np.asarray(n) for n in words.take(256).astype(np.int64))


def seed_of(seed: Any) -> list[int]:
    """The words of a transformation's seed: its own together with the global one, or a new one."""
    return dataset_seed(None if seed is None else integer(seed, "seed"))


def list_files(patterns: Any) -> list[str]:
    """The files that patterns match, sorted.

    Raises:
      InvalidArgumentError: when there is none.
    """
    texts = [
        p.decode() if isinstance(p, bytes) else str(p)
        for p in np.asarray(structure.to_array(patterns)).reshape(-1)
    ]
    found = sorted({f for p in texts for f in globbing.glob(p)})
    if not found:
        raise InvalidArgumentError(f"No files matched pattern: {', '.join(texts)}")
    return found
