"""Datasets of arrays, ranges, generators and random numbers."""

from __future__ import annotations

import glob as globbing
import itertools
import mmap
from collections import abc
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from meshflow.core.runtime.errors import (
    InvalidArgumentError,
    InvalidValueError,
    convert_python_error,
)
from meshflow.core.values import dtypes, nest
from meshflow.core.values.composite import CompositeSpec, CompositeTensor
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.dtypes import DTypeLike
from meshflow.core.values.specs import TensorSpec, TypeSpec
from meshflow.core.values.tensor import TensorLike
from meshflow.core.variables.random_streams import draw_dataset_seed
from meshflow.data import structure
from meshflow.data.arguments import INFINITE_CARDINALITY, UNKNOWN_CARDINALITY, to_int
from meshflow.data.dataset import Dataset
from meshflow.data.epoch import Epoch
from meshflow.data.execution import chunks
from meshflow.data.execution.batched_gather import BatchedGather, LeafGather
from meshflow.data.execution.failures import ResumingIterator
from meshflow.data.node import IndexStream
from meshflow.data.optional import OptionalSpec
from meshflow.environment.types import PyTree
from meshflow.ops import ragged
from meshflow.ops.ragged import RaggedRow, RaggedTensor, RaggedTensorSpec
from meshflow.ops.tensor_array import TensorArraySpec

__all__ = ["Generator", "Random", "Range", "TensorSlices", "Tensors", "list_files"]

_BLOCK_SIZE = 4096
# An element of more bytes is not copied.
_MAX_COPIED_BYTES = 4096
# After this many bytes were read from a memory-mapped array, its pages are released. The system
# maps up to 16 pages when one is read, so up to 16 times as many bytes may be resident.
_MAX_MAPPED_BYTES = 1 << 25


def iter_index_blocks(count: int) -> Iterator[np.ndarray]:
    """Iterate over blocks of the indices 0 to count - 1."""
    for start in range(0, count, _BLOCK_SIZE):
        yield np.arange(start, min(start + _BLOCK_SIZE, count))


class TensorSlices(Dataset):
    """The slices of arrays along their first axis.

    Args:
      tensors: Nested structure of arrays.
    """

    _tensorflow_name = "TensorSliceDataset"

    def __init__(self, tensors: PyTree) -> None:
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
        # Copy-on-write maps are excluded, because releasing their pages would discard changes.
        self._mapped: list[Any] = [
            a for a in self._leaves if isinstance(a, np.memmap) and a.mode != "c"
        ]
        self._read = 0
        self._own_spec = structure.unbatch_spec(structure.infer_spec(arrays))

    def _infer_spec(self) -> PyTree:
        return self._own_spec

    def count_elements(self) -> int:
        """Return the size of the first axis."""
        return self._size

    def vectorize(self, epoch: Epoch) -> IndexStream:
        """Return the slices as a stream of the indices along the first axis."""
        return make_row_stream(self._leaves, self._record_rows)

    def _record_rows(self, rows: list[Any]) -> None:
        """Count the bytes that were read, and release the pages of memory-mapped arrays."""
        if self._mapped:
            self._read += sum(r.nbytes for r in rows)
            if self._read > _MAX_MAPPED_BYTES:
                # The released pages remain in the page cache of the system, and no longer count as
                # memory of this process.
                self._read = 0
                for array in self._mapped:
                    array._mmap.madvise(mmap.MADV_DONTNEED)


def make_row_stream(
    arrays: list[np.ndarray], note: Callable[[list[np.ndarray]], None] = lambda rows: None
) -> IndexStream:
    """Return the rows of arrays as a stream of indices.

    Args:
      arrays: Arrays with the same size in their first axis.
      note: Function that is called with the rows that were read.
    """
    count = len(arrays[0])
    return IndexStream(
        BatchedGather([LeafGather(a) for a in arrays], note),
        iter_index_blocks(count),
        gather_affine=lambda wanted: BatchedGather(
            [LeafGather(arrays[c.leaf], c.steps, c.shape) for c in wanted], note
        ),
        is_in_order=True,
        index_limit=count,
    )


class IndexedDataset(Dataset):
    """Elements that are accessed by index.

    Args:
      count: Number of elements.
      gather: Function from indices to the stacked leaves of their elements.
      spec: Spec of the elements.
    """

    def __init__(self, count: int, gather: Callable[[np.ndarray], list[Any]], spec: PyTree) -> None:
        self._size, self._gather, self._own_spec = count, gather, spec

    def _infer_spec(self) -> PyTree:
        return self._own_spec

    def count_elements(self) -> int:
        """Return the number of elements that was passed to the constructor."""
        return self._size

    def vectorize(self, epoch: Epoch) -> IndexStream:
        """Return the indices 0 to the number of elements - 1, with the function that gathers them."""
        blocks = iter_index_blocks(self._size)
        return IndexStream(self._gather, blocks, is_in_order=True, index_limit=self._size)


class Tensors(Dataset):
    """A dataset of a single element.

    Args:
      tensors: The element.
    """

    _tensorflow_name = "TensorDataset"

    def __init__(self, tensors: PyTree) -> None:
        self._element = structure.to_arrays(tensors)
        self._own_spec = structure.infer_spec(self._element)

    def _infer_spec(self) -> PyTree:
        return self._own_spec

    def count_elements(self) -> int:
        """Return 1."""
        return 1

    def iter_elements(self, epoch: Epoch) -> abc.Generator[Any, None, None]:
        """Yield the element once."""
        yield self._element

    def vectorize(self, epoch: Epoch) -> IndexStream | None:
        """Return a stream of one index for a small element, which is copied where it is used."""
        if not chunks.is_stackable(self._own_spec):
            return None
        leaves = nest.flatten(self._element)
        if sum(leaf.nbytes for leaf in leaves) > _MAX_COPIED_BYTES:
            return None
        return make_row_stream([leaf[None] for leaf in leaves])


class Range(Dataset):
    """Equally spaced integers.

    Args:
      start: The first element.
      stop: Exclusive bound of the elements.
      step: Difference between consecutive elements.
      dtype: Dtype of the elements.
      endless: Whether the dataset counts as infinite; it ends after 2**62 elements.
    """

    def __init__(
        self, start: int, stop: int, step: int, dtype: DTypeLike, endless: bool = False
    ) -> None:
        self._endless = endless
        if step == 0:
            raise InvalidArgumentError("step cannot be zero.")
        self._range = range(start, stop, step)
        self._dtype = dtypes.as_dtype(dtype)

    def _infer_spec(self) -> PyTree:
        return TensorSpec([], self._dtype)

    def count_elements(self) -> int:
        """Return the number of integers, or INFINITE_CARDINALITY for an endless range."""
        return INFINITE_CARDINALITY if self._endless else len(self._range)

    def vectorize(self, epoch: Epoch) -> IndexStream:
        """Return a stream of indices i with the elements `start + step * i`."""
        start, step = self._range.start, self._range.step
        return IndexStream(
            lambda i: [(start + step * i).astype(self._dtype.as_numpy_dtype)],
            iter_index_blocks(len(self._range)),
            is_in_order=True,
            index_limit=len(self._range),
        )


class Generator(Dataset):
    """The elements that a Python generator yields.

    Args:
      generator: Function that returns an iterable.
      signature: Spec of the elements.
      args: Arguments of the function.
    """

    _tensorflow_name = "FlatMapDataset"

    def __init__(
        self, generator: Callable[..., Any], signature: PyTree, args: tuple[Any, ...]
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

    def _infer_spec(self) -> PyTree:
        return self._signature

    def count_elements(self) -> int:
        """Return UNKNOWN_CARDINALITY, because only a pass runs the generator."""
        return UNKNOWN_CARDINALITY

    def iter_elements(self, epoch: Epoch) -> abc.Generator[Any, None, None]:
        """Iterate over the yielded values, converted to arrays that match the signature."""
        specs = nest.flatten(self._signature)
        indices = itertools.count()
        iterator: Any = None

        def iter_elements() -> Iterator[PyTree]:
            nonlocal iterator
            for index in indices:
                try:
                    if iterator is None:
                        iterator = iter(())
                        iterator = iter(self._generator(*self._args))
                    value = next(iterator)
                except StopIteration:
                    return
                except Exception as error:
                    tensorflow_error = convert_python_error(error)
                    tensorflow_error.add_note(
                        f"(while the generator of a dataset computed element {index})"
                    )
                    raise tensorflow_error from error
                yield self._convert_element(value, specs, index)

        return ResumingIterator(iter_elements)

    def _convert_element(self, value: PyTree, specs: list[Any], index: int) -> PyTree:
        """Convert a yielded value to an element of host arrays that matches the signature."""
        if isinstance(value, list):
            value = tuple(value) if isinstance(self._signature, tuple) else value
        is_nested = nest.is_nested(self._signature)
        try:
            leaves = _flatten_like(self._signature, value) if is_nested else [value]
        except (TypeError, ValueError, KeyError):
            raise InvalidValueError(
                f"`generator` yielded an element that did not match the expected structure. The expected "
                f"structure was {self._signature}, but the yielded element was {value!r} (element {index})."
            ) from None
        arrays = []
        for spec, leaf in zip(specs, leaves, strict=True):
            arrays.append(_convert_leaf(spec, leaf, index))
        return nest.pack_sequence_as(self._signature, arrays)


def _flatten_like(signature: PyTree, value: PyTree) -> list[Any]:
    """Return the leaves of a value where a signature has leaves.

    Raises:
      TypeError, ValueError or KeyError: If the structures differ.
    """
    if isinstance(signature, dict):
        if set(signature) != set(value):
            raise ValueError
        return [x for k in sorted(signature) for x in _flatten_like(signature[k], value[k])]
    if isinstance(signature, tuple):
        if not isinstance(value, (tuple, list)) or len(value) != len(signature):
            raise ValueError
        return [x for s, v in zip(signature, value, strict=True) for x in _flatten_like(s, v)]
    return [value]


def _convert_leaf(
    spec: TensorSpec | CompositeSpec, leaf: Any, index: int
) -> np.ndarray | CompositeTensor | RaggedRow:
    """Convert a leaf to a host array that matches a spec."""
    if isinstance(spec, RaggedTensorSpec) and not isinstance(leaf, RaggedTensor):
        splits = spec.row_splits_dtype
        if spec.ragged_rank == 0:
            return RaggedRow(np.asarray(convert_to_tensor(leaf, dtype=spec.dtype).array))
        leaf = ragged.constant(leaf, spec.dtype, spec.ragged_rank, row_splits_dtype=splits)
    if isinstance(spec, (CompositeSpec, OptionalSpec, TensorArraySpec)):
        if not spec.is_compatible_with(leaf):
            raise InvalidValueError(
                f"`generator` yielded {leaf!r} where {spec} was expected (element {index})."
            )
        return leaf
    try:
        array = np.asarray(convert_to_tensor(leaf, dtype=spec.dtype).array)
    except (TypeError, ValueError) as error:
        try:
            array = np.asarray(leaf)
            # As in TensorFlow, NumPy values are cast, and Python integers are cast to other integer
            # dtypes.
            if not isinstance(leaf, (np.ndarray, np.generic)) and (
                array.dtype.kind not in "bi" or not spec.dtype.is_integer
            ):
                raise
            array = array.astype(spec.dtype.as_numpy_dtype)
        except (TypeError, ValueError):
            raise InvalidValueError(
                f"`generator` yielded an element that could not be converted to the expected type. The expected type "
                f"was {spec.dtype.name}, but the yielded element was {leaf!r} (element {index}): {error}"
            ) from None
    if not spec.shape.is_compatible_with(array.shape):
        raise InvalidValueError(
            f"`generator` yielded an element of shape {array.shape} where an element of shape {spec.shape} was "
            f"expected (element {index})."
        )
    return array


class Random(Dataset):
    """Uniform random int64 scalars in [0, 2**32), without end.

    Args:
      seed: Seed, or None.
      rerandomize: Whether later passes yield other numbers.
    """

    reshuffles = True

    def __init__(self, seed: int | None, rerandomize: bool | None) -> None:
        self._words = make_seed_words(seed)
        self.seeded = seed is not None
        self.reshuffles = bool(rerandomize)
        self.epoch = 0

    def get_seed_words(self) -> list[int]:
        """Return the words of the seed."""
        return self._words

    def _infer_spec(self) -> PyTree:
        return TensorSpec([], dtypes.int64)

    def count_elements(self) -> int:
        """Return INFINITE_CARDINALITY."""
        return INFINITE_CARDINALITY

    def _iter_chunks(self, epoch: Epoch) -> abc.Iterator[Any]:
        words = epoch.create_draws(self).words
        while True:
            yield [words.take(chunks.MAX_CHUNK_SIZE).astype(np.int64)]


def make_seed_words(seed: int | None) -> list[int]:
    """Combine the seed of a transformation with the global seed; draw a new one if neither is set."""
    return draw_dataset_seed(None if seed is None else to_int(seed, "seed"))


def list_files(patterns: TensorLike) -> list[str]:
    """Return the sorted names of the files that match patterns.

    Raises:
      InvalidArgumentError: If no file matches.
    """
    pattern_list = [
        p.decode() if isinstance(p, bytes) else str(p)
        for p in np.asarray(structure.to_array(patterns)).reshape(-1)
    ]
    names = sorted({f for p in pattern_list for f in globbing.glob(p)})
    if not names:
        raise InvalidArgumentError(f"No files matched pattern: {', '.join(pattern_list)}")
    return names
