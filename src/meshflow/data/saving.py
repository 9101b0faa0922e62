"""`Dataset.save` and `Dataset.load`: elements in a folder.

The folder contains `spec.json`, which names the complete run (`storage/complete_run.py`), and
stores the spec of the elements and the number of elements of each shard. The run contains a file of
elements (`storage/element_files.py`) for each shard.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Generator, Iterator
from typing import Any

from meshflow.core.runtime.errors import InvalidValueError, NotFoundError
from meshflow.data import structure
from meshflow.data.dataset import Dataset
from meshflow.data.epoch import Epoch
from meshflow.data.execution.map_function import ElementFunction
from meshflow.data.node import DatasetNode
from meshflow.data.specs import DatasetSpec
from meshflow.data.storage.complete_run import RunFolder
from meshflow.data.storage.element_files import (
    ElementWriter,
    make_opener,
    read_elements,
    spec_from_json,
    spec_to_json,
)
from meshflow.data.transformations import ElementList
from meshflow.environment.types import PyTree, StrPath
from meshflow.files import gfile
from meshflow.files.atomic_writes import replace_file
from meshflow.files.contained_files import check_contained
from meshflow.files.paths import get_parent, to_path_string

__all__ = ["load_dataset", "save_dataset"]


def save_dataset(
    dataset: DatasetNode,
    path: StrPath,
    compression: str | None,
    shard_func: Callable[..., Any] | None,
) -> None:
    """Write the elements to a folder; see `Dataset.save`."""
    spec = dataset.element_spec
    saved_spec = spec_to_json(spec)
    if dataset.infinite:
        raise InvalidValueError("An infinite dataset cannot be saved: use take(count) first.")
    shard_function = None if shard_func is None else ElementFunction(shard_func, spec, "save")
    make_opener(compression)
    runs = RunFolder(path, "spec.json")
    run, folder = runs.create_run()
    try:
        with ShardWriters(folder, spec, compression) as shards:
            for element in dataset.iter_elements(Epoch(dataset)):
                shards.write(0 if shard_function is None else int(shard_function(element)), element)
        metadata = {"spec": saved_spec, "shards": shards.counts, "compression": compression}
        runs.publish(run, folder, metadata)
    except BaseException:
        runs.delete_incomplete(folder)
        raise


class ShardWriters:
    """Files of elements in one folder, each opened when it gets its first element.

    Args:
      folder: The folder.
      spec: Spec of the elements.
      compression: 'GZIP', 'FAST' or None.
    """

    def __init__(self, folder: str, spec: PyTree, compression: str | None) -> None:
        self._folder, self._spec, self._compression = folder, spec, compression
        self._files = contextlib.ExitStack()
        self._writers: dict[int, ElementWriter] = {}

    @property
    def counts(self) -> dict[str, int]:
        """Return the number of elements of each shard, by its index as text."""
        return {str(k): self._writers[k].count for k in sorted(self._writers)}

    def write(self, shard: int, element: PyTree) -> None:
        """Append an element to a shard."""
        if shard not in self._writers:
            file = self._files.enter_context(replace_file(get_shard_path(self._folder, shard)))
            compressed = self._files.enter_context(make_opener(self._compression)(file, "wb"))
            writer = self._writers[shard] = ElementWriter(compressed, self._spec)
            self._files.push(lambda kind, *_: writer.write_end() if kind is None else None)
        self._writers[shard].write(element)

    def __enter__(self) -> ShardWriters:
        return self

    def __exit__(self, *error: Any) -> None:
        self._files.__exit__(*error)


def get_shard_path(folder: str, shard: int) -> str:
    """Return the path of a shard's file."""
    return gfile.join(folder, f"shard-{shard:05}")


def load_dataset(
    path: StrPath,
    element_spec: PyTree,
    compression: str | None,
    reader_func: Callable[[Dataset], Dataset] | None,
) -> Dataset:
    """Load a saved dataset; see `Dataset.load`."""
    runs = RunFolder(path, "spec.json")
    metadata = runs.read_metadata()
    if metadata is None:
        raise NotFoundError(f"{to_path_string(path)} holds no dataset that Dataset.save wrote.")
    if compression != metadata["compression"]:
        raise InvalidValueError(
            f"{to_path_string(path)} was saved with compression={metadata['compression']!r}, not {compression!r}."
        )
    spec = spec_from_json(metadata["spec"])
    if element_spec is not None:
        structure.merge_specs(spec, element_spec)
    shards: list[Any] = list(open_shards(runs.get_path(metadata), spec, metadata))
    if reader_func is not None:
        result = reader_func(ElementList(shards, DatasetSpec(spec)))
        if not isinstance(result, Dataset):
            raise TypeError(f"reader_func must give a Dataset, got {type(result).__name__}.")
        return result
    if not shards:
        return ElementList([], spec)
    if len(shards) == 1:
        return shards[0]
    return ElementList(shards, DatasetSpec(spec)).interleave(lambda d: d, os.cpu_count() or 1, 1)


def open_shards(folder: str, spec: PyTree, metadata: dict[str, Any]) -> Iterator[Dataset]:
    """Iterate over the shards of a run, each a dataset."""
    for index, count in metadata["shards"].items():
        # The folder of a run is part of a folder that others may have made.
        path = check_contained(get_shard_path(folder, int(index)), get_parent(folder))
        yield SavedShard(path, spec, int(count), metadata["compression"])


class SavedShard(Dataset):
    """The elements in one file.

    Args:
      path: The file.
      spec: Spec of the elements.
      count: Number of elements.
      compression: 'GZIP', 'FAST' or None.
    """

    def __init__(self, path: str, spec: PyTree, count: int, compression: str | None) -> None:
        self._path, self._own_spec, self._size = path, spec, count
        self._compression = compression

    def _infer_spec(self) -> PyTree:
        return self._own_spec

    def count_elements(self) -> int:
        return self._size

    def iter_elements(self, epoch: Epoch) -> Generator[Any, None, None]:
        return read_elements(self._path, self._own_spec, self._compression, self._size)
