"""`PreprocessingLayer`: a layer that learns its state from data by `adapt`, before training."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np

from meshflow.core.dispatch.composite import SparseTensor, SparseTensorSpec
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.shapes import TensorShape
from meshflow.core.values.specs import TensorSpec
from meshflow.core.values.tensor import Tensor, TensorLike, is_tensor
from meshflow.environment.types import Config, PyTree
from meshflow.keras import settings
from meshflow.keras.engine.layer.base_layer import Layer
from meshflow.keras.engine.symbolic.keras_tensor import KerasTensor
from meshflow.keras.safe_mode import require_unsafe_mode
from meshflow.ops.deferred_host_values import DeferredValue, find_recording
from meshflow.ops.ragged import RaggedTensor, RaggedTensorSpec


class PreprocessingLayer(Layer):
    """Layer with `adapt`; subclasses define `update_state`, `finalize_state` and `reset_state`.

    Args:
      **kwargs: Arguments of `Layer`.

    Attributes:
      runs_on_host: Whether `call` needs concrete values, for example strings, and is therefore not
        compiled.

    Example:
      >>> layer = tf.keras.layers.Normalization(axis=None)
      >>> layer.adapt([1.0, 3.0])
      >>> layer([5.0]).numpy()
      array([3.], dtype=float32)
    """

    runs_on_host = False
    # If True, `call` accepts a list of tensors, which is not stacked to one tensor.
    _accepts_list = False
    # If True, the learned state depends on the number of rows per call of `update_state`.
    _depends_on_batch_size = False
    # Whether `adapt` replaces the vocabulary, because the layer was created from a configuration.
    _can_replace_vocabulary = False

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._adapted = False

    @property
    def is_adapted(self) -> bool:
        """Check whether `adapt` was called."""
        return self._adapted

    def compile(
        self, run_eagerly: bool | None = None, steps_per_execution: int | None = None
    ) -> None:
        """Do nothing: preprocessing layers are not compiled.

        Args:
          run_eagerly: Ignored.
          steps_per_execution: Ignored.
        """

    def __call__(self, inputs: PyTree, *args: Any, **kwargs: Any) -> Tensor:
        """Call the layer; a list or Python value is converted to one tensor."""
        if find_recording(inputs) is not None and isinstance(inputs, DeferredValue):
            # The inputs are strings of a function that is being saved.
            self._build_if_needed(inputs.shape)
            return self.call(inputs, *args, **kwargs)
        if self._accepts_list:
            return super().__call__(_to_tensors(inputs), *args, **kwargs)
        return super().__call__(as_tensor(inputs), *args, **kwargs)

    def adapt(self, data: PyTree, batch_size: int | None = None, steps: int | None = None) -> None:
        """Learn the state from data; the previous state is discarded.

        Args:
          data: Dataset, array, tensor or list.
          batch_size: Number of rows of an array per update; default 32.
          steps: Number of batches to use; default all.

        Raises:
          ValueError: If the data is empty, or an infinite dataset is passed without `steps`.
        """
        if steps is None and getattr(data, "infinite", False):
            raise ValueError(
                f"Layer {self.name!r} cannot adapt to all elements of an infinite dataset: pass `steps`, or use "
                "dataset.take(count)."
            )
        if self.built or self._can_replace_vocabulary:
            self.reset_state()
        is_empty = True
        batches = _iterate_batches(data, batch_size, self._depends_on_batch_size)
        for batch, shape in itertools.islice(batches, steps):
            is_empty = False
            self._build_if_needed(shape)
            self.update_state(batch)
        if is_empty:
            raise ValueError(
                f"Layer {self.name!r}: Expected input data of `adapt` to be non-empty."
            )
        self.finalize_state()
        self._adapted = True

    def _build_if_needed(self, shape: TensorShape) -> None:
        if self.built:
            return
        if not hasattr(self, "_batch_input_shape"):
            self._batch_input_shape = (None,) * (shape.rank or 0)
        self._build_input_shape = shape
        self.build(shape)
        self.built = True

    def update_state(self, data: TensorLike) -> None:
        """Update the state with a batch.

        Args:
          data: Tensor.

        Raises:
          NotImplementedError: If the subclass does not define it.
        """
        raise NotImplementedError(f"{type(self).__name__} must define `update_state(data)`.")

    def reset_state(self) -> None:
        """Reset the learned state.

        Raises:
          NotImplementedError: If the subclass does not define it.
        """
        raise NotImplementedError(f"{type(self).__name__} must define `reset_state()`.")

    def finalize_state(self) -> None:
        """Compute the final state; called after the last batch."""


class EncodingLayer(PreprocessingLayer):
    """Preprocessing layer with an output dtype that does not depend on the inputs."""

    def get_output_dtype(self) -> str:
        """Return the dtype of the outputs."""
        return self.compute_dtype or settings.floatx()

    def _infer_outputs(
        self, inputs: PyTree, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> KerasTensor:
        tensors = inputs if isinstance(inputs, list) else [inputs]
        rows = tensors[0].type_spec if isinstance(tensors[0].type_spec, RaggedTensorSpec) else None
        # TextVectorization pads rows unless it has `ragged=True`; other layers keep the rows of their input.
        is_ragged = getattr(self, "ragged", rows is not None)
        if is_ragged and getattr(self, "output_mode", None) == "int":
            shape = self.compute_output_shape(self._get_input_shape([t.shape for t in tensors]))
            form = (1,) if rows is None else (rows.ragged_rank, rows.row_splits_dtype)
            sizes = [None if 0 < i <= form[0] else n for i, n in enumerate(TensorShape(shape))]
            return KerasTensor(RaggedTensorSpec(sizes, self.get_output_dtype(), *form))
        is_sparse = getattr(self, "sparse", False) or (
            isinstance(tensors[0].type_spec, SparseTensorSpec)
            and getattr(self, "output_mode", None) == "int"
        )
        return KerasTensor(self._make_output_spec([t.shape for t in tensors], is_sparse))

    def _make_output_spec(
        self, shapes: list[TensorShape], is_sparse: bool
    ) -> TensorSpec | SparseTensorSpec:
        shape = self.compute_output_shape(self._get_input_shape(shapes))
        make_spec = SparseTensorSpec if is_sparse else TensorSpec
        return make_spec(shape, self.get_output_dtype())

    def _get_input_shape(self, shapes: list[TensorShape]) -> Any:
        """Return the argument of `compute_output_shape` for the shapes of all inputs."""
        return shapes[0]

    def compute_output_signature(self, input_signature: PyTree) -> TensorSpec | SparseTensorSpec:
        """Compute the spec of the outputs from those of the inputs."""
        specs = input_signature if isinstance(input_signature, (list, tuple)) else [input_signature]
        return self._make_output_spec([s.shape for s in specs], getattr(self, "sparse", False))

    @classmethod
    def from_config(cls, config: Config) -> Any:
        """Create a layer from a configuration.

        Raises:
          ValueError: If the configuration names a vocabulary file in safe mode.
        """
        for key in ("vocabulary", "idf_weights"):
            if isinstance(config.get(key), str):
                require_unsafe_mode(
                    f"layer {config.get('name')} of class {cls.__name__} with {key}={config[key]!r}",
                    "This reads a file that the configuration names.",
                )
        layer = super().from_config(config)
        for part in (layer, getattr(layer, "_lookup_layer", layer)):
            part._can_replace_vocabulary = config.get("vocabulary") is not None
        return layer


def as_tensor(value: TensorLike) -> Tensor:
    """Convert an array, list, series or Python value to a tensor; float64 becomes `floatx()`."""
    if is_tensor(value) or isinstance(value, (SparseTensor, RaggedTensor)):
        return value
    if not isinstance(value, (list, tuple)) and hasattr(value, "__array__"):
        value = np.asarray(value)
    if getattr(value, "dtype", None) == np.float64:
        return convert_to_tensor(value, settings.floatx())
    return convert_to_tensor(value)


def _to_tensors(inputs: PyTree) -> PyTree:
    if not isinstance(inputs, (list, tuple)):
        return inputs if is_tensor(inputs) else as_tensor(inputs)
    return [as_tensor(value) for value in inputs]


def read_host_values(tensor: TensorLike, purpose: str) -> np.ndarray:
    """Return the values of a tensor on the host.

    Args:
      tensor: Tensor or variable.
      purpose: Description of the values, for the error that is raised while a function is traced.
    """
    return convert_to_tensor(tensor).require_value(purpose)


def _iterate_batches(
    data: PyTree, batch_size: int | None, uses_small_batches: bool
) -> Iterator[tuple[Any, TensorShape]]:
    """Yield batches of data and their shapes, with None for sizes that may vary."""
    spec = getattr(data, "element_spec", None)
    if spec is not None:
        if isinstance(spec, (tuple, list, dict)):
            raise ValueError(
                f"`adapt` takes a dataset of tensors, got elements of the structure {spec}. Remove the labels: "
                "dataset.map(lambda x, y: x)."
            )
        for batch in data:
            tensor = as_tensor(batch)
            known = [None] if spec.shape.rank is None else spec.shape.as_list()[:1]
            yield tensor, TensorShape([*known, *tensor.shape.as_list()[1:]] if tensor.ndim else [])
    elif hasattr(data, "__array__") or isinstance(data, (list, tuple)) or is_tensor(data):
        tensor = as_tensor(data)
        if isinstance(tensor, RaggedTensor):
            size = batch_size or 32
            for first in range(0, int(tensor.nrows()), size):
                rows = tensor[first : first + size]
                yield rows, TensorShape([None, *rows.shape.as_list()[1:]])
            return
        values = read_host_values(tensor, "data to adapt to")
        if not values.ndim:
            yield tensor, TensorShape([])
            return
        size = batch_size or 32
        if batch_size is None and values.dtype != object and not uses_small_batches:
            size = max(len(values), 1)
        for first in range(0, len(values), size):
            part = values[first : first + size]
            yield Tensor(part), TensorShape([None, *part.shape[1:]])
    else:
        for batch in data:
            tensor = as_tensor(batch)
            yield tensor, TensorShape([None, *tensor.shape.as_list()[1:]])
