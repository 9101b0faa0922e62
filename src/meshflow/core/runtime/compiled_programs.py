"""The folder of compiled programs: where it is, and that it does not grow without end."""

from __future__ import annotations

import atexit
import contextlib
import hashlib
import os
import tempfile
from pathlib import Path

import jax

__all__ = ["bound", "keep", "kept", "put"]

_LIMIT = 1 << 30
# Names of JAX's entries and of ours end so.
_OF_JAX, _OURS = "-cache", ".executable"


def keep() -> None:
    """Has JAX keep compiled programs in the user's cache folder.

    `MESHFLOW_CACHE_DIR` moves the folder; empty turns it off. When a process that added programs ends, those that were
    not used for longest are removed until `MESHFLOW_CACHE_BYTES` are left (default: 1 GiB; 0 removes none).
    """
    folder = os.environ.get("MESHFLOW_CACHE_DIR")
    if folder is None:
        root = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
        folder = str(Path(root) / "meshflow" / "compiled")
    # JAX defines its options at run time.
    if not folder or jax.config.jax_compilation_cache_dir is not None:  # type: ignore[attr-defined]
        return
    jax.config.update("jax_compilation_cache_dir", folder)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.3)
    # Convolutions on meshes call Python while they are compiled; their programs tell what it does.
    jax.config.update("jax_remove_custom_partitioning_ptr_from_cache_key", True)
    limit = os.environ.get("MESHFLOW_CACHE_BYTES", "")
    most = int(limit) if limit.isdecimal() else _LIMIT
    if most:
        atexit.register(_bound_if_changed, folder, _changed(folder), most)


def kept(key: str) -> bytes | None:
    """What `put` wrote, or None when it is not there, or damaged.

    Args:
      key: its name.
    """
    path = _entry(key)
    if path is None:
        return None
    with contextlib.suppress(OSError):
        data = path.read_bytes()
        size = hashlib.sha256().digest_size
        if hashlib.sha256(data[size:]).digest() == data[:size]:
            return data[size:]
    return None


def put(key: str, data: bytes) -> None:
    """Writes an entry, completely or not at all; a folder that cannot be written to stays as it is.

    Args:
      key: its name, of letters and digits.
      data: what it holds.
    """
    path = _entry(key)
    if path is None:
        return
    part = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # Of a name that `bound` removes, should this process be killed.
        descriptor, part = tempfile.mkstemp(_OURS, dir=path.parent)
        with open(descriptor, "wb") as file:
            file.write(hashlib.sha256(data).digest() + data)
        os.replace(part, path)
    except OSError:
        if part is not None:
            with contextlib.suppress(OSError):
                os.unlink(part)


def _entry(key: str) -> Path | None:
    """The file of an entry; None where nothing is kept, or not in a folder of this machine."""
    # JAX defines its options at run time.
    folder = jax.config.jax_compilation_cache_dir  # type: ignore[attr-defined]
    if not folder or "://" in folder or not jax.config.jax_enable_compilation_cache:  # type: ignore[attr-defined]
        return None
    return Path(folder) / f"{key}{_OURS}"


def _changed(folder: str) -> float | None:
    """When entries came or went; None where there is no such folder."""
    try:
        return os.stat(folder).st_mtime
    except OSError:
        return None


def _bound_if_changed(folder: str, before: float | None, most: int) -> None:
    if _changed(folder) != before:
        bound(folder, most)


def bound(folder: str, most: int) -> None:
    """Removes programs that were not used for longest, until what is left has at most so many bytes.

    Args:
      folder: where they are. Other files in it stay.
      most: how many bytes may stay.
    """
    found = []
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            # Other processes remove them too.
            with contextlib.suppress(OSError):
                if entry.name.endswith((_OF_JAX, _OURS)):
                    about = entry.stat()
                    used = max(about.st_atime, about.st_mtime)
                    found.append((used, about.st_size, entry.path))
    left = sum(size for _, size, _ in found)
    for _, size, path in sorted(found):
        if left <= most:
            return
        with contextlib.suppress(OSError):
            os.remove(path)
        left -= size
