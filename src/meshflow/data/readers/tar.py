"""Datasets of samples in tar files, in the format of the WebDataset library, which is not needed."""

from __future__ import annotations

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
from meshflow.core.values.tensor import TensorLike
from meshflow.data.arguments import UNKNOWN_CARDINALITY, IntLike, choose_cycle_length, to_int
from meshflow.data.dataset import Dataset
from meshflow.data.epoch import Epoch
from meshflow.data.execution.round_robin import interleave
from meshflow.data.readers.records import parse_file_names
from meshflow.environment.limits import UNPACKED_VARIABLE, get_unpacked_limit
from meshflow.environment.types import PyTree
from meshflow.files import gfile
from meshflow.files.gfile import GFile

_SAMPLE_NAME = re.compile(r"^((?:.*/)?[^./][^/.]*|(?:.*/)?\.[^/.]+)\.([^/]+)$")
_BRACES = re.compile(r"\{(\d+)\.\.(\d+)\}|\{([^{}]*,[^{}]*)\}")


def from_webdataset(
    files: TensorLike, keys: PyTree = None, num_parallel_reads: IntLike | None = None
) -> Dataset:
    """Create a dataset of the samples in tar files.

    A sample consists of consecutive files with names that differ only after the first dot. The
    contents are byte strings; decode them with `map`, for example by `tf.io.decode_jpeg`.

    Args:
      files: File names, which may contain wildcards and numbers in braces, as in
        `train-{000..099}.tar`. The files may be compressed.
      keys: The components of a sample: a file extension (`'jpg'`), alternatives (`'jpg;png'`), or
        tuples and dictionaries of them; `'__key__'` is the name of the sample. By default a
        dictionary of all extensions of the first sample and `'__key__'`.
      num_parallel_reads: Number of tar files that are interleaved.

    Raises:
      NotFoundError: If no file matches.
      InvalidArgumentError: While iterating, if a sample lacks one of the keys.
      DataLossError: While iterating, if a tar file is damaged.

    Example:
      >>> import io, os, tarfile, tempfile
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
    reads = 1 if num_parallel_reads is None else to_int(num_parallel_reads, "num_parallel_reads")
    return _TarDataset(
        _find_files(files), keys, choose_cycle_length(reads) if reads < 0 else max(reads, 1)
    )


class _TarDataset(Dataset):
    """The samples of tar files.

    Args:
      names: Names of the files.
      keys: The components of a sample, see `from_webdataset`.
      cycle: Number of files that are interleaved.
    """

    def __init__(self, names: list[str], keys: PyTree, cycle: int) -> None:
        self._names, self._cycle = names, cycle
        if keys is None:
            first = next((s for n in names for s in _read_samples(n)), None)
            if first is None:
                raise InvalidArgumentError(f"There are no samples in {', '.join(names)}.")
            keys = {key: key for key in first}
        self._keys = tuple(keys) if isinstance(keys, list) else keys
        self._alternatives = [str(k).lower().split(";") for k in nest.flatten(self._keys)]

    def _infer_spec(self) -> PyTree:
        return nest.map_structure(lambda _: TensorSpec([], dtypes.string), self._keys)

    def count_elements(self) -> int:
        return UNKNOWN_CARDINALITY

    def get_file_names(self) -> list[str]:
        return self._names

    def with_files(self, names: list[str]) -> Dataset:
        return _TarDataset(names, self._keys, self._cycle)

    def iter_elements(self, epoch: Epoch) -> Generator[Any, None, None]:
        block = 1 if self._cycle > 1 else 1 << 62
        return interleave(iter(self._names), self._iter_samples, self._cycle, block)

    def _iter_samples(self, name: str) -> Iterator[Any]:
        for sample in _read_samples(name):
            values = [
                self._get_content(sample, alternatives, name) for alternatives in self._alternatives
            ]
            yield nest.pack_sequence_as(self._keys, values)

    def _get_content(
        self, sample: dict[str, bytes], alternatives: list[str], name: str
    ) -> np.ndarray:
        """Return the content of the first of some alternative keys that a sample has."""
        for key in alternatives:
            if key in sample:
                return np.array(sample[key], object)
        available = ", ".join(k for k in sample if k != "__key__")
        raise InvalidArgumentError(
            f"{name}: sample {sample['__key__'].decode()!r} has no {' or '.join(alternatives)}; it has {available}."
        )


def _read_samples(name: str) -> Iterator[dict[str, bytes]]:
    """Iterate over the samples of a tar file, each a dictionary from file extensions to contents."""
    sample: dict[str, bytes] = {}
    limit = get_unpacked_limit(gfile.stat(name).length)
    try:
        with GFile(name, "rb")._open() as file, tarfile.open(fileobj=file, mode="r|*") as tar:
            for member in tar:
                match = _SAMPLE_NAME.match(member.name)
                if not member.isfile() or match is None or Path(member.name).name[:2] == "__":
                    continue
                key, extension = match[1], match[2].lower()
                if sample and sample["__key__"] != key.encode():
                    yield sample
                    sample = {}
                if extension in sample:
                    raise InvalidArgumentError(
                        f"{name}: sample {key!r} has more than one {extension!r}."
                    )
                if member.size > limit:
                    raise ResourceExhaustedError(
                        f"{name}: {member.name} holds {member.size:,} bytes, more than {limit:,}. If you trust its "
                        f"author, set the environment variable {UNPACKED_VARIABLE} to a larger number."
                    )
                content = tar.extractfile(member)
                assert content is not None
                sample.setdefault("__key__", key.encode())
                sample[extension] = content.read()
                if len(sample[extension]) != member.size:
                    raise tarfile.ReadError(f"{member.name} ends early")
    except OpError:
        raise
    # A damaged header can make the module raise an error of any class.
    except Exception as error:
        raise DataLossError(f"{name}: not a tar file, or a damaged one: {error}") from None
    if sample:
        yield sample


def _find_files(files: TensorLike) -> list[str]:
    """Return the names of files that match patterns with braces and wildcards."""
    paths = []
    for pattern in parse_file_names(files):
        for name in _expand_braces(pattern):
            matches = sorted(gfile.glob(name)) or ([name] if gfile.exists(name) else [])
            if not matches:
                raise NotFoundError(f"{name}; No such file or directory")
            paths.extend(matches)
    return paths


def _expand_braces(pattern: str) -> list[str]:
    """Replace the first braces in a pattern by each of their alternatives, recursively."""
    braces = _BRACES.search(pattern)
    if braces is None:
        return [pattern]
    first, last, alternatives = braces.groups()
    if alternatives is None:
        width = len(first) if first.startswith("0") or len(first) == len(last) else 0
        alternatives = ",".join(str(n).zfill(width) for n in range(int(first), int(last) + 1))
    before, after = pattern[: braces.start()], pattern[braces.end() :]
    return [
        rest
        for word in alternatives.split(",")
        for rest in _expand_braces(f"{before}{word}{after}")
    ]
