"""Conversion of the many forms of training data to a stream of host batches.

`DataHandler` inspects the data of `fit` once. For every epoch it then yields tuples (x,), (x, y) or
(x, y, sample_weight) of nested NumPy arrays. Arrays are gathered batch by batch in a permuted
order. Any other data are iterated.
"""

from __future__ import annotations

import itertools
import math
import operator
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Literal

import numpy as np

from meshflow.core.dispatch.tiers import RunForecast
from meshflow.core.values import nest
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.specs import TensorSpec
from meshflow.core.values.tensor import Tensor
from meshflow.core.variables.variable import Variable
from meshflow.data.epoch import Epoch, prefetch
from meshflow.data.execution.batched_gather import BatchedGather, LeafGather
from meshflow.data.execution.prefetched_batches import PrefetchedBatches
from meshflow.data.transformations.batching import find_batch_size
from meshflow.environment.types import PyTree
from meshflow.keras import settings
from meshflow.keras.engine.training.class_weights import ClassWeight, ClassWeights
from meshflow.keras.engine.training.shuffle_orders import ShuffleOrders
from meshflow.keras.engine.training.sparse_batches import (
    ExtensionBatch,
    RaggedBatch,
    SparseArrays,
    is_composite,
    list_rows,
    split_batch,
)
from meshflow.keras.engine.training.training_state import Resumption, get_source_state
from meshflow.placement.layout import find_layout


def unpack_x_y_sample_weight(data: PyTree) -> tuple[Any, Any, Any]:
    """Split a batch into inputs, targets and sample weights.

    Args:
      data: A tensor, or a tuple (x,), (x, y) or (x, y, sample_weight).

    Returns:
      (x, y, sample_weight), with None for missing parts.

    Raises:
      ValueError: if the tuple is longer.

    Example:
      >>> tf.keras.utils.unpack_x_y_sample_weight((1, 2))
      (1, 2, None)
    """
    if isinstance(data, list):
        data = tuple(data)
    if not isinstance(data, tuple):
        return data, None, None
    if len(data) > 3:
        raise ValueError(
            f"Data is expected to be in format `x`, `(x,)`, `(x, y)`, or `(x, y, sample_weight)`, found: {len(data)} parts."
        )
    return (*data, *[None] * (3 - len(data)))


def pack_x_y_sample_weight(x: PyTree, y: PyTree = None, sample_weight: PyTree = None) -> PyTree:
    """Combine inputs, targets and sample weights into a batch, without missing parts at the end.

    Args:
      x: Inputs.
      y: Targets.
      sample_weight: Weights.

    Example:
      >>> tf.keras.utils.pack_x_y_sample_weight([1], [2])
      ([1], [2])
      >>> tf.keras.utils.pack_x_y_sample_weight([1], [2], [3])
      ([1], [2], [3])
    """
    if y is None and sample_weight is None:
        return x if not nest.is_nested(x) else (x,)
    return (x, y) if sample_weight is None else (x, y, sample_weight)


def _check_integer(name: str, value: Any, minimum: int) -> int:
    """Convert an argument to an integer that is at least 0 or 1."""
    kind = "a positive" if minimum else "a non-negative"
    try:
        integer = operator.index(value)
    except TypeError:
        raise TypeError(
            f"{name} must be {kind} integer, got {value!r} of type {type(value).__name__}."
        ) from None
    if integer < minimum:
        raise ValueError(f"{name} must be {kind} integer, got {value}.")
    return integer


def train_validation_split(arrays: PyTree, validation_split: float) -> tuple[PyTree, PyTree]:
    """Split arrays into a first and a last part.

    Args:
      arrays: A nested structure of arrays; None is allowed as a leaf.
      validation_split: Fraction of the last part, in (0, 1).

    Returns:
      Two structures like `arrays`.

    Raises:
      ValueError: if the data cannot be split, or a part would be empty.
    """
    leaves = [a for a in nest.flatten(arrays) if a is not None]
    unsupported = [type(a).__name__ for a in leaves if not _is_array(a)]
    if unsupported:
        raise ValueError(
            f"`validation_split` is only supported for Tensors or NumPy arrays, found following types in the input: {unsupported}"
        )
    arrays = nest.map_structure(lambda a: None if a is None else _to_numpy(a), arrays)
    size = len(next(a for a in nest.flatten(arrays) if a is not None))
    if not 0 < validation_split < 1:
        raise ValueError(f"`validation_split` must be between 0 and 1, got {validation_split}.")
    cut = math.floor(size * (1.0 - validation_split))
    if cut in (0, size):
        raise ValueError(
            f"Training data contains {size} samples, which is not sufficient to split it into a validation and training set as specified by `validation_split={validation_split}`. Either provide more data, or a different value for the `validation_split` argument."
        )
    first = nest.map_structure(lambda a: None if a is None else a[:cut], arrays)
    return first, nest.map_structure(lambda a: None if a is None else a[cut:], arrays)


def _is_array(value: object) -> bool:
    if isinstance(value, (np.ndarray, Tensor, Variable)):
        return True
    module = type(value).__module__.split(".")[0]
    return (
        module in ("pandas", "jaxlib", "jax", "torch", "h5py") and hasattr(value, "__array__")
    ) or (hasattr(value, "shape") and hasattr(value, "dtype") and hasattr(value, "__array__"))


def _is_structure_of_arrays(value: PyTree) -> bool:
    leaves = nest.flatten(value)
    return bool(leaves) and all(
        _is_array(v) or is_composite(v) or isinstance(v, (int, float, np.generic)) for v in leaves
    )


def _to_numpy(value: Any) -> Any:
    """Convert a value to a NumPy array, or a composite one to its rows."""
    if is_composite(value):
        return list_rows(value)
    if isinstance(value, (Tensor, Variable)):
        value = value.numpy()
    elif type(value).__module__.startswith("torch"):
        value = value.detach().cpu().numpy()
    array = np.asarray(value)
    if array.dtype == np.float64:
        array = array.astype(settings.floatx())
    if array.dtype.kind in "SU" or (array.dtype == object and _is_text(array)):
        return convert_to_tensor(array).numpy()
    if array.dtype == object:
        try:
            if any(v is None for v in array.flat):
                raise TypeError("NumPy converts None to NaN.")
            array = array.astype(settings.floatx())
        except (TypeError, ValueError):
            raise ValueError(
                f"Failed to convert data of type {type(value).__name__} to numbers: it holds objects ({array.reshape(-1)[:3].tolist()}...). Convert text columns to numbers first."
            ) from None
    return array


def _is_text(array: np.ndarray) -> bool:
    return bool(array.size) and all(isinstance(v, (str, bytes)) for v in array.flat)


class DataHandler:
    """The batches of one call of `fit`, `evaluate` or `predict`.

    Args:
      x: Inputs, or an iterable of batches.
      y: Targets, for arrays only.
      sample_weight: Weights, for arrays only.
      batch_size: Number of examples per batch. Default: 32 for arrays; ignored for iterables.
      steps_per_epoch: Number of batches per epoch. Default: all.
      initial_epoch: Index of the first epoch.
      epochs: Index after that of the last epoch.
      shuffle: True, False, or 'batch'.
      class_weight: Weight of each class, or such weights by output.
      output_names: Names of the model's outputs, which `class_weight` may refer to.

    Attributes:
      steps: Number of batches per epoch, or None if it is not known.
      tracked: Whether a callback will read `get_position`.
      exhausted: Whether the data ended before the requested number of steps.
      checks_labels: Whether this process can check the labels of batches.

    Raises:
      ValueError: if the arguments do not fit together.
    """

    checks_labels = True
    # Handlers that schedule the steps for other processes define a method here.
    run: Callable[[Sequence[Any]], Any] | None = None

    def __init__(
        self,
        x: PyTree,
        y: PyTree = None,
        sample_weight: PyTree = None,
        batch_size: int | None = None,
        steps_per_epoch: int | None = None,
        initial_epoch: int = 0,
        epochs: int = 1,
        shuffle: bool | Literal["batch"] = True,
        class_weight: ClassWeight | None = None,
        output_names: Sequence[str] | None = None,
    ) -> None:
        if x is None:
            raise ValueError(
                "Missing data: `x` is None. Pass arrays, a generator, a Sequence, or another iterable of batches."
            )
        if steps_per_epoch == 0:
            raise ValueError(
                "steps_per_epoch (or steps) must be None or a positive integer, got 0."
            )
        # A negative number runs no epochs, as in TensorFlow.
        epochs = _check_integer("epochs", max(epochs, 0) if isinstance(epochs, int) else epochs, 0)
        initial_epoch = _check_integer("initial_epoch", initial_epoch, 0)
        if batch_size is not None:
            batch_size = _check_integer("batch_size", batch_size, 1)
        self._initial_epoch, self._last = initial_epoch, epochs
        self._limit = steps_per_epoch
        self._class_weights: ClassWeights | None = None
        if class_weight is not None and len(class_weight) > 0:
            self._class_weights = ClassWeights(class_weight, output_names)
        # The number of steps of the first epoch that an earlier process did, and the position at
        # which it stopped.
        self._steps_done = 0
        self._resumption: Resumption | None = None
        self._pass_state: dict[str, Any] | None = None
        self._batches_taken = 0
        self.exhausted = False
        self.tracked = False
        self.source: ArraySource | IterableSource
        for value, name in ((x, "x"), (y, "y"), (sample_weight, "sample_weight")):
            if isinstance(value, (str, bytes, set, frozenset)):
                raise ValueError(
                    f"Failed to find data adapter that can handle input: `{name}` is of {type(value)}. Pass arrays, "
                    "tensors, lists or dictionaries of them, or an iterable of batches; one text is tf.constant([text])."
                )
        x = _lists_to_arrays(x)
        if _is_structure_of_arrays(x):
            self.source = ArraySource(
                x, _lists_to_arrays(y), _lists_to_arrays(sample_weight), batch_size, shuffle
            )
        elif isinstance(x, Iterable) or hasattr(x, "__getitem__"):
            for value, name in ((y, "y"), (sample_weight, "sample_weight")):
                if value is not None:
                    kind = "python generator" if isinstance(x, Iterator) else type(x).__name__
                    kind = "dataset" if hasattr(x, "element_spec") else kind
                    raise ValueError(
                        f"`{name}` argument is not supported when using {kind} as input: it must yield (x, y) or (x, y, sample_weight)."
                    )
            # `batch_size` is ignored, as in Keras: the elements are batches.
            self.source = IterableSource(x, shuffle)
        else:
            kinds = sorted({f"{type(v).__module__}.{type(v).__name__}" for v in nest.flatten(x)})
            raise ValueError(
                f"Failed to find data adapter that can handle input: {type(x)} holding {kinds}."
            )
        size = self.source.size
        self.steps = steps_per_epoch if steps_per_epoch is not None else size
        if size is None and steps_per_epoch is None and getattr(x, "infinite", False):
            raise ValueError(
                "When providing an infinite dataset, you must specify the number of steps to run: pass "
                "`steps_per_epoch` (or `steps`), or leave out `repeat()`."
            )

    def forecast_runs(self, iterations: int) -> RunForecast:
        """Return the numbers of steps until the end of the last epoch, as far as they are known.

        A training that was interrupted and resumed has the same forecast as without the interruption.

        Args:
          iterations: Number of steps that the optimizer has taken.
        """
        runs = rare_runs = None
        if self.steps:
            remaining = (self._last - self._initial_epoch) * self.steps - self._steps_done
            runs = iterations + remaining
            rare_runs = math.ceil(runs / self.steps)
        return RunForecast(
            runs,
            rare_runs,
            self.source.has_variable_sizes,
            self.source.batch_size,
            self.source.last_batch_size,
            self.source.element_shapes,
        )

    def iterate_epochs(self) -> Iterator[tuple[int, Iterator[Any]]]:
        """Yield the index of each epoch with an iterator over its batches."""
        # With a limit of steps, an epoch continues an iterable where the previous epoch stopped, except for a `Sequence`.
        shared = self._iterate_endlessly() if self._limit is not None else None
        for epoch in range(self._initial_epoch, self._last):
            if shared is not None and self.source.restarts_epochs:
                shared = self._iterate_endlessly()
            yield (
                epoch,
                self._add_class_weights(
                    self._limit_steps(shared) if shared is not None else self._iterate_epoch(epoch)
                ),
            )
            self.source.end_epoch()
            if self.exhausted:
                return

    def _iterate_epoch(self, epoch: int) -> Iterator[Any]:
        """Yield the batches of one pass, and warn if a generator has none left after the first epoch."""
        is_empty = True
        for batch in self._iterate_pass():
            is_empty = False
            yield batch
        if is_empty and epoch > self._initial_epoch:
            self._warn_of_end()

    def _iterate_pass(self) -> Iterator[Any]:
        """Yield the batches of one pass over the data, and count them for `get_position`."""
        resumption, self._resumption = self._resumption, None
        skip = 0
        if resumption is not None:
            resumption.restore_pass(self.source)
            skip = resumption.num_skipped_batches
        self._pass_state = get_source_state(self.source) if self.tracked else None
        self._batches_taken = 0
        for batch in self.source.iterate_batches():
            self._batches_taken += 1
            if self._batches_taken > skip:
                yield batch
        self._pass_state = None

    def get_position(self) -> dict[str, Any]:
        """Return the position in the data: the state at the start of the pass, and the batches since."""
        if self._pass_state is None:
            return {"source": get_source_state(self.source), "batches": 0}
        return {"source": self._pass_state, "batches": self._batches_taken}

    def resume(self, resumption: Resumption) -> None:
        """Continue at a position of an earlier process, from the next call of `iterate_epochs`.

        Args:
          resumption: The position.
        """
        self._resumption = resumption
        self._initial_epoch = resumption.epoch
        self._steps_done = resumption.step

    def _iterate_endlessly(self) -> Iterator[Any]:
        """Yield batches of one pass after another, as long as the source can restart."""
        while True:
            is_empty = True
            for batch in self._iterate_pass():
                is_empty = False
                yield batch
            if is_empty or not self.source.can_restart(self._limit or 0):
                return

    def iterate_batches(self) -> Iterator[Any]:
        """Yield batches without epochs.

        Arrays are repeated endlessly, and a dataset if an epoch is a full pass over it.
        """
        return self._add_class_weights(self._iterate_endlessly())

    def finish_epoch(self, logs: PyTree) -> PyTree:
        """Return the metrics of an epoch: the result of its last step.

        Args:
          logs: Result of the last step.
        """
        return logs

    def _limit_steps(self, shared: Iterator[Any]) -> Iterator[Any]:
        count, self._steps_done = self._steps_done, 0
        for batch in itertools.islice(shared, (self._limit or 0) - count):
            count += 1
            yield batch
        if count < (self._limit or 0):
            self._warn_of_end()

    def _warn_of_end(self) -> None:
        self.exhausted = True
        count = (
            "" if self._limit is None else f" (in this case, {self._limit * self._last} batches)"
        )
        warnings.warn(
            "Your input ran out of data; interrupting training. Make sure that your dataset or generator can generate "
            f"at least `steps_per_epoch * epochs` batches{count}.",
            stacklevel=3,
        )

    def _add_class_weights(self, batches: Iterator[Any]) -> Iterator[Any]:
        weights = self._class_weights
        if weights is None:
            return batches
        return (weights.add_to_batch(*unpack_x_y_sample_weight(batch)) for batch in batches)


def _lists_to_arrays(value: PyTree) -> PyTree:
    """Convert lists of numbers, as in `fit([[1.], [2.]], [0, 1])`, or of strings to arrays."""
    if (
        isinstance(value, (list, tuple))
        and value
        and not any(_is_array(v) for v in nest.flatten(value))
    ):
        leaves = nest.flatten(value)
        if all(isinstance(v, (int, float, bool, np.generic)) for v in leaves):
            return np.array(value)
        if all(isinstance(v, (str, bytes)) for v in leaves):
            return np.array(value, object)
    return value


class ArraySource:
    """A source of batches that are gathered from arrays."""

    has_variable_sizes = False
    restarts_epochs = False
    element_shapes: Sequence[tuple[int | None, ...]] | None = None

    def __init__(
        self,
        x: PyTree,
        y: PyTree,
        sample_weight: PyTree,
        batch_size: int | None,
        shuffle: bool | Literal["batch"],
    ) -> None:
        parts = (
            (x,)
            if y is None and sample_weight is None
            else (x, y)
            if sample_weight is None
            else (x, y, sample_weight)
        )
        self._arrays = nest.map_structure(lambda a: None if a is None else _to_numpy(a), parts)
        if sample_weight is not None and not isinstance(sample_weight, dict):
            self._arrays = (
                *self._arrays[:2],
                nest.map_structure(
                    lambda a: a[:, 0] if a.ndim == 2 and a.shape[1] == 1 else a, self._arrays[2]
                ),
            )
        self._leaves = [a for a in nest.flatten(self._arrays) if a is not None]
        if any(a.ndim == 0 for a in self._leaves):
            raise ValueError("Data must have a first dimension of examples, got a scalar.")
        self._count = len(self._leaves[0])
        self._check_sizes(parts)
        if self._count == 0:
            raise ValueError("Expected input data to be non-empty, but x has 0 samples.")
        self.batch_size = 32 if batch_size is None else batch_size
        self._shuffle = shuffle
        self.orders = ShuffleOrders() if shuffle else None
        self.size: int | None = math.ceil(self._count / self.batch_size)
        self.last_batch_size = self._count - (self.size - 1) * self.batch_size

    def _check_sizes(self, parts: PyTree) -> None:
        if len({len(a) for a in self._leaves}) == 1:
            return
        lines = []
        for label, part in zip(["x", "y", "sample_weight"], self._arrays, strict=False):
            sizes = ", ".join(str(len(a)) for a in nest.flatten(part) if a is not None)
            lines.append(f"  {label} sizes: {sizes}")
        raise ValueError(
            "Data cardinality is ambiguous:\n"
            + "\n".join(lines)
            + "\nMake sure all arrays contain the same number of samples."
        )

    def can_restart(self, steps: int) -> bool:
        """Check whether epochs of `steps` batches continue from the start of the data after its end."""
        return True

    def iterate_batches(self) -> Iterator[Any]:
        """Yield the batches of one pass over the examples."""
        n, b = self._count, self.batch_size
        # Tuples of arrays, the most common structure, do not need `map_structure`.
        is_flat = all(isinstance(p, np.ndarray) for p in self._arrays)
        starts = range(0, n, b)
        order = None
        if self._shuffle == "batch":
            starts = self.orders.draw_permutation(len(starts)) * b  # type: ignore[union-attr, assignment]
        elif self._shuffle:
            order = self.orders.draw_permutation(n)  # type: ignore[union-attr]
        arrays = self._arrays
        if is_flat and order is not None:
            yield from _gather_shuffled(arrays, order, b)
            return
        for start in starts:
            if order is None:
                if is_flat:
                    yield tuple([a[start : start + b] for a in arrays])
                else:
                    yield nest.map_structure(
                        lambda a, s=start: None if a is None else a[s : s + b], arrays
                    )
            else:
                index = order[start : start + b]
                yield nest.map_structure(
                    lambda a, i=index: None if a is None else a.take(i, 0), arrays
                )

    def end_epoch(self) -> None:
        """Do nothing."""


def _gather_shuffled(arrays: tuple[np.ndarray, ...], order: np.ndarray, size: int) -> Iterator[Any]:
    """Yield batches of rows in a given order, gathered in the same way as those of datasets."""
    gather = BatchedGather([LeafGather(array) for array in arrays], lambda rows: None)
    return PrefetchedBatches(iter([order]), gather, arrays, size, drop=False)


class IterableSource:
    """A source of batches from a generator, `Sequence`, `DataLoader` or another iterable."""

    def __init__(self, x: Any, shuffle: bool | Literal["batch"]) -> None:
        self._x = x
        # As in Keras, an iterator is only read by its index if it is a `Sequence`, like that of an `ImageDataGenerator`.
        is_indexed = hasattr(x, "__getitem__") and hasattr(x, "__len__")
        is_indexed = is_indexed and (hasattr(x, "on_epoch_end") or not isinstance(x, Iterator))
        is_loader = "torch" in sys.modules and type(x).__module__.startswith("torch")
        # Whether it is a `Sequence`, of which each epoch starts with the first batch.
        self.restarts_epochs = is_indexed and not is_loader and not isinstance(x, (list, tuple))
        self.orders = ShuffleOrders() if shuffle and self.restarts_epochs else None
        # A dataset creates passes, but an iterator over a dataset is a single pass.
        self._is_dataset = hasattr(type(x), "iter_elements")
        try:
            self.size: int | None = len(x)
        except TypeError:
            get_cardinality = getattr(x, "cardinality", None)
            count = int(get_cardinality()) if callable(get_cardinality) else -2
            self.size = count if count >= 0 else None
        specs = nest.flatten(x.element_spec) if self._is_dataset else []
        shapes = [spec.shape for spec in specs if isinstance(spec, TensorSpec)]
        self.has_variable_sizes = any(s.rank is None or None in s.as_list()[1:] for s in shapes)
        is_known = len(shapes) == len(specs) and all(s.rank is not None for s in shapes)
        self.element_shapes = [tuple(s.as_list()) for s in shapes] if is_known else None
        self.batch_size = find_batch_size(x) if self._is_dataset else None
        self.last_batch_size = None

    def can_restart(self, steps: int) -> bool:
        """Check whether epochs of `steps` batches continue from the start of the data after its end.

        As in Keras, a dataset restarts only if an epoch is a full pass over it. Otherwise the user
        calls `repeat`.
        """
        if self._is_dataset:
            return self.size == steps
        return self.restarts_epochs or not isinstance(self._x, Iterator)

    def iterate_batches(self) -> Iterator[Any]:
        """Yield the batches of one pass."""
        if self.restarts_epochs:
            order: Any = range(len(self._x))
            if self.orders is not None:
                order = self.orders.draw_permutation(len(self._x))
            items: Any = (self._x[int(i)] for i in order)
        else:
            items = self._x
        if self._is_dataset:
            yield from self._iterate_dataset()
            return
        if hasattr(self._x, "iterate_global_batches"):
            for item in self._x.iterate_global_batches():
                yield nest.map_structure(
                    lambda v: split_batch(v) if is_composite(v) else v, _element_to_batch(item)
                )
            return
        for item in items:
            yield _as_batch(item)

    def _iterate_dataset(self) -> Iterator[Any]:
        """Yield the batches of a `tf.data.Dataset`, which a thread prefetches."""
        batches = prefetch(self._x.iter_elements(Epoch(self._x, measures_time=True)), 2)
        try:
            for item in batches:
                parts = _element_to_batch(item)
                if type(parts) is tuple and all([type(part) is np.ndarray for part in parts]):
                    yield tuple([_check_batch_array(part) for part in parts])
                    continue
                yield nest.map_structure(
                    lambda a: None if a is None else _check_batch_array(a), parts
                )
        finally:
            batches.close()

    def end_epoch(self) -> None:
        """Notify a `Sequence` of the end of an epoch."""
        hook = getattr(self._x, "on_epoch_end", None)
        if hook is not None:
            hook()


def _element_to_batch(item: PyTree) -> PyTree:
    """Convert an element of a dataset to a batch.

    A dictionary does not change, because custom steps expect it.
    """
    return item if isinstance(item, (tuple, dict)) else (item,)


def _as_batch(item: PyTree) -> tuple[Any, ...]:
    parts = (
        tuple(item) if isinstance(item, (tuple, list)) and not isinstance(item, str) else (item,)
    )
    if isinstance(item, list) and len(item) > 3:
        parts = (item,)
    return nest.map_structure(
        lambda a: None if a is None else _check_batch_array(_to_batch_array(a)), parts
    )


def _to_batch_array(value: Any) -> Any:
    """Convert a value to a NumPy array; a tensor of a `DTensorDataset` keeps its placement on a mesh."""
    if isinstance(value, Tensor) and find_layout(value) is not None:
        array = value.array
        return array.astype(settings.floatx()) if array.dtype == np.float64 else array
    return split_batch(value) if is_composite(value) else _to_numpy(value)


def _check_batch_array(array: Any) -> Any:
    if isinstance(array, (ExtensionBatch, SparseArrays, RaggedBatch)):
        return array
    if is_composite(array):
        return split_batch(array)
    if array.ndim == 0:
        raise ValueError(
            "A batch must have a first dimension of examples, but the generator yielded a scalar."
        )
    return array
