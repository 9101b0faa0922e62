"""Transformations that collect elements in windows or in groups by key, or drop duplicates."""

from __future__ import annotations

import collections
import contextlib
import functools
import math
from collections.abc import Callable, Generator, Iterator
from typing import Any, Protocol

import numpy as np

from meshflow.core.runtime.errors import InvalidArgumentError, InvalidValueError
from meshflow.core.values import dtypes, nest
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.specs import TensorSpec
from meshflow.core.variables.random_streams import call_key_scope
from meshflow.core.variables.variable import restore_variables
from meshflow.data import structure
from meshflow.data.arguments import INFINITE_CARDINALITY, UNKNOWN_CARDINALITY, IntLike, to_int
from meshflow.data.dataset import Dataset
from meshflow.data.epoch import Epoch
from meshflow.data.execution import chunks
from meshflow.data.execution.failures import Failure, catch_failures
from meshflow.data.execution.function_templates import get_templates
from meshflow.data.execution.map_function import ElementFunction
from meshflow.data.execution.result_specs import STAND_IN_SIZES
from meshflow.data.execution.timing import TimedChunkIterator
from meshflow.data.execution.window_chunks import WindowBuffer, stack_windows
from meshflow.data.node import DatasetNode
from meshflow.data.specs import DatasetSpec
from meshflow.data.states import make_state_function
from meshflow.data.transformations.base import ElementList, RandomTransformation, Unary
from meshflow.environment.types import PyTree

_END = object()


class WindowPlaceholder(Dataset):
    """A component of any window, without elements, to find out how a function combines windows.

    Args:
      index: Index of the component.
      spec: Spec of the elements.
    """

    def __init__(self, index: int, spec: PyTree) -> None:
        self.index, self._own_spec = index, spec

    def _infer_spec(self) -> PyTree:
        return self._own_spec

    def count_elements(self) -> int:
        """Raise a TypeError, because the windows may have different sizes."""
        raise TypeError("A placeholder of a window has no elements.")

    def iter_elements(self, epoch: Epoch) -> Generator[Any, None, None]:
        """Raise a TypeError, because the elements differ."""
        raise TypeError("A placeholder of a window has no elements.")


class Window(Unary):
    """Windows of consecutive elements, each a dataset.

    Args:
      parent: The dataset.
      size: Number of elements in a window.
      shift: Number of elements between the starts of windows; None means `size`.
      stride: Distance between the elements of a window.
      drop: Whether to drop smaller windows at the end.
    """

    def __init__(
        self, parent: DatasetNode, size: IntLike, shift: IntLike | None, stride: IntLike, drop: bool
    ) -> None:
        super().__init__(parent)
        self._size = to_int(size, "size")
        self._shift = self._size if shift is None else to_int(shift, "shift")
        self._stride = to_int(stride, "stride")
        for name, value in (("size", self._size), ("shift", self._shift), ("stride", self._stride)):
            if value < 1:
                raise InvalidArgumentError(f"Window {name} must be greater than zero, got {value}.")
        self._drop = bool(drop)

    def _infer_spec(self) -> PyTree:
        return structure.map_specs(DatasetSpec, self.parent.element_spec)

    def count_elements(self) -> int:
        """Return the number of windows, of complete ones if smaller windows are dropped."""
        count = self.parent.count_elements()
        if count < 0:
            return count
        if not self._drop:
            return math.ceil(count / self._shift)
        span = (self._size - 1) * self._stride + 1
        return max(0, (count - span) // self._shift + 1)

    def iter_elements(self, epoch: Epoch) -> Generator[Any, None, None]:
        """Iterate over windows, each a dataset for every component of the elements."""
        span = (self._size - 1) * self._stride + 1
        # A failure is an element of every window that contains it.
        elements = catch_failures(self.parent.iter_elements(epoch))
        buffer: list[Any] = []
        is_exhausted = False
        while True:
            while not is_exhausted and len(buffer) < span:
                element = next(elements, _END)
                if element is _END:
                    is_exhausted = True
                else:
                    buffer.append(element)
            window = buffer[: span : self._stride]
            if not buffer or (self._drop and len(buffer) < span):
                return
            yield self._make_datasets(window)
            skipped = self._shift - len(buffer)
            buffer = buffer[self._shift :]
            for _ in range(max(skipped, 0)):
                if next(elements, _END) is _END:
                    is_exhausted = True
                    break

    def iter_stacked(self, epoch: Epoch) -> Iterator[Any] | None:
        """Iterate over the windows as stacked arrays instead of datasets.

        Returns:
          Chunks with a leaf of shape [windows, size, ...] for each component, and failures; None if
          the elements cannot be stacked.
        """
        spec = self.parent.element_spec
        parts = self.parent.iter_chunks(epoch) if chunks.is_stackable(spec) else None
        if parts is None:
            return None
        blank = [structure.make_zeros(leaf)[None] for leaf in nest.flatten(spec)]
        limit = chunks.choose_chunk_size(structure.batch_spec(spec, self._size))
        buffer = WindowBuffer(self._size, self._shift, self._stride)
        windows = stack_windows(parts, buffer, blank, limit, self._drop)
        return TimedChunkIterator(windows, self.stopwatch) if epoch.measures_time else windows

    def make_placeholders(self) -> PyTree:
        """Return a placeholder for the dataset of each component, in the structure of an element."""
        leaves = nest.flatten(self.parent.element_spec)
        parts = [WindowPlaceholder(index, leaf) for index, leaf in enumerate(leaves)]
        return nest.pack_sequence_as(self.parent.element_spec, parts)

    @property
    def size(self) -> int:
        """Return the number of elements in a window."""
        return self._size

    def _make_datasets(self, window: list[Any]) -> PyTree:
        """Return a dataset for each component, in the structure of an element."""
        spec = self.parent.element_spec
        width = len(nest.flatten(spec))
        rows = [[e] * width if type(e) is Failure else nest.flatten(e) for e in window]
        columns = zip(*rows, strict=True)
        datasets = [
            ElementList(list(column), leaf)
            for column, leaf in zip(columns, nest.flatten(spec), strict=True)
        ]
        return nest.pack_sequence_as(spec, datasets)


def _check_key(function: ElementFunction) -> None:
    """Raise a ValueError if a function is known to return something other than an integer scalar."""
    spec = function.output_spec
    # A Python integer becomes an int32 tensor.
    if spec is not None and not (
        isinstance(spec, TensorSpec)
        and spec.dtype in (dtypes.int32, dtypes.int64)
        and spec.shape.is_compatible_with([])
    ):
        raise InvalidValueError(f"`key_func` must return a `tf.int64` scalar tensor, got {spec}.")


class GroupByWindow(RandomTransformation):
    """Elements grouped by key, where each full group is reduced to a dataset.

    Args:
      parent: The dataset.
      key_func: Function from an element to an int64 scalar.
      reduce_func: Function from (key, dataset of the group) to a dataset.
      window_size_func: Function from a key to the number of elements of a group.
      num_keys: Number of keys from 0 whose groups may have different specs; None if any key may occur.
    """

    def __init__(
        self,
        parent: DatasetNode,
        key_func: Callable[..., Any],
        reduce_func: Callable[..., Any],
        window_size_func: Callable[[int], int],
        num_keys: int | None = None,
    ) -> None:
        super().__init__(parent)
        self._key = ElementFunction(key_func, parent.element_spec, "group_by_window")
        _check_key(self._key)
        self._reduce, self._window, self._num_keys = reduce_func, window_size_func, num_keys
        self._templates = get_templates()

    def _reduce_group(self, key: int, group: list[Any], call_index: int = 0) -> Dataset:
        with call_key_scope(call_index), self._templates.use():
            dataset = self._reduce(
                convert_to_tensor(np.int64(key)), ElementList(group, self.parent.element_spec)
            )
        if not isinstance(dataset, Dataset):
            raise TypeError(f"`reduce_func` must return a `Dataset` object. Got {type(dataset)}.")
        return dataset

    def _infer_spec(self) -> PyTree:
        elements = self.parent.iter_elements(Epoch(self.parent))
        try:
            first = next(elements, None)
            if first is None:
                return None
            if self._num_keys is not None:
                keys = range(self._num_keys)
                specs = [self._reduce_group(key, [first]).element_spec for key in keys]
                return functools.reduce(structure.merge_specs, specs)
            with restore_variables():
                key = int(self._key.compute_scalar(first))
            spec = self._reduce_group(key, [first]).element_spec
            # Sizes that other keys change are unknown. A function may accept only the keys that occur.
            # Small keys number buckets, of which only some may have sizes of their own.
            for other in sorted({*range(8), key + 1, *STAND_IN_SIZES}):
                with contextlib.suppress(Exception):
                    spec = structure.merge_specs(
                        spec, self._reduce_group(other, [first]).element_spec
                    )
            return spec
        finally:
            elements.close()

    def count_elements(self) -> int:
        """Return INFINITE_CARDINALITY for infinite elements, else UNKNOWN_CARDINALITY, because it depends on the keys."""
        return INFINITE_CARDINALITY if self.parent.infinite else UNKNOWN_CARDINALITY

    def iter_elements(self, epoch: Epoch) -> Generator[Any, None, None]:
        """Iterate over the reduced groups as they fill up, then over incomplete ones in the order of the keys."""
        groups: dict[int, list[Any]] = collections.defaultdict(list)
        sizes: dict[int, int] = {}
        call_indices = epoch.random_states.count_calls(self)
        for key, element in self._iter_keys(epoch):
            if key not in sizes:
                sizes[key] = int(self._window(key))
                if sizes[key] < 1:
                    raise InvalidArgumentError(
                        f"Window size must be greater than zero, but got {sizes[key]}."
                    )
            groups[key].append(element)
            if len(groups[key]) == sizes[key]:
                dataset = self._reduce_group(key, groups.pop(key), next(call_indices))
                yield from dataset.iter_elements(epoch.create_inner_pass(self, dataset))
        for key in sorted(groups):
            dataset = self._reduce_group(key, groups.pop(key), next(call_indices))
            yield from dataset.iter_elements(epoch.create_inner_pass(self, dataset))

    def _iter_keys(self, epoch: Epoch) -> Iterator[tuple[int, Any]]:
        """Iterate over elements with their keys, which are computed for chunks where possible."""
        function, spec = self._key, self.parent.element_spec
        # The function must see changes of variables between two elements.
        is_pure = function.vectorizes and not function.reads_variables
        parent = self.parent.iter_chunks(epoch) if is_pure else None
        if parent is None:
            for element in self.parent.iter_elements(epoch):
                yield int(function.compute_scalar(element)), element
            return
        compute = lambda chunk: [*function.compute_chunk(chunk, epoch.random_states), *chunk]
        for item in chunks.map_chunks(compute, parent):
            if type(item) is Failure:
                raise item.error
            keys, *chunk = item
            elements = chunks.unpack_chunks(iter([chunk]), spec)
            yield from zip(keys.reshape(-1).tolist(), elements, strict=True)


class GroupReducer(Protocol):
    """The functions of a `tf.data.experimental.Reducer`."""

    init_func: Callable[..., Any]
    reduce_func: Callable[..., Any]
    finalize_func: Callable[..., Any]


class GroupByReducer(Unary):
    """The reduced elements of each group, in the order of the keys.

    Args:
      parent: The dataset.
      key_func: Function from an element to an int64 scalar.
      reducer: The `Reducer`.
    """

    def __init__(
        self, parent: DatasetNode, key_func: Callable[..., Any], reducer: GroupReducer
    ) -> None:
        super().__init__(parent)
        self._key = ElementFunction(key_func, parent.element_spec, "group_by_reducer")
        _check_key(self._key)
        self._reducer = reducer
        self._function = make_state_function(
            reducer.reduce_func,
            self._create_state(0),
            parent.element_spec,
            "group_by_reducer",
        )

    def _create_state(self, key: int) -> PyTree:
        return structure.to_arrays(self._reducer.init_func(convert_to_tensor(np.int64(key))))

    def _infer_spec(self) -> PyTree:
        return None

    def count_elements(self) -> int:
        """Return UNKNOWN_CARDINALITY, because the number of keys is only known after a pass."""
        return UNKNOWN_CARDINALITY

    def iter_elements(self, epoch: Epoch) -> Generator[Any, None, None]:
        """Reduce all elements by key, then iterate over the results."""
        states: dict[int, Any] = {}
        for element in self.parent.iter_elements(epoch):
            key = int(self._key.compute_scalar(element))
            if key not in states:
                states[key] = self._create_state(key)
            states[key] = self._function((states[key], element))
        for key in sorted(states):
            state = structure.to_tensors(states[key])
            parts = state if type(state) is tuple else (state,)
            yield structure.to_arrays(self._reducer.finalize_func(*parts))


class Unique(Unary):
    """The distinct elements of a dataset.

    Args:
      parent: A dataset of single tensors of dtype int32, int64 or string.
    """

    def __init__(self, parent: DatasetNode) -> None:
        super().__init__(parent)
        leaves = nest.flatten(parent.element_spec)
        for leaf in leaves:
            dtype = getattr(leaf, "dtype", None)
            if dtype not in (dtypes.int32, dtypes.int64, dtypes.string):
                raise TypeError(
                    f"`unique` does not support {leaf if dtype is None else dtype.name}, only int32, int64 and string."
                )
        if len(leaves) != 1 or not isinstance(leaves[0], TensorSpec):
            raise InvalidArgumentError(
                f"`unique` only supports elements of a single tensor, got {parent.element_spec}."
            )

    def count_elements(self) -> int:
        """Return UNKNOWN_CARDINALITY, because duplicates are dropped."""
        return UNKNOWN_CARDINALITY

    def iter_elements(self, epoch: Epoch) -> Generator[Any, None, None]:
        """Iterate over the first occurrence of each value."""
        known_keys = set()
        for element in self.parent.iter_elements(epoch):
            key = tuple(
                (a.shape, tuple(a.reshape(-1).tolist()) if a.dtype == object else a.tobytes())
                for a in nest.flatten(element)
            )
            if key not in known_keys:
                known_keys.add(key)
                yield element
