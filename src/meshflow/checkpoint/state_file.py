"""The text file `checkpoint` in a folder, which names the latest checkpoints; TensorFlow's format."""

from __future__ import annotations

import logging
import os
import re
from dataclasses import dataclass, field
from typing import Any

from meshflow.checkpoint.bundle import index_file
from meshflow.checkpoint.containers import is_checkpoint, open_checkpoint, stored_objects
from meshflow.core.runtime.errors import DataLossError, NotFoundError, UnimplementedError
from meshflow.files import gfile
from meshflow.files.paths import absolute, is_remote, text
from meshflow.files.replacing import replacing

_LINE = re.compile(r'^\s*(\w+)\s*:\s*(?:"((?:[^"\\]|\\.)*)"|(\S+))\s*$')
_NUMBER = re.compile(r"(.*)-(\d+)")

_log = logging.getLogger("meshflow")


@dataclass
class CheckpointState:
    """What the file says.

    Attributes:
      model_checkpoint_path: path of the latest checkpoint.
      all_model_checkpoint_paths: paths of all that are kept, oldest first.
      all_model_checkpoint_timestamps: when each was written, in seconds since 1970.
      last_preserved_timestamp: when the last one that is kept for ever was written; 0 without one.
    """

    model_checkpoint_path: str = ""
    all_model_checkpoint_paths: list[str] = field(default_factory=list)
    all_model_checkpoint_timestamps: list[float] = field(default_factory=list)
    last_preserved_timestamp: float = 0.0


def write_state(folder: Any, state: CheckpointState, name: str = "checkpoint") -> None:
    """Writes the file, completely or not at all.

    Args:
      folder: where.
      state: what it says; paths below the folder are written relative to it.
      name: the file's name.
    """
    above = absolute(text(folder).rstrip("/") or "/")

    def quoted(path: str) -> str:
        if os.path.dirname(absolute(path)) == above:
            path = os.path.basename(path)
        escaped = path.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
        return f'"{escaped}"'

    lines = [f"model_checkpoint_path: {quoted(state.model_checkpoint_path)}"]
    lines += [f"all_model_checkpoint_paths: {quoted(p)}" for p in state.all_model_checkpoint_paths]
    lines += [
        f"all_model_checkpoint_timestamps: {t}" for t in state.all_model_checkpoint_timestamps
    ]
    if state.last_preserved_timestamp:
        lines.append(f"last_preserved_timestamp: {state.last_preserved_timestamp}")
    with replacing(gfile.join(folder, name), "w") as file:
        file.write("\n".join(lines) + "\n")


def get_checkpoint_state(
    checkpoint_dir: Any, latest_filename: str | None = None
) -> CheckpointState | None:
    """What the `checkpoint` file of a folder says.

    Args:
      checkpoint_dir: the folder.
      latest_filename: the file's name; default "checkpoint".

    Returns:
      A `CheckpointState` with absolute paths (if `checkpoint_dir` is), or None without a file. Where the file is
      damaged, the checkpoints are those that are found in the folder, and a warning says so.

    Raises:
      DataLossError: when the file is damaged and no checkpoint is in the folder.

    Example:
      >>> import meshflow as tf
      >>> import os, tempfile
      >>> with tempfile.TemporaryDirectory() as folder:
      ...     _ = tf.train.Checkpoint(w=tf.Variable(1.0)).save(os.path.join(folder, "ckpt"))
      ...     os.path.basename(tf.train.get_checkpoint_state(folder).model_checkpoint_path)
      'ckpt-1'
    """
    folder = text(checkpoint_dir)
    path = gfile.join(folder, latest_filename or "checkpoint")
    if not gfile.exists(path) or gfile.isdir(path):
        return None
    with gfile.GFile(path, "rb") as file:
        content = file.read()
    try:
        return _parsed(content, folder)
    except ValueError as error:
        found = found_checkpoints(folder)
        if not found:
            raise DataLossError(
                f"{path} is damaged ({error}), and no checkpoint lies in its folder."
            ) from None
        _log.warning(
            "%s is damaged (%s): the checkpoints found in its folder are taken, the latest of them %s.",
            *(path, error, found[-1]),
        )
        return CheckpointState(found[-1], found)


def _parsed(content: bytes, folder: str) -> CheckpointState:
    """Raises ValueError for what `write_state`, or TensorFlow, would not write."""
    state = CheckpointState()
    for line in content.decode().splitlines():
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        match = _LINE.match(line)
        if match is None:
            raise ValueError(f"the line {line[:80]!r} is none of its lines")
        key, quoted, plain = match.groups()
        if quoted is not None:
            path = _unescaped(quoted)
            path = path if is_remote(path) else gfile.join(folder, path)
            if key == "model_checkpoint_path":
                state.model_checkpoint_path = path if quoted else ""
            elif key == "all_model_checkpoint_paths":
                state.all_model_checkpoint_paths.append(path)
        elif key == "all_model_checkpoint_timestamps":
            state.all_model_checkpoint_timestamps.append(float(plain))
        elif key == "last_preserved_timestamp":
            state.last_preserved_timestamp = float(plain)
    if not state.model_checkpoint_path:
        raise ValueError("it names no latest checkpoint")
    return state


def _unescaped(quoted: str) -> str:
    return re.sub(r"\\(.)", lambda found: {"n": "\n"}.get(found[1], found[1]), quoted)


def found_checkpoints(folder: str) -> list[str]:
    """Paths of the whole checkpoints in a folder, the latest last.

    Numbers count within a prefix; of several prefixes the one that was written to last comes last.

    Args:
      folder: its path.
    """
    found: list[tuple[str, int, int, str]] = []
    names = gfile.listdir(folder) if gfile.isdir(folder) else []
    for name in sorted({n.rstrip("/").removesuffix(".index") for n in names}):
        path, numbered = gfile.join(folder, name), _NUMBER.fullmatch(name)
        if not numbered or not is_checkpoint(path):
            continue
        try:
            stored_objects(open_checkpoint(path))
        except (DataLossError, NotFoundError, UnimplementedError, ValueError):
            continue
        index = index_file(path)
        when = gfile.stat(index if gfile.exists(index) else path).mtime_nsec
        found.append((numbered[1], when, int(numbered[2]), path))
    written: dict[str, int] = {}
    for prefix, when, _, _ in found:
        written[prefix] = max(when, written.get(prefix, 0))
    found.sort(key=lambda item: (written[item[0]], item[0], item[2]))
    return [item[3] for item in found]


def latest_checkpoint(checkpoint_dir: Any, latest_filename: str | None = None) -> str | None:
    """Path of the latest checkpoint in a folder.

    Args:
      checkpoint_dir: the folder given to `CheckpointManager`, or that of the prefix given to `save`.
      latest_filename: name of the file that is looked up; default "checkpoint".

    Returns:
      The path, or None when there is none. Where the file is damaged, or what it names is not there, the
      latest whole checkpoint of the folder, and a warning says so.

    Raises:
      DataLossError: when the file is damaged and no checkpoint is in the folder.

    Example:
      >>> import tempfile
      >>> import meshflow as tf
      >>> from meshflow import train
      >>> folder = tempfile.mkdtemp()
      >>> path = train.Checkpoint(v=tf.Variable(1.0)).save(folder + "/ckpt")
      >>> train.latest_checkpoint(folder) == path == folder + "/ckpt-1"
      True
    """
    state = get_checkpoint_state(checkpoint_dir, latest_filename)
    return None if state is None else latest_whole(state, text(checkpoint_dir))


def latest_whole(state: CheckpointState, folder: str) -> str | None:
    """The latest checkpoint that a state names and that is there, else the latest in the folder.

    Args:
      state: what the file says.
      folder: the folder of the file.

    Returns:
      Its path; None when none is there.
    """
    named = state.model_checkpoint_path
    if is_checkpoint(named):
        return named
    listed = [path for path in state.all_model_checkpoint_paths if is_checkpoint(path)]
    others = listed or found_checkpoints(folder)
    if not others:
        return None
    _log.warning(
        "No checkpoint is at %s, which is said to be the latest: %s is.", named, others[-1]
    )
    return others[-1]
