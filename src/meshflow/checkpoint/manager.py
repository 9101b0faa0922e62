"""`tf.train.CheckpointManager`: keeps the latest checkpoints and deletes older ones."""

from __future__ import annotations

import logging
import os
import re
import time
from collections.abc import Callable
from typing import Any

from meshflow.checkpoint.checkpoint import Checkpoint, refuse_traces
from meshflow.checkpoint.containers import clear, is_checkpoint, remove
from meshflow.checkpoint.options import CheckpointOptions
from meshflow.checkpoint.state_file import (
    CheckpointState,
    get_checkpoint_state,
    latest_whole,
    write_state,
)
from meshflow.files import gfile
from meshflow.files.paths import absolute, text

_log = logging.getLogger("meshflow")


class CheckpointManager:
    """Numbers checkpoints, keeps the latest and deletes older ones.

    Args:
      checkpoint: the `Checkpoint` to save.
      directory: the folder; what an earlier run left there counts. Only checkpoints in it that have the
        manager's name and a number are ever deleted.
      max_to_keep: how many to keep; None for all.
      keep_checkpoint_every_n_hours: keeps one for ever each time so many hours have passed.
      checkpoint_name: name of the files, before the number.
      step_counter: variable with the step, needed for `checkpoint_interval`.
      checkpoint_interval: smallest number of steps between two checkpoints.
      init_fn: called by `restore_or_initialize` when there is no checkpoint.
      last_checkpoint_step: step of the last checkpoint of an earlier run.

    Raises:
      ValueError: for a `max_to_keep` that is not positive, or an interval without a step counter.
      DataLossError: when the folder's `checkpoint` file is damaged and no checkpoint is there.

    Example:
      >>> import tempfile
      >>> import meshflow as tf
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
        directory: Any,
        max_to_keep: int | None,
        keep_checkpoint_every_n_hours: float | None = None,
        checkpoint_name: str = "ckpt",
        step_counter: Any = None,
        checkpoint_interval: int | None = None,
        init_fn: Callable[[], Any] | None = None,
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
        self._directory = text(directory)
        self._max_to_keep = max_to_keep
        self._keep_hours = keep_checkpoint_every_n_hours
        self._name = checkpoint_name
        self._step_counter = step_counter
        self._interval = checkpoint_interval
        self._init_fn = init_fn
        self._last_step = last_checkpoint_step
        # Checkpoints that may be deleted, oldest first, with the time of each.
        self._kept: dict[str, float] = {}
        self._begun: list[str] = []
        self._cleared = False
        self._latest: str | None = None
        self._last_preserved = time.time()
        self._recover()

    def _recover(self) -> None:
        """Takes over what an earlier run left."""
        known = get_checkpoint_state(self._directory)
        if known is None:
            return
        now = time.time()
        times = known.all_model_checkpoint_timestamps
        paths = known.all_model_checkpoint_paths
        if len(times) != len(paths):
            times = [now] * len(paths)
        self._last_preserved = known.last_preserved_timestamp or min(times, default=now)
        self._latest = latest_whole(known, self._directory)
        if now < self._last_preserved:
            _log.warning(
                "The clock is %.0f s behind the last checkpoint that %s keeps for ever: all that are there are kept.",
                *(self._last_preserved - now, self._directory),
            )
            self._last_preserved = now
            return
        # Times may be equal; the file's order is that of writing.
        pairs = sorted(zip(times, paths, strict=True), key=lambda pair: pair[0])
        own = {path: t for t, path in pairs if self._is_own(path)}
        self._kept = {path: t for path, t in own.items() if is_checkpoint(path)}
        # An earlier run was killed while it deleted these.
        self._begun = [path for path in own if path not in self._kept]

    def _is_own(self, path: str) -> bool:
        """Whether a path is one that this manager writes: the file that lists them may say anything."""
        folder, name = os.path.split(absolute(path))
        return folder == absolute(self._directory.rstrip("/") or self._directory) and bool(
            re.fullmatch(rf"{re.escape(self._name)}-(-?\d+)", name)
        )

    def _clear(self) -> None:
        """Deletes what processes that were killed left. Only who saves does: others may just be reading."""
        if self._cleared or not gfile.isdir(self._directory):
            return
        self._cleared = True
        for path in self._begun:
            if not is_checkpoint(path):
                remove(path)
        begun = set()
        for name in gfile.listdir(self._directory):
            for mark in (".meshflow.", ".data-", ".index."):
                begun.add(name.partition(mark)[0] if mark in name else "")
            if name.endswith(".part"):
                begun.add(name.rsplit(".", 2)[0])
        for name in sorted(begun):
            path = gfile.join(self._directory, name)
            if name and self._is_own(path):
                clear(path)

    @property
    def directory(self) -> str:
        """The folder."""
        return self._directory

    @property
    def checkpoint(self) -> Checkpoint:
        """The `Checkpoint` that is saved."""
        return self._checkpoint

    @property
    def checkpoint_interval(self) -> int | None:
        """Smallest number of steps between two checkpoints, or None."""
        return self._interval

    @property
    def latest_checkpoint(self) -> str | None:
        """Path of the latest checkpoint, or None."""
        return self._latest

    @property
    def checkpoints(self) -> list[str]:
        """Paths of the checkpoints that are kept, oldest first."""
        return list(self._kept)

    def save(
        self,
        checkpoint_number: Any = None,
        check_interval: bool = True,
        options: CheckpointOptions | None = None,
    ) -> str | None:
        """Saves a checkpoint, then deletes those that are too many.

        Args:
          checkpoint_number: its number, a number or variable; default the `save_counter`'s next.
          check_interval: whether `checkpoint_interval` may suppress it.
          options: see `CheckpointOptions`.

        Returns:
          The path, or None when the last checkpoint is too recent.

        Example:
          >>> import meshflow as tf
          >>> import os, tempfile
          >>> with tempfile.TemporaryDirectory() as folder:
          ...     checkpoint = tf.train.Checkpoint(w=tf.Variable(1.0))
          ...     manager = tf.train.CheckpointManager(checkpoint, folder, max_to_keep=1)
          ...     _ = manager.save(), manager.save()
          ...     [os.path.basename(path) for path in manager.checkpoints]
          ['ckpt-2']
        """
        refuse_traces()
        if self._interval is not None:
            step = int(self._step_counter)
            recent = self._last_step is not None and step - self._last_step < self._interval
            if check_interval and recent:
                return None
            self._last_step = step
        self.sync()
        counter = self._checkpoint.save_counter.assign_add(1)
        number = int(counter if checkpoint_number is None else checkpoint_number)
        prefix = gfile.join(self._directory, f"{self._name}-{number}")
        self._clear()
        return self._checkpoint._write(prefix, options, self._note)

    def _note(self, path: str) -> None:
        """Counts a checkpoint that is whole, and deletes those that are too many."""
        self._kept.pop(path, None)
        self._kept[path] = time.time()
        self._latest, kept = path, len(self._kept)
        # Before files go the new one is named, and those that go: who is killed finds them all again.
        self._write_state()
        doomed = self._too_many()
        for old in doomed:
            remove(old)
        if doomed or len(self._kept) != kept:
            self._write_state()

    def _too_many(self) -> list[str]:
        doomed: list[str] = []
        while self._max_to_keep is not None and len(self._kept) > self._max_to_keep:
            path, written = next(iter(self._kept.items()))
            del self._kept[path]
            if (
                self._keep_hours is not None
                and written - self._keep_hours * 3600 >= self._last_preserved
            ):
                self._last_preserved = written
            else:
                doomed.append(path)
        return doomed

    def _write_state(self) -> None:
        state = CheckpointState(
            self._latest or "", list(self._kept), list(self._kept.values()), self._last_preserved
        )
        write_state(self._directory, state)

    def restore_or_initialize(self) -> str | None:
        """Restores the latest checkpoint, or calls `init_fn` when there is none.

        Returns:
          The path of the checkpoint, or None.
        """
        self.sync()
        if self._latest is not None:
            self._checkpoint.restore(self._latest)
            if self._step_counter is not None:
                self._last_step = int(self._step_counter)
            return self._latest
        if self._init_fn is not None:
            self._init_fn()
        return None

    def sync(self) -> None:
        """Waits until everything is written; errors as for `Checkpoint.sync`."""
        self._checkpoint.sync()
