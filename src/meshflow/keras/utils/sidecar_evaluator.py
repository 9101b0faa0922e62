"""`SidecarEvaluator`: evaluation of the checkpoints that another process writes."""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence

from meshflow.checkpoint import Checkpoint, checkpoints_iterator, load_checkpoint
from meshflow.core.runtime.errors import DataLossError, NotFoundError
from meshflow.environment.types import PyTree, StrPath
from meshflow.keras.engine.models.model import Model
from meshflow.keras.engine.training.callbacks import Callback

_log = logging.getLogger("meshflow")

# Keys of the number of training steps in checkpoints of former and current optimizers.
_STEP_KEYS = tuple(f"optimizer/{n}/.ATTRIBUTES/VARIABLE_VALUE" for n in ("iter", "_iterations"))

# Seconds without a new checkpoint after which a message is logged.
LOG_INTERVAL_SECONDS = 30.0


class SidecarEvaluator:
    """Evaluation of each new checkpoint in a directory, in a process next to the training.

    The training saves `tf.train.Checkpoint(model=model, optimizer=optimizer)`, or uses
    `tf.keras.callbacks.ModelCheckpoint(folder + "/ckpt-{epoch}", save_weights_only=True)`. The
    evaluator always reads the latest checkpoint, so it skips those that are replaced during an
    evaluation.

    Args:
      model: Model of the same structure, compiled with metrics.
      data: Data for `model.evaluate`.
      checkpoint_dir: Directory of the checkpoints.
      steps: Number of batches per evaluation; None for all.
      max_evaluations: Number at the end of the name of the last checkpoint, such as 10 in
        "ckpt-10", after which the evaluator stops; None to continue forever.
      callbacks: Callbacks of `evaluate`. `TensorBoard` writes the metrics against the number of
        training steps.

    Raises:
      ValueError: If `max_evaluations` is not positive.

    Example:
      >>> import os, tempfile
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
        model: Model,
        data: PyTree,
        checkpoint_dir: StrPath,
        steps: int | None = None,
        max_evaluations: int | None = None,
        callbacks: Sequence[Callback] | None = None,
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
        """Evaluate new checkpoints until the last one.

        Raises:
          RuntimeError: If a checkpoint has no step number of the optimizer.
          AssertionError: If a checkpoint has no value of the model.
          ValueError: If a checkpoint is of another model.
        """
        for path in checkpoints_iterator(
            self.checkpoint_dir, timeout=LOG_INTERVAL_SECONDS, timeout_fn=self._log_waiting
        ):
            if not self._restore(path):
                continue
            _log.info("Evaluation starts: the model has the weights of %s.", path)
            metrics = self.model.evaluate(
                self.data, steps=self.steps, callbacks=self.callbacks, verbose=2, return_dict=True
            )
            description = " ".join(f"{name}={value}" for name, value in metrics.items())
            _log.info("Evaluation of %s ended: %s", path, description)
            if self.max_evaluations and _parse_number(path) >= self.max_evaluations:
                _log.info("The last checkpoint has been evaluated; SidecarEvaluator stops.")
                return

    def _log_waiting(self) -> bool:
        _log.info("No new checkpoints in %s; waiting.", self.checkpoint_dir)
        return False

    def _restore(self, path: str) -> bool:
        """Read a checkpoint; return False if it is unreadable, as the training may have deleted it."""
        try:
            reader = load_checkpoint(path)
            names = reader.get_variable_to_shape_map()
            # `save_weights` writes the model as the root, with the optimizer as a child.
            has_model_child = any(name.startswith("model/") for name in names)
            checkpoint = (
                Checkpoint(model=self.model) if has_model_child else Checkpoint(root=self.model)
            )
            status = checkpoint.read(path)
            step = next((int(reader.get_tensor(key)) for key in _STEP_KEYS if key in names), None)
        except (NotFoundError, DataLossError, FileNotFoundError) as error:
            _log.info("SidecarEvaluator skips %s, which cannot be read: %s", path, error)
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


def _parse_number(path: str) -> int:
    """Return the number at the end of the name of a checkpoint; -1 without one."""
    match = re.search(r"-(\d+)$", path)
    return int(match.group(1)) if match else -1
