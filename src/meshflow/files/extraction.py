"""Extraction of archives from others: regular files and folders only, inside of the target folder."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import IO, Any

from meshflow.core.runtime.errors import DataLossError, ResourceExhaustedError
from meshflow.environment.limits import FileTooLargeError, UnpackedBudget

# Extracted size that every archive may have; larger ones may have 20 times the size of the archive.
_MIN_EXTRACTED_BYTES = 256 << 20
# Size that each member counts in addition to its content.
_MEMBER_BYTES = 512
_CHUNK_BYTES = 1 << 20
_READ_ERRORS = (
    *(tarfile.TarError, zipfile.BadZipFile, zlib.error, lzma.LZMAError),
    *(EOFError, RuntimeError, ValueError, gzip.BadGzipFile),
)
_OPENERS = {b"\x1f\x8b": gzip.open, b"BZh": bz2.open, b"\xfd7zXZ": lzma.open}


class _CountedReader(io.RawIOBase):
    """Forward-only stream of an uncompressed tar file, which counts its bytes."""

    def __init__(self, file: IO[bytes], budget: UnpackedBudget) -> None:
        self._file, self._budget = file, budget

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Read at most a chunk into a buffer."""
        data = self._file.read(min(len(buffer), _CHUNK_BYTES))
        self._budget.spend(len(data), "a part of it")
        buffer[: len(data)] = data
        return len(data)


def extract_archive(path: Path, folder: Path) -> bool:
    """Extract a tar or zip file, if the file is one.

    All names and types of members are checked before the first file is written. Bytes are counted
    while they are decompressed.

    Args:
      path: The archive.
      folder: Existing folder, to which the members are written.

    Returns:
      Whether the file is an archive.

    Raises:
      ValueError: If a member is a link, a device or a pipe, or leads out of the folder.
      DataLossError: If the archive is damaged.
      ResourceExhaustedError: If it expands to more than 256 MiB, or 20 times its size if that is
        more; the environment variable MESHFLOW_MAX_UNPACKED_BYTES sets another limit.
    """
    try:
        if zipfile.is_zipfile(path):
            iterate = _iterate_zip
        elif tarfile.is_tarfile(path):
            iterate = _iterate_tar
        else:
            return False
        for name, kind, _, _ in iterate(path, _make_budget(path)):
            _check_member(path, folder, name, kind)
        for name, kind, mode, source in iterate(path, _make_budget(path)):
            target = _check_member(path, folder, name, kind)
            if kind == stat.S_IFDIR:
                target.mkdir(parents=True, exist_ok=True)
            elif source is not None:
                target.parent.mkdir(parents=True, exist_ok=True)
                with source, open(target, "wb") as file:
                    while chunk := source.read(_CHUNK_BYTES):
                        file.write(chunk)
                target.chmod(0o644 | mode & 0o111)
        return True
    except FileTooLargeError as error:
        raise ResourceExhaustedError(str(error)) from None
    except _MemberError:
        raise
    except _READ_ERRORS as error:
        raise DataLossError(f"{path} is damaged: {error}.") from error


def _make_budget(path: Path) -> UnpackedBudget:
    return UnpackedBudget(str(path), path.stat().st_size, _MIN_EXTRACTED_BYTES)


class _MemberError(ValueError):
    """Error for a member of an archive that must not be extracted."""


def _check_member(path: Path, folder: Path, name: str, kind: int) -> Path:
    """Return the path to which a member is written."""
    if kind not in (stat.S_IFREG, stat.S_IFDIR):
        raise _MemberError(
            f"{path} holds {name!r}, which is a link, a device or a pipe. Only regular files and folders are extracted: "
            "extract the archive yourself if you trust its author."
        )
    parts = PurePosixPath(name.replace("\\", "/")).parts
    target = folder.joinpath(*parts)
    is_relative = ".." not in parts and not name.startswith(("/", "\\")) and ":" not in name
    # Folders that exist may be links.
    if not is_relative or not target.resolve().is_relative_to(folder.resolve()) or "\0" in name:
        raise _MemberError(f"{path} holds {name!r}, which would be written outside {folder}.")
    if target.is_symlink():
        raise _MemberError(
            f"{path} holds {name!r}, which would be written through the link {target}."
        )
    return target


def _iterate_tar(
    path: Path, budget: UnpackedBudget
) -> Iterator[tuple[str, int, int, IO[bytes] | None]]:
    """Yield the name, type, permissions and content of each member."""
    with open(path, "rb") as file:
        start = file.read(6)
    opener: Any = next((o for magic, o in _OPENERS.items() if start.startswith(magic)), open)
    with opener(path, "rb") as file:
        stream = io.BufferedReader(_CountedReader(file, budget), _CHUNK_BYTES)
        with tarfile.open(fileobj=stream, mode="r|") as opened:
            archive: Any = opened
            for member in archive:
                budget.spend(_MEMBER_BYTES, "the header of a member")
                # The holes of a sparse file would not count.
                is_file = member.isreg() and not member.issparse()
                kind = stat.S_IFDIR if member.isdir() else stat.S_IFREG if is_file else 0
                source = archive.extractfile(member) if is_file else None
                yield member.name, kind, member.mode, source
                # The list of all members would grow with the archive.
                archive.members = []


def _iterate_zip(
    path: Path, budget: UnpackedBudget
) -> Iterator[tuple[str, int, int, IO[bytes] | None]]:
    """Yield the name, type, permissions and content of each member."""
    with zipfile.ZipFile(path) as archive:
        for member in archive.infolist():
            budget.spend(member.file_size + _MEMBER_BYTES, repr(member.filename))
            mode = member.external_attr >> 16
            kind = stat.S_IFDIR if member.is_dir() else stat.S_IFMT(mode) or stat.S_IFREG
            # A member is never longer than its header declares.
            source = archive.open(member) if kind == stat.S_IFREG else None
            yield member.filename, kind, mode, source
