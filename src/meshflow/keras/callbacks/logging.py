"""Callbacks that write logs, set the learning rate, or call functions."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, MutableMapping

import numpy as np

from meshflow.core.values.tensor import Tensor
from meshflow.environment.types import Logs, StrPath
from meshflow.files import gfile
from meshflow.files.atomic_writes import replace_file
from meshflow.files.paths import to_path_string as path_text
from meshflow.keras.engine.training.callbacks import Callback


class LearningRateScheduler(Callback):
    """Callback that sets the learning rate at the start of each epoch.

    Args:
      schedule: Function that maps the epoch, and optionally the current rate, to the new rate.
      verbose: 1 to print the rate.

    Example:
      >>> model = tf.keras.Sequential([tf.keras.layers.Dense(1)])
      >>> model.compile(tf.keras.optimizers.SGD(1.0), "mse")
      >>> halve = tf.keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate / 2)
      >>> _ = model.fit(tf.ones([2, 1]), tf.zeros([2, 1]), epochs=3, verbose=0, callbacks=[halve])
      >>> float(model.optimizer.learning_rate)
      0.125
    """

    def __init__(self, schedule: Callable[..., float], verbose: int = 0) -> None:
        super().__init__()
        self.schedule, self.verbose = schedule, verbose

    def on_epoch_begin(self, epoch: int, logs: Logs = None) -> None:
        """Set the rate."""
        if not hasattr(self.model.optimizer, "learning_rate"):
            raise ValueError('Optimizer must have a "learning_rate" attribute.')
        rate = float(np.asarray(self.model.optimizer.learning_rate.numpy()))
        try:
            new = self.schedule(epoch, rate)
        except TypeError:
            new = self.schedule(epoch)
        if isinstance(new, Tensor) and not new.dtype.is_floating:
            raise ValueError(f"The dtype of `lr` Tensor should be float. Got: {new.dtype}")
        new = new.numpy() if hasattr(new, "numpy") else new
        if not isinstance(new, (float, np.floating)):
            raise ValueError(f'The output of the "schedule" function should be float. Got: {new!r}')
        self.model.optimizer.learning_rate = float(new)
        if self.verbose:
            print(f"\nEpoch {epoch + 1}: LearningRateScheduler setting learning rate to {new}.")

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        """Add the rate to the logs."""
        if isinstance(logs, MutableMapping):
            logs["lr"] = float(np.asarray(self.model.optimizer.learning_rate.numpy()))


class CSVLogger(Callback):
    """Callback that writes the metrics of each epoch to a CSV file.

    Args:
      filename: Path of the file.
      separator: Separator of the fields.
      append: Whether to append to an existing file.

    Example:
      >>> import os, tempfile
      >>> model = tf.keras.Sequential([tf.keras.layers.Dense(1)])
      >>> model.compile("sgd", "mse")
      >>> with tempfile.TemporaryDirectory() as folder:
      ...     log = tf.keras.callbacks.CSVLogger(os.path.join(folder, "log.csv"))
      ...     _ = model.fit(tf.ones([2, 1]), tf.zeros([2, 1]), epochs=2, verbose=0, callbacks=[log])
      ...     lines = open(log.filename).read().split()
      >>> len(lines), lines[0]
      (3, 'epoch,loss,val_loss')
    """

    def __init__(self, filename: StrPath, separator: str = ",", append: bool = False) -> None:
        super().__init__()
        self.filename, self.sep, self.append = path_text(filename), separator, append
        self._text = io.StringIO(newline="")
        self.writer: csv.DictWriter | None = None
        self.keys: list[str] | None = None
        self.append_header = True

    def on_train_begin(self, logs: Logs = None) -> None:
        """Read the existing file, if `append` is set."""
        self._text, self.writer, self.keys = io.StringIO(newline=""), None, None
        self.append_header = True
        if self.append and gfile.exists(self.filename):
            with gfile.GFile(self.filename, "rb") as file:
                self._text.write(file.read().decode())
            self.append_header = not self._text.tell()

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        """Add a row and replace the file atomically."""
        logs = logs or {}
        if self.writer is None:
            self.keys = sorted(logs)
            if not any(key.startswith("val_") for key in self.keys):
                # A later epoch may be validated.
                self.keys += [f"val_{key}" for key in self.keys]
            self.writer = csv.DictWriter(self._text, ["epoch", *self.keys], delimiter=self.sep)
            if self.append_header:
                self.writer.writeheader()
        self.writer.writerow({"epoch": epoch, **{k: logs.get(k, "NA") for k in self.keys or []}})
        with replace_file(self.filename) as file:
            file.write(self._text.getvalue().encode())


class LambdaCallback(Callback):
    """Callback that consists of functions.

    Args:
      on_epoch_begin: Function of (epoch, logs).
      on_epoch_end: Function of (epoch, logs).
      on_batch_begin: Function of (batch, logs).
      on_batch_end: Function of (batch, logs).
      on_train_begin: Function of (logs).
      on_train_end: Function of (logs).
      **kwargs: Other hooks by name.

    Example:
      >>> model = tf.keras.Sequential([tf.keras.layers.Dense(1)])
      >>> model.compile("sgd", "mse")
      >>> greet = tf.keras.callbacks.LambdaCallback(on_train_begin=lambda logs: print("start"))
      >>> _ = model.fit(tf.ones([2, 1]), tf.zeros([2, 1]), verbose=0, callbacks=[greet])
      start
    """

    def __init__(
        self,
        on_epoch_begin: Callable[..., object] | None = None,
        on_epoch_end: Callable[..., object] | None = None,
        on_batch_begin: Callable[..., object] | None = None,
        on_batch_end: Callable[..., object] | None = None,
        on_train_begin: Callable[..., object] | None = None,
        on_train_end: Callable[..., object] | None = None,
        **kwargs: Callable[..., object],
    ) -> None:
        super().__init__()
        hooks = {
            "on_epoch_begin": on_epoch_begin,
            "on_epoch_end": on_epoch_end,
            "on_train_batch_begin": on_batch_begin,
            "on_train_batch_end": on_batch_end,
            "on_train_begin": on_train_begin,
            "on_train_end": on_train_end,
            **kwargs,
        }
        for name, function in hooks.items():
            if function is not None:
                setattr(self, name, function)
