"""Callbacks that monitor a metric: early stopping, learning rate reduction and checkpoints."""

from __future__ import annotations

import logging
import os
import re
import warnings
from collections.abc import Callable, MutableMapping
from functools import partial
from typing import Any, Literal, TypedDict, Unpack

import jax
import numpy as np

from meshflow.checkpoint.formats import is_checkpoint
from meshflow.checkpoint.options import CheckpointOptions
from meshflow.checkpoint.state_file import latest_checkpoint
from meshflow.core.variables.variable import Variable
from meshflow.environment.types import Logs, StrPath
from meshflow.files import gfile
from meshflow.files.paths import to_path_string
from meshflow.keras.engine.training.callbacks import Callback, convert_logs
from meshflow.keras.literals import MonitorMode
from meshflow.saved_model.options import SaveOptions

_log = logging.getLogger("meshflow")


class MonitorCallback(Callback):
    """Base class of callbacks that compare the values of a metric.

    Attributes:
      monitor: Name of the metric.
      monitor_op: Comparison of a value with the best one, `np.less` or `np.greater`; subclasses may replace it.
      min_delta: Smallest change that counts as an improvement, negative for a metric that is minimized.
    """

    _description: str

    def _set_monitor(self, monitor: str, mode: str, min_delta: float = 0.0) -> None:
        """Set the metric.

        Args:
          monitor: Name of the metric.
          mode: 'min', 'max', or 'auto' to decide by the name.
          min_delta: Smallest change that counts as an improvement.
        """
        if mode not in ("auto", "min", "max"):
            warnings.warn(
                f"{self._description} mode {mode} is unknown, fallback to auto mode.", stacklevel=3
            )
            mode = "auto"
        is_maximized = mode == "max" or (mode == "auto" and self._is_maximized_by_default(monitor))
        self.monitor, self.mode = monitor, mode
        self.monitor_op: Callable[[Any, Any], Any] = np.greater if is_maximized else np.less
        self.min_delta = abs(min_delta) if is_maximized else -abs(min_delta)
        self._worst = -np.inf if is_maximized else np.inf

    def _is_maximized_by_default(self, monitor: str) -> bool:
        """Check whether larger values of a metric are better, by its name."""
        return "acc" in monitor or monitor.startswith("fmeasure") or monitor.endswith("auc")

    def _is_improvement(self, monitor_value: float, reference_value: float) -> bool:
        """Check whether a value is better than another one by more than `min_delta`."""
        return bool(self.monitor_op(monitor_value - self.min_delta, reference_value))

    def get_monitor_value(self, logs: Logs) -> float | None:
        """Return the value of the metric; if it is missing, warn and return None."""
        value = (logs or {}).get(self.monitor)
        if value is None:
            warnings.warn(
                f"{self._description} conditioned on metric `{self.monitor}` which is not available. Available metrics are: {','.join(logs or {})}",
                stacklevel=3,
            )
        return value


class EarlyStopping(MonitorCallback):
    """Callback that stops training when a metric has stopped improving.

    Args:
      monitor: Name of the metric.
      min_delta: Smallest change that counts as an improvement.
      patience: Number of epochs without improvement before training stops.
      verbose: 1 to print messages.
      mode: 'auto', 'min' or 'max'.
      baseline: Value that the metric must improve on.
      restore_best_weights: Whether to restore the weights of the best epoch.
      start_from_epoch: First epoch that is monitored.

    Example:
      >>> model = tf.keras.Sequential([tf.keras.layers.Dense(1)])
      >>> model.compile(tf.keras.optimizers.SGD(0.0), "mse")
      >>> stop = tf.keras.callbacks.EarlyStopping("loss", patience=2)
      >>> history = model.fit(tf.ones([2, 1]), tf.zeros([2, 1]), epochs=9, verbose=0, callbacks=[stop])
      >>> history.epoch, stop.stopped_epoch
      ([0, 1, 2], 2)
    """

    _description = "Early stopping"

    def __init__(
        self,
        monitor: str = "val_loss",
        min_delta: float = 0,
        patience: int = 0,
        verbose: int = 0,
        mode: MonitorMode = "auto",
        baseline: float | None = None,
        restore_best_weights: bool = False,
        start_from_epoch: int = 0,
    ) -> None:
        super().__init__()
        self.patience, self.verbose, self.baseline = patience, verbose, baseline
        self.restore_best_weights, self.start_from_epoch = restore_best_weights, start_from_epoch
        self._set_monitor(monitor, mode, min_delta)
        self.wait, self.stopped_epoch, self.best_epoch = 0, 0, 0
        self.best: float = self._worst
        self.best_weights: list[np.ndarray] | None = None

    def _is_maximized_by_default(self, monitor: str) -> bool:
        return monitor.endswith(("acc", "accuracy", "auc"))

    def on_train_begin(self, logs: Logs = None) -> None:
        """Reset the counters."""
        self.wait, self.stopped_epoch, self.best_epoch = 0, 0, 0
        self.best, self.best_weights = self._worst, None

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        """Compare the metric with its best value."""
        current = self.get_monitor_value(logs)
        if current is None or epoch < self.start_from_epoch:
            return
        if self.restore_best_weights and self.best_weights is None:
            self.best_weights, self.best_epoch = self.model.get_weights(), epoch
        self.wait += 1
        if self._is_improvement(current, self.best):
            self.best, self.best_epoch = current, epoch
            if self.restore_best_weights:
                self.best_weights = self.model.get_weights()
            if self.baseline is None or self._is_improvement(current, self.baseline):
                self.wait = 0
            return
        if self.wait >= self.patience and epoch > 0:
            self.stopped_epoch = epoch
            self.model.stop_training = True
            self._restore_weights()

    def on_train_end(self, logs: Logs = None) -> None:
        """Print the epoch in which training stopped; otherwise, restore the best weights."""
        if self.stopped_epoch == 0:
            self._restore_weights()
        elif self.verbose:
            print(f"Epoch {self.stopped_epoch + 1}: early stopping")

    def _restore_weights(self) -> None:
        if self.restore_best_weights and self.best_weights is not None:
            if self.verbose:
                print(
                    f"Restoring model weights from the end of the best epoch: {self.best_epoch + 1}."
                )
            self.model.set_weights(self.best_weights)


class PlateauArguments(TypedDict, total=False):
    """Former names of arguments of `ReduceLROnPlateau`."""

    epsilon: float


def _compare_with_margin(
    compare: Callable[[Any, Any], Any], margin: float, value: float, best: float
) -> bool:
    return bool(compare(value, best + margin))


class ReduceLROnPlateau(MonitorCallback):
    """Callback that reduces the learning rate when a metric has stopped improving.

    Args:
      monitor: Name of the metric.
      factor: Factor of the rate in a reduction.
      patience: Number of epochs without improvement before a reduction.
      verbose: 1 to print messages.
      mode: 'auto', 'min' or 'max'.
      min_delta: Smallest change that counts as an improvement.
      cooldown: Number of epochs to wait after a reduction.
      min_lr: Smallest rate.
      **kwargs: `epsilon`, a former name of `min_delta`.

    Example:
      >>> model = tf.keras.Sequential([tf.keras.layers.Dense(1, kernel_initializer="zeros")])
      >>> model.compile(tf.keras.optimizers.SGD(1.0), "mse")
      >>> lower = tf.keras.callbacks.ReduceLROnPlateau("loss", factor=0.5, patience=1)
      >>> _ = model.fit(tf.ones([2, 1]), tf.zeros([2, 1]), epochs=3, verbose=0, callbacks=[lower])
      >>> float(model.optimizer.learning_rate)
      0.25
    """

    _description = "Learning rate reduction"

    def __init__(
        self,
        monitor: str = "val_loss",
        factor: float = 0.1,
        patience: int = 10,
        verbose: int = 0,
        mode: MonitorMode = "auto",
        min_delta: float = 1e-4,
        cooldown: int = 0,
        min_lr: float = 0.0,
        **kwargs: Unpack[PlateauArguments],
    ) -> None:
        super().__init__()
        if factor >= 1.0:
            raise ValueError(f"ReduceLROnPlateau does not support a factor >= 1.0. Got {factor}")
        self.factor, self.patience, self.verbose = factor, patience, verbose
        self.cooldown, self.min_lr = cooldown, min_lr
        if "epsilon" in kwargs:
            _log.warning(
                "`epsilon` argument is deprecated and will be removed, use `min_delta` instead."
            )
        self._set_monitor(monitor, mode, kwargs.pop("epsilon", min_delta))
        self.monitor_op = partial(_compare_with_margin, self.monitor_op, self.min_delta)
        self.min_delta = abs(self.min_delta)
        self._reset()

    def in_cooldown(self) -> bool:
        """Check whether the epochs to wait after a reduction have not passed."""
        return self.cooldown_counter > 0

    def _reset(self) -> None:
        self.best, self.wait, self.cooldown_counter = self._worst, 0, 0

    def on_train_begin(self, logs: Logs = None) -> None:
        """Reset the counters."""
        self._reset()

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        """Compare the metric with its best value."""
        optimizer = self.model.optimizer
        # Programs may pass objects that only have the older name.
        name = "learning_rate" if hasattr(optimizer, "learning_rate") else "lr"
        rate = float(np.asarray(getattr(optimizer, name)))
        if isinstance(logs, MutableMapping):
            logs["lr"] = rate
        current = self.get_monitor_value(logs)
        if current is None:
            return
        if self.in_cooldown():
            self.cooldown_counter -= 1
            self.wait = 0
        if self.monitor_op(current, self.best):
            self.best, self.wait = current, 0
        elif not self.in_cooldown():
            self.wait += 1
            if self.wait >= self.patience and rate > np.float32(self.min_lr):
                new_rate = max(rate * self.factor, self.min_lr)
                if isinstance(getattr(optimizer, name), Variable):
                    getattr(optimizer, name).assign(new_rate)
                else:
                    setattr(optimizer, name, new_rate)
                if self.verbose:
                    print(
                        f"\nEpoch {epoch + 1}: ReduceLROnPlateau reducing learning rate to {new_rate}."
                    )
                self.cooldown_counter, self.wait = self.cooldown, 0


class CheckpointArguments(TypedDict, total=False):
    """Former arguments of `ModelCheckpoint`."""

    period: int
    load_weights_on_restart: bool


class ModelCheckpoint(MonitorCallback):
    """Callback that saves the model or its weights.

    Args:
      filepath: Path, which may contain `{epoch}` and names of metrics as format keys.
      monitor: Name of the metric for `save_best_only`.
      verbose: 1 to print messages.
      save_best_only: Whether to save only models that improve on earlier ones.
      save_weights_only: Whether to save only weights.
      mode: 'auto', 'min' or 'max'.
      save_freq: 'epoch', or a number of batches.
      options: `tf.train.CheckpointOptions` for weights, otherwise `tf.saved_model.SaveOptions`; checked, and
        otherwise ignored.
      initial_value_threshold: Value that the first saved model must improve on.
      **kwargs: `period`, a former argument for the number of epochs; `load_weights_on_restart`,
        whether training starts with the weights of an existing file.

    Example:
      >>> import os, tempfile
      >>> model = tf.keras.Sequential([tf.keras.layers.Dense(1)])
      >>> model.compile("sgd", "mse")
      >>> with tempfile.TemporaryDirectory() as folder:
      ...     save = tf.keras.callbacks.ModelCheckpoint(os.path.join(folder, "after_{epoch}.keras"))
      ...     _ = model.fit(tf.ones([2, 1]), tf.zeros([2, 1]), epochs=2, verbose=0, callbacks=[save])
      ...     sorted(os.listdir(folder))
      ['after_1.keras', 'after_2.keras']
    """

    _description = "ModelCheckpoint"
    # Logs are converted only when a file is written.
    _supports_tf_logs = True

    def __init__(
        self,
        filepath: StrPath | None,
        monitor: str = "val_loss",
        verbose: int = 0,
        save_best_only: bool = False,
        save_weights_only: bool = False,
        mode: MonitorMode = "auto",
        save_freq: Literal["epoch"] | int = "epoch",
        options: object = None,
        initial_value_threshold: float | None = None,
        **kwargs: Unpack[CheckpointArguments],
    ) -> None:
        super().__init__()
        # A callback without a path finds the latest file of a pattern, but cannot save.
        self.filepath = "" if filepath is None else to_path_string(filepath)
        self.verbose = verbose
        self.save_best_only, self.save_weights_only, self.save_freq = (
            save_best_only,
            save_weights_only,
            save_freq,
        )
        self.period = kwargs.pop("period", 1)
        self.load_weights_on_restart = kwargs.pop("load_weights_on_restart", False)
        if kwargs:
            raise TypeError(f"Invalid keyword arguments: {sorted(kwargs)}")
        if save_freq != "epoch" and not isinstance(save_freq, int):
            raise ValueError(
                f"Unrecognized save_freq: {save_freq}. Expected save_freq are 'epoch' or integer"
            )
        kind: type = CheckpointOptions if save_weights_only else SaveOptions
        kind_name = f"tf.{'train' if save_weights_only else 'saved_model'}.{kind.__name__}"
        if options is not None and not isinstance(options, kind):
            raise TypeError(
                f"ModelCheckpoint with save_weights_only={save_weights_only}: expected `options` of type {kind_name}, "
                f"got {options!r}."
            )
        if options is not None and self.filepath.endswith(".keras") and not save_weights_only:
            raise ValueError(
                "The native Keras format does not support the `options` argument. Please remove it, or use the SavedModel "
                "format by removing the `.keras` extension from the model filepath."
            )
        self._set_monitor(monitor, mode)
        self.best: float = (
            self._worst if initial_value_threshold is None else initial_value_threshold
        )
        self._batches_since_save = self._epoch = self._epochs_since_save = 0
        self._last_batch = -1
        if save_freq != "epoch":
            # The batch hook only exists when needed, because training runs ahead without it.
            self.on_train_batch_end = self._end_batch  # type: ignore[method-assign]

    def on_train_begin(self, logs: Logs = None) -> None:
        """Load the weights of an earlier run, if `load_weights_on_restart` is set."""
        if not self.load_weights_on_restart:
            return
        path: str | None = self.filepath
        if not is_checkpoint(self.filepath):
            path = self._get_most_recently_modified_file_matching_pattern(self.filepath)
        if path is not None:
            self.model.load_weights(path)

    def _get_most_recently_modified_file_matching_pattern(self, pattern: str) -> str | None:
        """Return the latest file of a pattern such as `weights.{epoch}.h5`, or None."""
        folder, name = os.path.split(pattern)
        expression = re.compile(re.sub(r"\\{.*\\}", ".*", re.escape(name)))
        checkpoint = latest_checkpoint(folder)
        if checkpoint is not None and expression.fullmatch(os.path.basename(checkpoint)):
            return checkpoint
        if not gfile.exists(folder or "."):
            return None
        names = [n for n in gfile.listdir(folder or ".") if expression.fullmatch(n)]
        paths = [os.path.join(folder, n) for n in names]
        return max(paths, key=lambda path: (gfile.stat(path).mtime_nsec, path), default=None)

    def on_epoch_begin(self, epoch: int, logs: Logs = None) -> None:
        """Record the epoch."""
        self._epoch = epoch

    def _end_batch(self, batch: int, logs: Logs = None) -> None:
        # With several steps per execution, the hook is called after the last of them.
        is_new_epoch = batch <= self._last_batch
        self._batches_since_save += batch + 1 if is_new_epoch else batch - self._last_batch
        self._last_batch = batch
        if self._batches_since_save >= int(self.save_freq):
            self._batches_since_save = 0
            self._save_model(self._epoch, batch, logs)

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        """Save, if `save_freq` is 'epoch' and enough epochs have passed."""
        self._epochs_since_save += 1
        if self.save_freq == "epoch" and self._epochs_since_save >= self.period:
            self._epochs_since_save = 0
            self._save_model(epoch, None, logs)

    def _get_file_path(self, epoch: int, batch: int | None, logs: Logs) -> str:
        """Return the path of a file; subclasses may override this method."""
        try:
            return self.filepath.format(epoch=epoch + 1, batch=(batch or 0) + 1, **(logs or {}))
        except KeyError as error:
            raise KeyError(
                f'Failed to format this callback filepath: "{self.filepath}". Reason: {error} is not among {sorted(logs or {})}'
            ) from error

    def _save_model(self, epoch: int, batch: int | None, logs: Logs) -> None:
        """Save, if the metric requires it; subclasses may override this method."""
        logs = convert_logs(logs)
        path = self._get_file_path(epoch, batch, logs)
        if self.save_best_only:
            current = self.get_monitor_value(logs)
            if current is None:
                return
            if not self.monitor_op(current, self.best):
                if self.verbose:
                    print(
                        f"\nEpoch {epoch + 1}: {self.monitor} did not improve from {self.best:.5f}"
                    )
                return
            if self.verbose:
                print(
                    f"\nEpoch {epoch + 1}: {self.monitor} improved from {self.best:.5f} to {current:.5f}, saving model to {path}"
                )
            self.best = current
        elif self.verbose:
            print(f"\nEpoch {epoch + 1}: saving model to {path}")
        if path.endswith((".h5", ".hdf5", ".keras")) and gfile.isdir(path):
            raise OSError(
                f"Please specify a non-directory filepath for ModelCheckpoint. Filepath used is an existing directory: {path}"
            )
        if jax.process_index() != 0:
            return  # All workers have the same weights; the chief writes them.
        if self.save_weights_only:
            self.model.save_weights(path, overwrite=True)
        else:
            self.model.save(path, overwrite=True)


class TerminateOnNaN(Callback):
    """Callback that stops training when the loss is NaN or infinite.

    Example:
      >>> model = tf.keras.Sequential([tf.keras.layers.Dense(1)])
      >>> model.compile(tf.keras.optimizers.SGD(float("inf")), "mse")
      >>> stop = tf.keras.callbacks.TerminateOnNaN()
      >>> history = model.fit(tf.ones([2, 1]), tf.zeros([2, 1]), epochs=9, verbose=0, callbacks=[stop])
      Batch 0: Invalid loss, terminating training
      >>> len(history.epoch) < 9
      True
    """

    def on_train_batch_end(self, batch: int, logs: Logs = None) -> None:
        """Check the loss."""
        loss = (logs or {}).get("loss")
        if loss is not None and not np.isfinite(loss):
            print(f"Batch {batch}: Invalid loss, terminating training")
            self.model.stop_training = True
