"""Datasets of other libraries: Hugging Face's `datasets`, Grain."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from meshflow.core.runtime.errors import InvalidValueError
from meshflow.core.values import nest
from meshflow.data import structure
from meshflow.data.arguments import INFINITE_CARDINALITY, UNKNOWN_CARDINALITY
from meshflow.data.dataset import Dataset
from meshflow.data.epoch import Epoch, in_threads
from meshflow.data.readers import arrow
from meshflow.data.sources import Indexed

__all__ = ["from_grain", "from_huggingface"]


class Rows(Dataset):
    """Elements that a function makes of numbers, several threads ahead.

    Args:
      count: how many numbers there are.
      row: from a number to an element; None for none.
      spec: the spec of the elements; by default ranks and dtypes of the first.
      all_there: whether every number has an element.
    """

    def __init__(
        self, count: int, row: Callable[[int], Any], spec: Any = None, all_there: bool = True
    ) -> None:
        self._size, self._row, self._own_spec, self._all_there = count, row, spec, all_there

    def _known_spec(self) -> Any:
        return self._own_spec

    def _count(self) -> int:
        if self._size >= sys.maxsize // 2:
            return INFINITE_CARDINALITY
        return self._size if self._all_there else UNKNOWN_CARDINALITY

    def _elements(self, epoch: Epoch) -> Generator[Any, None, None]:
        made = lambda number: _arrays(self._row(number))
        for element in in_threads(made, iter(range(self._size)), os.cpu_count() or 1):
            if element is not None:
                yield element


class Passes(Dataset):
    """What an iterable gives, from its start in every pass.

    Args:
      iterable: gives a fresh iterator each time.
      spec: the spec of the elements; by default ranks and dtypes of the first.
    """

    def __init__(self, iterable: Any, spec: Any = None) -> None:
        self._iterable, self._own_spec = iterable, spec

    def _known_spec(self) -> Any:
        return self._own_spec

    def _count(self) -> int:
        return UNKNOWN_CARDINALITY

    def _elements(self, epoch: Epoch) -> Generator[Any, None, None]:
        for element in self._iterable:
            yield _arrays(element)


def _arrays(value: Any) -> Any:
    """An element as host arrays; images of Pillow say how they become arrays."""
    return structure.normalize(
        value,
        lambda leaf: structure.to_array(
            np.asarray(leaf) if hasattr(leaf, "__array_interface__") else leaf
        ),
    )


def from_huggingface(
    dataset: Any,
    columns: str | Sequence[str] | None = None,
    label_cols: str | Sequence[str] | None = None,
    output_signature: Any = None,
) -> Dataset:
    """The rows of a dataset of Hugging Face's `datasets`.

    Rows of numbers, strings and lists of one length are read in whole blocks from the Arrow
    tables; others (images, lists of different lengths) one by one, decoded by the library.

    Args:
      dataset: a `datasets.Dataset`, or an `IterableDataset`.
      columns: the columns to read; default all. One name gives bare tensors, several dictionaries.
      label_cols: columns to give beside them, as pairs; one name gives bare tensors.
      output_signature: the spec of the elements, where it cannot be told before reading them.

    Raises:
      TypeError: for something else, such as a dictionary of splits.
      ValueError: for a column that is not there.

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
            f"Expected a dataset of the package datasets (pip install 'meshflow[huggingface]'), as "
            f"datasets.load_dataset(name, split='train') gives it; got {type(dataset).__name__}."
        )
    names = dataset.column_names
    arrange = _arrangement(names, columns, label_cols)
    if not hasattr(dataset, "__len__"):
        rows = dataset.with_format("numpy")
        iterable = _Again(lambda: (arrange(row) for row in rows))
        return Passes(iterable, output_signature)
    if output_signature is None:
        found = _by_blocks(dataset, arrange, _flat(columns, label_cols, names))
        if found is not None:
            return found
    rows = dataset.with_format("numpy")
    return Rows(len(dataset), lambda number: arrange(rows[number]), output_signature)


class _Again:
    """An iterable made anew for every pass."""

    def __init__(self, make: Callable[[], Iterator[Any]]) -> None:
        self._make = make

    def __iter__(self) -> Iterator[Any]:
        return self._make()


def _flat(columns: Any, label_cols: Any, names: Any) -> list[str]:
    wanted = list(names) if columns is None else [columns] if isinstance(columns, str) else columns
    labels = [label_cols] if isinstance(label_cols, str) else label_cols or []
    return list(dict.fromkeys([*wanted, *labels]))


def _arrangement(names: Any, columns: Any, label_cols: Any) -> Callable[[Any], Any]:
    """From a row to an element."""
    labels = [label_cols] if isinstance(label_cols, str) else list(label_cols or [])
    if columns is None:
        wanted: Any = None if names is None else [n for n in names if n not in labels]
    else:
        wanted = [columns] if isinstance(columns, str) else list(columns)
    for name in [*(wanted or []), *labels]:
        if names is not None and name not in names:
            raise InvalidValueError(f"There is no column {name!r}; columns: {', '.join(names)}.")

    def arrange(row: Any) -> Any:
        kept = [n for n in row if n not in labels] if wanted is None else wanted
        features = row[columns] if isinstance(columns, str) else {n: row[n] for n in kept}
        if not labels:
            return features
        return features, row[labels[0]] if len(labels) == 1 else {n: row[n] for n in labels}

    return arrange


def _by_blocks(dataset: Any, arrange: Callable[[Any], Any], wanted: list[str]) -> Dataset | None:
    """The rows read from Arrow tables; None when they cannot be read so."""
    if any(hasattr(feature, "decode_example") for feature in dataset.features.values()):
        return None
    blocks = dataset.select_columns(wanted).with_format("arrow")
    try:
        spec = arrow.spec_of(blocks.data.schema, wanted)
    except InvalidValueError:
        return None
    leaves = nest.flatten(spec)
    if not len(dataset) or not all(s.shape.is_fully_defined() for s in leaves):
        return None

    def gather(index: np.ndarray) -> list[Any]:
        found = arrow.leaves_of(blocks[index].select(wanted))
        return nest.flatten(arrange(nest.pack_sequence_as(spec, found)))

    return Indexed(len(dataset), gather, arrange(spec))


def from_grain(source: Any, output_signature: Any = None) -> Dataset:
    """The elements of a data source, dataset or data loader of Grain.

    Args:
      source: a `grain.sources.RandomAccessDataSource` or `grain.MapDataset` (anything with a length and
        elements by number), a `grain.IterDataset` or `grain.DataLoader` (anything iterable).
      output_signature: the spec of the elements; by default ranks and dtypes of the first.

    Raises:
      TypeError: for something else.

    Example:
      >>> import meshflow as tf
      >>> rows = tf.data.experimental.from_grain([{"x": 1}, {"x": 2}]).batch(2)
      >>> next(iter(rows))["x"].numpy().tolist()
      [1, 2]
    """
    signature = output_signature
    if hasattr(source, "__len__") and hasattr(source, "__getitem__"):
        # Where Grain filters, numbers have no element.
        return Rows(len(source), source.__getitem__, signature, not hasattr(source, "filter"))
    if hasattr(source, "__iter__") and not hasattr(source, "__next__"):
        return Passes(source, signature)
    raise TypeError(
        f"Expected a data source, dataset or data loader of Grain (pip install 'meshflow[grain]'), got "
        f"{type(source).__name__}."
    )
