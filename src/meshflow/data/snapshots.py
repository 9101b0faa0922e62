"""`Dataset.snapshot`: the elements of the first complete pass, stored in a folder.

The folder contains one folder for each dataset, named by a fingerprint of its transformations, so
that a changed pipeline is computed again. In it, `snapshot.metadata` names the run that was
completed first (`storage/complete_run.py`), and each run is a folder of shards, as `saving` writes
them. Later passes and programs read the completed run.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterator
from typing import Any

import numpy as np

from meshflow.core.runtime.errors import InvalidValueError
from meshflow.data import saving
from meshflow.data.dataset import Dataset
from meshflow.data.epoch import Epoch
from meshflow.data.execution import chunks
from meshflow.data.execution.failures import Failure, RaisingIterator, catch_failures
from meshflow.data.execution.map_function import ElementFunction
from meshflow.data.node import DatasetNode
from meshflow.data.specs import DatasetSpec
from meshflow.data.storage.complete_run import RunFolder
from meshflow.data.storage.fingerprints import compute_fingerprint
from meshflow.data.transformations import ElementList
from meshflow.data.transformations.base import Unary
from meshflow.environment.types import PyTree, StrPath
from meshflow.files import gfile
from meshflow.files.paths import to_path_string

__all__ = ["Snapshot"]

# TensorFlow's names of compressions. Snappy is replaced by a fast level of gzip.
_COMPRESSIONS = {
    "AUTO": "FAST",
    "SNAPPY": "FAST",
    "GZIP": "GZIP",
    "": None,
    "NONE": None,
    None: None,
}


class Snapshot(Unary):
    """Elements that are computed in the first pass, and read from files in later ones.

    Args:
      parent: The dataset.
      path: The folder.
      compression: 'AUTO', 'SNAPPY', 'GZIP' or None.
      reader_func: Function from a dataset of shards, which are datasets, to a dataset of elements;
        None interleaves them.
      shard_func: Function from an element to the index of its shard; None distributes elements
        cyclically.
    """

    def __init__(
        self,
        parent: DatasetNode,
        path: StrPath,
        compression: str | None,
        reader_func: Callable[[Dataset], Dataset] | None,
        shard_func: Callable[..., Any] | None,
    ) -> None:
        super().__init__(parent)
        if compression not in _COMPRESSIONS:
            raise InvalidValueError(
                f"snapshot: compression must be 'AUTO', 'SNAPPY', 'GZIP' or None, got {compression!r}."
            )
        self._path, self._compression = to_path_string(path), _COMPRESSIONS[compression]
        self._reader, self._choose = reader_func or _interleave_shards, None
        # The fingerprint is stored, because objects that a function refers to may change while it
        # runs.
        self._fingerprint: tuple[DatasetNode, str] | None = None
        spec = parent.element_spec
        if shard_func is not None:
            self._choose = ElementFunction(shard_func, spec, "snapshot")
            self._check_shard_spec(self._choose.output_spec)
        if reader_func is not None:
            self._read_shards([ElementList([], spec)])

    @staticmethod
    def _check_shard_spec(spec: PyTree) -> None:
        if spec is not None and not (
            hasattr(spec, "dtype") and spec.dtype.is_integer and spec.shape.rank == 0
        ):
            raise TypeError(f"shard_func must return an integer scalar, but returned {spec}.")

    def _read_shards(self, shards: list[Dataset]) -> Dataset:
        result = self._reader(ElementList(shards, DatasetSpec(self.parent.element_spec)))
        if not isinstance(result, Dataset):
            raise TypeError(
                f"reader_func must return a Dataset, but returned {type(result).__name__}."
            )
        return result

    def iter_elements(self, epoch: Epoch) -> Generator[Any, None, None]:
        """Read the elements from the stored run, or write them while they are produced."""
        runs, stored = self._open_run()
        if stored is not None:
            return stored.iter_elements(Epoch(stored))
        return RaisingIterator(
            self._write_elements(runs, catch_failures(self.parent.iter_elements(epoch)))
        )

    def _iter_chunks(self, epoch: Epoch) -> Iterator[Any] | None:
        spec, stored = self.element_spec, self._open_run()[1]
        if stored is None or not chunks.is_stackable(spec):
            return None
        elements = chunks.wrap_elements(catch_failures(stored.iter_elements(Epoch(stored))))
        return chunks.merge_chunks(elements, chunks.choose_chunk_size(spec))

    def _open_run(self) -> tuple[RunFolder, Dataset | None]:
        """Return the folder of runs, and the elements of the complete run, None if there is none."""
        if self._fingerprint is None or self._fingerprint[0] is not self.parent:
            self._fingerprint = self.parent, compute_fingerprint(self.parent)
        runs = RunFolder(gfile.join(self._path, self._fingerprint[1]), "snapshot.metadata")
        metadata = runs.read_metadata()
        if metadata is None:
            return runs, None
        spec = self.parent.element_spec
        shards = list(saving.open_shards(runs.get_path(metadata), spec, metadata))
        dataset = self._read_shards(shards) if shards else ElementList([], spec)
        return runs, dataset

    def _write_elements(self, runs: RunFolder, items: Iterator[Any]) -> Iterator[Any]:
        """Iterate over the elements, and write them to the files of a new run."""
        run, folder = runs.create_run()
        count = os.cpu_count() or 1
        try:
            with saving.ShardWriters(folder, self.parent.element_spec, self._compression) as shards:
                for index, item in enumerate(items):
                    if type(item) is Failure:
                        yield item
                        return
                    shard = index % count if self._choose is None else self._choose_shard(item)
                    shards.write(shard, item)
                    yield item
            # Another run may have been completed in the meantime, and may be in use.
            if runs.read_metadata() is None:
                metadata = {"compression": self._compression, "shards": shards.counts}
                runs.publish(run, folder, metadata)
                folder = ""
        finally:
            if folder:
                runs.delete_incomplete(folder)

    def _choose_shard(self, element: PyTree) -> int:
        assert self._choose is not None
        shard = np.asarray(self._choose(element))
        if shard.dtype.kind not in "iu" or shard.ndim:
            raise TypeError(f"shard_func must return an integer scalar, but returned {shard!r}.")
        return int(shard)


def _interleave_shards(shards: Dataset) -> Dataset:
    return shards.interleave(lambda shard: shard, max(1, len(shards)), 1)
