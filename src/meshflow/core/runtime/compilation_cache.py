"""The folder that caches compiled programs: its location, its entries and its size limit."""

from __future__ import annotations

import atexit
import contextlib
import hashlib
import os
import tempfile
from pathlib import Path

import jax

_DEFAULT_MAX_BYTES = 1 << 30
# Suffixes of JAX's cache entries and of Meshflow's own entries.
_JAX_SUFFIX, _SUFFIX = "-cache", ".executable"
# Suffix of the entries about programs of files. Most are short, but a file takes a block on the disk.
PROGRAM_SUFFIX = ".program"
_MIN_PROGRAM_BYTES = 4096


def enable_cache() -> None:
    """Configure JAX to cache compiled programs in the user's cache folder.

    The environment variable `MESHFLOW_CACHE_DIR` selects another folder; an empty value disables
    the cache. When a process that added entries exits, the least recently used entries are removed
    until at most `MESHFLOW_CACHE_BYTES` bytes remain (default: 1 GiB; 0 means no limit).
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
    # Convolutions on meshes call Python during compilation. Their programs describe these calls
    # completely, so the pointers to the callbacks need not be part of the cache key.
    jax.config.update("jax_remove_custom_partitioning_ptr_from_cache_key", True)
    limit = os.environ.get("MESHFLOW_CACHE_BYTES", "")
    max_bytes = int(limit) if limit.isdecimal() else _DEFAULT_MAX_BYTES
    if max_bytes:
        atexit.register(
            _remove_old_entries_if_changed, folder, _modification_time(folder), max_bytes
        )


def read_entry(key: str, suffix: str = _SUFFIX) -> bytes | None:
    """Return the data of a cache entry, or None if the entry is missing or damaged.

    Args:
      key: Key that was passed to `write_entry`.
      suffix: Suffix of the entry's file.
    """
    path = _entry_path(key, suffix)
    if path is None:
        return None
    with contextlib.suppress(OSError):
        data = path.read_bytes()
        size = hashlib.sha256().digest_size
        if hashlib.sha256(data[size:]).digest() == data[:size]:
            return data[size:]
    return None


def write_entry(key: str, data: bytes, suffix: str = _SUFFIX) -> None:
    """Write a cache entry atomically; do nothing if the folder is not writable.

    Args:
      key: Key of the entry, of letters and digits.
      data: Content of the entry.
      suffix: Suffix of the entry's file.
    """
    path = _entry_path(key, suffix)
    if path is None:
        return
    part = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # The temporary file has the suffix of entries, so `remove_old_entries` deletes it if this
        # process is killed.
        descriptor, part = tempfile.mkstemp(suffix, dir=path.parent)
        with open(descriptor, "wb") as file:
            file.write(hashlib.sha256(data).digest() + data)
        os.replace(part, path)
    except OSError:
        if part is not None:
            with contextlib.suppress(OSError):
                os.unlink(part)


def _entry_path(key: str, suffix: str) -> Path | None:
    """Return the path of an entry, or None if the cache is disabled or not in a local folder."""
    # JAX defines its options at run time.
    folder = jax.config.jax_compilation_cache_dir  # type: ignore[attr-defined]
    if not folder or "://" in folder or not jax.config.jax_enable_compilation_cache:  # type: ignore[attr-defined]
        return None
    return Path(folder) / f"{key}{suffix}"


def _modification_time(folder: str) -> float | None:
    """Return the time at which entries were last added or removed, or None without a folder."""
    try:
        return os.stat(folder).st_mtime
    except OSError:
        return None


def _remove_old_entries_if_changed(
    folder: str, previous_time: float | None, max_bytes: int
) -> None:
    if _modification_time(folder) != previous_time:
        remove_old_entries(folder, max_bytes)


def remove_old_entries(folder: str, max_bytes: int) -> None:
    """Remove the least recently used entries until at most `max_bytes` bytes remain.

    Args:
      folder: The cache folder. Files without an entry's suffix are not touched.
      max_bytes: Maximum total size of the remaining entries, in bytes.
    """
    entry_stats = []
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            # Another process may remove entries at the same time.
            with contextlib.suppress(OSError):
                if entry.name.endswith((_JAX_SUFFIX, _SUFFIX, PROGRAM_SUFFIX)):
                    stat = entry.stat()
                    last_used = max(stat.st_atime, stat.st_mtime)
                    is_program = entry.name.endswith(PROGRAM_SUFFIX)
                    size = max(stat.st_size, _MIN_PROGRAM_BYTES if is_program else 0)
                    entry_stats.append((last_used, size, entry.path))
    remaining_bytes = sum(size for _, size, _ in entry_stats)
    for _, size, path in sorted(entry_stats):
        if remaining_bytes <= max_bytes:
            return
        with contextlib.suppress(OSError):
            os.remove(path)
        remaining_bytes -= size
