"""`SidecarEvaluator`: a process that evaluates the checkpoints which another one writes."""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from typing import Any

from meshflow.checkpoint import Checkpoint, checkpoints_iterator, load_checkpoint
from meshflow.core.runtime.errors import DataLossError, NotFoundError

__all__ = ["SidecarEvaluator"]

_log = logging.getLogger("meshflow")

# Where checkpoints have the number of training steps.
# What old and new optimizers call it.
_STEPS = tuple(f"optimizer/{n}/.ATTRIBUTES/VARIABLE_VALUE" for n in ("iter", "_iterations"))

# Seconds without a new checkpoint after which the log says that it is waited for.
PATIENCE = 30.0


class SidecarEvaluator:
    """Evaluates each new checkpoint of a folder, in a process beside those that train.

    The training saves `tf.train.Checkpoint(model=model, optimizer=optimizer)`, or lets
    `tf.keras.callbacks.ModelCheckpoint(folder + "/ckpt-{epoch}", save_weights_only=True)` save. Always the latest
    checkpoint is taken: those written while one is evaluated are left out.

    Args:
      model: a model of the same structure, compiled with metrics.
      data: what `model.evaluate` takes.
      checkpoint_dir: the folder.
      steps: how many batches each evaluation takes; None for all.
      max_evaluations: the number at the end of the last checkpoint's name, such as 10 of "ckpt-10", after which it
        ends; None for never.
      callbacks: callbacks of `evaluate`. `TensorBoard` writes the metrics by the number of training steps.

    Raises:
      ValueError: for a `max_evaluations` that is not positive.

    Example:
      >>> import os, tempfile
      >>> import meshflow as tf
      >>> def make():
      ...     model = tf.keras.Sequential([tf.keras.layers.Dense(1, kernel_initializer="ones")])
      ...     model.compile("sgd", "mse")
      ...     return model
      >>> folder = tempfile.mkdtemp()
      >>> save = tf.keras.callbacks.ModelCheckpoint(os.path.join(folder, "ckpt-{epoch}"), save_weights_only=True)
      >>> _ = make().fit(tf.ones([4, 1]), tf.zeros([4, 1]), epochs=2, verbose=0, callbacks=[save])
      >>> seen = []
      >>> class Report(tf.keras.callbacks.Callback):
      ...     def on_test_end(self, logs=None):
      ...         seen.append(sorted(logs))
      >>> tf.keras.utils.SidecarEvaluator(
      ...     make(), tf.data.Dataset.from_tensors((tf.ones([4, 1]), tf.zeros([4, 1]))), folder,
      ...     max_evaluations=2, callbacks=[Report()]).start()
      1/1 - 0s - loss: ...
      >>> seen
      [['loss']]
    """

    def __init__(
        self,
        model: Any,
        data: Any,
        checkpoint_dir: Any,
        steps: int | None = None,
        max_evaluations: int | None = None,
        callbacks: Sequence[Any] | None = None,
    ) -> None:
        if max_evaluations is not None and max_evaluations < 1:
            raise ValueError(
                f"SidecarEvaluator: max_evaluations must be positive or None, got {max_evaluations}."
            )
        self.model, self.data = model, data
        self.checkpoint_dir = checkpoint_dir
        self.steps, self.max_evaluations = steps, max_evaluations
        self.callbacks = list(callbacks or [])

    def start(self) -> None:
        """Evaluates checkpoints as they come, until the last one.

        Raises:
          RuntimeError: for a checkpoint without the optimizer's step number.
          AssertionError: for one that has nothing of the model.
          ValueError: for one of another model.
        """
        for path in checkpoints_iterator(
            self.checkpoint_dir, timeout=PATIENCE, timeout_fn=self._still_waiting
        ):
            if not self._restore(path):
                continue
            _log.info("Evaluation starts: the model has the weights of %s.", path)
            found = self.model.evaluate(
                self.data, steps=self.steps, callbacks=self.callbacks, verbose=2, return_dict=True
            )
            shown = " ".join(f"{name}={value}" for name, value in found.items())
            _log.info("Evaluation of %s ended: %s", path, shown)
            if self.max_evaluations and _number(path) >= self.max_evaluations:
                _log.info("The last checkpoint is evaluated; SidecarEvaluator ends.")
                return

    def _still_waiting(self) -> bool:
        _log.info("No new checkpoints in %s; waiting.", self.checkpoint_dir)
        return False

    def _restore(self, path: str) -> bool:
        """Whether a checkpoint could be read: those that train may have deleted it meanwhile."""
        try:
            reader = load_checkpoint(path)
            names = reader.get_variable_to_shape_map()
            # `save_weights` writes the model itself, with its optimizer below it.
            whole = any(name.startswith("model/") for name in names)
            checkpoint = Checkpoint(model=self.model) if whole else Checkpoint(root=self.model)
            status = checkpoint.read(path)
            step = next((int(reader.get_tensor(key)) for key in _STEPS if key in names), None)
        except (NotFoundError, DataLossError, FileNotFoundError) as error:
            _log.info("SidecarEvaluator leaves %s out, which cannot be read: %s", path, error)
            return False
        status.assert_nontrivial_match().expect_partial()
        if step is None:
            raise RuntimeError(
                f"Variable `iterations` cannot be loaded from the checkpoint file at {path}. Please ensure "
                "`iterations` is included in the checkpoint saved during training: save "
                "tf.train.Checkpoint(model=model, optimizer=optimizer)."
            )
        optimizer = getattr(self.model, "optimizer", None)
        if optimizer is not None:
            optimizer.iterations.assign(step)
        return True


def _number(path: str) -> int:
    """The number at the end of a checkpoint's name; -1 without one."""
    found = re.search(r"-(\d+)$", path)
    return int(found.group(1)) if found else -1
