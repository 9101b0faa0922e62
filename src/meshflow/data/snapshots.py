"""`Dataset.snapshot`: the elements of the first whole pass, kept in a folder for later passes and programs.

The folder holds one folder for each dataset, named by a fingerprint of its transformations, so that a
pipeline that was changed is computed again. In it `snapshot.metadata` names the run that was finished
first, and each run is a folder of shards, in the file format of `saving`.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import os
import shutil
import types
import uuid
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from meshflow.core import nest
from meshflow.core.errors import InvalidValueError
from meshflow.core.tensor import Tensor
from meshflow.core.variable import Variable
from meshflow.data import saving, structure
from meshflow.data.dataset import Dataset
from meshflow.data.failures import Failed, Raising, caught
from meshflow.data.functions import ElementFunction
from meshflow.data.running import Run
from meshflow.data.transformations import Fixed
from meshflow.data.transformations.base import Unary

# How elements are compressed, by TensorFlow's names; Snappy's place is taken by a fast level of gzip.
_COMPRESSIONS = {
    "AUTO": "FAST",
    "SNAPPY": "FAST",
    "GZIP": "GZIP",
    "": None,
    "NONE": None,
    None: None,
}


class Snapshot(Unary):
    """Elements that are computed once and read afterwards.

    Args:
      parent: the dataset.
      path: the folder.
      compression: 'AUTO', 'SNAPPY', 'GZIP' or None.
      reader_func: from a dataset of the shards, which are datasets, to the elements; default in turns.
      shard_func: from an element to the number of its shard; default in turns.
    """

    def __init__(
        self, parent: Dataset, path: Any, compression: Any, reader_func: Any, shard_func: Any
    ) -> None:
        super().__init__(parent)
        if compression not in _COMPRESSIONS:
            raise InvalidValueError(
                f"snapshot: compression must be 'AUTO', 'SNAPPY', 'GZIP' or None, got {compression!r}."
            )
        self._path, self._compression = Path(os.fspath(path)), _COMPRESSIONS[compression]
        self._reader, self._choose = reader_func or _in_turns, None
        # The dataset and its fingerprint: what a function refers to may change while it runs.
        self._named: tuple[Dataset, str] | None = None
        spec = parent.element_spec
        if shard_func is not None:
            self._choose = ElementFunction(shard_func, spec, "snapshot")
            self._check_shards(self._choose.output_spec)
        if reader_func is not None:
            self._read([Fixed([], spec)])

    @staticmethod
    def _check_shards(found: Any) -> None:
        if found is not None and not (
            hasattr(found, "dtype") and found.dtype.is_integer and found.shape.rank == 0
        ):
            raise TypeError(f"shard_func must return an integer scalar, but gave {found}.")

    def _read(self, shards: list[Dataset]) -> Dataset:
        found = self._reader(Fixed(shards, structure.DatasetSpec(self._parent.element_spec)))
        if not isinstance(found, Dataset):
            raise TypeError(f"reader_func must return a Dataset, but gave {type(found).__name__}.")
        return found

    def _elements(self, run: Run) -> Generator[Any, None, None]:
        if self._named is None or self._named[0] is not self._parent:
            self._named = self._parent, fingerprint(self._parent)
        folder = self._path / self._named[1]
        try:
            known = json.loads((folder / "snapshot.metadata").read_text())
        except FileNotFoundError:
            return Raising(self._written(folder, caught(self._parent._elements(run))))
        return self._saved(folder, known)

    def _saved(self, folder: Path, known: Any) -> Generator[Any, None, None]:
        spec = self._parent.element_spec
        shards: list[Dataset] = [
            saving.Saved(_shard(folder / known["run"], int(n)), spec, count, known["compression"])
            for n, count in known["shards"].items()
        ]
        dataset = self._read(shards) if shards else Fixed([], spec)
        return dataset._elements(Run(dataset))

    def _written(self, folder: Path, items: Iterator[Any]) -> Iterator[Any]:
        """The elements, on their way to the files of a new run."""
        run = uuid.uuid4().hex[:16]
        shards = os.cpu_count() or 1
        files: dict[int, Any] = {}
        counts: dict[int, int] = {}
        whole = False
        (folder / run).mkdir(parents=True)
        try:
            for number, item in enumerate(items):
                if type(item) is Failed:
                    yield item
                    return
                shard = number % shards if self._choose is None else self._chosen(item)
                if shard not in files:
                    path = _shard(folder / run, shard)
                    path.parent.mkdir()
                    files[shard] = saving.opener(self._compression)(path, "wb")
                counts[shard] = counts.get(shard, 0) + 1
                files[shard].writelines(saving.packed(nest.flatten(item)))
                yield item
            whole = True
        finally:
            for file in files.values():
                file.close()
            if whole:
                self._finish(folder, run, counts)
            else:
                shutil.rmtree(folder / run, ignore_errors=True)

    def _chosen(self, element: Any) -> int:
        assert self._choose is not None
        shard = np.asarray(self._choose(element))
        if shard.dtype.kind not in "iu" or shard.ndim:
            raise TypeError(f"shard_func must return an integer scalar, but gave {shard!r}.")
        return int(shard)

    def _finish(self, folder: Path, run: str, counts: dict[int, int]) -> None:
        shards = {str(k): counts[k] for k in sorted(counts)}
        known = {"run": run, "compression": self._compression, "shards": shards}
        part = folder / run / "metadata.part"
        part.write_text(json.dumps(known))
        if (folder / "snapshot.metadata").exists():
            part.unlink()  # another run was finished first
        else:
            os.replace(part, folder / "snapshot.metadata")


def _shard(run: Path, number: int) -> Path:
    return run / f"{number:08}.shard" / "00000000.snapshot"


def _in_turns(shards: Dataset) -> Dataset:
    return shards.interleave(lambda shard: shard, max(1, len(shards)), 1)


def fingerprint(dataset: Dataset) -> str:
    """A name for what a dataset computes: its transformations, their arguments, functions and arrays."""
    digest = hashlib.blake2b(digest_size=8)
    seen: set[int] = set()
    _add(digest.update, dataset, seen)
    return str(int.from_bytes(digest.digest(), "little"))


def _add(update: Callable[[Any], None], value: Any, seen: set[int]) -> None:
    """Adds what a value says of a pipeline; objects of which nothing can be said count by their class."""
    if isinstance(value, (str, int, float, bool, bytes, complex, type(None), Path)):
        update(repr(value).encode())
        return
    if id(value) in seen:
        return
    seen.add(id(value))
    update(type(value).__name__.encode())
    if isinstance(value, (Tensor, Variable)):
        value = value.numpy()
    if isinstance(value, np.ndarray):
        update(f"{value.dtype}{value.shape}".encode())
        rows = value if value.nbytes <= _MOST else np.concatenate([value[:1], value[-1:]])
        update(repr(rows.tolist()).encode() if rows.dtype == object else rows.tobytes())
    elif isinstance(value, dict):
        for key, item in value.items():
            _add(update, key, seen)
            _add(update, item, seen)
    elif isinstance(value, (list, tuple)):
        for item in value:
            _add(update, item, seen)
    elif isinstance(value, types.CodeType):
        update(value.co_code)
        update(repr(value.co_names).encode())
        _add(update, value.co_consts, seen)
    elif inspect.isfunction(value):
        _add(update, value.__code__, seen)
        _add(update, value.__defaults__, seen)
        for cell in value.__closure__ or ():
            _add(update, cell.cell_contents, seen)
        for name in value.__code__.co_names:
            found = value.__globals__.get(name)
            if isinstance(found, (str, int, float)) or inspect.isfunction(found):
                _add(update, found, seen)
    elif isinstance(value, ElementFunction):
        _add(update, value._python, seen)
    elif isinstance(value, Dataset):
        state = {k: v for k, v in vars(value).items() if k not in _STATE}
        _add(update, state, seen)
        _add(update, value._parents, seen)
    elif " at 0x" not in repr(value):
        update(repr(value).encode())


# The largest array in bytes that is looked at as a whole.
_MOST = 1 << 26
# What a dataset notes while it is used, and seeds that were not given.
_STATE = frozenset({"_spent", "_spec", "_kept", "_words", "epoch", "_parents", "_parent"})
