"""Input of several workers: which part of the data is whose, and one global batch made of the parts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from meshflow.core.runtime.errors import InvalidArgumentError
from meshflow.core.values import nest
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.tensor import Tensor
from meshflow.data.options import AutoShardPolicy
from meshflow.data.sharding import by_policy
from meshflow.distribute.input import DistributedDataset
from meshflow.distribute.multi_worker.host_collectives import all_gathered, broadcast_from_first
from meshflow.distribute.replicas.values import PerReplica, Stacked, map_replicas
from meshflow.placement.layout import put

__all__ = ["WorkerDataset"]


def policy_of(source: Any) -> AutoShardPolicy:
    """How a dataset is divided between workers; anything but a `tf.data.Dataset` by batches."""
    options = source.options() if hasattr(source, "options") else None
    if options is None:
        return AutoShardPolicy.DATA
    return AutoShardPolicy(options.experimental_distribute.auto_shard_policy)


def _sizes(total: int, parts: int) -> list[int]:
    """Sizes of the parts of a batch: the first get more, as in TensorFlow."""
    each = -(-total // parts)
    return [max(0, min(each, total - i * each)) for i in range(parts)]


def _leaf(value: Any) -> np.ndarray:
    return np.asarray(value if isinstance(value, np.ndarray) else convert_to_tensor(value))


class WorkerDataset(DistributedDataset):
    """Batches for all replicas of all workers.

    Args:
      strategy: the strategy.
      source: an iterable of batches.
      split: True when each batch is for all replicas, False when each is for one.
    """

    def __init__(self, strategy: Any, source: Any, split: bool) -> None:
        super().__init__(strategy, source, split)
        policy = policy_of(source) if split else AutoShardPolicy.OFF
        self._whole = False
        if split:
            source, policy = _sharded(source, policy, strategy)
            self._source = source
            self._whole = policy is AutoShardPolicy.DATA

    def __len__(self) -> int:
        size = len(self._source)
        if not self._split:
            return -(-size // len(self._strategy.local_replicas))
        return size if self._whole else size * self._strategy.workers

    # ---- what replicas get -----------------------------------------------------------------

    def _batches(self) -> Iterator[Any]:
        if self._whole:
            for batch in self._source:
                yield nest.map_structure(self._split_leaf, batch)
            return
        for parts in self._agreed(self._local_parts()):
            yield self._assembled(parts)

    def _split_leaf(self, leaf: Any) -> Any:
        """One leaf of a batch that every worker has: its replicas' rows."""
        strategy = self._strategy
        array, count = _leaf(leaf), strategy.num_replicas_in_sync
        if not array.ndim:
            return PerReplica([Tensor(array)] * count)
        if array.shape[0] % count == 0 and array.dtype != object:
            rows = array.reshape(count, array.shape[0] // count, *array.shape[1:])
            return Stacked((Tensor(put(rows, strategy.batched(rows.ndim))),))
        array = strategy.same_everywhere(array)
        ends = np.cumsum(_sizes(array.shape[0], count))
        return PerReplica([Tensor(part) for part in np.split(array, ends[:-1])])

    def _local_parts(self) -> Iterator[list[Any]]:
        """Lists of one batch for each replica of this worker."""
        replicas = self._strategy.local_replicas
        if not self._split:
            group: list[Any] = []
            for batch in self._source:
                group.append(nest.map_structure(_leaf, batch))
                if len(group) == len(replicas):
                    yield group
                    group = []
            if group:
                empty = nest.map_structure(lambda a: a[:0], group[0])
                yield group + [empty] * (len(replicas) - len(group))
            return
        for piece in self._pieces():
            yield _rows(piece, len(replicas))

    def _pieces(self) -> Iterator[Any]:
        """This worker's batches: a global batch of its own data serves as many steps as there are workers."""
        workers = self._strategy.workers
        for batch in self._source:
            arrays = nest.map_structure(_leaf, batch)
            yield from (p for p in _rows(arrays, workers) if len(nest.flatten(p)[0]))

    def _agreed(self, own: Iterator[Any]) -> Iterator[Any]:
        """Goes on until no worker has data; those that ran out get empty batches."""
        last = None
        while True:
            item = next(own, None)
            more = all_gathered(item is not None)
            if not any(more):
                return
            if item is None:
                if last is None:
                    last = self._example()
                item = nest.map_structure(lambda a: a[:0], last)
            last = item
            yield item

    def _example(self) -> Any:
        spec = getattr(self._source, "element_spec", None)
        if spec is None:
            raise InvalidArgumentError(
                f"Worker {jax.process_index()} has no data at all, and its source does not say what its "
                "batches would look like. Give every worker at least one batch."
            )

        def zeros(leaf: Any) -> np.ndarray:
            shape = [1 if n is None else n for n in leaf.shape.as_list()]
            return np.zeros(shape, leaf.dtype.as_numpy_dtype)

        element = nest.map_structure(zeros, spec)
        return [element] * len(self._strategy.local_replicas)

    def _assembled(self, parts: list[Any]) -> Any:
        """Batches of this worker's replicas, with those of the other workers."""
        columns = list(zip(*[nest.flatten(p) for p in parts], strict=True))
        shapes = [[(a.shape, str(a.dtype)) for a in column] for column in columns]
        known = all_gathered(shapes)
        joined: list[Any] = []
        for index, column in enumerate(columns):
            alike = {s for worker in known for s in worker[index]}
            if len(alike) == 1 and column[0].dtype != object:
                joined.append(self._strategy.stacked_from_local(column))
            else:
                whole = [a for worker in all_gathered(list(column)) for a in worker]
                joined.append(PerReplica([Tensor(a) for a in whole]))
        return nest.pack_sequence_as(parts[0], joined)

    # ---- what Keras' loops get -------------------------------------------------------------

    def placed_batches(self) -> Iterator[Any]:
        """Global batches: on the host where every worker has all data, else on the devices."""
        strategy = self._strategy
        if self._whole:
            for batch in self._source:
                yield nest.map_structure(_leaf, batch)
            return
        for step in self._batches():
            yield map_replicas(strategy.as_one_batch, step)


def _rows(batch: Any, parts: int) -> list[Any]:
    """A batch in parts."""
    leaves = nest.flatten(batch)
    ends = np.cumsum(_sizes(len(leaves[0]), parts))[:-1]
    columns = [np.split(leaf, ends) if leaf.ndim else [leaf] * parts for leaf in leaves]
    return [nest.pack_sequence_as(batch, list(row)) for row in zip(*columns, strict=True)]


def _sharded(source: Any, policy: AutoShardPolicy, strategy: Any) -> tuple[Any, AutoShardPolicy]:
    """The data of this worker, and `DATA` when that is all data, of which it takes its rows of each batch."""
    if policy in (AutoShardPolicy.OFF, AutoShardPolicy.DATA):
        return source, policy
    return by_policy(source, strategy.workers, jax.process_index(), policy)


def agreed_array(array: np.ndarray) -> np.ndarray:
    """Worker 0's version of an array that all workers were to have alike."""
    if array.dtype == object:
        return all_gathered(array)[0]
    return broadcast_from_first(array)
