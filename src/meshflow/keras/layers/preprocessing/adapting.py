"""`PreprocessingLayer`: a layer whose state is learnt by looking at data once, before training."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.shapes import TensorShape
from meshflow.core.values.specs import TensorSpec
from meshflow.core.values.tensor import Tensor, is_tensor
from meshflow.keras import settings
from meshflow.keras.engine.layer.base_layer import Layer
from meshflow.keras.engine.symbolic.keras_tensor import KerasTensor
from meshflow.keras.safe_mode import refuse
from meshflow.ops.deferred_host_values import Pending, saving

__all__ = ["PreprocessingLayer"]


class PreprocessingLayer(Layer):
    """A layer with `adapt`: subclasses define `update_state`, `finalize_state` and `reset_state`.

    Args:
      **kwargs: arguments of `Layer`.

    Attributes:
      runs_on_host: whether `call` needs known values, such as strings, so that it is not compiled.

    Example:
      >>> import meshflow as tf
      >>> layer = tf.keras.layers.Normalization(axis=None)
      >>> layer.adapt([1.0, 3.0])
      >>> layer([5.0]).numpy()
      array([3.], dtype=float32)
    """

    runs_on_host = False
    # Whether `call` takes a list of tensors, which must stay one.
    _takes_list = False
    # Whether what is learnt depends on how many rows are seen together.
    _learns_by_batches = False

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._adapted = False

    @property
    def is_adapted(self) -> bool:
        """Whether `adapt` was called."""
        return self._adapted

    def compile(
        self, run_eagerly: bool | None = None, steps_per_execution: int | None = None
    ) -> None:
        """Accepted; there is nothing to compile.

        Args:
          run_eagerly: accepted.
          steps_per_execution: accepted.
        """

    def __call__(self, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        """Calls the layer; lists and Python values become one tensor."""
        if saving(inputs) is not None and isinstance(inputs, Pending):
            # Strings of a function that is saved.
            self._build_for(inputs.shape)
            return self.call(inputs, *args, **kwargs)
        if self._takes_list:
            return super().__call__(_each(inputs), *args, **kwargs)
        return super().__call__(as_tensor(inputs), *args, **kwargs)

    def adapt(self, data: Any, batch_size: int | None = None, steps: int | None = None) -> None:
        """Learns the state from data, forgetting what was learnt before.

        Args:
          data: a dataset, an array, a tensor or a list.
          batch_size: rows of an array that are looked at together; default 32.
          steps: how many batches are looked at; default all.
        """
        if self.built:
            self.reset_state()
        for number, (batch, shape) in enumerate(
            _batches(data, batch_size, self._learns_by_batches)
        ):
            if steps is not None and number >= steps:
                break
            self._build_for(shape)
            self.update_state(batch)
        self.finalize_state()
        self._adapted = True

    def _build_for(self, shape: TensorShape) -> None:
        if self.built:
            return
        if not hasattr(self, "_batch_input_shape"):
            self._batch_input_shape = (None,) * (shape.rank or 0)
        self._build_input_shape = shape
        self.build(shape)
        self.built = True

    def update_state(self, data: Any) -> None:
        """Looks at a batch.

        Args:
          data: a tensor.

        Raises:
          NotImplementedError: unless a subclass defines it.
        """
        raise NotImplementedError(f"{type(self).__name__} must define `update_state(data)`.")

    def reset_state(self) -> None:
        """Forgets what was learnt.

        Raises:
          NotImplementedError: unless a subclass defines it.
        """
        raise NotImplementedError(f"{type(self).__name__} must define `reset_state()`.")

    def finalize_state(self) -> None:
        """Called after the last batch."""


class EncodingLayer(PreprocessingLayer):
    """A layer whose outputs have a dtype that does not depend on the inputs'."""

    def output_dtype(self) -> Any:
        """Dtype of the outputs."""
        return self.compute_dtype or settings.floatx()

    def _infer_outputs(self, inputs: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        tensors = inputs if isinstance(inputs, list) else [inputs]
        return KerasTensor(self._output_spec([t.shape for t in tensors]))

    def _output_spec(self, shapes: list[Any]) -> TensorSpec:
        return TensorSpec(self.compute_output_shape(shapes[0]), self.output_dtype())

    def compute_output_signature(self, input_signature: Any) -> TensorSpec:
        """The `TensorSpec` of the outputs for the inputs' ones."""
        specs = input_signature if isinstance(input_signature, (list, tuple)) else [input_signature]
        return self._output_spec([spec.shape for spec in specs])

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Any:
        """The layer with a configuration.

        Raises:
          ValueError: in safe mode, for a configuration that names a file with a vocabulary.
        """
        for key in ("vocabulary", "idf_weights"):
            if isinstance(config.get(key), str):
                refuse(
                    f"layer {config.get('name')} of class {cls.__name__} with {key}={config[key]!r}",
                    "This reads a file that the configuration names.",
                )
        return super().from_config(config)


def as_tensor(value: Any) -> Any:
    """A tensor for arrays, lists, series and Python values; tensors stay."""
    if is_tensor(value):
        return value
    if not isinstance(value, (list, tuple)) and hasattr(value, "__array__"):
        value = np.asarray(value)
    if getattr(value, "dtype", None) == np.float64:
        return convert_to_tensor(value, settings.floatx())
    return convert_to_tensor(value)


def _each(inputs: Any) -> list[Any]:
    if not isinstance(inputs, (list, tuple)):
        return inputs if is_tensor(inputs) else as_tensor(inputs)
    return [as_tensor(value) for value in inputs]


def host_values(tensor: Any, what: str) -> np.ndarray:
    """The values of a tensor on the host.

    Args:
      tensor: a tensor or a variable.
      what: what they are used as, for the error while a function is traced.
    """
    return convert_to_tensor(tensor)._concrete(what)


def _batches(
    data: Any, batch_size: int | None, small: bool
) -> Iterator[tuple[Tensor, TensorShape]]:
    """Batches of data, and each one's shape, with None for sizes that may vary."""
    spec = getattr(data, "element_spec", None)
    if spec is not None:
        if isinstance(spec, (tuple, list, dict)):
            raise ValueError(
                f"`adapt` takes a dataset of tensors, got elements of the structure {spec}. Take the inputs alone: "
                "dataset.map(lambda x, y: x)."
            )
        for batch in data:
            tensor = as_tensor(batch)
            known = [None] if spec.shape.rank is None else spec.shape.as_list()[:1]
            yield tensor, TensorShape([*known, *tensor.shape.as_list()[1:]] if tensor.ndim else [])
    elif hasattr(data, "__array__") or isinstance(data, (list, tuple)) or is_tensor(data):
        tensor = as_tensor(data)
        values = host_values(tensor, "data to adapt to")
        if not values.ndim:
            yield tensor, TensorShape([])
            return
        size = batch_size or 32
        if batch_size is None and values.dtype != object and not small:
            size = max(len(values), 1)
        for first in range(0, len(values), size):
            part = values[first : first + size]
            yield Tensor(part), TensorShape([None, *part.shape[1:]])
    else:
        for batch in data:
            tensor = as_tensor(batch)
            yield tensor, TensorShape([None, *tensor.shape.as_list()[1:]])
