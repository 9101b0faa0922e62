"""Names of what is being written, and clearing what processes left that ended before it was whole."""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import socket
import time

_COUNT = itertools.count()
# Of a process on another machine nothing is known; what it has not touched for so long is left over.
_FORGOTTEN = 24 * 3600.0


def part_name(path: str) -> str:
    """The name that what becomes `path` has while this process writes it."""
    return f"{path}.{_machine()}-{os.getpid()}-{next(_COUNT)}.part"


def clear_parts(path: str) -> None:
    """Deletes what processes that ended left of writing to a local path.

    Args:
      path: what they wanted to write.
    """
    folder, name = os.path.split(os.path.abspath(path))
    with contextlib.suppress(OSError):
        for entry in list(os.scandir(folder)):
            if entry.name.startswith(f"{name}.") and _is_left(entry):
                if entry.is_dir(follow_symlinks=False):
                    shutil.rmtree(entry.path, ignore_errors=True)
                else:
                    os.unlink(entry.path)


def _is_left(entry: os.DirEntry[str]) -> bool:
    """Whether nobody writes a `.part` any more."""
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
    """This machine's name, without what separates the parts of a name."""
    return socket.gethostname().replace(".", "_").replace("/", "_")
