"""Input of strategies: datasets with batches that are split over the replicas."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, Protocol

import numpy as np

from meshflow.core.iterators.iterator_captures import IteratorSource
from meshflow.core.runtime.errors import InvalidValueError
from meshflow.core.values import nest
from meshflow.core.values.composite import CompositeTensor
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.specs import TypeSpec
from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.data import Dataset, static_shapes, structure, traced_loop
from meshflow.data.epoch import DatasetIterator
from meshflow.data.rows import concat_rows, has_rows, slice_rows, split_rows_evenly
from meshflow.distribute.replicas.values import (
    PerReplica,
    PerReplicaSpec,
    Stacked,
    map_replicas,
    stack_values,
    to_value,
)
from meshflow.environment.types import Array, PyTree


class InputContext(NamedTuple):
    """Argument of an input function.

    Attributes:
      num_input_pipelines: Number of processes that read input.
      input_pipeline_id: Index of this process among them.
      num_replicas_in_sync: Number of replicas.

    Example:
      >>> context = tf.distribute.InputContext(2, 0, num_replicas_in_sync=4)
      >>> context.get_per_replica_batch_size(32)
      8
    """

    num_input_pipelines: int = 1
    input_pipeline_id: int = 0
    num_replicas_in_sync: int = 1

    def get_per_replica_batch_size(self, global_batch_size: int) -> int:
        """Return the batch size of one replica.

        Args:
          global_batch_size: Number of examples in a batch for all replicas.

        Raises:
          ValueError: If the global batch size is not divisible by the number of replicas.
        """
        if global_batch_size % self.num_replicas_in_sync:
            raise InvalidValueError(
                f"The `global_batch_size` {global_batch_size} is not divisible by "
                f"`num_replicas_in_sync` {self.num_replicas_in_sync}."
            )
        return global_batch_size // self.num_replicas_in_sync

    def __str__(self) -> str:
        return (
            f"tf.distribute.InputContext(input pipeline id {self.input_pipeline_id}, "
            f"total: {self.num_input_pipelines})"
        )


class InputStrategy(Protocol):
    """Interface of a strategy that the datasets use."""

    @property
    def num_replicas_in_sync(self) -> int:
        """Return the number of replicas."""

    def place_batch(self, batch: PyTree) -> PyTree:
        """Place a batch of arrays on all devices; see `Strategy.place_batch`."""


class ValueContext(NamedTuple):
    """Argument of a value function.

    Attributes:
      replica_id_in_sync_group: Index of the replica.
      num_replicas_in_sync: Number of replicas.

    Example:
      >>> strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
      >>> values = strategy.experimental_distribute_values_from_function(
      ...     lambda context: tf.constant(10 * context.replica_id_in_sync_group))
      >>> [int(value) for value in strategy.experimental_local_results(values)]
      [0, 10]
    """

    replica_id_in_sync_group: int = 0
    num_replicas_in_sync: int = 1

    def __str__(self) -> str:
        return (
            f"tf.distribute.ValueContext(replica id {self.replica_id_in_sync_group}, "
            f" total replicas in sync: {self.num_replicas_in_sync})"
        )


def split_batch(strategy: InputStrategy, batch: PyTree) -> PyTree:
    """Split a batch over the replicas; the first ones receive larger parts, as in TensorFlow."""
    count = strategy.num_replicas_in_sync
    if count == 1:
        return nest.map_structure(to_value, batch)
    leaves = nest.map_structure(to_host_value, batch)
    if nest.flatten(leaves) and not any(map(has_rows, nest.flatten(leaves))):
        raise InvalidValueError(
            "Strategy.experimental_distribute_dataset: the elements of the dataset are scalars, which "
            "cannot be split over replicas. Batch it by the global batch size first: dataset.batch(...)."
        )

    def split_leaf(value: Any) -> PerReplica:
        if not has_rows(value):
            return PerReplica([convert_to_tensor(value)] * count)
        if isinstance(value, CompositeTensor) or value.shape[0] % count or value.dtype == object:
            return PerReplica(map(to_value, split_rows_evenly(value, count)))
        # Host arrays are transferred directly to the devices of the replicas.
        rows = value.reshape(count, value.shape[0] // count, *value.shape[1:])
        return Stacked((_place_rows(strategy, rows),))

    return nest.map_structure(split_leaf, leaves)


def to_host_value(leaf: TensorLike) -> Any:
    """Convert a leaf of a batch to an array, except for a composite tensor."""
    is_array = isinstance(leaf, np.ndarray) and leaf.dtype.kind not in "SU"
    return leaf if is_array or isinstance(leaf, CompositeTensor) else convert_to_tensor(leaf).array


def _place_rows(strategy: InputStrategy, value: Array) -> Tensor:
    return Tensor(strategy.place_batch(value))


def _join_replicas(leaf: PerReplica | TensorLike) -> np.ndarray | CompositeTensor:
    values = leaf.values if isinstance(leaf, PerReplica) else [leaf]
    if isinstance(values[0], CompositeTensor):
        return concat_rows(values)
    return np.concatenate([np.asarray(v) for v in values]) if len(values) > 1 else np.asarray(leaf)


class DistributedDataset:
    """Dataset of batches for all replicas, with one `PerReplica` structure for each step.

    Args:
      strategy: Strategy of the replicas.
      source: Iterable of batches.
      split: True if each batch is for all replicas, False if each is for one replica.

    Example:
      >>> strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
      >>> data = strategy.experimental_distribute_dataset(tf.data.Dataset.range(8).batch(4))
      >>> batch = next(iter(data))
      >>> [part.numpy().tolist() for part in strategy.experimental_local_results(batch)]
      [[0, 1], [2, 3]]
    """

    def __init__(self, strategy: InputStrategy, source: Any, split: bool) -> None:
        self._strategy, self._source, self._split = strategy, source, split

    def __iter__(self) -> DistributedIterator:
        return DistributedIterator(self._iterate_batches(), self)

    @property
    def global_dataset(self) -> Dataset | None:
        """Return the dataset of batches for all replicas, or None if the source is of another type."""
        return self._source if self._split and isinstance(self._source, Dataset) else None

    def split(self, batch: PyTree) -> PyTree:
        """Split a batch of `global_dataset` over the replicas."""
        return split_batch(self._strategy, batch)

    def __autograph_for__(self) -> Any:
        return (
            None
            if self.global_dataset is None
            else traced_loop.make_loop_elements(self.global_dataset, self.split)
        )

    def _iterate_batches(self) -> Iterator[PyTree]:
        count = self._strategy.num_replicas_in_sync
        if self._split or count == 1:
            iterate_on_host = getattr(self._source, "iter_host_values", None) if count > 1 else None
            for batch in self._source if iterate_on_host is None else iterate_on_host():
                yield split_batch(self._strategy, batch)
            return
        pending: list[PyTree] = []
        for batch in self._source:
            pending.append(nest.map_structure(to_value, batch))
            if len(pending) == count:
                yield self._stack_replica_batches(pending)
                pending = []
        if pending:
            empty = nest.map_structure(lambda v: slice_rows(v, 0, 0), pending[0])
            yield self._stack_replica_batches(pending + [empty] * (count - len(pending)))

    def _stack_replica_batches(self, batches: list[PyTree]) -> PyTree:
        def stack_leaf(*parts: Any) -> PerReplica:
            stacked = stack_values(parts)
            if not isinstance(stacked, Stacked):
                return stacked
            return Stacked((_place_rows(self._strategy, np.asarray(stacked.stacked)),))

        return nest.map_structure(stack_leaf, *batches)

    def iterate_global_batches(self) -> Iterator[PyTree]:
        """Yield global batches for the training loop of Keras."""
        if self._split:
            for batch in self._source:
                yield nest.map_structure(to_host_value, batch)
            return
        for step in self._iterate_batches():
            yield map_replicas(_join_replicas, step)

    def __len__(self) -> int:
        size = len(self._source)
        return size if self._split else -(-size // self._strategy.num_replicas_in_sync)

    def cardinality(self) -> Tensor:
        """Return the number of elements as an int64 scalar; see `tf.data.Dataset.cardinality`."""
        return self._source.cardinality()

    @property
    def element_spec(self) -> PyTree:
        """Return the spec of the elements: `PerReplicaSpec`s if there are several replicas."""
        count = self._strategy.num_replicas_in_sync
        if count == 1:
            return self._source.element_spec

        def make_spec(spec: TypeSpec) -> PerReplicaSpec:
            shape = getattr(spec, "shape", None)
            if self._split and (shape is None or shape.rank):
                rows = None if shape is None else shape[0]
                share = None if rows is None or rows % count else rows // count
                spec = structure.batch_spec(structure.unbatch_spec(spec), share)
            return PerReplicaSpec(*[spec] * count)

        return nest.map_structure(make_spec, self._source.element_spec)

    def reduce(
        self, initial_state: PyTree, reduce_func: Callable[[PyTree, PyTree], PyTree]
    ) -> PyTree:
        """Reduce the batches by `reduce_func(state, batch)`, which returns the next state."""
        state = initial_state
        for batch in self:
            state = reduce_func(state, batch)
        return state


class DistributedIterator(IteratorSource):
    """Iterator over a `DistributedDataset`.

    Example:
      >>> strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
      >>> iterator = iter(strategy.experimental_distribute_dataset(tf.data.Dataset.range(4).batch(4)))
      >>> bool(iterator.get_next_as_optional().has_value())
      True
      >>> bool(iterator.get_next_as_optional().has_value())
      False
    """

    def __init__(self, batches: Iterator[PyTree], dataset: DistributedDataset) -> None:
        super().__init__()
        self._batches, self._dataset = batches, dataset

    @property
    def element_spec(self) -> PyTree:
        """Return the spec of the elements; see `DistributedDataset.element_spec`."""
        return self._dataset.element_spec

    get_next_as_optional = DatasetIterator.get_next_as_optional

    def initialize(self) -> list[object]:
        """Start the dataset again, as programs of version 1 do before the first batch, and return an empty list."""
        self._batches = iter(self._dataset)
        return []

    @property
    def initializer(self) -> list[object]:
        """Return the result of `initialize`."""
        return self.initialize()

    def _produce(self) -> PyTree:
        return next(self._batches)

    def _make_examples(self) -> tuple[PyTree, PyTree]:
        dataset = self._dataset.global_dataset
        shapes = None if dataset is None else dataset.infer_static_shapes()
        return static_shapes.make_examples(shapes, self._dataset.split) or super()._make_examples()

    def _make_cache_key(self) -> tuple[object, ...]:
        dataset, source = self._dataset.global_dataset, self._dataset._source
        spec = str(getattr(source, "element_spec", id(self._dataset)))
        shapes = None if dataset is None else dataset.infer_static_shapes()
        return id(self._dataset._strategy), spec, static_shapes.describe_shapes(shapes)
