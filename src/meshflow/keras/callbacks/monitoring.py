"""Callbacks that watch a metric: stopping early, lowering the rate, keeping the best model."""

from __future__ import annotations

import warnings
from typing import Any

import jax
import numpy as np

from meshflow.checkpoint.containers import is_checkpoint
from meshflow.files import gfile
from meshflow.files.paths import text
from meshflow.keras.engine.training.callbacks import Callback


class Monitor:
    """Decides whether a value of a metric is better than another.

    Args:
      name: the metric's name.
      mode: 'min', 'max' or 'auto' (by the name).
      min_delta: smallest change that counts.
      who: the callback, for warnings.
    """

    def __init__(self, name: str, mode: str, min_delta: float, who: str) -> None:
        self.name, self.who = name, who
        if mode not in ("auto", "min", "max"):
            warnings.warn(f"{who} mode {mode} is unknown, fallback to auto mode.", stacklevel=3)
            mode = "auto"
        larger = mode == "max" or (
            mode == "auto"
            and (name.endswith(("acc", "accuracy", "auc")) or name.startswith("fmeasure"))
        )
        self.sign = 1.0 if larger else -1.0
        self.min_delta = abs(min_delta)
        self.worst = -np.inf if larger else np.inf

    def better(self, value: float, best: float) -> bool:
        """Whether `value` is better than `best` by more than `min_delta`."""
        return self.sign * (value - best) > self.min_delta

    def read(self, logs: Any) -> Any:
        """The metric's value, None with a warning when it is missing."""
        value = (logs or {}).get(self.name)
        if value is None:
            warnings.warn(
                f"{self.who} conditioned on metric `{self.name}` which is not available. Available metrics are: {','.join(logs or {})}",
                stacklevel=3,
            )
        return value


class EarlyStopping(Callback):
    """Stops training when a metric no longer gets better.

    Args:
      monitor: name of the metric.
      min_delta: smallest change that counts.
      patience: epochs without one before training stops.
      verbose: 1 says so.
      mode: 'auto', 'min' or 'max'.
      baseline: value that must be bettered.
      restore_best_weights: whether the weights of the best epoch are put back.
      start_from_epoch: epochs before which nothing is watched.

    Example:
      >>> import meshflow as tf
      >>> model = tf.keras.Sequential([tf.keras.layers.Dense(1)])
      >>> model.compile(tf.keras.optimizers.SGD(0.0), "mse")
      >>> stop = tf.keras.callbacks.EarlyStopping("loss", patience=2)
      >>> history = model.fit(tf.ones([2, 1]), tf.zeros([2, 1]), epochs=9, verbose=0, callbacks=[stop])
      >>> history.epoch, stop.stopped_epoch
      ([0, 1, 2], 2)
    """

    def __init__(
        self,
        monitor: str = "val_loss",
        min_delta: float = 0,
        patience: int = 0,
        verbose: int = 0,
        mode: str = "auto",
        baseline: float | None = None,
        restore_best_weights: bool = False,
        start_from_epoch: int = 0,
    ) -> None:
        super().__init__()
        self.monitor, self.patience, self.verbose, self.baseline = (
            monitor,
            patience,
            verbose,
            baseline,
        )
        self.restore_best_weights, self.start_from_epoch = restore_best_weights, start_from_epoch
        self._watch = Monitor(monitor, mode, min_delta, "Early stopping")
        self.min_delta = min_delta
        self.wait, self.stopped_epoch, self.best_epoch = 0, 0, 0
        self.best: Any = self._watch.worst
        self.best_weights: Any = None

    def on_train_begin(self, logs: Any = None) -> None:
        """Starts counting."""
        self.wait, self.stopped_epoch, self.best_epoch = 0, 0, 0
        self.best, self.best_weights = self._watch.worst, None

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Looks at the metric."""
        current = self._watch.read(logs)
        if current is None or epoch < self.start_from_epoch:
            return
        if self.restore_best_weights and self.best_weights is None:
            self.best_weights, self.best_epoch = self.model.get_weights(), epoch
        self.wait += 1
        if self._watch.better(current, self.best):
            self.best, self.best_epoch = current, epoch
            if self.restore_best_weights:
                self.best_weights = self.model.get_weights()
            if self.baseline is None or self._watch.better(current, self.baseline):
                self.wait = 0
            return
        if self.wait >= self.patience and epoch > 0:
            self.stopped_epoch = epoch
            self.model.stop_training = True
            if self.restore_best_weights and self.best_weights is not None:
                if self.verbose:
                    print(
                        f"Restoring model weights from the end of the best epoch: {self.best_epoch + 1}."
                    )
                self.model.set_weights(self.best_weights)

    def on_train_end(self, logs: Any = None) -> None:
        """Says when training stopped."""
        if self.stopped_epoch > 0 and self.verbose:
            print(f"Epoch {self.stopped_epoch + 1}: early stopping")

    def get_monitor_value(self, logs: Any) -> Any:
        """The metric's value."""
        return self._watch.read(logs)


class ReduceLROnPlateau(Callback):
    """Lowers the learning rate when a metric no longer gets better.

    Args:
      monitor: name of the metric.
      factor: what the rate is multiplied by.
      patience: epochs without improvement before it is.
      verbose: 1 says so.
      mode: 'auto', 'min' or 'max'.
      min_delta: smallest change that counts.
      cooldown: epochs to wait after a reduction.
      min_lr: lower end of the rate.
      **kwargs: `epsilon`, an old name of `min_delta`.

    Example:
      >>> import meshflow as tf
      >>> model = tf.keras.Sequential([tf.keras.layers.Dense(1, kernel_initializer="zeros")])
      >>> model.compile(tf.keras.optimizers.SGD(1.0), "mse")
      >>> lower = tf.keras.callbacks.ReduceLROnPlateau("loss", factor=0.5, patience=1)
      >>> _ = model.fit(tf.ones([2, 1]), tf.zeros([2, 1]), epochs=3, verbose=0, callbacks=[lower])
      >>> float(model.optimizer.learning_rate)
      0.25
    """

    def __init__(
        self,
        monitor: str = "val_loss",
        factor: float = 0.1,
        patience: int = 10,
        verbose: int = 0,
        mode: str = "auto",
        min_delta: float = 1e-4,
        cooldown: int = 0,
        min_lr: float = 0.0,
        **kwargs: Any,
    ) -> None:
        super().__init__()
        if factor >= 1.0:
            raise ValueError(f"ReduceLROnPlateau does not support a factor >= 1.0. Got {factor}")
        self.monitor, self.factor, self.patience, self.verbose = monitor, factor, patience, verbose
        self.cooldown, self.min_lr = cooldown, min_lr
        self.min_delta = kwargs.pop("epsilon", min_delta)
        self._watch = Monitor(monitor, mode, self.min_delta, "Learning rate reduction")
        self._reset()

    def in_cooldown(self) -> bool:
        """Whether the epochs after a reduction are not over yet."""
        return self.cooldown_counter > 0

    def _reset(self) -> None:
        self.best, self.wait, self.cooldown_counter = self._watch.worst, 0, 0

    def on_train_begin(self, logs: Any = None) -> None:
        """Starts counting."""
        self._reset()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Looks at the metric."""
        rate = float(np.asarray(self.model.optimizer.learning_rate.numpy()))
        if logs is not None:
            logs["lr"] = rate
        current = self._watch.read(logs)
        if current is None:
            return
        if self.in_cooldown():
            self.cooldown_counter -= 1
            self.wait = 0
        if self._watch.better(current, self.best):
            self.best, self.wait = current, 0
        elif not self.in_cooldown():
            self.wait += 1
            if self.wait >= self.patience and rate > np.float32(self.min_lr):
                lowered = max(rate * self.factor, self.min_lr)
                self.model.optimizer.learning_rate = lowered
                if self.verbose:
                    print(
                        f"\nEpoch {epoch + 1}: ReduceLROnPlateau reducing learning rate to {lowered}."
                    )
                self.cooldown_counter, self.wait = self.cooldown, 0


class ModelCheckpoint(Callback):
    """Saves the model or its weights.

    Args:
      filepath: path; may hold `{epoch}` and names of metrics as format keys.
      monitor: name of the metric for `save_best_only`.
      verbose: 1 says when.
      save_best_only: whether only models better than before are kept.
      save_weights_only: whether only weights are saved.
      mode: 'auto', 'min' or 'max'.
      save_freq: 'epoch', or a number of batches.
      options: ignored.
      initial_value_threshold: value that the first saved model must better.
      **kwargs: `period`, an old way to say every how many epochs; `load_weights_on_restart`, whether
        training begins with the weights of the file, if it exists.

    Example:
      >>> import meshflow as tf
      >>> import os, tempfile
      >>> model = tf.keras.Sequential([tf.keras.layers.Dense(1)])
      >>> model.compile("sgd", "mse")
      >>> with tempfile.TemporaryDirectory() as folder:
      ...     save = tf.keras.callbacks.ModelCheckpoint(os.path.join(folder, "after_{epoch}.keras"))
      ...     _ = model.fit(tf.ones([2, 1]), tf.zeros([2, 1]), epochs=2, verbose=0, callbacks=[save])
      ...     sorted(os.listdir(folder))
      ['after_1.keras', 'after_2.keras']
    """

    def __init__(
        self,
        filepath: Any,
        monitor: str = "val_loss",
        verbose: int = 0,
        save_best_only: bool = False,
        save_weights_only: bool = False,
        mode: str = "auto",
        save_freq: Any = "epoch",
        options: Any = None,
        initial_value_threshold: float | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__()
        self.filepath, self.monitor, self.verbose = text(filepath), monitor, verbose
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
        self._watch = Monitor(monitor, mode, 0.0, "ModelCheckpoint")
        self.best: Any = (
            self._watch.worst if initial_value_threshold is None else initial_value_threshold
        )
        self._batches = self._epoch = self._since = 0
        if save_freq != "epoch":
            # Present only when needed: a callback without batch hooks lets training run ahead.
            self.on_train_batch_end = self._after_batch  # type: ignore[method-assign]

    def on_train_begin(self, logs: Any = None) -> None:
        """Loads the weights of an earlier run, if asked to."""
        if self.load_weights_on_restart and (
            gfile.exists(self.filepath) or is_checkpoint(self.filepath)
        ):
            self.model.load_weights(self.filepath)

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Notes the epoch."""
        self._epoch = epoch

    def _after_batch(self, batch: int, logs: Any = None) -> None:
        self._batches += 1
        if self._batches >= self.save_freq:
            self._batches = 0
            self._save(self._epoch, batch, logs)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Saves, if it is time."""
        self._since += 1
        if self.save_freq == "epoch" and self._since >= self.period:
            self._since = 0
            self._save(epoch, None, logs)

    def _save(self, epoch: int, batch: int | None, logs: Any) -> None:
        try:
            path = self.filepath.format(epoch=epoch + 1, batch=(batch or 0) + 1, **(logs or {}))
        except KeyError as error:
            raise KeyError(
                f'Failed to format this callback filepath: "{self.filepath}". Reason: {error} is not among {sorted(logs or {})}'
            ) from error
        if self.save_best_only:
            current = self._watch.read(logs)
            if current is None:
                return
            if not self._watch.better(current, self.best):
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
        if jax.process_index() != 0:
            return  # all workers have the same weights; the chief writes them
        if self.save_weights_only:
            self.model.save_weights(path, overwrite=True)
        else:
            self.model.save(path, overwrite=True)


class TerminateOnNaN(Callback):
    """Stops training when the loss is NaN or infinite.

    Example:
      >>> import meshflow as tf
      >>> model = tf.keras.Sequential([tf.keras.layers.Dense(1)])
      >>> model.compile(tf.keras.optimizers.SGD(float("inf")), "mse")
      >>> stop = tf.keras.callbacks.TerminateOnNaN()
      >>> history = model.fit(tf.ones([2, 1]), tf.zeros([2, 1]), epochs=9, verbose=0, callbacks=[stop])
      Batch 0: Invalid loss, terminating training
      >>> len(history.epoch) < 9
      True
    """

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Looks at the loss."""
        loss = (logs or {}).get("loss")
        if loss is not None and not np.isfinite(loss):
            print(f"Batch {batch}: Invalid loss, terminating training")
            self.model.stop_training = True
