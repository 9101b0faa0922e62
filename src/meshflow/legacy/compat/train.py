"""`tf.compat.v1.train`: `tf.train`, with TensorFlow 1's checkpoint functions and global step."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from meshflow.checkpoint.checkpoint import Checkpoint as _Checkpoint
from meshflow.checkpoint.formats import delete_checkpoint, is_checkpoint, open_checkpoint
from meshflow.checkpoint.options import CheckpointOptions
from meshflow.checkpoint.reader import CheckpointReader
from meshflow.checkpoint.state_file import CheckpointState, write_state
from meshflow.core.runtime.name_scopes import name_scope
from meshflow.core.tracing.trace import init_scope
from meshflow.core.variables.variable import Variable
from meshflow.environment.types import StrPath
from meshflow.files import gfile
from meshflow.files.paths import is_remote, to_path_string
from meshflow.legacy.compat.checkpoint_initializers import init_from_checkpoint
from meshflow.legacy.compat.saver import Saver
from meshflow.legacy.graph.graph import Graph, get_default_graph, has_explicit_graph
from meshflow.legacy.graph.sessions import Session
from meshflow.legacy.graph.variables import GraphVariable

__all__ = [
    "Checkpoint",
    "NewCheckpointReader",
    "Saver",
    "checkpoint_exists",
    "create_global_step",
    "generate_checkpoint_state_proto",
    "get_checkpoint_mtimes",
    "get_global_step",
    "get_or_create_global_step",
    "global_step",
    "init_from_checkpoint",
    "remove_checkpoint",
    "update_checkpoint_state",
]

_global_steps: list[Variable] = []


class Checkpoint(_Checkpoint):
    """`tf.train.Checkpoint`, whose methods accept the session with the values of a graph's variables.

    Args:
      **kwargs: Objects to save, which become attributes of the checkpoint.
    """

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)

    def write(  # type: ignore[override]
        self,
        file_prefix: StrPath,
        session: Session | None = None,
        options: CheckpointOptions | None = None,
    ) -> str:
        """Save without a number and without updating the `checkpoint` file; see `tf.train.Checkpoint.write`.

        Args:
          file_prefix: Path of the checkpoint.
          session: The session of a graph. Default: the default one.
          options: See `CheckpointOptions`.
        """
        with contextlib.nullcontext() if session is None else session.as_default():
            return super().write(file_prefix, options)

    def save(  # type: ignore[override]
        self,
        file_prefix: StrPath,
        session: Session | None = None,
        options: CheckpointOptions | None = None,
    ) -> str:
        """Save under the next number; see `tf.train.Checkpoint.save`.

        Args:
          file_prefix: Path of the checkpoint without the number.
          session: The session of a graph. Default: the default one.
          options: See `CheckpointOptions`.
        """
        with contextlib.nullcontext() if session is None else session.as_default():
            return super().save(file_prefix, options)


def NewCheckpointReader(filepattern: StrPath) -> CheckpointReader:
    """Open a checkpoint; see `tf.train.load_checkpoint`.

    Args:
      filepattern: Path of the checkpoint, not of a directory.

    Raises:
      NotFoundError: If the checkpoint does not exist.
    """
    return CheckpointReader(open_checkpoint(filepattern))


def checkpoint_exists(checkpoint_prefix: StrPath) -> bool:
    """Check whether a checkpoint exists.

    Args:
      checkpoint_prefix: Path of the checkpoint.
    """
    return is_checkpoint(to_path_string(checkpoint_prefix))


def get_checkpoint_mtimes(checkpoint_prefixes: Sequence[StrPath]) -> list[float]:
    """Return the modification times of checkpoints, in seconds since 1970.

    Args:
      checkpoint_prefixes: Paths; missing checkpoints are skipped.
    """
    existing = [path for path in map(to_path_string, checkpoint_prefixes) if is_checkpoint(path)]
    return [gfile.stat(f"{path}.index").mtime_nsec / 1e9 for path in existing]


def remove_checkpoint(
    checkpoint_prefix: StrPath,
    checkpoint_format_version: object = 2,
    meta_graph_suffix: str = "meta",
) -> None:
    """Delete a checkpoint.

    Args:
      checkpoint_prefix: Path of the checkpoint.
      checkpoint_format_version: Ignored.
      meta_graph_suffix: Ignored.
    """
    delete_checkpoint(to_path_string(checkpoint_prefix))


def generate_checkpoint_state_proto(
    save_dir: StrPath,
    model_checkpoint_path: StrPath,
    all_model_checkpoint_paths: Sequence[StrPath] | None = None,
    all_model_checkpoint_timestamps: Sequence[float] | None = None,
    last_preserved_timestamp: float | None = None,
) -> CheckpointState:
    """Build the contents of a `checkpoint` file.

    Args:
      save_dir: Folder of the file. If it is relative, relative paths are rewritten to start from it.
      model_checkpoint_path: Path of the latest checkpoint.
      all_model_checkpoint_paths: Paths of all checkpoints that are kept, oldest first; the latest
        one is added.
      all_model_checkpoint_timestamps: Time of each checkpoint, in seconds since 1970.
      last_preserved_timestamp: Time of the last checkpoint that is kept permanently.

    Raises:
      ValueError: If the numbers of times and paths differ.
    """
    latest = to_path_string(model_checkpoint_path)
    paths = [to_path_string(path) for path in all_model_checkpoint_paths or []]
    if not paths or paths[-1] != latest:
        paths.append(latest)
    folder = to_path_string(save_dir)
    if not os.path.isabs(folder) and not is_remote(folder):
        paths = [
            p if os.path.isabs(p) or is_remote(p) else os.path.relpath(p, folder) for p in paths
        ]
        latest = paths[-1]
    times = list(all_model_checkpoint_timestamps or [])
    if times and len(times) != len(paths):
        raise ValueError(
            f"Checkpoint timestamps, if provided, must match checkpoint paths: got {paths} and {times}."
        )
    return CheckpointState(latest, paths, times, last_preserved_timestamp or 0.0)


def update_checkpoint_state(
    save_dir: StrPath,
    model_checkpoint_path: StrPath,
    all_model_checkpoint_paths: Sequence[StrPath] | None = None,
    latest_filename: str | None = None,
    all_model_checkpoint_timestamps: Sequence[float] | None = None,
    last_preserved_timestamp: float | None = None,
) -> None:
    """Write the `checkpoint` file of a directory.

    Args:
      save_dir: The directory.
      model_checkpoint_path: Path of the latest checkpoint.
      all_model_checkpoint_paths: As in `generate_checkpoint_state_proto`.
      latest_filename: Name of the file; default "checkpoint".
      all_model_checkpoint_timestamps: As in `generate_checkpoint_state_proto`.
      last_preserved_timestamp: As in `generate_checkpoint_state_proto`.
    """
    state = generate_checkpoint_state_proto(
        save_dir,
        model_checkpoint_path,
        all_model_checkpoint_paths,
        all_model_checkpoint_timestamps,
        last_preserved_timestamp,
    )
    write_state(save_dir, state, latest_filename or "checkpoint")


def create_global_step(graph: Graph | None = None) -> Variable:
    """Create the global step of the default graph or, in eager execution, of this process: an int64 variable.

    Args:
      graph: A graph.

    Raises:
      ValueError: If it already exists.
    """
    if get_global_step(graph) is not None:
        raise ValueError('"global_step" already exists.')
    return get_or_create_global_step(graph)


def get_global_step(graph: Graph | None = None) -> Variable | None:
    """Return the global step of the default graph or, in eager execution, of this process; or None.

    Args:
      graph: A graph.
    """
    if graph is None and not has_explicit_graph():
        return _global_steps[0] if _global_steps else None
    found = (graph or get_default_graph()).get_collection("global_step")
    if not found:
        return None
    step: Variable = found[0]
    return step


def get_or_create_global_step(graph: Graph | None = None) -> Variable:
    """Return the global step of the default graph or of this process; create it if necessary.

    Args:
      graph: A graph.
    """
    step = get_global_step(graph)
    if step is not None:
        return step
    if graph is None and not has_explicit_graph():
        with init_scope():
            _global_steps.append(Variable(np.int64(0), trainable=False, name="global_step"))
        return _global_steps[0]
    owner = graph or get_default_graph()
    with owner.as_default(), name_scope(""):
        created = Variable(np.int64(0), trainable=False, name="global_step")
        owner.add_to_collection("global_step", created)
    return created


def global_step(sess: Any, global_step_tensor: Variable) -> int:
    """Return the value of a global step.

    Args:
      sess: The session of a graph, or None.
      global_step_tensor: The variable.
    """
    if isinstance(global_step_tensor, GraphVariable):
        return int(sess.run(global_step_tensor))
    return int(global_step_tensor)
