"""Datasets of samples in tar files, as WebDataset arranges them. No package is needed for it."""

from __future__ import annotations

import os
import re
import tarfile
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from meshflow.core.runtime.errors import (
    DataLossError,
    InvalidArgumentError,
    NotFoundError,
    OpError,
    ResourceExhaustedError,
)
from meshflow.core.values import dtypes, nest
from meshflow.core.values.specs import TensorSpec
from meshflow.data.arguments import UNKNOWN_CARDINALITY, integer
from meshflow.data.dataset import Dataset
from meshflow.data.epoch import Epoch
from meshflow.data.execution.round_robin import in_turn
from meshflow.data.readers.records import file_names
from meshflow.environment.limits import UNPACKED_VARIABLE, unpacked_limit
from meshflow.files import gfile
from meshflow.files.gfile import GFile

__all__ = ["from_webdataset"]

_SAMPLE = re.compile(r"^((?:.*/)?[^./][^/.]*|(?:.*/)?\.[^/.]+)\.([^/]+)$")
_RANGE = re.compile(r"\{(\d+)\.\.(\d+)\}|\{([^{}]*,[^{}]*)\}")


def from_webdataset(files: Any, keys: Any = None, num_parallel_reads: Any = None) -> Dataset:
    """The samples of tar files: files whose names differ only in what follows the first dot.

    Contents are strings of bytes; decode them with `map`, for example by `tf.io.decode_jpeg`.

    Args:
      files: names, also with wildcards and with numbers in braces: `train-{000..099}.tar`. They may be
        compressed.
      keys: what samples consist of: an ending (`'jpg'`), alternatives (`'jpg;png'`), or tuples and
        dictionaries of them; `'__key__'` is a sample's name. By default all endings of the first
        sample, and `'__key__'`, as a dictionary.
      num_parallel_reads: how many tar files give their samples in turn.

    Raises:
      NotFoundError: when no file matches.
      InvalidArgumentError: while iterating, for a sample without one of the keys.
      DataLossError: while iterating, for a damaged tar file.

    Example:
      >>> import io, os, tarfile, tempfile
      >>> import meshflow as tf
      >>> path = os.path.join(tempfile.mkdtemp(), "a-0.tar")
      >>> with tarfile.open(path, "w") as tar:
      ...     for name, text in (("1.txt", b"one"), ("1.cls", b"0"), ("2.txt", b"two"), ("2.cls", b"1")):
      ...         info = tarfile.TarInfo(name)
      ...         info.size = len(text)
      ...         tar.addfile(info, io.BytesIO(text))
      >>> samples = tf.data.experimental.from_webdataset(path, keys=("txt", "cls"))
      >>> [(text.numpy(), int(tf.strings.to_number(label))) for text, label in samples]
      [(b'one', 0), (b'two', 1)]
    """
    reads = 1 if num_parallel_reads is None else integer(num_parallel_reads, "num_parallel_reads")
    return _Tars(_expanded(files), keys, (os.cpu_count() or 1) if reads < 0 else max(reads, 1))


class _Tars(Dataset):
    def __init__(self, names: list[str], keys: Any, cycle: int) -> None:
        self._names, self._cycle = names, cycle
        if keys is None:
            first = next((s for n in names for s in _samples(n)), None)
            if first is None:
                raise InvalidArgumentError(f"There are no samples in {', '.join(names)}.")
            keys = {key: key for key in first}
        self._keys = tuple(keys) if isinstance(keys, list) else keys
        self._wanted = [str(k).lower().split(";") for k in nest.flatten(self._keys)]

    def _known_spec(self) -> Any:
        return nest.map_structure(lambda _: TensorSpec([], dtypes.string), self._keys)

    def _count(self) -> int:
        return UNKNOWN_CARDINALITY

    def _file_names(self) -> list[str]:
        return self._names

    def _of_files(self, names: list[str]) -> Dataset:
        return _Tars(names, self._keys, self._cycle)

    def _elements(self, epoch: Epoch) -> Generator[Any, None, None]:
        block = 1 if self._cycle > 1 else 1 << 62
        return in_turn(iter(self._names), self._of_tar, self._cycle, block)

    def _of_tar(self, name: str) -> Iterator[Any]:
        for sample in _samples(name):
            values = [self._value(sample, alternatives, name) for alternatives in self._wanted]
            yield nest.pack_sequence_as(self._keys, values)

    def _value(self, sample: dict[str, bytes], alternatives: list[str], name: str) -> np.ndarray:
        for key in alternatives:
            if key in sample:
                return np.array(sample[key], object)
        have = ", ".join(k for k in sample if k != "__key__")
        raise InvalidArgumentError(
            f"{name}: sample {sample['__key__'].decode()!r} has no {' or '.join(alternatives)}; it has {have}."
        )


def _samples(name: str) -> Iterator[dict[str, bytes]]:
    """The samples of a tar file."""
    sample: dict[str, bytes] = {}
    most = unpacked_limit(gfile.stat(name).length)
    try:
        with GFile(name, "rb")._opened() as file, tarfile.open(fileobj=file, mode="r|*") as tar:
            for member in tar:
                found = _SAMPLE.match(member.name)
                if not member.isfile() or found is None or Path(member.name).name[:2] == "__":
                    continue
                key, ending = found[1], found[2].lower()
                if sample and sample["__key__"] != key.encode():
                    yield sample
                    sample = {}
                if ending in sample:
                    raise InvalidArgumentError(
                        f"{name}: sample {key!r} has more than one {ending!r}."
                    )
                if member.size > most:
                    raise ResourceExhaustedError(
                        f"{name}: {member.name} holds {member.size:,} bytes, more than {most:,}. If you trust its "
                        f"author, set the environment variable {UNPACKED_VARIABLE} to a larger number."
                    )
                content = tar.extractfile(member)
                assert content is not None
                sample.setdefault("__key__", key.encode())
                sample[ending] = content.read()
                if len(sample[ending]) != member.size:
                    raise tarfile.ReadError(f"{member.name} ends early")
    except OpError:
        raise
    # What a damaged header makes the module raise may be of any class.
    except Exception as error:
        raise DataLossError(f"{name}: not a tar file, or a damaged one: {error}") from None
    if sample:
        yield sample


def _expanded(files: Any) -> list[str]:
    """Names of files, with braces and wildcards expanded."""
    found = []
    for pattern in file_names(files):
        for name in _braces(pattern):
            some = sorted(gfile.glob(name)) or ([name] if gfile.exists(name) else [])
            if not some:
                raise NotFoundError(f"{name}; No such file or directory")
            found.extend(some)
    return found


def _braces(pattern: str) -> list[str]:
    found = _RANGE.search(pattern)
    if found is None:
        return [pattern]
    first, last, words = found.groups()
    if words is None:
        width = len(first) if first.startswith("0") or len(first) == len(last) else 0
        words = ",".join(str(n).zfill(width) for n in range(int(first), int(last) + 1))
    before, after = pattern[: found.start()], pattern[found.end() :]
    return [rest for word in words.split(",") for rest in _braces(f"{before}{word}{after}")]
