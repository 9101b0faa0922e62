"""Methods of `Model` that train, evaluate or predict one batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from meshflow.core.dispatch.symbolic_calls import run_outside_of_graphs
from meshflow.core.runtime.context import context
from meshflow.core.runtime.tracebacks import hide_frames_of_errors
from meshflow.core.values import nest
from meshflow.environment.types import PyTree
from meshflow.keras.engine.training.callbacks import convert_logs
from meshflow.keras.engine.training.class_weights import ClassWeight
from meshflow.keras.engine.training.compile_methods import CompileMethods
from meshflow.keras.engine.training.data_adapter import DataHandler
from meshflow.keras.engine.training.label_range_check import LabelRangeCheck


class SingleBatchMethods(CompileMethods):
    """The methods of `Trainer` that take one batch; a base class of it."""

    @run_outside_of_graphs
    @hide_frames_of_errors
    def train_on_batch(
        self,
        x: PyTree,
        y: PyTree = None,
        sample_weight: PyTree = None,
        class_weight: ClassWeight | None = None,
        reset_metrics: bool = True,
        return_dict: bool = False,
    ) -> Any:
        """Run one training step on a batch.

        Args:
          x: Inputs: arrays of shape (batch size, ...), or a nested structure of them.
          y: Targets.
          sample_weight: Weight of each example.
          class_weight: Weight of each class, by integer label, or such weights by output, as in `fit`.
          reset_metrics: Whether the metrics cover only this batch.
          return_dict: Whether to return values by name.

        Returns:
          The loss, or a list [loss, *metrics], or a dictionary.

        Example:
          >>> model = tf.keras.Sequential([tf.keras.layers.Dense(1, kernel_initializer="ones")])
          >>> model.compile(tf.keras.optimizers.SGD(0.25), "mse")
          >>> [float(model.train_on_batch(tf.ones([2, 1]), tf.zeros([2, 1]))) for _ in range(2)]
          [1.0, 0.0]
        """
        self._assert_compiled()
        if context.on_first_batch is not None:
            context.on_first_batch(self, tuple(v for v in (x, y, sample_weight) if v is not None))
        return self._run_on_batch(
            "train", x, y, sample_weight, class_weight, reset_metrics, return_dict
        )

    @run_outside_of_graphs
    @hide_frames_of_errors
    def test_on_batch(
        self,
        x: PyTree,
        y: PyTree = None,
        sample_weight: PyTree = None,
        reset_metrics: bool = True,
        return_dict: bool = False,
    ) -> Any:
        """Evaluate a batch.

        Args:
          x: Inputs: arrays of shape (batch size, ...), or a nested structure of them.
          y: Targets.
          sample_weight: Weight of each example.
          reset_metrics: Whether the metrics cover only this batch.
          return_dict: Whether to return values by name.

        Returns:
          The loss, or a list [loss, *metrics], or a dictionary.

        Example:
          >>> model = tf.keras.Sequential([tf.keras.layers.Dense(1, kernel_initializer="ones")])
          >>> model.compile(loss="mse")
          >>> float(model.test_on_batch(tf.ones([2, 1]), tf.fill([2, 1], 4.0)))
          9.0
        """
        self._assert_compiled()
        return self._run_on_batch("test", x, y, sample_weight, None, reset_metrics, return_dict)

    @run_outside_of_graphs
    @hide_frames_of_errors
    def predict_on_batch(self, x: PyTree) -> PyTree:
        """Return the model's outputs for a batch as NumPy arrays.

        Args:
          x: Inputs: arrays of shape (batch size, ...), or a nested structure of them.

        Example:
          >>> model = tf.keras.Sequential([tf.keras.layers.Dense(1, kernel_initializer="ones")])
          >>> model.predict_on_batch(tf.constant([[1.0, 2.0]])).tolist()
          [[3.0]]
        """
        self._assert_outside_function()
        batch = self._make_single_batch(x, None, None, None)
        return nest.map_structure(np.asarray, self._count_steps("predict")(batch))

    def _make_single_batch(
        self,
        x: PyTree,
        y: PyTree,
        sample_weight: PyTree,
        class_weight: ClassWeight | None,
    ) -> PyTree:
        size = next(iter(np.shape(nest.flatten(x)[0])), 1)
        handler = DataHandler(
            x,
            y,
            sample_weight=sample_weight,
            batch_size=size,
            epochs=1,
            shuffle=False,
            class_weight=class_weight,
            output_names=self.output_names,
        )
        _, batches = next(iter(handler.iterate_epochs()))
        return next(iter(batches))

    def _run_on_batch(
        self,
        kind: str,
        x: PyTree,
        y: PyTree,
        sample_weight: PyTree,
        class_weight: ClassWeight | None,
        reset: bool,
        return_dict: bool,
    ) -> Any:
        if reset:
            self.reset_metrics()
        batch = self._make_single_batch(x, y, sample_weight, class_weight)
        LabelRangeCheck(self).check(batch)
        if kind == "train":
            self._apply_trainable_changes()
        logs = get_scalar_logs(self._count_steps(kind)(batch))
        if return_dict:
            return logs
        return list_logs(logs, self.metrics_names)


def list_logs(logs: dict[str, Any], names: Sequence[str]) -> Any:
    """Return the values of logs in the order of metrics, others by name; a single value without a list."""
    keys = [n for n in names if n in logs] + sorted(logs.keys() - set(names))
    values = [logs[key] for key in keys]
    return values[0] if len(values) == 1 else values


def get_scalar_logs(logs: PyTree) -> dict[str, Any]:
    """Return the logs of a step as Python numbers; empty if the step returned no dictionary."""
    return convert_logs(logs) if isinstance(logs, dict) else {}
