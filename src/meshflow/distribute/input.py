"""Input of strategies: batches split over replicas."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from meshflow.core.iterators.iterator_captures import Source
from meshflow.core.runtime.errors import InvalidValueError
from meshflow.core.values import nest
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.specs import TensorSpec
from meshflow.core.values.tensor import Tensor
from meshflow.data import Dataset, static_shapes, traced_loop
from meshflow.data.epoch import OwnedIterator
from meshflow.distribute.replicas.values import PerReplica, PerReplicaSpec, Stacked, map_replicas

__all__ = ["DistributedDataset", "DistributedIterator", "InputContext", "ValueContext"]


class InputContext(NamedTuple):
    """What an input function is told.

    Attributes:
      num_input_pipelines: how many processes make input.
      input_pipeline_id: this process's number among them.
      num_replicas_in_sync: how many replicas there are.

    Example:
      >>> import meshflow as tf
      >>> context = tf.distribute.InputContext(2, 0, num_replicas_in_sync=4)
      >>> context.get_per_replica_batch_size(32)
      8
    """

    num_input_pipelines: int = 1
    input_pipeline_id: int = 0
    num_replicas_in_sync: int = 1

    def get_per_replica_batch_size(self, global_batch_size: int) -> int:
        """The part of a global batch that one replica gets.

        Args:
          global_batch_size: the global batch size.

        Raises:
          ValueError: when it does not divide.
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


class ValueContext(NamedTuple):
    """What a value function is told.

    Attributes:
      replica_id_in_sync_group: the replica's number.
      num_replicas_in_sync: how many replicas there are.

    Example:
      >>> import meshflow as tf
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


def split_batch(strategy: Any, batch: Any) -> Any:
    """A batch in parts: the first replicas get the larger ones, as in TensorFlow."""
    count = strategy.num_replicas_in_sync
    leaves = nest.flatten(batch) if count > 1 else []
    if leaves and not any(len(np.shape(leaf)) for leaf in leaves):
        raise InvalidValueError(
            "Strategy.experimental_distribute_dataset: the elements of the dataset are scalars, which "
            "replicas cannot share. Batch it by the global batch size first: dataset.batch(...)."
        )

    def split(leaf: Any) -> Any:
        # What is on the host goes to the replicas' devices from there.
        value = leaf if isinstance(leaf, np.ndarray) else convert_to_tensor(leaf)._value
        if count == 1:
            return convert_to_tensor(leaf)
        if not value.ndim:
            return PerReplica([convert_to_tensor(leaf)] * count)
        size = value.shape[0]
        if size % count == 0:
            rows = value.reshape(count, size // count, *value.shape[1:])
            if value.dtype == object:
                return PerReplica([Tensor(part) for part in rows])
            return Stacked((_placed(strategy, rows),))
        each = -(-size // count)
        parts = [value[i * each : (i + 1) * each] for i in range(count)]
        return PerReplica([convert_to_tensor(part) for part in parts])

    return nest.map_structure(split, batch)


def _placed(strategy: Any, value: Any) -> Tensor:
    return Tensor(strategy.place_batch(value))


def _whole(leaf: Any) -> np.ndarray:
    if not isinstance(leaf, PerReplica):
        return np.asarray(leaf)
    return np.concatenate([np.asarray(v) for v in leaf.values])


class DistributedDataset:
    """Batches for all replicas, one `PerReplica` structure a step.

    Args:
      strategy: the strategy.
      source: an iterable of batches.
      split: True when each batch is for all replicas, False when each is for one.

    Example:
      >>> import meshflow as tf
      >>> strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
      >>> data = strategy.experimental_distribute_dataset(tf.data.Dataset.range(8).batch(4))
      >>> batch = next(iter(data))
      >>> [part.numpy().tolist() for part in strategy.experimental_local_results(batch)]
      [[0, 1], [2, 3]]
    """

    def __init__(self, strategy: Any, source: Any, split: bool) -> None:
        self._strategy, self._source, self._split = strategy, source, split

    def __iter__(self) -> DistributedIterator:
        return DistributedIterator(self._batches(), self)

    @property
    def divided(self) -> Dataset | None:
        """The dataset whose elements are batches for all replicas; None where they are something else."""
        return self._source if self._split and isinstance(self._source, Dataset) else None

    def split(self, batch: Any) -> Any:
        """A batch of `divided` in parts for the replicas."""
        return split_batch(self._strategy, batch)

    def __autograph_for__(self) -> Any:
        return None if self.divided is None else traced_loop.elements(self.divided, self.split)

    def _batches(self) -> Iterator[Any]:
        count = self._strategy.num_replicas_in_sync
        if self._split or count == 1:
            on_host = getattr(self._source, "as_numpy_iterator", None) if count > 1 else None
            for batch in self._source if on_host is None else on_host():
                yield split_batch(self._strategy, batch)
            return
        group: list[Any] = []
        for batch in self._source:
            group.append(nest.map_structure(convert_to_tensor, batch))
            if len(group) == count:
                yield self._join(group)
                group = []
        if group:
            empty = nest.map_structure(lambda t: Tensor(t._value[:0]), group[0])
            yield self._join(group + [empty] * (count - len(group)))

    def _join(self, group: list[Any]) -> Any:
        def join(*parts: Any) -> Any:
            if len({(tuple(p.shape.as_list()), p.dtype) for p in parts}) > 1:
                return PerReplica(parts)
            return Stacked((_placed(self._strategy, np.stack([np.asarray(p) for p in parts])),))

        return nest.map_structure(join, *group)

    def placed_batches(self) -> Iterator[Any]:
        """Global batches, as Keras' loops take them."""
        if self._split:
            for batch in self._source:
                yield nest.map_structure(lambda v: np.asarray(convert_to_tensor(v)), batch)
            return
        for step in self._batches():
            yield map_replicas(_whole, step)

    def __len__(self) -> int:
        size = len(self._source)
        return size if self._split else -(-size // self._strategy.num_replicas_in_sync)

    def cardinality(self) -> Any:
        """How many elements there are, an int64 scalar; as `tf.data.Dataset.cardinality`."""
        return self._source.cardinality()

    @property
    def element_spec(self) -> Any:
        """The spec of what each replica gets: a `PerReplicaSpec` of several, else the source's."""
        count = self._strategy.num_replicas_in_sync
        if count == 1:
            return self._source.element_spec

        def of_replicas(spec: Any) -> Any:
            sizes = spec.shape.as_list() if self._split and spec.shape.rank else []
            if sizes:
                whole = sizes[0] is not None and sizes[0] % count == 0
                sizes = [sizes[0] // count if whole else None, *sizes[1:]]
                spec = TensorSpec(sizes, spec.dtype, spec.name)
            return PerReplicaSpec(*[spec] * count)

        return nest.map_structure(of_replicas, self._source.element_spec)

    def reduce(self, initial_state: Any, reduce_func: Any) -> Any:
        """Folds the batches.

        Args:
          initial_state: the first state.
          reduce_func: called as `reduce_func(state, batch)`.
        """
        state = initial_state
        for batch in self:
            state = reduce_func(state, batch)
        return state


class DistributedIterator(Source):
    """An iterator over a `DistributedDataset`.

    Args:
      batches: the batches.
      dataset: the dataset.

    Example:
      >>> import meshflow as tf
      >>> strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
      >>> iterator = iter(strategy.experimental_distribute_dataset(tf.data.Dataset.range(4).batch(4)))
      >>> bool(iterator.get_next_as_optional().has_value())
      True
      >>> bool(iterator.get_next_as_optional().has_value())
      False
    """

    def __init__(self, batches: Iterator[Any], dataset: DistributedDataset) -> None:
        super().__init__()
        self._batches, self._dataset = batches, dataset

    @property
    def element_spec(self) -> Any:
        """The spec of the elements; see `DistributedDataset.element_spec`."""
        return self._dataset.element_spec

    get_next_as_optional = OwnedIterator.get_next_as_optional

    def _produce(self) -> Any:
        return next(self._batches)

    def _likes(self) -> tuple[Any, Any]:
        dataset = self._dataset.divided
        known = None if dataset is None else dataset._static_shapes()
        return static_shapes.examples(known, self._dataset.split) or super()._likes()

    def _kind(self) -> Any:
        dataset, source = self._dataset.divided, self._dataset._source
        spec = str(getattr(source, "element_spec", id(self._dataset)))
        known = None if dataset is None else dataset._static_shapes()
        return id(self._dataset._strategy), spec, static_shapes.described(known)
