"""`DatasetCreator`: a function that creates a dataset for each worker, as an input of `fit`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from meshflow.core.runtime.errors import InvalidValueError
from meshflow.distribute.options import InputOptions
from meshflow.environment.types import PyTree

if TYPE_CHECKING:
    from meshflow.data.dataset import Dataset


class DatasetCreator:
    """A function that creates a dataset; it is called once for each worker.

    Args:
      dataset_fn: Function of a `tf.distribute.InputContext`, which holds the number of input
        pipelines and the index of this one. It returns a `tf.data.Dataset` of batches.
      input_options: Options of the input pipelines.

    Raises:
      TypeError: if `dataset_fn` is not callable, or `input_options` has another type.

    Example:
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

    def __call__(self, *args: Any, **kwargs: Any) -> Dataset:
        """Create the dataset of one input pipeline.

        Args:
          *args: An `InputContext`.
          **kwargs: Keyword arguments of `dataset_fn`.

        Raises:
          TypeError: if the function does not return a dataset.
        """
        dataset = self.dataset_fn(*args, **kwargs)
        if not hasattr(dataset, "element_spec"):
            raise TypeError(
                "The `callable` provided to `DatasetCreator` must return a Dataset. It returns "
                f'"{dataset}"'
            )
        return dataset


def check_steps(x: PyTree, steps: int | None, exact: int | bool | None = None) -> None:
    """Raise an error for a `DatasetCreator` without a number of steps.

    Args:
      x: Inputs.
      steps: Number of batches per epoch; None for all.
      exact: Whether the complete dataset is evaluated, each example once.

    Raises:
      ValueError: if `x` is a creator, `steps` is None, and `exact` is false.
    """
    if isinstance(x, DatasetCreator) and steps is None and not exact:
        raise InvalidValueError(
            "When using a `tf.keras.utils.experimental.DatasetCreator`, `steps_per_epoch`, `validation_steps`, "
            "`steps`, or `pss_evaluation_shards` argument must be provided in `Model.fit`, `Model.evaluate`, or "
            "`Model.predict`."
        )
