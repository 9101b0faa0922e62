"""`Dataset.save` and `Dataset.load`: elements in a folder.

The folder has `spec.json`, which names the run that is whole (`runs`), the spec of the elements and the number of
elements of each shard; the run has a file of elements (`element_files`) for each shard.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Generator, Iterator
from typing import Any

from meshflow.core.runtime.errors import InvalidValueError, NotFoundError
from meshflow.data import structure
from meshflow.data.dataset import Dataset
from meshflow.data.epoch import Epoch
from meshflow.data.execution.map_function import ElementFunction
from meshflow.data.specs import DatasetSpec
from meshflow.data.storage.complete_run import Runs
from meshflow.data.storage.element_files import (
    ElementWriter,
    opener,
    read_elements,
    spec_from_json,
    spec_to_json,
)
from meshflow.data.transformations import Fixed
from meshflow.files import gfile
from meshflow.files.paths import text
from meshflow.files.replacing import replacing

__all__ = ["load", "save"]


def save(dataset: Dataset, path: Any, compression: str | None, shard_func: Any) -> None:
    """Writes the elements; see `Dataset.save`."""
    spec = dataset.element_spec
    saved_spec = spec_to_json(spec)
    if dataset.infinite:
        raise InvalidValueError("An infinite dataset cannot be saved: use take(count) first.")
    choose = None if shard_func is None else ElementFunction(shard_func, spec, "save")
    opener(compression)
    runs = Runs(path, "spec.json")
    run, place = runs.begin()
    try:
        with Shards(place, spec, compression) as shards:
            for element in dataset._elements(Epoch(dataset)):
                shards.write(0 if choose is None else int(choose(element)), element)
        known = {"spec": saved_spec, "shards": shards.counts, "compression": compression}
        runs.publish(run, place, known)
    except BaseException:
        runs.discard(place)
        raise


class Shards:
    """Files of elements in one folder, opened when they get their first element.

    Args:
      folder: where.
      spec: the elements' spec.
      compression: 'GZIP', 'FAST' or None.
    """

    def __init__(self, folder: str, spec: Any, compression: str | None) -> None:
        self._folder, self._spec, self._compression = folder, spec, compression
        self._files = contextlib.ExitStack()
        self._writers: dict[int, ElementWriter] = {}

    @property
    def counts(self) -> dict[str, int]:
        """The number of elements of each shard, by its number as text."""
        return {str(k): self._writers[k].count for k in sorted(self._writers)}

    def write(self, shard: int, element: Any) -> None:
        """Appends an element to a shard."""
        if shard not in self._writers:
            file = self._files.enter_context(replacing(shard_path(self._folder, shard)))
            squeezed = self._files.enter_context(opener(self._compression)(file, "wb"))
            writer = self._writers[shard] = ElementWriter(squeezed, self._spec)
            self._files.push(lambda kind, *_: writer.finish() if kind is None else None)
        self._writers[shard].write(element)

    def __enter__(self) -> Shards:
        return self

    def __exit__(self, *error: Any) -> None:
        self._files.__exit__(*error)


def shard_path(folder: str, shard: int) -> str:
    """The path of a shard's file."""
    return gfile.join(folder, f"shard-{shard:05}")


def load(path: Any, element_spec: Any, compression: str | None, reader_func: Any) -> Dataset:
    """A dataset of saved elements; see `Dataset.load`."""
    runs = Runs(path, "spec.json")
    saved = runs.known()
    if saved is None:
        raise NotFoundError(f"{text(path)} holds no dataset that Dataset.save wrote.")
    if compression != saved["compression"]:
        raise InvalidValueError(
            f"{text(path)} was saved with compression={saved['compression']!r}, not {compression!r}."
        )
    spec = spec_from_json(saved["spec"])
    if element_spec is not None:
        structure.merged(spec, element_spec)
    shards: list[Any] = list(saved_shards(runs.path(saved), spec, saved))
    if reader_func is not None:
        found = reader_func(Fixed(shards, DatasetSpec(spec)))
        if not isinstance(found, Dataset):
            raise TypeError(f"reader_func must give a Dataset, got {type(found).__name__}.")
        return found
    if not shards:
        return Fixed([], spec)
    if len(shards) == 1:
        return shards[0]
    return Fixed(shards, DatasetSpec(spec)).interleave(lambda d: d, os.cpu_count() or 1, 1)


def saved_shards(folder: str, spec: Any, known: dict[str, Any]) -> Iterator[Dataset]:
    """The shards of a run, as datasets."""
    for number, count in known["shards"].items():
        yield Saved(shard_path(folder, int(number)), spec, int(count), known["compression"])


class Saved(Dataset):
    """The elements of one file.

    Args:
      path: the file.
      spec: the spec of the elements.
      count: how many there are.
      compression: 'GZIP', 'FAST' or None.
    """

    def __init__(self, path: str, spec: Any, count: int, compression: str | None) -> None:
        self._path, self._own_spec, self._size = path, spec, count
        self._compression = compression

    def _known_spec(self) -> Any:
        return self._own_spec

    def _count(self) -> int:
        return self._size

    def _elements(self, epoch: Epoch) -> Generator[Any, None, None]:
        return read_elements(self._path, self._own_spec, self._compression, self._size)
