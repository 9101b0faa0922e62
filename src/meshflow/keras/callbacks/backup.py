"""`BackupAndRestore`: fault-tolerant training that continues after a restart of the process."""

from __future__ import annotations

import json
import signal
import sys
import threading
from typing import Any, Literal

import jax

from meshflow.checkpoint import Checkpoint, PythonState
from meshflow.checkpoint.formats import delete_checkpoint, is_checkpoint
from meshflow.core.runtime.errors import FailedPreconditionError
from meshflow.distribute.multi_worker.checkpointing import (
    PREEMPTED_EXIT_CODE,
    is_true_on_any_worker,
    write_once,
)
from meshflow.distribute.multi_worker.host_collectives import all_gather_values
from meshflow.environment.json_documents import parse_json
from meshflow.environment.types import Logs, StrPath
from meshflow.files import gfile
from meshflow.files.paths import to_path_string
from meshflow.keras.engine.training.callbacks import Callback
from meshflow.keras.engine.training.training_state import Resumption, get_random_state


class _TrainingPosition(PythonState):
    """Position in the training, as one entry of a checkpoint."""

    def __init__(self) -> None:
        self.value: dict[str, Any] = {}

    def serialize(self) -> str:
        return json.dumps(self.value)

    def deserialize(self, string_value: bytes) -> None:
        self.value = parse_json(string_value)


class BackupAndRestore(Callback):
    """Callback that backs up the state of training and continues from it in a new process.

    The new process must run the same program. Weights, optimizer, metrics of the epoch, random
    numbers, and the order and position of the data are restored, so the result is bit for bit the
    same as without the interruption. Python generators restart and skip the elements that were
    used.

    With several workers, the first one writes and all read, so the directory must be accessible to
    all: on a shared file system or in a store (`gs://...`).

    Args:
      backup_dir: Directory, which only this training uses.
      save_freq: 'epoch', or the number of batches between backups.
      delete_checkpoint: Whether to delete the backup at the end of training.
      save_before_preemption: Whether a process that receives SIGTERM saves after the current step
        and exits.

    Raises:
      ValueError: If `backup_dir` is empty or `save_freq` has another value.

    Example:
      >>> import tempfile
      >>> import numpy as np
      >>> model = tf.keras.Sequential([tf.keras.layers.Dense(1)])
      >>> model.compile("sgd", "mse")
      >>> backup = tf.keras.callbacks.BackupAndRestore(tempfile.mkdtemp(), save_freq=10)
      >>> history = model.fit(np.ones([4, 2]), np.ones([4]), callbacks=[backup], verbose=0)
    """

    def __init__(
        self,
        backup_dir: StrPath,
        save_freq: Literal["epoch"] | int = "epoch",
        delete_checkpoint: bool = True,
        save_before_preemption: bool = False,
    ) -> None:
        super().__init__()
        if not backup_dir:
            raise ValueError("Empty `backup_dir` argument passed")
        backup_dir = to_path_string(backup_dir)
        is_count = isinstance(save_freq, int) and not isinstance(save_freq, bool) and save_freq > 0
        # False means that only a preemption causes a backup.
        if save_freq != "epoch" and save_freq is not False and not is_count:
            raise ValueError(
                "`save_freq` must be either 'epoch' or a positive number of batches, got "
                f"{save_freq!r}."
            )
        if save_freq is False and not save_before_preemption:
            raise ValueError(
                "If `save_freq` is False, `save_before_preemption` must be True: otherwise nothing is saved."
            )
        self.backup_dir, self.save_freq = backup_dir, save_freq
        self.delete_checkpoint = delete_checkpoint
        self.save_before_preemption = save_before_preemption
        self._path = gfile.join(backup_dir, "backup")
        self._epoch = self._batches_since_save = self._next_batch = 0
        self._stop_requested = threading.Event()
        self._previous_handler: Any = None
        if save_freq != "epoch":
            # The batch hooks only exist when needed, because training runs ahead without them.
            self.on_train_batch_begin = self._begin_batch  # type: ignore[method-assign]
            self.on_train_batch_end = self._end_batch  # type: ignore[method-assign]
        elif save_before_preemption:
            self.on_train_batch_end = self._end_batch  # type: ignore[method-assign]

    def _create_checkpoint(self, position: _TrainingPosition) -> Checkpoint:
        return Checkpoint(
            model=self.model,
            optimizer=self.model.optimizer,
            metrics=list(self.model.metrics),
            position=position,
        )

    # ---- start and end of training ---------------------------------------------------------

    def on_train_begin(self, logs: Logs = None) -> None:
        """Restore the backup of an earlier process."""
        self._batches_since_save = self._next_batch = 0
        if self.save_before_preemption and (threading.current_thread() is threading.main_thread()):
            self._previous_handler = signal.signal(
                signal.SIGTERM, lambda *_: self._stop_requested.set()
            )
        self.model._handler.tracked = True
        has_backup = is_checkpoint(self._path)
        position = _TrainingPosition()
        if has_backup:
            Checkpoint(position=position).read(self._path).expect_partial()
        self._check_workers(position.value if has_backup else None)
        if has_backup:
            if self.model.built:
                self._restore()
            self.model._resumption = Resumption(position.value, self._restore)

    def _restore(self) -> None:
        self._create_checkpoint(_TrainingPosition()).read(self._path).expect_partial()

    def _check_workers(self, value: dict[str, Any] | None) -> None:
        """Check that all workers have the same backup; this also delays the first write."""
        if jax.process_count() == 1:
            return

        position = None if value is None else (value["epoch"], value["step"])
        positions = all_gather_values(position)
        if any(k != positions[0] for k in positions):
            raise FailedPreconditionError(
                f"BackupAndRestore: the workers have different backups (epoch, step): {positions}. "
                f"{self.backup_dir} must be a folder that all workers share."
            )

    def on_train_end(self, logs: Logs = None) -> None:
        """Delete the backup, unless `delete_checkpoint` is False."""
        if self._previous_handler is not None:
            signal.signal(signal.SIGTERM, self._previous_handler)
            self._previous_handler = None
        if self.delete_checkpoint and jax.process_index() == 0:
            delete_checkpoint(self._path)

    # ---- saving ----------------------------------------------------------------------------

    def on_epoch_begin(self, epoch: int, logs: Logs = None) -> None:
        """Record the epoch."""
        self._epoch, self._next_batch = epoch, 0

    def _begin_batch(self, batch: int, logs: Logs = None) -> None:
        self._next_batch = batch

    def _end_batch(self, batch: int, logs: Logs = None) -> None:
        # With `steps_per_execution`, one call covers several batches.
        self._batches_since_save += batch + 1 - self._next_batch
        self._next_batch = batch + 1
        if (
            isinstance(self.save_freq, int)
            and self.save_freq
            and self._batches_since_save >= self.save_freq
        ):
            self._batches_since_save = 0
            self._save(self._epoch, batch + 1, logs)
        if self.save_before_preemption and is_true_on_any_worker(self._stop_requested.is_set()):
            self._save(self._epoch, batch + 1, logs)
            print(f"Received SIGTERM: training is saved in {self.backup_dir}.", file=sys.stderr)
            sys.exit(PREEMPTED_EXIT_CODE)

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        """Save, if `save_freq` is 'epoch'."""
        if self.save_freq == "epoch":
            self._save(epoch + 1, 0, logs)

    def _save(self, epoch: int, step: int, logs: Logs) -> None:
        position = _TrainingPosition()
        position.value = {
            "epoch": epoch,
            "step": step,
            "data": self.model._handler.get_position(),
            "random": get_random_state(),
            "logs": {k: float(v) for k, v in (logs or {}).items() if isinstance(v, (int, float))},
        }
        checkpoint = self._create_checkpoint(position)
        write_once(checkpoint, lambda: checkpoint.write(self._path))
