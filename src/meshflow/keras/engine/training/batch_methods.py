"""Training, evaluating and predicting one batch that the caller made."""

from __future__ import annotations

from typing import Any

import numpy as np

from meshflow.core.runtime.context import context
from meshflow.core.values import nest
from meshflow.core.values.tensor import Tensor
from meshflow.keras.engine.training.compiling import Compiling
from meshflow.keras.engine.training.data_adapter import DataHandler
from meshflow.keras.engine.training.label_range_check import LabelGuard


class SingleBatches(Compiling):
    """The methods of `Trainer` that take one batch; a base class of it."""

    def train_on_batch(
        self,
        x: Any,
        y: Any = None,
        sample_weight: Any = None,
        class_weight: Any = None,
        reset_metrics: bool = True,
        return_dict: bool = False,
    ) -> Any:
        """One training step on the given arrays.

        Args:
          x: inputs.
          y: targets.
          sample_weight: weight of each example.
          class_weight: weight of each class, by integer label.
          reset_metrics: whether the metrics cover this batch only.
          return_dict: whether values come by name.

        Returns:
          The loss, or a list [loss, *metrics], or a dictionary.

        Example:
          >>> import meshflow as tf
          >>> model = tf.keras.Sequential([tf.keras.layers.Dense(1, kernel_initializer="ones")])
          >>> model.compile(tf.keras.optimizers.SGD(0.25), "mse")
          >>> [float(model.train_on_batch(tf.ones([2, 1]), tf.zeros([2, 1]))) for _ in range(2)]
          [1.0, 0.0]
        """
        self._assert_compiled()
        if context.reached is not None:
            context.reached(self, tuple(v for v in (x, y, sample_weight) if v is not None))
        return self._on_batch(
            "train", x, y, sample_weight, class_weight, reset_metrics, return_dict
        )

    def test_on_batch(
        self,
        x: Any,
        y: Any = None,
        sample_weight: Any = None,
        reset_metrics: bool = True,
        return_dict: bool = False,
    ) -> Any:
        """Evaluates the given arrays as one batch; arguments as in `train_on_batch`.

        Example:
          >>> import meshflow as tf
          >>> model = tf.keras.Sequential([tf.keras.layers.Dense(1, kernel_initializer="ones")])
          >>> model.compile(loss="mse")
          >>> float(model.test_on_batch(tf.ones([2, 1]), tf.fill([2, 1], 4.0)))
          9.0
        """
        self._assert_compiled()
        return self._on_batch("test", x, y, sample_weight, None, reset_metrics, return_dict)

    def predict_on_batch(self, x: Any) -> Any:
        """The model's outputs for the given arrays, as NumPy arrays.

        Example:
          >>> import meshflow as tf
          >>> model = tf.keras.Sequential([tf.keras.layers.Dense(1, kernel_initializer="ones")])
          >>> model.predict_on_batch(tf.constant([[1.0, 2.0]])).tolist()
          [[3.0]]
        """
        batch = self._single_batch(x, None, None, None)
        return nest.map_structure(np.asarray, self._step("predict")(batch))

    def _single_batch(self, x: Any, y: Any, sample_weight: Any, class_weight: Any) -> Any:
        size = len(nest.flatten(x)[0])
        handler = DataHandler(
            x,
            y,
            sample_weight=sample_weight,
            batch_size=size,
            epochs=1,
            shuffle=False,
            class_weight=class_weight,
        )
        _, batches = next(iter(handler.epochs()))
        return next(iter(batches))

    def _on_batch(
        self,
        kind: str,
        x: Any,
        y: Any,
        sample_weight: Any,
        class_weight: Any,
        reset: bool,
        return_dict: bool,
    ) -> Any:
        if reset:
            self.reset_metrics()
        batch = self._single_batch(x, y, sample_weight, class_weight)
        LabelGuard(self).check(batch)
        logs = logs_as_numbers(self._step(kind)(batch))
        if return_dict:
            return logs
        values = list(logs.values())
        return values[0] if len(values) == 1 else values


def logs_as_numbers(logs: Any) -> dict[str, Any]:
    """Logs with Python numbers for scalar tensors."""
    if not isinstance(logs, dict):
        return {}
    return {name: _number(value) for name, value in logs.items()}


def _number(value: Any) -> Any:
    if isinstance(value, Tensor):
        value = value.numpy()
    if isinstance(value, (np.generic, np.ndarray)) and value.ndim == 0:
        return value.item()
    return value
