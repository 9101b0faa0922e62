"""Safetensors files: named arrays behind a header that says where each lies; nothing in them is run.

A file is the header's length in 8 bytes, the header, JSON with dtype, shape and place of each array, and the arrays.
Many arrays may lie in several such files, with an index beside them, JSON with the file of each array.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
from collections.abc import Mapping
from typing import Any

import ml_dtypes
import numpy as np

from meshflow.core.runtime.errors import DataLossError, InvalidArgumentError, NotFoundError
from meshflow.files import gfile
from meshflow.files.paths import text
from meshflow.files.replacing import replacing

__all__ = ["INDEX", "load_file", "load_sharded", "save_file", "save_sharded"]

# What names of indexes end in.
INDEX = ".safetensors.index.json"

_DTYPES = {
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "BOOL": np.dtype(bool),
    "C64": np.dtype("complex64"),
    "F8_E4M3": np.dtype(ml_dtypes.float8_e4m3fn),
    "F8_E4M3FNUZ": np.dtype(ml_dtypes.float8_e4m3fnuz),
    "F8_E5M2": np.dtype(ml_dtypes.float8_e5m2),
    "F8_E5M2FNUZ": np.dtype(ml_dtypes.float8_e5m2fnuz),
    "F8_E8M0": np.dtype(ml_dtypes.float8_e8m0fnu),
    **{f"F{n}": np.dtype(f"float{n}") for n in (16, 32, 64)},
    **{f"I{n}": np.dtype(f"int{n}") for n in (8, 16, 32, 64)},
    **{f"U{n}": np.dtype(f"uint{n}") for n in (8, 16, 32, 64)},
}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}
_METADATA = "__metadata__"
_LONGEST_HEADER = 100_000_000


def save_file(
    tensors: Mapping[str, Any], filename: Any, metadata: Mapping[str, str] | None = None
) -> None:
    """Writes named arrays.

    Args:
      tensors: arrays, tensors or variables by name.
      filename: the file; one that is there is replaced when the new one is whole.
      metadata: texts by name, kept in the header.

    Raises:
      InvalidArgumentError: for a dtype that the format does not have, or a name that is taken.

    Example:
      >>> import os, tempfile
      >>> path = os.path.join(tempfile.mkdtemp(), "a.safetensors")
      >>> save_file({"w": np.arange(3.0)}, path)
      >>> load_file(path)
      {'w': array([0., 1., 2.])}
    """
    arrays, end = [], 0
    header: dict[str, Any] = {}
    if metadata:
        header[_METADATA] = {str(key): str(value) for key, value in metadata.items()}
    # Large items first, as the format's own writer does: each array is aligned to its own size then.
    found = {name: np.asarray(value) for name, value in tensors.items()}
    for name in sorted(found, key=lambda n: (-found[n].dtype.itemsize, n)):
        array = np.ascontiguousarray(found[name]).reshape(found[name].shape)
        kind = _NAMES.get(array.dtype)
        if kind is None or name == _METADATA:
            raise InvalidArgumentError(
                f"{name}: safetensors files hold no {array.dtype}, and no array called {_METADATA}."
            )
        place = [end, end + array.nbytes]
        header[name] = {"dtype": kind, "shape": list(array.shape), "data_offsets": place}
        arrays.append(array)
        end += array.nbytes
    encoded = json.dumps(header, separators=(",", ":")).encode()
    encoded += b" " * (-len(encoded) % 8)
    with replacing(filename) as file:
        file.write(len(encoded).to_bytes(8, "little") + encoded)
        for array in arrays:
            file.write(array.reshape(-1).view(np.uint8).data)


def save_sharded(
    tensors: Mapping[str, Any],
    index: Any,
    max_shard_size: int = 5_000_000_000,
    metadata: Mapping[str, str] | None = None,
) -> None:
    """Writes named arrays into several files, and their index, as Hugging Face's libraries read them.

    Args:
      tensors: arrays, tensors or variables by name.
      index: the index's file, `FOLDER/NAME.safetensors.index.json`; the others are `NAME-00001-of-00002.safetensors`
        and so on, beside it. Where an index is replaced, other names are taken, `NAME-00001-of-00002-again.safetensors`,
        and its files are removed when the new index is there: a program that is killed leaves all of the one or the other.
      max_shard_size: the most bytes of arrays in a file; a larger array has one of its own.
      metadata: texts by name, kept in every file.

    Raises:
      InvalidArgumentError: for another name of the index, and as `save_file` does.

    Example:
      >>> import os, tempfile
      >>> folder = tempfile.mkdtemp()
      >>> index = os.path.join(folder, "a.safetensors.index.json")
      >>> save_sharded({"v": np.arange(2.0), "w": np.arange(3.0)}, index, max_shard_size=24)
      >>> sorted(os.listdir(folder))
      ['a-00001-of-00002.safetensors', 'a-00002-of-00002.safetensors', 'a.safetensors.index.json']
    """
    folder, name = os.path.split(text(index))
    if not name.endswith(INDEX):
        raise InvalidArgumentError(f"{text(index)}: the name of an index ends in {INDEX}.")
    shards: list[dict[str, Any]] = [{}]
    size = total = 0
    for key, value in tensors.items():
        bytes_of = np.dtype(value.dtype).itemsize * math.prod(value.shape)
        if shards[-1] and size + bytes_of > max_shard_size:
            shards.append({})
            size = 0
        shards[-1][key] = value
        size, total = size + bytes_of, total + bytes_of
    before = _files_of(index)
    files = _free_names(name.removesuffix(INDEX), len(shards), before)
    places: dict[str, str] = {}
    for file_name, shard in zip(files, shards, strict=True):
        save_file(shard, gfile.join(folder, file_name), metadata)
        places |= dict.fromkeys(shard, file_name)
    with replacing(index, "w") as file:
        content = {"metadata": {"total_size": total}, "weight_map": dict(sorted(places.items()))}
        file.write(json.dumps(content, indent=2) + "\n")
    for file_name in sorted(before - set(files)):
        with contextlib.suppress(NotFoundError):
            gfile.remove(gfile.join(folder, file_name))


def _files_of(index: Any) -> set[str]:
    """The files that an index names; none where there is no index that can be read."""
    try:
        return set(_places(index).values())
    except (NotFoundError, DataLossError):
        return set()


def _free_names(stem: str, count: int, taken: set[str]) -> list[str]:
    """Names of files of which none is taken: what is there stays whole until the index names the new ones."""
    names = [f"{stem}-{i:05}-of-{count:05}" for i in range(1, count + 1)]
    again = "" if taken.isdisjoint(f"{n}.safetensors" for n in names) else "-again"
    return [f"{n}{again}.safetensors" for n in names]


def load_sharded(index: Any) -> dict[str, np.ndarray]:
    """The arrays of several files, by name.

    Args:
      index: the index's file.

    Raises:
      NotFoundError: when it, or a file of it, is not there.
      DataLossError: when it is damaged, or does not fit its files.
    """
    path, places = text(index), _places(index)
    found: dict[str, np.ndarray] = {}
    for name in sorted(set(places.values())):
        shard = load_file(gfile.join(os.path.dirname(path), name))
        missing = sorted(key for key, place in places.items() if place == name and key not in shard)
        if missing:
            raise DataLossError(f"{path} says that {missing[0]} is in {name}, which has it not.")
        found |= {key: array for key, array in shard.items() if places.get(key) == name}
    return found


def _places(index: Any) -> dict[str, str]:
    """The file of each array, as an index says."""
    with gfile.GFile(index, "rb") as file:
        content = file.read()
    try:
        places: dict[str, str] = json.loads(content)["weight_map"]
        # Files are named beside the index, and nowhere else.
        if any(os.path.basename(f) != f or not f.endswith(".safetensors") for f in places.values()):
            raise ValueError("files of its weight_map are no names of .safetensors files")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise DataLossError(f"{text(index)} is damaged, or no index: {error!r}.") from None
    return places


def load_file(filename: Any) -> dict[str, np.ndarray]:
    """The arrays of a file, by name.

    Args:
      filename: the file.

    Raises:
      NotFoundError: when there is none.
      DataLossError: when it is damaged, cut, or something else.
    """
    with gfile.GFile(filename, "rb") as file:
        content = file.read()
    try:
        return _arrays(content)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise DataLossError(
            f"{text(filename)} is damaged, or no safetensors file: {error!r}."
        ) from None


def _arrays(content: bytes) -> dict[str, np.ndarray]:
    size = int.from_bytes(content[:8], "little")
    if len(content) < 8 or size > min(len(content) - 8, _LONGEST_HEADER):
        raise ValueError(f"its header ends behind its {len(content)} bytes")
    header = json.loads(content[8 : 8 + size])
    header.pop(_METADATA, None)
    data, found, last = memoryview(content)[8 + size :], {}, 0
    for name, about in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
        begin, end = about["data_offsets"]
        dtype, shape = _DTYPES[about["dtype"]], [int(n) for n in about["shape"]]
        wanted = math.prod(shape) * dtype.itemsize
        if any(n < 0 for n in shape) or begin != last or end - begin != wanted or end > len(data):
            raise ValueError(f"{name} of shape {shape} does not lie at {begin} to {end}")
        found[name] = np.frombuffer(data[begin:end], np.uint8).view(dtype).reshape(shape).copy()
        last = end
    if last != len(data):
        raise ValueError(f"{len(data) - last} bytes belong to no array")
    return found
