"""The text file `checkpoint` of a folder, which lists the latest checkpoints.

The format is TensorFlow's.
"""

from __future__ import annotations

import logging
import os
import re
from dataclasses import dataclass, field

from meshflow.checkpoint.bundle import get_index_path
from meshflow.checkpoint.formats import is_checkpoint, open_checkpoint, read_object_graph
from meshflow.core.runtime.errors import DataLossError, NotFoundError, UnimplementedError
from meshflow.environment.types import StrPath
from meshflow.files import gfile
from meshflow.files.atomic_writes import replace_file
from meshflow.files.contained_files import check_contained
from meshflow.files.paths import is_remote, make_absolute, to_path_string

_LINE = re.compile(r'^\s*(\w+)\s*:\s*(?:"((?:[^"\\]|\\.)*)"|(\S+))\s*$')
_NUMBERED_NAME = re.compile(r"(.*)-(\d+)")

_log = logging.getLogger("meshflow")


class InvalidStateError(DataLossError, ValueError):
    """Raised if a `checkpoint` file is damaged."""


@dataclass
class CheckpointState:
    """Content of a `checkpoint` file.

    Attributes:
      model_checkpoint_path: Path of the latest checkpoint.
      all_model_checkpoint_paths: Paths of all kept checkpoints, oldest first.
      all_model_checkpoint_timestamps: Time at which each was written, in seconds since 1970.
      last_preserved_timestamp: Time at which the last checkpoint that is preserved forever was
        written; 0 if there is none.
    """

    model_checkpoint_path: str = ""
    all_model_checkpoint_paths: list[str] = field(default_factory=list)
    all_model_checkpoint_timestamps: list[float] = field(default_factory=list)
    last_preserved_timestamp: float = 0.0


def write_state(folder: StrPath, state: CheckpointState, name: str = "checkpoint") -> None:
    """Write a `checkpoint` file, completely or not at all.

    Args:
      folder: Folder of the file.
      state: Content. Paths in the folder are written relative to it.
      name: Name of the file.
    """
    absolute_folder = make_absolute(to_path_string(folder)).rstrip("/") or "/"

    def quote_path(path: str) -> str:
        if os.path.dirname(make_absolute(path)) == absolute_folder:
            path = os.path.basename(path)
        escaped = path.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
        return f'"{escaped}"'

    lines = [f"model_checkpoint_path: {quote_path(state.model_checkpoint_path)}"]
    lines += [
        f"all_model_checkpoint_paths: {quote_path(p)}" for p in state.all_model_checkpoint_paths
    ]
    lines += [
        f"all_model_checkpoint_timestamps: {t}" for t in state.all_model_checkpoint_timestamps
    ]
    if state.last_preserved_timestamp:
        lines.append(f"last_preserved_timestamp: {state.last_preserved_timestamp}")
    with replace_file(gfile.join(folder, name), "w") as file:
        file.write("\n".join(lines) + "\n")


def get_checkpoint_state(
    checkpoint_dir: StrPath, latest_filename: str | None = None
) -> CheckpointState | None:
    """Read the `checkpoint` file of a folder.

    Args:
      checkpoint_dir: The folder.
      latest_filename: Name of the file; default "checkpoint".

    Returns:
      A `CheckpointState`, with absolute paths if `checkpoint_dir` is absolute, or None if there is
      no file. If the file is
      damaged, a warning is logged and the state lists the checkpoints in the folder.

    Raises:
      InvalidStateError: If the file is damaged and the folder has no checkpoint; a DataLossError and ValueError.

    Example:
      >>> import os, tempfile
      >>> with tempfile.TemporaryDirectory() as folder:
      ...     _ = tf.train.Checkpoint(w=tf.Variable(1.0)).save(os.path.join(folder, "ckpt"))
      ...     os.path.basename(tf.train.get_checkpoint_state(folder).model_checkpoint_path)
      'ckpt-1'
    """
    folder = to_path_string(checkpoint_dir)
    path = gfile.join(folder, latest_filename or "checkpoint")
    if not gfile.exists(path) or gfile.isdir(path):
        return None
    with gfile.GFile(check_contained(path, folder), "rb") as file:
        content = file.read()
    try:
        return _parse_state(content, folder)
    except ValueError as error:
        paths = list_complete_checkpoints(folder)
        if not paths:
            raise InvalidStateError(
                f"Invalid checkpoint state loaded from {folder}: {path} is damaged ({error}), and the folder has no "
                "checkpoint."
            ) from None
        _log.warning(
            "%s is damaged (%s). Using the checkpoints in its folder, the latest of which is %s.",
            *(path, error, paths[-1]),
        )
        return CheckpointState(paths[-1], paths)


def _parse_state(content: bytes, folder: str) -> CheckpointState:
    """Parse the content of a file; raise ValueError if it is not valid."""
    state = CheckpointState()
    for line in content.decode().splitlines():
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        match = _LINE.match(line)
        if match is None:
            raise ValueError(f"the line {line[:80]!r} is not valid")
        key, quoted, bare = match.groups()
        if quoted is not None:
            path = _unescape(quoted)
            path = path if is_remote(path) else gfile.join(folder, path)
            if key == "model_checkpoint_path":
                state.model_checkpoint_path = path if quoted else ""
            elif key == "all_model_checkpoint_paths":
                state.all_model_checkpoint_paths.append(path)
        elif key == "all_model_checkpoint_timestamps":
            state.all_model_checkpoint_timestamps.append(float(bare))
        elif key == "last_preserved_timestamp":
            state.last_preserved_timestamp = float(bare)
    if not state.model_checkpoint_path:
        raise ValueError("it does not name the latest checkpoint")
    return state


def _unescape(quoted: str) -> str:
    return re.sub(r"\\(.)", lambda match: {"n": "\n"}.get(match[1], match[1]), quoted)


def list_complete_checkpoints(folder: str) -> list[str]:
    """Return the paths of the complete checkpoints in a folder, the latest last.

    Within a prefix, they are sorted by number; the prefix that was written to last is the last.

    Args:
      folder: Path of the folder.
    """
    checkpoints: list[tuple[str, int, int, str]] = []
    names = gfile.listdir(folder) if gfile.isdir(folder) else []
    for name in sorted({n.rstrip("/").removesuffix(".index") for n in names}):
        path, match = gfile.join(folder, name), _NUMBERED_NAME.fullmatch(name)
        if not match or not is_checkpoint(path):
            continue
        try:
            read_object_graph(open_checkpoint(path))
        except (DataLossError, NotFoundError, UnimplementedError, ValueError):
            continue
        index = get_index_path(path)
        mtime = gfile.stat(index if gfile.exists(index) else path).mtime_nsec
        checkpoints.append((match[1], mtime, int(match[2]), path))
    latest_mtimes: dict[str, int] = {}
    for prefix, mtime, _, _ in checkpoints:
        latest_mtimes[prefix] = max(mtime, latest_mtimes.get(prefix, 0))
    checkpoints.sort(key=lambda item: (latest_mtimes[item[0]], item[0], item[2]))
    return [item[3] for item in checkpoints]


def latest_checkpoint(checkpoint_dir: StrPath, latest_filename: str | None = None) -> str | None:
    """Return the path of the latest checkpoint in a folder.

    Args:
      checkpoint_dir: Folder that was passed to `CheckpointManager`, or folder of the prefix that
        was passed to `save`.
      latest_filename: Name of the file that lists the checkpoints; default "checkpoint".

    Returns:
      The path, or None if there is no checkpoint. If the file is damaged, or if the checkpoint that
      it names does not exist, a
      warning is logged and the latest complete checkpoint of the folder is returned.

    Raises:
      InvalidStateError: If the file is damaged and the folder has no checkpoint; a DataLossError and ValueError.

    Example:
      >>> import tempfile
      >>> from meshflow import train
      >>> folder = tempfile.mkdtemp()
      >>> path = train.Checkpoint(v=tf.Variable(1.0)).save(folder + "/ckpt")
      >>> train.latest_checkpoint(folder) == path == folder + "/ckpt-1"
      True
    """
    state = get_checkpoint_state(checkpoint_dir, latest_filename)
    return None if state is None else find_latest_checkpoint(state, to_path_string(checkpoint_dir))


def find_latest_checkpoint(state: CheckpointState, folder: str) -> str | None:
    """Return the latest existing checkpoint that a state names, or the latest in the folder.

    Args:
      state: Content of the `checkpoint` file.
      folder: Folder of the file.

    Returns:
      The path, or None if there is no checkpoint.
    """
    named = state.model_checkpoint_path
    if is_checkpoint(named):
        return named
    existing = [path for path in state.all_model_checkpoint_paths if is_checkpoint(path)]
    others = existing or list_complete_checkpoints(folder)
    if not others:
        return None
    _log.warning(
        "The latest checkpoint %s, which the state file names, does not exist. Using %s instead.",
        *(named, others[-1]),
    )
    return others[-1]
