"""The text file `checkpoint` in a folder, which names the latest checkpoints; TensorFlow's format."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from meshflow.checkpoint.storage import is_checkpoint

_LINE = re.compile(r'^\s*(\w+)\s*:\s*(?:"((?:[^"\\]|\\.)*)"|(\S+))\s*$')


@dataclass
class CheckpointState:
    """What the file says.

    Attributes:
      model_checkpoint_path: path of the latest checkpoint.
      all_model_checkpoint_paths: paths of all that are kept, oldest first.
      all_model_checkpoint_timestamps: when each was written, in seconds since 1970.
      last_preserved_timestamp: when the last one that is kept for ever was written.
    """

    model_checkpoint_path: str = ""
    all_model_checkpoint_paths: list[str] = field(default_factory=list)
    all_model_checkpoint_timestamps: list[float] = field(default_factory=list)
    last_preserved_timestamp: float | None = None


def write_state(folder: Any, state: CheckpointState, name: str = "checkpoint") -> None:
    """Writes the file, completely or not at all.

    Args:
      folder: where.
      state: what it says; paths below the folder are written relative to it.
      name: the file's name.
    """

    def quoted(path: str) -> str:
        if os.path.dirname(os.path.abspath(path)) == os.path.abspath(folder):
            path = os.path.basename(path)
        return '"' + path.replace("\\", "\\\\").replace('"', '\\"') + '"'

    lines = [f"model_checkpoint_path: {quoted(state.model_checkpoint_path)}"]
    lines += [f"all_model_checkpoint_paths: {quoted(p)}" for p in state.all_model_checkpoint_paths]
    lines += [
        f"all_model_checkpoint_timestamps: {t}" for t in state.all_model_checkpoint_timestamps
    ]
    if state.last_preserved_timestamp is not None:
        lines.append(f"last_preserved_timestamp: {state.last_preserved_timestamp}")
    target = Path(folder) / name
    # Several processes of a job may write the same at once.
    part = target.with_name(f"{name}.{os.getpid()}.part")
    with open(part, "w") as file:
        file.write("\n".join(lines) + "\n")
        file.flush()
        os.fsync(file.fileno())
    os.replace(part, target)


def get_checkpoint_state(
    checkpoint_dir: Any, latest_filename: str | None = None
) -> CheckpointState | None:
    """What the `checkpoint` file of a folder says.

    Args:
      checkpoint_dir: the folder.
      latest_filename: the file's name; default "checkpoint".

    Returns:
      A `CheckpointState` with absolute paths (if `checkpoint_dir` is), or None without a file.

    Example:
      >>> import meshflow as tf
      >>> import os, tempfile
      >>> with tempfile.TemporaryDirectory() as folder:
      ...     _ = tf.train.Checkpoint(w=tf.Variable(1.0)).save(os.path.join(folder, "ckpt"))
      ...     os.path.basename(tf.train.get_checkpoint_state(folder).model_checkpoint_path)
      'ckpt-1'
    """
    folder = os.fspath(checkpoint_dir)
    try:
        text = (Path(folder) / (latest_filename or "checkpoint")).read_text()
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        return None
    state = CheckpointState()
    for line in text.splitlines():
        match = _LINE.match(line)
        if match is None:
            continue
        key, quoted, plain = match.groups()
        if quoted is not None:
            path = os.path.join(folder, re.sub(r"\\(.)", r"\1", quoted))
            if key == "model_checkpoint_path":
                state.model_checkpoint_path = path
            elif key == "all_model_checkpoint_paths":
                state.all_model_checkpoint_paths.append(path)
        elif key == "all_model_checkpoint_timestamps":
            state.all_model_checkpoint_timestamps.append(float(plain))
        elif key == "last_preserved_timestamp":
            state.last_preserved_timestamp = float(plain)
    return state


def latest_checkpoint(checkpoint_dir: Any, latest_filename: str | None = None) -> str | None:
    """Path of the latest checkpoint in a folder.

    Args:
      checkpoint_dir: the folder given to `CheckpointManager`, or that of the prefix given to `save`.
      latest_filename: name of the file that is looked up; default "checkpoint".

    Returns:
      The path, or None when there is none.

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
    if state is None or not state.model_checkpoint_path:
        return None
    path = state.model_checkpoint_path
    return path if is_checkpoint(path) else None
