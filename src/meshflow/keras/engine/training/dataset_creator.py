"""`DatasetCreator`: a function that makes the dataset of each worker, as an input of `fit`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from meshflow.core.runtime.errors import InvalidValueError
from meshflow.distribute.options import InputOptions

__all__ = ["DatasetCreator", "check_steps"]


class DatasetCreator:
    """A function that makes a dataset, called once for each worker.

    Args:
      dataset_fn: called with a `tf.distribute.InputContext`, which says how many pipelines there are and which this
        one is; returns a `tf.data.Dataset` of batches.
      input_options: a `tf.distribute.InputOptions`, or None.

    Raises:
      TypeError: when `dataset_fn` cannot be called, or `input_options` is something else.

    Example:
      >>> import meshflow as tf
      >>> def dataset_fn(context):
      ...     return tf.data.Dataset.from_tensors((tf.ones([4, 1]), tf.zeros([4, 1]))).repeat()
      >>> model = tf.keras.Sequential([tf.keras.layers.Dense(1, kernel_initializer="ones")])
      >>> model.compile(tf.keras.optimizers.SGD(0.25), "mse")
      >>> creator = tf.keras.utils.experimental.DatasetCreator(dataset_fn)
      >>> model.fit(creator, epochs=2, steps_per_epoch=1, verbose=0).history["loss"]
      [1.0, 0.0]
    """

    def __init__(
        self, dataset_fn: Callable[[Any], Any], input_options: InputOptions | None = None
    ) -> None:
        if not callable(dataset_fn):
            raise TypeError(
                f"`dataset_fn` for `DatasetCreator` must be a `callable`. Received: {dataset_fn!r}"
            )
        if input_options is not None and not isinstance(input_options, InputOptions):
            raise TypeError(
                "`input_options` for `DatasetCreator` must be a `tf.distribute.InputOptions`. Received: "
                f"{input_options!r}"
            )
        self.dataset_fn, self.input_options = dataset_fn, input_options

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The dataset of one input pipeline.

        Args:
          *args: an `InputContext`.
          **kwargs: nothing else.

        Raises:
          TypeError: when the function returns no dataset.
        """
        dataset = self.dataset_fn(*args, **kwargs)
        if not hasattr(dataset, "element_spec"):
            raise TypeError(
                "The `callable` provided to `DatasetCreator` must return a Dataset. It returns "
                f'"{dataset}"'
            )
        return dataset


def check_steps(x: Any, steps: int | None, exact: Any = None) -> None:
    """Refuses a `DatasetCreator` whose dataset nobody says when to leave.

    Args:
      x: an input.
      steps: how many batches are taken of it; None for all.
      exact: whether all of it is evaluated, each example once.

    Raises:
      ValueError: when `x` is a creator and neither is given.
    """
    if isinstance(x, DatasetCreator) and steps is None and not exact:
        raise InvalidValueError(
            "When using a `tf.keras.utils.experimental.DatasetCreator`, `steps_per_epoch`, `validation_steps`, "
            "`steps`, or `pss_evaluation_shards` argument must be provided in `Model.fit`, `Model.evaluate`, or "
            "`Model.predict`."
        )
