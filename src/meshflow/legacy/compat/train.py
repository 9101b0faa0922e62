"""`tf.compat.v1.train`: `tf.train` with what version 1 has for checkpoints, and its step counter."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from meshflow.checkpoint.assigning import put
from meshflow.checkpoint.checkpoint import open_latest
from meshflow.checkpoint.containers import is_checkpoint, open_checkpoint, remove
from meshflow.checkpoint.reader import CheckpointReader
from meshflow.checkpoint.state_file import CheckpointState, write_state
from meshflow.core.runtime.errors import NotAvailableError
from meshflow.core.tracing.trace import init_scope
from meshflow.core.variables.variable import Variable
from meshflow.files import gfile
from meshflow.files.paths import text
from meshflow.legacy.compat.saver import Saver, key_of
from meshflow.legacy.compat.surface import tf as _tf

__all__ = [
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

_own = _tf.train
_steps: list[Variable] = []


def NewCheckpointReader(filepattern: Any) -> CheckpointReader:
    """Opens a checkpoint; see `tf.train.load_checkpoint`.

    Args:
      filepattern: its path, not that of a folder.

    Raises:
      NotFoundError: when there is none.
    """
    return CheckpointReader(open_checkpoint(filepattern))


def checkpoint_exists(checkpoint_prefix: Any) -> bool:
    """Whether a checkpoint lies at a path.

    Args:
      checkpoint_prefix: the path.
    """
    return is_checkpoint(text(checkpoint_prefix))


def get_checkpoint_mtimes(checkpoint_prefixes: Sequence[Any]) -> list[float]:
    """When checkpoints were written, in seconds since 1970.

    Args:
      checkpoint_prefixes: their paths; those that are not there are left out.
    """
    there = [path for path in map(text, checkpoint_prefixes) if is_checkpoint(path)]
    return [gfile.stat(f"{path}.index").mtime_nsec / 1e9 for path in there]


def remove_checkpoint(
    checkpoint_prefix: Any, checkpoint_format_version: Any = 2, meta_graph_suffix: str = "meta"
) -> None:
    """Deletes a checkpoint.

    Args:
      checkpoint_prefix: its path.
      checkpoint_format_version: ignored.
      meta_graph_suffix: ignored.
    """
    remove(text(checkpoint_prefix))


def generate_checkpoint_state_proto(
    save_dir: Any,
    model_checkpoint_path: Any,
    all_model_checkpoint_paths: Sequence[Any] | None = None,
    all_model_checkpoint_timestamps: Sequence[float] | None = None,
    last_preserved_timestamp: float | None = None,
) -> CheckpointState:
    """What a `checkpoint` file is to say.

    Args:
      save_dir: the folder.
      model_checkpoint_path: path of the latest checkpoint.
      all_model_checkpoint_paths: paths of all that are kept, oldest first; the latest one is added.
      all_model_checkpoint_timestamps: when each was written.
      last_preserved_timestamp: when the last one that is kept for ever was written.

    Raises:
      ValueError: for times that are not as many as paths.
    """
    latest = text(model_checkpoint_path)
    paths = [text(path) for path in all_model_checkpoint_paths or []]
    if not paths or paths[-1] != latest:
        paths.append(latest)
    times = list(all_model_checkpoint_timestamps or [])
    if times and len(times) != len(paths):
        raise ValueError(
            f"Checkpoint timestamps, if provided, must match checkpoint paths: got {paths} and {times}."
        )
    return CheckpointState(latest, paths, times, last_preserved_timestamp or 0.0)


def update_checkpoint_state(
    save_dir: Any,
    model_checkpoint_path: Any,
    all_model_checkpoint_paths: Sequence[Any] | None = None,
    latest_filename: str | None = None,
    all_model_checkpoint_timestamps: Sequence[float] | None = None,
    last_preserved_timestamp: float | None = None,
) -> None:
    """Writes the `checkpoint` file of a folder.

    Args:
      save_dir: the folder.
      model_checkpoint_path: as in `generate_checkpoint_state_proto`, like those below.
      all_model_checkpoint_paths: see there.
      latest_filename: the file's name; default "checkpoint".
      all_model_checkpoint_timestamps: see there.
      last_preserved_timestamp: see there.
    """
    state = generate_checkpoint_state_proto(
        save_dir,
        model_checkpoint_path,
        all_model_checkpoint_paths,
        all_model_checkpoint_timestamps,
        last_preserved_timestamp,
    )
    write_state(save_dir, state, latest_filename or "checkpoint")


def init_from_checkpoint(ckpt_dir_or_file: Any, assignment_map: Mapping[str, Any]) -> None:
    """Gives variables the values of a checkpoint, at once.

    Args:
      ckpt_dir_or_file: path of a checkpoint, or the folder of its `checkpoint` file.
      assignment_map: variables by their names in the checkpoint.

    Raises:
      ValueError: for a name of a variable, or a scope of names, in a variable's place: there are no graphs to find it in;
        for a value that does not fit.
      NotFoundError: when there is no such value.
    """
    folder = open_latest(ckpt_dir_or_file)
    for name, variable in dict(assignment_map).items():
        if not hasattr(variable, "assign"):
            raise ValueError(
                f"init_from_checkpoint: expected a variable for {name!r}, got {variable!r}; there are no graphs to "
                "find variables in by their names."
            )
        put(folder, key_of(folder, name), variable)


def create_global_step(graph: Any = None) -> Variable:
    """Makes the step counter of this process, an int64 variable.

    Args:
      graph: ignored.

    Raises:
      ValueError: when there is one.
    """
    if _steps:
        raise ValueError('"global_step" already exists.')
    return get_or_create_global_step()


def get_global_step(graph: Any = None) -> Variable | None:
    """The step counter of this process, or None.

    Args:
      graph: ignored.
    """
    return _steps[0] if _steps else None


def get_or_create_global_step(graph: Any = None) -> Variable:
    """The step counter of this process, an int64 variable that is made when it is asked for first.

    Args:
      graph: ignored.
    """
    if not _steps:
        with init_scope():
            _steps.append(Variable(np.int64(0), trainable=False, name="global_step"))
    return _steps[0]


def global_step(sess: Any, global_step_tensor: Any) -> int:
    """The value of a step counter.

    Args:
      sess: None.
      global_step_tensor: the variable.
    """
    return int(global_step_tensor)


_GRAPH_MODE = (
    *("MonitoredSession", "MonitoredTrainingSession", "SessionRunHook", "CheckpointSaverHook"),
    *("Scaffold", "Supervisor", "SessionManager", "QueueRunner", "start_queue_runners"),
    *("export_meta_graph", "import_meta_graph", "write_graph", "warm_start"),
)


def __getattr__(name: str) -> Any:
    if name in _GRAPH_MODE:
        raise NotAvailableError(
            f"tf.compat.v1.train.{name} belongs to version 1's graph mode, which does not exist here: write for "
            "version 2 (tf.train.Checkpoint, Keras and its callbacks)."
        )
    return getattr(_own, name)


def __dir__() -> list[str]:
    return sorted({*__all__, *dir(_own)})
