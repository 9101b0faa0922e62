"""Datasets of other libraries: Hugging Face `datasets` and Grain."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from meshflow.core.runtime.errors import InvalidValueError
from meshflow.core.values import nest
from meshflow.data import structure
from meshflow.data.arguments import INFINITE_CARDINALITY, UNKNOWN_CARDINALITY
from meshflow.data.dataset import Dataset
from meshflow.data.epoch import Epoch, map_in_threads
from meshflow.data.readers import arrow
from meshflow.data.sources import IndexedDataset
from meshflow.environment.types import PyTree

__all__ = ["from_grain", "from_huggingface"]


class RowFunctionDataset(Dataset):
    """Elements that a function computes from an index, in several threads.

    Args:
      count: Number of indices.
      row: Function from an index to an element, or None if there is no element.
      spec: Spec of the elements, by default the ranks and dtypes of the first one.
      is_complete: Whether every index has an element.
    """

    def __init__(
        self, count: int, row: Callable[[int], Any], spec: PyTree = None, is_complete: bool = True
    ) -> None:
        self._size, self._row, self._own_spec, self._is_complete = count, row, spec, is_complete

    def _infer_spec(self) -> PyTree:
        return self._own_spec

    def count_elements(self) -> int:
        if self._size >= sys.maxsize // 2:
            return INFINITE_CARDINALITY
        return self._size if self._is_complete else UNKNOWN_CARDINALITY

    def iter_elements(self, epoch: Epoch) -> Generator[Any, None, None]:
        make_element = lambda index: _to_host_arrays(self._row(index))
        for element in map_in_threads(make_element, iter(range(self._size)), os.cpu_count() or 1):
            if element is not None:
                yield element


class IterableDataset(Dataset):
    """The elements of an iterable, which is iterated from the start in every pass.

    Args:
      iterable: Iterable that returns a new iterator each time.
      spec: Spec of the elements, by default the ranks and dtypes of the first one.
    """

    def __init__(self, iterable: Iterable[PyTree], spec: PyTree = None) -> None:
        self._iterable, self._own_spec = iterable, spec

    def _infer_spec(self) -> PyTree:
        return self._own_spec

    def count_elements(self) -> int:
        return UNKNOWN_CARDINALITY

    def iter_elements(self, epoch: Epoch) -> Generator[Any, None, None]:
        for element in self._iterable:
            yield _to_host_arrays(element)


def _to_host_arrays(value: PyTree) -> PyTree:
    """Convert an element to host arrays; images of Pillow have an array interface."""
    return structure.map_leaves(
        value,
        lambda leaf: structure.to_array(
            np.asarray(leaf) if hasattr(leaf, "__array_interface__") else leaf
        ),
    )


def from_huggingface(
    dataset: Any,
    columns: str | Sequence[str] | None = None,
    label_cols: str | Sequence[str] | None = None,
    output_signature: PyTree = None,
) -> Dataset:
    """Create a dataset of the rows of a Hugging Face dataset.

    Rows of numbers, strings and lists of the same length are read in blocks from the Arrow tables.
    Other rows (images, lists of different lengths) are read one at a time and decoded by the
    library.

    Args:
      dataset: A `datasets.Dataset` or an `IterableDataset`.
      columns: The columns to read, by default all. A single name returns tensors, a list returns
        dictionaries.
      label_cols: Columns that are returned separately as labels; a single name returns tensors.
      output_signature: Spec of the elements, if it cannot be inferred without reading them.

    Raises:
      TypeError: If `dataset` is something else, such as a dictionary of splits.
      ValueError: If a column does not exist.

    Example:
      ```python
      emotions = datasets.load_dataset("emotion", split="train")
      train = tf.data.experimental.from_huggingface(emotions, "text", "label").shuffle(10_000).batch(32)
      ```
    """
    if isinstance(dataset, Mapping):
        raise TypeError(
            f"Expected one dataset, got a dictionary of splits: choose one of {', '.join(map(repr, dataset))}."
        )
    if not hasattr(dataset, "with_format"):
        raise TypeError(
            f"Expected a dataset of the package datasets (pip install 'meshflow-tf[huggingface]'), as "
            f"datasets.load_dataset(name, split='train') returns it; got {type(dataset).__name__}."
        )
    names = dataset.column_names
    arrange = _make_arrange_function(names, columns, label_cols)
    if not hasattr(dataset, "__len__"):
        rows = dataset.with_format("numpy")
        iterable = _RestartableIterable(lambda: (arrange(row) for row in rows))
        return IterableDataset(iterable, output_signature)
    if output_signature is None:
        blocks = _read_in_blocks(dataset, arrange, _list_columns(columns, label_cols, names))
        if blocks is not None:
            return blocks
    rows = dataset.with_format("numpy")
    return RowFunctionDataset(len(dataset), lambda index: arrange(rows[index]), output_signature)


class _RestartableIterable:
    """An iterable that creates a new iterator for every pass.

    Args:
      make: Function that creates the iterator.
    """

    def __init__(self, make: Callable[[], Iterator[Any]]) -> None:
        self._make = make

    def __iter__(self) -> Iterator[Any]:
        return self._make()


def _list_columns(
    columns: str | Sequence[str] | None,
    label_cols: str | Sequence[str] | None,
    names: Iterable[str],
) -> list[str]:
    """Return the names of all columns to read, without duplicates."""
    features = (
        list(names) if columns is None else [columns] if isinstance(columns, str) else columns
    )
    labels = [label_cols] if isinstance(label_cols, str) else label_cols or []
    return list(dict.fromkeys([*features, *labels]))


def _make_arrange_function(
    names: Sequence[str] | None,
    columns: str | Sequence[str] | None,
    label_cols: str | Sequence[str] | None,
) -> Callable[[Any], Any]:
    """Return a function from a row to an element."""
    labels = [label_cols] if isinstance(label_cols, str) else list(label_cols or [])
    if columns is None:
        feature_names: Any = None if names is None else [n for n in names if n not in labels]
    else:
        feature_names = [columns] if isinstance(columns, str) else list(columns)
    for name in [*(feature_names or []), *labels]:
        if names is not None and name not in names:
            raise InvalidValueError(f"There is no column {name!r}; columns: {', '.join(names)}.")

    def arrange(row: Mapping[str, Any]) -> PyTree:
        selected = [n for n in row if n not in labels] if feature_names is None else feature_names
        features = row[columns] if isinstance(columns, str) else {n: row[n] for n in selected}
        if not labels:
            return features
        return features, row[labels[0]] if len(labels) == 1 else {n: row[n] for n in labels}

    return arrange


def _read_in_blocks(
    dataset: Any, arrange: Callable[[Any], Any], columns: list[str]
) -> Dataset | None:
    """Create a dataset that reads rows from Arrow tables, or return None if this is not possible."""
    if any(hasattr(feature, "decode_example") for feature in dataset.features.values()):
        return None
    blocks = dataset.select_columns(columns).with_format("arrow")
    try:
        spec = arrow.make_column_spec(blocks.data.schema, columns)
    except InvalidValueError:
        return None
    leaves = nest.flatten(spec)
    if not len(dataset) or not all(s.shape.is_fully_defined() for s in leaves):
        return None

    def gather(index: np.ndarray) -> list[Any]:
        block_leaves = arrow.convert_columns(blocks[index].select(columns))
        return nest.flatten(arrange(nest.pack_sequence_as(spec, block_leaves)))

    return IndexedDataset(len(dataset), gather, arrange(spec))


def from_grain(source: Any, output_signature: PyTree = None) -> Dataset:
    """Create a dataset of the elements of a data source, dataset or data loader of Grain.

    Args:
      source: A `grain.sources.RandomAccessDataSource` or `grain.MapDataset` (any object with a
        length and access by index), or a `grain.IterDataset` or `grain.DataLoader` (any iterable).
      output_signature: Spec of the elements, by default the ranks and dtypes of the first one.

    Raises:
      TypeError: If `source` is something else.

    Example:
      >>> rows = tf.data.experimental.from_grain([{"x": 1}, {"x": 2}]).batch(2)
      >>> next(iter(rows))["x"].numpy().tolist()
      [1, 2]
    """
    signature = output_signature
    if hasattr(source, "__len__") and hasattr(source, "__getitem__"):
        # A filtered Grain dataset has no element for some indices.
        return RowFunctionDataset(
            len(source), source.__getitem__, signature, not hasattr(source, "filter")
        )
    if hasattr(source, "__iter__") and not hasattr(source, "__next__"):
        return IterableDataset(source, signature)
    raise TypeError(
        f"Expected a data source, dataset or data loader of Grain (pip install 'meshflow-tf[grain]'), got "
        f"{type(source).__name__}."
    )
