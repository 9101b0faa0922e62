"""`Dataset.save` and `Dataset.load`: elements in a folder.

The folder has `spec.json`, the spec of the elements and the number of elements of each shard, and one
file for each shard. A file is a sequence of elements: the length of a JSON header in four bytes, the
header (for each leaf its dtype, shape and, for strings, their lengths), and the leaves' bytes.
"""

from __future__ import annotations

import functools
import gzip
import json
import os
import struct
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import numpy as np

from meshflow.core import dtypes, nest
from meshflow.core.errors import DataLossError, InvalidValueError, NotFoundError
from meshflow.core.specs import TensorSpec
from meshflow.data import structure
from meshflow.data.dataset import Dataset
from meshflow.data.functions import ElementFunction
from meshflow.data.running import Run
from meshflow.data.transformations import Fixed

_SIZE = struct.Struct("<I")


def save(dataset: Dataset, path: Any, compression: str | None, shard_func: Any) -> None:
    """Writes the elements; see `Dataset.save`."""
    spec = dataset.element_spec
    saved_spec = _to_json(spec)
    if dataset.infinite:
        raise InvalidValueError("An infinite dataset cannot be saved: use take(count) first.")
    folder = Path(os.fspath(path))
    folder.mkdir(parents=True, exist_ok=True)
    for old in (*folder.glob("shard-*"), *folder.glob("spec.json")):
        old.unlink()
    choose = None if shard_func is None else ElementFunction(shard_func, spec, "save")
    open_file = opener(compression)
    files: dict[int, Any] = {}
    counts: dict[int, int] = {}
    try:
        for element in dataset._elements(Run(dataset)):
            shard = 0 if choose is None else int(choose(element))
            if shard not in files:
                files[shard] = open_file(folder / f"shard-{shard:05}", "wb")
            counts[shard] = counts.get(shard, 0) + 1
            files[shard].writelines(packed(nest.flatten(element)))
    finally:
        for file in files.values():
            file.close()
    shards = {str(k): counts[k] for k in sorted(counts)}
    text = json.dumps({"spec": saved_spec, "shards": shards, "compression": compression})
    # Written last: a folder with it is whole.
    (folder / "spec.json").write_text(text)


def load(path: Any, element_spec: Any, compression: str | None, reader_func: Any) -> Dataset:
    """A dataset of saved elements; see `Dataset.load`."""
    folder = Path(os.fspath(path))
    if not (folder / "spec.json").exists():
        raise NotFoundError(f"{folder} holds no dataset that Dataset.save wrote.")
    saved = json.loads((folder / "spec.json").read_text())
    if compression != saved["compression"]:
        raise InvalidValueError(
            f"{folder} was saved with compression={saved['compression']!r}, not {compression!r}."
        )
    spec = _from_json(saved["spec"])
    if element_spec is not None:
        structure.merged(spec, element_spec)
    shards: list[Any] = [
        Saved(folder / f"shard-{int(k):05}", spec, n, compression)
        for k, n in saved["shards"].items()
    ]
    if reader_func is not None:
        found = reader_func(Fixed(shards, structure.DatasetSpec(spec)))
        if not isinstance(found, Dataset):
            raise TypeError(f"reader_func must give a Dataset, got {type(found).__name__}.")
        return found
    if not shards:
        return Fixed([], spec)
    if len(shards) == 1:
        return shards[0]
    return Fixed(shards, structure.DatasetSpec(spec)).interleave(
        lambda d: d, os.cpu_count() or 1, 1
    )


class Saved(Dataset):
    """The elements of one file.

    Args:
      path: the file.
      spec: the spec of the elements.
      count: how many there are.
      compression: 'GZIP' or None.
    """

    def __init__(self, path: Path, spec: Any, count: int, compression: str | None) -> None:
        self._path, self._own_spec, self._size = path, spec, count
        self._open = opener(compression)

    def _known_spec(self) -> Any:
        return self._own_spec

    def _count(self) -> int:
        return self._size

    def _elements(self, run: Run) -> Generator[Any, None, None]:
        with self._open(self._path, "rb") as file:
            for number in range(self._size):
                try:
                    leaves = _unpacked(file)
                except (EOFError, struct.error, ValueError, gzip.BadGzipFile) as error:
                    raise DataLossError(
                        f"{self._path}: element {number} is damaged: {error}"
                    ) from None
                yield nest.pack_sequence_as(self._own_spec, leaves)


def opener(compression: str | None) -> Callable[..., Any]:
    """How files are opened under a compression: 'GZIP', 'FAST' (its fastest level) or none."""
    if compression in (None, "NONE", ""):
        return open
    if compression == "GZIP":
        return gzip.open
    if compression == "FAST":
        return functools.partial(gzip.open, compresslevel=1)
    raise InvalidValueError(f"compression must be 'GZIP' or None, got {compression!r}.")


def packed(leaves: list[np.ndarray]) -> list[bytes]:
    """The bytes that hold one element's leaves."""
    header, buffers = [], []
    for leaf in leaves:
        array = np.asarray(leaf)
        kind = structure.dtype_of(array)
        entry: list[Any] = [kind.name, list(array.shape)]
        if kind is dtypes.string:
            words = array.reshape(-1).tolist()
            entry.append([len(w) for w in words])
            buffers.extend(words)
        else:
            buffers.append(np.ascontiguousarray(array).tobytes())
        header.append(entry)
    text = json.dumps(header).encode()
    return [_SIZE.pack(len(text)), text, *buffers]


def _unpacked(file: Any) -> list[np.ndarray]:
    header = json.loads(_read(file, _SIZE.unpack(_read(file, _SIZE.size))[0]))
    leaves = []
    for name, shape, *lengths in header:
        if lengths:
            words = np.empty(len(lengths[0]), object)
            words[:] = [_read(file, n) for n in lengths[0]]
            leaves.append(words.reshape(shape))
            continue
        kind = dtypes.as_dtype(name).as_numpy_dtype
        size = int(np.prod(shape, dtype=np.int64)) * np.dtype(kind).itemsize
        leaves.append(np.frombuffer(_read(file, size), kind).reshape(shape))
    return leaves


def _read(file: Any, size: int) -> bytes:
    data = file.read(size)
    if len(data) < size:
        raise EOFError("the file ends early")
    return data


def _to_json(spec: Any) -> Any:
    if isinstance(spec, dict):
        return {"dict": {k: _to_json(v) for k, v in spec.items()}}
    if isinstance(spec, tuple):
        return {"tuple": [_to_json(v) for v in spec]}
    if not isinstance(spec, TensorSpec):
        raise InvalidValueError(f"Elements of {spec} cannot be saved: they must be tensors.")
    shape = None if spec.shape.rank is None else spec.shape.as_list()
    return {"shape": shape, "dtype": spec.dtype.name}


def _from_json(saved: Any) -> Any:
    if "dict" in saved:
        return {k: _from_json(v) for k, v in saved["dict"].items()}
    if "tuple" in saved:
        return tuple(_from_json(v) for v in saved["tuple"])
    return TensorSpec(saved["shape"], saved["dtype"])
