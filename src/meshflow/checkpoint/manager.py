"""`tf.train.CheckpointManager`: keep the latest checkpoints and delete older ones."""

from __future__ import annotations

import logging
import os
import re
import time
from collections.abc import Callable
from typing import SupportsInt

from meshflow.checkpoint.checkpoint import Checkpoint, check_not_traced
from meshflow.checkpoint.formats import delete_checkpoint, is_checkpoint, remove_leftovers
from meshflow.checkpoint.options import CheckpointOptions
from meshflow.checkpoint.state_file import (
    CheckpointState,
    find_latest_checkpoint,
    get_checkpoint_state,
    write_state,
)
from meshflow.core.runtime.eager import use_session
from meshflow.core.runtime.tracebacks import hide_frames_of_methods
from meshflow.core.variables.variable import Variable
from meshflow.environment.types import StrPath
from meshflow.files import gfile
from meshflow.files.paths import make_absolute, to_path_string

_log = logging.getLogger("meshflow")


@hide_frames_of_methods
class CheckpointManager:
    """Manager that numbers checkpoints, keeps the latest and deletes older ones.

    Args:
      checkpoint: `Checkpoint` to save.
      directory: Folder of the checkpoints. Checkpoints of earlier runs in it are included. Only
        checkpoints with the manager's
        name and a number are ever deleted.
      max_to_keep: Number of checkpoints to keep; None for all.
      keep_checkpoint_every_n_hours: Interval at which a checkpoint is preserved forever.
      checkpoint_name: Name of the files, before the number.
      step_counter: Variable with the current step, required for `checkpoint_interval`.
      checkpoint_interval: Minimum number of steps between two checkpoints.
      init_fn: Function that `restore_or_initialize` calls if there is no checkpoint.
      last_checkpoint_step: Step of the last checkpoint of an earlier run.

    Raises:
      ValueError: If `max_to_keep` is not positive, or if there is an interval without a step
        counter.
      DataLossError: If the folder's `checkpoint` file is damaged and the folder has no checkpoint.

    Example:
      >>> import tempfile
      >>> from meshflow import train
      >>> checkpoint = train.Checkpoint(v=tf.Variable(1.0))
      >>> manager = train.CheckpointManager(checkpoint, tempfile.mkdtemp(), max_to_keep=2)
      >>> paths = [manager.save() for _ in range(3)]
      >>> manager.checkpoints == paths[1:]
      True
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        directory: StrPath,
        max_to_keep: int | None,
        keep_checkpoint_every_n_hours: float | None = None,
        checkpoint_name: str = "ckpt",
        step_counter: Variable | SupportsInt | None = None,
        checkpoint_interval: int | None = None,
        init_fn: Callable[[], object] | None = None,
        last_checkpoint_step: int | None = None,
    ) -> None:
        if max_to_keep is not None and max_to_keep <= 0:
            raise ValueError(
                f"Expected a positive integer or `None` for `max_to_keep`, got {max_to_keep}."
            )
        if checkpoint_interval is not None and step_counter is None:
            raise ValueError(
                "`step_counter` should be passed if `checkpoint_interval` is not None."
            )
        self._checkpoint = checkpoint
        self._directory = to_path_string(directory)
        self._max_to_keep = max_to_keep
        self._keep_hours = keep_checkpoint_every_n_hours
        self._name = checkpoint_name
        self._step_counter = step_counter
        self._interval = checkpoint_interval
        self._init_fn = init_fn
        self._last_step = last_checkpoint_step
        # Time of each checkpoint that may be deleted, oldest first.
        self._timestamps: dict[str, float] = {}
        self._partly_deleted: list[str] = []
        self._removed_leftovers = False
        self._latest: str | None = None
        self._last_preserved = time.time()
        self._load_state()

    def _load_state(self) -> None:
        """Load the state of an earlier run from the folder."""
        state = get_checkpoint_state(self._directory)
        if state is None:
            return
        now = time.time()
        times = state.all_model_checkpoint_timestamps
        paths = state.all_model_checkpoint_paths
        if len(times) != len(paths):
            times = [now] * len(paths)
        self._last_preserved = state.last_preserved_timestamp or min(times, default=now)
        self._latest = find_latest_checkpoint(state, self._directory)
        if now < self._last_preserved:
            _log.warning(
                "time.time() returned a value %.0f seconds behind the last preserved checkpoint timestamp of %s. "
                "All existing checkpoints are kept.",
                *(self._last_preserved - now, self._directory),
            )
            self._last_preserved = now
            return
        # Times may be equal; the order in the file is the order of writing.
        pairs = sorted(zip(times, paths, strict=True), key=lambda pair: pair[0])
        timestamps = {path: t for t, path in pairs if self._is_managed(path)}
        self._timestamps = {path: t for path, t in timestamps.items() if is_checkpoint(path)}
        # An earlier run was killed while it deleted these checkpoints.
        self._partly_deleted = [path for path in timestamps if path not in self._timestamps]

    def _is_managed(self, path: str) -> bool:
        """Check whether a path has the form of this manager's checkpoints.

        The state file may list any path.
        """
        folder, name = os.path.split(make_absolute(path))
        return folder == make_absolute(self._directory.rstrip("/") or self._directory) and bool(
            re.fullmatch(rf"{re.escape(self._name)}-(-?\d+)", name)
        )

    def _remove_leftovers(self) -> None:
        """Delete the files that killed processes left.

        Called only before saving, because other processes may just read the folder.
        """
        if self._removed_leftovers or not gfile.isdir(self._directory):
            return
        self._removed_leftovers = True
        for path in self._partly_deleted:
            if not is_checkpoint(path):
                delete_checkpoint(path)
        names = set()
        for name in gfile.listdir(self._directory):
            for separator in (".meshflow.", ".data-", ".index."):
                names.add(name.partition(separator)[0] if separator in name else "")
            if name.endswith(".part"):
                names.add(name.rsplit(".", 2)[0])
        for name in sorted(names):
            path = gfile.join(self._directory, name)
            if name and self._is_managed(path):
                remove_leftovers(path)

    @property
    def directory(self) -> str:
        """Return the folder of the checkpoints."""
        return self._directory

    @property
    def _checkpoint_prefix(self) -> str:
        """Return the path of checkpoints without their number; subclasses of TensorFlow's class read this name."""
        return gfile.join(self._directory, self._name)

    @property
    def checkpoint(self) -> Checkpoint:
        """Return the `Checkpoint` that is saved."""
        return self._checkpoint

    @property
    def checkpoint_interval(self) -> int | None:
        """Return the minimum number of steps between two checkpoints, or None."""
        return self._interval

    @property
    def latest_checkpoint(self) -> str | None:
        """Return the path of the latest checkpoint, or None."""
        return self._latest

    @property
    def checkpoints(self) -> list[str]:
        """Return the paths of the kept checkpoints, oldest first."""
        return list(self._timestamps)

    def save(
        self,
        checkpoint_number: Variable | SupportsInt | None = None,
        check_interval: bool = True,
        options: CheckpointOptions | None = None,
    ) -> str | None:
        """Save a checkpoint, then delete the checkpoints that exceed `max_to_keep`.

        Args:
          checkpoint_number: Number of the checkpoint, an integer or a variable. Default: the next
            value of `save_counter`.
          check_interval: Whether to skip saving within `checkpoint_interval`.
          options: See `CheckpointOptions`.

        Returns:
          The path, or None if the last checkpoint is too recent.

        Example:
          >>> import os, tempfile
          >>> with tempfile.TemporaryDirectory() as folder:
          ...     checkpoint = tf.train.Checkpoint(w=tf.Variable(1.0))
          ...     manager = tf.train.CheckpointManager(checkpoint, folder, max_to_keep=1)
          ...     _ = manager.save(), manager.save()
          ...     [os.path.basename(path) for path in manager.checkpoints]
          ['ckpt-2']
        """
        check_not_traced()
        if self._interval is not None:
            assert self._step_counter is not None
            with use_session():
                step = int(self._step_counter)
            if self._last_step is not None:
                is_recent = step < self._last_step + self._interval
                if step == self._last_step or (check_interval and is_recent):
                    return None
            self._last_step = step
        self.sync()
        counter = self._checkpoint.save_counter
        with use_session():
            next_number = counter.assign_add(1)
            number = int(next_number if checkpoint_number is None else checkpoint_number)
            prefix = f"{self._checkpoint_prefix}-{number}"
            self._remove_leftovers()
            return self._checkpoint._write_and_record(prefix, options, self._record_checkpoint)

    def _record_checkpoint(self, path: str) -> None:
        """Record a complete checkpoint and delete the checkpoints that exceed `max_to_keep`."""
        self._timestamps.pop(path, None)
        self._timestamps[path] = time.time()
        self._latest, num_before = path, len(self._timestamps)
        # The state file lists the new checkpoint and those to be deleted before the deletion
        # starts, so that a run after a kill finds all of them.
        self._write_state()
        doomed = self._drop_excess()
        for old in doomed:
            delete_checkpoint(old)
        if doomed or len(self._timestamps) != num_before:
            self._write_state()

    def _drop_excess(self) -> list[str]:
        """Remove the oldest checkpoints from the state; return the paths of the files to delete."""
        doomed: list[str] = []
        while self._max_to_keep is not None and len(self._timestamps) > self._max_to_keep:
            path, timestamp = next(iter(self._timestamps.items()))
            del self._timestamps[path]
            if (
                self._keep_hours is not None
                and timestamp - self._keep_hours * 3600 >= self._last_preserved
            ):
                self._last_preserved = timestamp
            else:
                doomed.append(path)
        return doomed

    def _write_state(self) -> None:
        state = CheckpointState(
            self._latest or "",
            list(self._timestamps),
            list(self._timestamps.values()),
            self._last_preserved,
        )
        write_state(self._directory, state)

    def restore_or_initialize(self) -> str | None:
        """Restore the latest checkpoint, or call `init_fn` if there is none.

        Returns:
          The path of the checkpoint, or None.
        """
        self.sync()
        if self._latest is not None:
            self._checkpoint.restore(self._latest)
            if self._step_counter is not None:
                with use_session():
                    self._last_step = int(self._step_counter)
            return self._latest
        if self._init_fn is not None:
            self._init_fn()
        return None

    def sync(self) -> None:
        """Wait until a checkpoint that is written in the background is complete.

        Raises the same errors as `Checkpoint.sync`.
        """
        self._checkpoint.sync()
