"""Input of several workers: partition of the data between workers, and assembly of global batches."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Protocol

import jax
import numpy as np

from meshflow.core.dispatch.composite import SparseTensor, SparseTensorSpec
from meshflow.core.runtime.errors import InvalidArgumentError
from meshflow.core.values import nest
from meshflow.core.values.composite import (
    CompositeTensor,
    is_composite_spec,
    split_value,
)
from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.data.options import AutoShardPolicy
from meshflow.data.rows import count_rows, has_rows, slice_rows, split_rows_evenly
from meshflow.data.sharding import apply_shard_policy
from meshflow.distribute.input import DistributedDataset, InputStrategy, to_host_value
from meshflow.distribute.multi_worker.host_collectives import (
    all_gather_values,
    broadcast_from_first,
)
from meshflow.distribute.replicas.values import PerReplica, Stacked, map_replicas, to_value
from meshflow.environment.types import Array, PyTree
from meshflow.placement.layout import Layout, put_on_mesh


def get_auto_shard_policy(source: Iterable[PyTree]) -> AutoShardPolicy:
    """Return the policy that shards a dataset between workers; `DATA` for other iterables."""
    options = source.options() if hasattr(source, "options") else None
    if options is None:
        return AutoShardPolicy.DATA
    return AutoShardPolicy(options.experimental_distribute.auto_shard_policy)


def _to_array(value: Any) -> Any:
    """Convert a leaf of a batch to a NumPy array, except for a composite tensor."""
    return value if isinstance(value, CompositeTensor) else np.asarray(to_host_value(value))


def _list_arrays(value: CompositeTensor) -> list[np.ndarray]:
    return [part.numpy() for part in split_value(value)]


class WorkerDatasetStrategy(InputStrategy, Protocol):
    """Interface of the strategy of a `WorkerDataset`."""

    num_workers: int
    local_replicas: Sequence[int]

    def get_stacked_layout(self, rank: int) -> Layout:
        """Return the layout of stacked per-replica values."""

    def broadcast_array(self, array: np.ndarray) -> np.ndarray:
        """Return worker 0's value of an array."""

    def stack_local_values(self, parts: Sequence[np.ndarray]) -> Stacked:
        """Create a value of all replicas from the arrays of this worker's replicas."""

    def join_replica_batches(self, value: PerReplica | TensorLike) -> Array | TensorLike:
        """Join the batches of the replicas to one global batch on the devices."""


class WorkerDataset(DistributedDataset):
    """Dataset of batches for all replicas of all workers."""

    _strategy: WorkerDatasetStrategy

    def __init__(
        self, strategy: WorkerDatasetStrategy, source: Iterable[PyTree], split: bool
    ) -> None:
        super().__init__(strategy, source, split)
        policy = get_auto_shard_policy(source) if split else AutoShardPolicy.OFF
        self._reads_all_data = False
        if split:
            source, policy = _shard_source(source, policy, strategy)
            self._source = source
            self._reads_all_data = policy is AutoShardPolicy.DATA

    def __len__(self) -> int:
        size = len(self._source)
        if not self._split:
            return -(-size // len(self._strategy.local_replicas))
        return size if self._reads_all_data else size * self._strategy.num_workers

    # ---- batches for replicas ----------------------------------------------------------------

    def _iterate_batches(self) -> Iterator[PyTree]:
        if self._reads_all_data:
            for batch in self._source:
                yield nest.map_structure(self._split_leaf, batch)
            return
        for parts in self._continue_until_all_end(self._iterate_local_batches()):
            yield self._join_workers(parts)

    def _split_leaf(self, leaf: TensorLike) -> PerReplica:
        """Split a tensor that every worker has over the replicas."""
        strategy = self._strategy
        array, count = _to_array(leaf), strategy.num_replicas_in_sync
        if isinstance(array, CompositeTensor):
            # The sizes may differ between workers, if these shuffle the data in another order.
            parts = all_gather_values(_list_arrays(array))[0]
            return PerReplica(split_rows_evenly(array.join_parts(list(map(Tensor, parts))), count))
        if not array.ndim:
            return PerReplica([Tensor(array)] * count)
        if array.shape[0] % count == 0 and array.dtype != object:
            rows = array.reshape(count, array.shape[0] // count, *array.shape[1:])
            return Stacked((Tensor(put_on_mesh(rows, strategy.get_stacked_layout(rows.ndim))),))
        array = strategy.broadcast_array(array)
        return PerReplica([Tensor(part) for part in split_rows_evenly(array, count)])

    def _iterate_local_batches(self) -> Iterator[list[PyTree]]:
        """Yield lists with one batch for each replica of this worker."""
        replicas = self._strategy.local_replicas
        if not self._split:
            pending: list[PyTree] = []
            for batch in self._source:
                pending.append(nest.map_structure(_to_array, batch))
                if len(pending) == len(replicas):
                    yield pending
                    pending = []
            if pending:
                empty = nest.map_structure(_take_no_rows, pending[0])
                yield pending + [empty] * (len(replicas) - len(pending))
            return
        for piece in self._iterate_worker_batches():
            yield _split_rows(piece, len(replicas))

    def _iterate_worker_batches(self) -> Iterator[PyTree]:
        """Yield parts of this worker's batches; one batch serves as many steps as there are workers."""
        workers = self._strategy.num_workers
        for batch in self._source:
            arrays = nest.map_structure(_to_array, batch)
            yield from (p for p in _split_rows(arrays, workers) if count_rows(nest.flatten(p)[0]))

    def _continue_until_all_end(self, batches: Iterator[list[PyTree]]) -> Iterator[list[PyTree]]:
        """Yield batches until no worker has data; empty ones when only this worker has no data."""
        last = None
        while True:
            item = next(batches, None)
            have_data = all_gather_values(item is not None)
            if not any(have_data):
                return
            if item is None:
                if last is None:
                    last = self._make_example()
                item = nest.map_structure(_take_no_rows, last)
            last = item
            yield item

    def _make_example(self) -> list[PyTree]:
        spec = getattr(self._source, "element_spec", None)
        if spec is None:
            raise InvalidArgumentError(
                f"Worker {jax.process_index()} has no data at all, and its source does not have an element_spec to "
                "create empty batches from. Give every worker at least one batch."
            )

        def make_zeros(leaf: PyTree) -> PyTree:
            if isinstance(leaf, SparseTensorSpec):
                shape = [n or 0 for n in leaf.shape.as_list()]
                values: np.ndarray = np.zeros([0], leaf.dtype.as_numpy_dtype)
                return SparseTensor(np.zeros([0, len(shape)], np.int64), values, shape)
            if is_composite_spec(leaf):
                return leaf.fill_components(lambda spec: to_value(make_zeros(spec)))
            shape = [1 if n is None else n for n in leaf.shape.as_list()]
            return np.zeros(shape, leaf.dtype.as_numpy_dtype)

        element = nest.map_structure(make_zeros, spec)
        return [element] * len(self._strategy.local_replicas)

    def _join_workers(self, parts: list[PyTree]) -> PyTree:
        """Combine the batches of this worker's replicas with those of the other workers."""
        columns = list(zip(*[nest.flatten(p) for p in parts], strict=True))
        shapes = [[_describe_part(part) for part in column] for column in columns]
        all_shapes = all_gather_values(shapes)
        joined: list[PerReplica] = []
        for index, column in enumerate(columns):
            distinct = {s for worker in all_shapes for s in worker[index]}
            if isinstance(column[0], CompositeTensor):
                gathered = all_gather_values(list(map(_list_arrays, column)))
                rows = [list(map(Tensor, arrays)) for worker in gathered for arrays in worker]
                joined.append(PerReplica(map(column[0].join_parts, rows)))
            elif len(distinct) == 1 and column[0].dtype != object:
                joined.append(self._strategy.stack_local_values(column))
            else:
                arrays = [a for worker in all_gather_values(list(column)) for a in worker]
                joined.append(PerReplica([Tensor(a) for a in arrays]))
        return nest.pack_sequence_as(parts[0], joined)

    # ---- batches for Keras' training loops ---------------------------------------------------

    def iterate_global_batches(self) -> Iterator[PyTree]:
        """Yield global batches: on the host if every worker has all data, else on the devices."""
        strategy = self._strategy
        if self._reads_all_data:
            for batch in self._source:
                yield nest.map_structure(_to_array, batch)
            return
        for step in self._iterate_batches():
            yield map_replicas(strategy.join_replica_batches, step)


def _take_no_rows(leaf: PyTree) -> PyTree:
    return slice_rows(leaf, 0, 0)


def _describe_part(part: np.ndarray | CompositeTensor) -> tuple[Any, ...] | None:
    """Return the shape and dtype of an array, or None for a composite tensor."""
    return None if isinstance(part, CompositeTensor) else (part.shape, str(part.dtype))


def _split_rows(batch: PyTree, parts: int) -> list[PyTree]:
    """Split a batch into parts along the first axis."""
    columns = [
        split_rows_evenly(leaf, parts) if has_rows(leaf) else [leaf] * parts
        for leaf in nest.flatten(batch)
    ]
    return [nest.pack_sequence_as(batch, list(row)) for row in zip(*columns, strict=True)]


def _shard_source(
    source: Any, policy: AutoShardPolicy, strategy: WorkerDatasetStrategy
) -> tuple[Iterable[PyTree], AutoShardPolicy]:
    """Return the data of this worker; with the policy `DATA`, it reads all data."""
    if policy in (AutoShardPolicy.OFF, AutoShardPolicy.DATA):
        return source, policy
    return apply_shard_policy(source, strategy.num_workers, jax.process_index(), policy)


def synchronize_array(array: np.ndarray) -> np.ndarray:
    """Return worker 0's version of an array that should be equal on all workers."""
    if array.dtype == object:
        return all_gather_values(array)[0]
    return broadcast_from_first(array)
