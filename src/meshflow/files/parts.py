"""Temporary names of unfinished files, and removal of those that dead processes left."""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import socket
import time

_COUNT = itertools.count()
# This process cannot check processes of other hosts, so it considers their files abandoned after
# this time.
_FORGOTTEN = 24 * 3600.0


def part_name(path: str) -> str:
    """Return a temporary name, unique to this process, for a file or folder that becomes `path`."""
    return f"{path}.{_machine()}-{os.getpid()}-{next(_COUNT)}.part"


def clear_parts(path: str) -> None:
    """Delete the unfinished versions of the local file or folder `path` that dead processes left."""
    folder, name = os.path.split(os.path.abspath(path))
    with contextlib.suppress(OSError):
        for entry in list(os.scandir(folder)):
            if entry.name.startswith(f"{name}.") and _is_left(entry):
                if entry.is_dir(follow_symlinks=False):
                    shutil.rmtree(entry.path, ignore_errors=True)
                else:
                    os.unlink(entry.path)


def _is_left(entry: os.DirEntry[str]) -> bool:
    """Check whether no process writes to a `.part` entry any more."""
    owner = entry.name.removesuffix(".part").rpartition(".")[2].rsplit("-", 2)
    if not entry.name.endswith(".part") or len(owner) != 3 or not owner[1].isdigit():
        return False
    if owner[0] != _machine():
        return time.time() - entry.stat(follow_symlinks=False).st_mtime > _FORGOTTEN
    return not _lives(int(owner[1]))


def _lives(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _machine() -> str:
    """Return the host name without the characters that separate the parts of a name."""
    return socket.gethostname().replace(".", "_").replace("/", "_")
