"""Safetensors files: named arrays with a JSON header; reading them runs no code.

A file consists of the length of the header (8 bytes, little-endian), the header with dtype, shape
and byte range of each array, and the data of the arrays. Many arrays can be split over several
files with an index file, JSON that maps each array to its file.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
from collections.abc import Mapping
from typing import IO, Any

import ml_dtypes
import numpy as np

from meshflow.core.runtime.errors import DataLossError, InvalidArgumentError, NotFoundError
from meshflow.environment.json_documents import parse_json
from meshflow.environment.types import StrPath
from meshflow.files import gfile
from meshflow.files.atomic_writes import replace_file
from meshflow.files.contained_files import check_contained, check_regular
from meshflow.files.paths import to_path_string

# Ending of the names of index files.
INDEX_SUFFIX = ".safetensors.index.json"

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
_DTYPE_NAMES = {dtype: name for name, dtype in _DTYPES.items()}
_METADATA = "__metadata__"
_MAX_HEADER_BYTES = 100_000_000


def save_file(
    tensors: Mapping[str, Any], filename: StrPath, metadata: Mapping[str, str] | None = None
) -> None:
    """Write named arrays to a file.

    Args:
      tensors: Arrays, tensors or variables by name.
      filename: Path of the file; an existing file is replaced atomically.
      metadata: Strings by name, stored in the header.

    Raises:
      InvalidArgumentError: The format does not support a dtype, or a name is reserved.

    Example:
      >>> import os, tempfile
      >>> path = os.path.join(tempfile.mkdtemp(), "a.safetensors")
      >>> save_file({"w": np.arange(3.0)}, path)
      >>> load_file(path)
      {'w': array([0., 1., 2.])}
    """
    with replace_file(filename) as file:
        write_arrays(file, tensors, metadata)


def write_arrays(
    file: IO[bytes], tensors: Mapping[str, Any], metadata: Mapping[str, str] | None = None
) -> None:
    """Write the content of a safetensors file; see `save_file`."""
    arrays, end = [], 0
    header: dict[str, Any] = {}
    if metadata:
        header[_METADATA] = {str(key): str(value) for key, value in metadata.items()}
    # Large items first, like the reference implementation: every array is aligned to its item size.
    converted = {name: np.asarray(value) for name, value in tensors.items()}
    for name in sorted(converted, key=lambda n: (-converted[n].dtype.itemsize, n)):
        array = np.ascontiguousarray(converted[name]).reshape(converted[name].shape)
        kind = _DTYPE_NAMES.get(array.dtype)
        if kind is None or name == _METADATA:
            raise InvalidArgumentError(
                f"{name}: safetensors files support neither {array.dtype} arrays nor the name {_METADATA}."
            )
        offsets = [end, end + array.nbytes]
        header[name] = {"dtype": kind, "shape": list(array.shape), "data_offsets": offsets}
        arrays.append(array)
        end += array.nbytes
    encoded = json.dumps(header, separators=(",", ":")).encode()
    encoded += b" " * (-len(encoded) % 8)
    file.write(len(encoded).to_bytes(8, "little") + encoded)
    for array in arrays:
        file.write(array.reshape(-1).view(np.uint8).data)


def save_sharded(
    tensors: Mapping[str, Any],
    index: StrPath,
    max_shard_size: int = 5_000_000_000,
    metadata: Mapping[str, str] | None = None,
) -> None:
    """Write named arrays to several files and their index, as Hugging Face's libraries read them.

    If the index exists, the new files get the names `NAME-00001-of-00002-again.safetensors`, and
    the old files are deleted after the index is replaced. A killed program therefore leaves one
    complete set of files.

    Args:
      tensors: Arrays, tensors or variables by name.
      index: Path of the index, `FOLDER/NAME.safetensors.index.json`. The files
        `NAME-00001-of-00002.safetensors` etc. are written to the same folder.
      max_shard_size: Maximum number of bytes of arrays in a file; a larger array gets its own file.
      metadata: Strings by name, stored in every file.

    Raises:
      InvalidArgumentError: The name of the index is invalid, or as for `save_file`.

    Example:
      >>> import os, tempfile
      >>> folder = tempfile.mkdtemp()
      >>> index = os.path.join(folder, "a.safetensors.index.json")
      >>> save_sharded({"v": np.arange(2.0), "w": np.arange(3.0)}, index, max_shard_size=24)
      >>> sorted(os.listdir(folder))
      ['a-00001-of-00002.safetensors', 'a-00002-of-00002.safetensors', 'a.safetensors.index.json']
    """
    folder, name = os.path.split(to_path_string(index))
    if not name.endswith(INDEX_SUFFIX):
        raise InvalidArgumentError(
            f"{to_path_string(index)}: the name of an index must end in {INDEX_SUFFIX}."
        )
    shards: list[dict[str, Any]] = [{}]
    size = total = 0
    for key, value in tensors.items():
        num_bytes = np.dtype(value.dtype).itemsize * math.prod(value.shape)
        if shards[-1] and size + num_bytes > max_shard_size:
            shards.append({})
            size = 0
        shards[-1][key] = value
        size, total = size + num_bytes, total + num_bytes
    old_files = _list_shard_files(index)
    files = _choose_shard_names(name.removesuffix(INDEX_SUFFIX), len(shards), old_files)
    weight_map: dict[str, str] = {}
    for file_name, shard in zip(files, shards, strict=True):
        save_file(shard, gfile.join(folder, file_name), metadata)
        weight_map |= dict.fromkeys(shard, file_name)
    with replace_file(index, "w") as file:
        files_by_name = dict(sorted(weight_map.items()))
        content = {"metadata": {"total_size": total}, "weight_map": files_by_name}
        file.write(json.dumps(content, indent=2) + "\n")
    for file_name in sorted(old_files - set(files)):
        with contextlib.suppress(NotFoundError):
            gfile.remove(gfile.join(folder, file_name))


def _list_shard_files(index: StrPath) -> set[str]:
    """Return the names of the files that an index lists; empty if the index cannot be read."""
    try:
        return set(_read_weight_map(index).values())
    except (NotFoundError, DataLossError):
        return set()


def _choose_shard_names(stem: str, count: int, taken: set[str]) -> list[str]:
    """Return unused file names, so that the old files are complete until the index is replaced."""
    names = [f"{stem}-{i:05}-of-{count:05}" for i in range(1, count + 1)]
    suffix = "" if taken.isdisjoint(f"{n}.safetensors" for n in names) else "-again"
    return [f"{n}{suffix}.safetensors" for n in names]


def load_sharded(index: StrPath) -> dict[str, np.ndarray]:
    """Load the arrays of all files of an index, by name.

    Raises:
      NotFoundError: The index or one of its files does not exist.
      DataLossError: The index is damaged or does not match its files.
    """
    path, weight_map = to_path_string(index), _read_weight_map(index)
    arrays: dict[str, np.ndarray] = {}
    for name in sorted(set(weight_map.values())):
        folder = os.path.dirname(path)
        shard = load_file(check_contained(gfile.join(folder, name), folder))
        missing = sorted(k for k, file in weight_map.items() if file == name and k not in shard)
        if missing:
            raise DataLossError(f"{path} lists {missing[0]} in {name}, which lacks this array.")
        arrays |= {key: array for key, array in shard.items() if weight_map.get(key) == name}
    return arrays


def _read_weight_map(index: StrPath) -> dict[str, str]:
    """Return the file name of each array of an index."""
    folder = os.path.dirname(to_path_string(index))
    with gfile.GFile(check_contained(index, folder), "rb") as file:
        content = file.read()
    try:
        weight_map: dict[str, str] = parse_json(content)["weight_map"]
        # An index must not refer to files in other folders.
        files = weight_map.values()
        if any(os.path.basename(f) != f or not f.endswith(".safetensors") for f in files):
            raise ValueError("a file in weight_map is not the bare name of a .safetensors file")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise DataLossError(
            f"{to_path_string(index)} is damaged or not an index: {error!r}."
        ) from None
    return weight_map


def load_file(filename: StrPath) -> dict[str, np.ndarray]:
    """Load the arrays of a file, by name.

    Raises:
      NotFoundError: The file does not exist.
      DataLossError: The file is damaged, truncated, or has another format.
    """
    with gfile.GFile(check_regular(filename), "rb") as file:
        return parse_arrays(file.read(), to_path_string(filename))


def parse_arrays(content: bytes, label: str) -> dict[str, np.ndarray]:
    """Parse the content of a safetensors file to arrays by name.

    Raises:
      DataLossError: The content is damaged; the message starts with `label`.
    """
    try:
        return _parse_arrays(content)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise DataLossError(f"{label} is damaged or not a safetensors file: {error!r}.") from None


def _parse_arrays(content: bytes) -> dict[str, np.ndarray]:
    size = int.from_bytes(content[:8], "little")
    if len(content) < 8 or size > min(len(content) - 8, _MAX_HEADER_BYTES):
        raise ValueError(f"the header is longer than the file of {len(content)} bytes")
    header = parse_json(content[8 : 8 + size])
    header.pop(_METADATA, None)
    data, arrays, last = memoryview(content)[8 + size :], {}, 0
    for name, entry in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
        begin, end = entry["data_offsets"]
        dtype, shape = _DTYPES[entry["dtype"]], [int(n) for n in entry["shape"]]
        expected = math.prod(shape) * dtype.itemsize
        if any(n < 0 for n in shape) or begin != last or end - begin != expected or end > len(data):
            raise ValueError(f"{name} of shape {shape} does not fit bytes {begin} to {end}")
        arrays[name] = np.frombuffer(data[begin:end], np.uint8).view(dtype).reshape(shape).copy()
        last = end
    if last != len(data):
        raise ValueError(f"{len(data) - last} bytes do not belong to an array")
    return arrays
