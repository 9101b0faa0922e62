"""`MultiWorkerMirroredStrategy`: a replica on every device of every worker."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any, Self, TypeGuard, cast

import jax
import jax.numpy as jnp
import numpy as np

from meshflow.core.dispatch.dispatch import apply
from meshflow.core.dispatch.operation import Op
from meshflow.core.runtime.device_to_host import replicate
from meshflow.core.runtime.errors import InvalidValueError
from meshflow.core.tracing.trace import init_scope
from meshflow.core.values import dtypes, nest
from meshflow.core.values.composite import CompositeTensor
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.core.variables.variable import Variable
from meshflow.core.variables.variable_creation import compute_initial_array
from meshflow.data.rows import concat_rows
from meshflow.distribute.cluster.cluster_spec import ClusterSpec
from meshflow.distribute.cluster.coordination import COORDINATOR_VARIABLE, join_cluster
from meshflow.distribute.cluster.resolvers import (
    ClusterResolver,
    SimpleClusterResolver,
    TFConfigClusterResolver,
)
from meshflow.distribute.extended import StrategyExtended
from meshflow.distribute.input import InputContext, ValueContext
from meshflow.distribute.multi_worker.host_collectives import all_gather_values
from meshflow.distribute.multi_worker.worker_dataset import WorkerDataset, synchronize_array
from meshflow.distribute.options import CommunicationOptions
from meshflow.distribute.replicas.collectives import ReduceOp, convert_for_mean
from meshflow.distribute.replicas.python_replicas import CONSTANT_TYPES
from meshflow.distribute.replicas.reductions_and_gathers import to_stacked_axes
from meshflow.distribute.replicas.values import PerReplica, Stacked, map_replicas, stack_values
from meshflow.distribute.replicas.variables import SyncOnReadVariable
from meshflow.distribute.strategy import Source, Strategy
from meshflow.environment.types import Array, PyTree
from meshflow.ops.math import reduce_mean, reduce_sum
from meshflow.placement.layout import Layout, put_on_mesh
from meshflow.placement.mesh import find_jax_device, get_device_name

# Jobs with training tasks, in the order of the worker indices of TensorFlow.
_TRAINING_JOBS = ("chief", "worker")


class MultiWorkerExtended(StrategyExtended):
    """Less used methods of the strategy."""

    _strategy: MultiWorkerMirroredStrategy

    @property
    def worker_devices(self) -> tuple[str, ...]:
        """Return the names of this worker's devices."""
        devices = self._strategy._devices
        return tuple(get_device_name(d) for d in devices if d.process_index == jax.process_index())

    parameter_devices = worker_devices

    @property
    def experimental_between_graph(self) -> bool:
        """Return True: every worker runs the program."""
        return True

    @property
    def should_checkpoint(self) -> bool:
        """Check whether this worker is the chief."""
        return self._strategy.is_chief

    def _in_multi_worker_mode(self) -> bool:
        return self._strategy.num_workers > 1


class MultiWorkerMirroredStrategy(Strategy):
    """Strategy with a replica on every device of several processes, on one or several machines.

    Every worker runs the same program and creates the strategy before anything else. The
    environment variable `TF_CONFIG`, which `meshflow launch` sets, describes the workers. Without
    it, the strategy is equivalent to a `MirroredStrategy` over the devices of this process.

    Args:
      cluster_resolver: Resolver of the workers and of this process; default `TF_CONFIG`.
      communication_options: Ignored; XLA chooses the collectives (gloo on CPUs, NCCL on GPUs).

    Raises:
      RuntimeError: If ops were run before.
      DeadlineExceededError: If a worker does not connect in time; the message names it.
      UnavailableError: If the port of worker 0 is in use.
      ValueError: If the description of the cluster is invalid, or differs between workers.

    Example:
      >>> strategy = tf.distribute.MultiWorkerMirroredStrategy()
      >>> strategy.extended.should_checkpoint
      True
    """

    def __init__(
        self,
        cluster_resolver: ClusterResolver | None = None,
        communication_options: CommunicationOptions | None = None,
    ) -> None:
        options = communication_options
        if options is not None and not isinstance(options, CommunicationOptions):
            raise InvalidValueError(
                "MultiWorkerMirroredStrategy: communication_options must be a "
                f"tf.distribute.experimental.CommunicationOptions, got {options!r}."
            )
        resolver = cluster_resolver or TFConfigClusterResolver()
        tasks, addresses, index = _list_workers(resolver)
        num_workers = max(len(tasks), 1)
        if tasks:
            join_cluster(tasks, addresses, index)
        if num_workers > 1:
            devices = sorted(jax.devices(), key=lambda d: (d.process_index, d.id))
        else:
            devices = jax.local_devices()
        self._use_devices(devices, resolver, num_workers)

    @classmethod
    def _from_local_devices(
        cls, devices: Sequence[object], communication_options: object = None
    ) -> Self:
        """Return a strategy of devices of this process; tests of libraries call this private method."""
        strategy = cls.__new__(cls)
        resolver = SimpleClusterResolver(ClusterSpec({}))
        strategy._use_devices([find_jax_device(d) for d in devices], resolver, 1)
        return strategy

    def _use_devices(
        self, devices: list[jax.Device], resolver: ClusterResolver, num_workers: int
    ) -> None:
        self._resolver, self.num_workers = resolver, num_workers
        self._initialize(devices)
        self.extended = MultiWorkerExtended(self)
        process = jax.process_index()
        self.local_replicas = [i for i, d in enumerate(devices) if d.process_index == process]

    @property
    def cluster_resolver(self) -> ClusterResolver:
        """Return the cluster resolver."""
        return self._resolver

    @property
    def is_chief(self) -> bool:
        """Check whether this is the worker that writes checkpoints and logs."""
        return jax.process_index() == 0

    def __repr__(self) -> str:
        devices = f"{self.num_replicas_in_sync} devices"
        return f"<MultiWorkerMirroredStrategy of {devices} on {self.num_workers} workers>"

    # ---- variables -------------------------------------------------------------------------

    def _create_variable(self, next_creator: Callable[..., Variable], **kwargs: Any) -> Variable:
        if self.num_workers > 1:
            dtype = kwargs.get("dtype")
            requested_dtype = None if dtype is None else dtypes.as_dtype(dtype)
            array, computed = compute_initial_array(kwargs["initial_value"], requested_dtype)
            # A value that was computed in a program is already that of the first replica.
            if computed is None:
                with init_scope():
                    value = self.broadcast_array(np.asarray(array))
                    kwargs["initial_value"] = Tensor(value)
        return super()._create_variable(next_creator, **kwargs)

    def broadcast_array(self, array: np.ndarray) -> np.ndarray:
        """Return worker 0's value of an array that has the same shape on all workers."""
        return synchronize_array(array) if self.num_workers > 1 else array

    # ---- input -----------------------------------------------------------------------------

    def experimental_distribute_dataset(self, dataset: Source, options: object = None) -> Source:
        """Create a dataset with batches that are split over the replicas of all workers.

        With the auto-shard policy `DATA` (and `AUTO`, unless the data are read from files), every
        worker reads all data and takes its rows of each batch. With `OFF` and `FILE`, each worker
        contributes its part of every batch from the data that it reads.
        """
        if self.num_workers == 1:
            return super().experimental_distribute_dataset(dataset, options)
        return cast(Source, WorkerDataset(self, dataset, split=True))

    def distribute_datasets_from_function(
        self, dataset_fn: Callable[[InputContext], Source], options: object = None
    ) -> Source:
        """Create a dataset with batches for one replica each."""
        if self.num_workers == 1:
            return super().distribute_datasets_from_function(dataset_fn, options)
        context = InputContext(self.num_workers, jax.process_index(), self.num_replicas_in_sync)
        return cast(Source, WorkerDataset(self, dataset_fn(context), split=False))

    experimental_distribute_datasets_from_function = distribute_datasets_from_function

    def experimental_distribute_values_from_function(
        self, value_fn: Callable[[ValueContext], PyTree]
    ) -> PyTree:
        """Create a value for each replica of all workers."""
        if self.num_workers == 1:
            return super().experimental_distribute_values_from_function(value_fn)
        count = self.num_replicas_in_sync
        values = [value_fn(ValueContext(i, count)) for i in self.local_replicas]
        return nest.map_structure(
            lambda *parts: self.stack_local_values(
                [np.asarray(convert_to_tensor(v)) for v in parts]
            ),
            *values,
        )

    def stack_local_values(self, parts: Sequence[np.ndarray]) -> Stacked:
        """Create a per-replica value from arrays of this worker's replicas, of one shape everywhere."""
        rank = parts[0].ndim + 1
        sharding = self.get_stacked_layout(rank).to_sharding()
        shards = [
            jax.device_put(part[None], self._devices[i])
            for part, i in zip(parts, self.local_replicas, strict=True)
        ]
        shape = (self.num_replicas_in_sync, *parts[0].shape)
        return Stacked((Tensor(jax.make_array_from_single_device_arrays(shape, sharding, shards)),))

    def stack_rows(self, rows: list[Tensor]) -> Tensor:
        """Return a tensor with the rows of all workers; see `Strategy.stack_rows`."""
        if self.num_workers == 1:
            return super().stack_rows(rows)
        return self.stack_local_values([row.numpy() for row in rows]).stacked

    def share_values(self, values: list[Any]) -> list[Any]:
        """Return the values of all workers' replicas; see `Strategy.share_values`."""
        if self.num_workers == 1:
            return values
        split = nest.split_composites(values[0])
        rows = [list(map(_to_message, nest.flatten(nest.split_composites(v)))) for v in values]
        return [
            nest.join_composites(
                values[0], nest.pack_sequence_as(split, _from_messages(split, row))
            )
            for worker in all_gather_values(rows)
            for row in worker
        ]

    def _place_on_devices(self, batch: PyTree, axis: int) -> PyTree:
        if self.num_workers > 1:
            batch = jax.tree.map(lambda array: self._synchronize(array, axis), batch)
        return super()._place_on_devices(batch, axis)

    def _synchronize(self, array: Array, axis: int) -> Array:
        """Return an array that is equal on all workers, unless each will read only its own rows."""
        if _spans_processes(array) or array.dtype == object:
            return array
        array = np.asarray(array)
        if array.ndim <= axis or array.shape[axis] % self.num_replicas_in_sync:
            array = self.broadcast_array(array)
        return array

    def join_replica_batches(self, value: PerReplica | TensorLike) -> Array | TensorLike:
        """Join the batches of the replicas to one global batch on the devices."""
        if isinstance(value, Stacked):
            array: Any = value.stacked.array
            return _merge_replica_axis(array, self.get_stacked_layout(value.stacked.ndim - 1))
        if isinstance(value, PerReplica):
            if isinstance(value[0], CompositeTensor):
                return concat_rows(value.values)
            array = np.concatenate([np.asarray(v) for v in value.values])
            return put_on_mesh(array, self.get_replicated_layout(array.ndim))
        return value

    # ---- reductions and gathers ------------------------------------------------------------

    def reduce(self, reduce_op: ReduceOp | str, value: PyTree, axis: Any = None) -> PyTree:
        """Reduce the values of all workers' replicas; see `Strategy.reduce`."""
        if self.num_workers == 1:
            return super().reduce(reduce_op, value, axis)
        mean = ReduceOp.parse(reduce_op) is ReduceOp.MEAN
        reducer = reduce_mean if mean else reduce_sum

        def reduce_leaf(leaf: PerReplica | TensorLike) -> Tensor:
            leaf = stack_values(leaf.values) if _is_unstacked(leaf) else leaf
            if not isinstance(leaf, Stacked):
                return Strategy.reduce(self, reduce_op, leaf, axis)
            stacked = convert_for_mean(leaf.stacked) if mean else leaf.stacked
            return reducer(stacked, to_stacked_axes(axis))

        return map_replicas(reduce_leaf, value)

    def gather(self, value: PyTree, axis: int) -> PyTree:
        """Concatenate the values of all workers' replicas along an axis, on every worker."""
        if self.num_workers == 1:
            return super().gather(value, axis)

        def gather_leaf(leaf: PerReplica | TensorLike) -> Tensor:
            if not isinstance(leaf, Stacked):
                return Strategy.gather(self, leaf, axis)
            stacked = leaf.stacked
            array: Any = stacked.array
            if _spans_processes(array):
                stacked = Tensor(replicate(array))
            return apply(_join, (stacked,), (int(axis),))

        return map_replicas(gather_leaf, value)

    def experimental_local_results(self, value: PyTree) -> tuple[PyTree, ...]:
        """Return the values of this worker's replicas as a tuple."""
        if isinstance(value, SyncOnReadVariable) and self.num_workers > 1:
            value = Stacked((value.stacked_variable.value(),))
        if self.num_workers == 1 or not isinstance(value, PerReplica):
            return super().experimental_local_results(value)
        if isinstance(value, Stacked):
            return tuple(_select_local_rows(value.stacked, self.local_replicas))
        return tuple(value.values[i] for i in self.local_replicas)

    unwrap = experimental_local_results


def _to_message(leaf: object) -> object:
    """Return a leaf that workers can exchange; None for those that each worker has."""
    if isinstance(leaf, Tensor):
        return leaf.numpy()
    return leaf if isinstance(leaf, CONSTANT_TYPES) else None


def _from_messages(structure: PyTree, row: Sequence[Any]) -> list[Any]:
    """Return the leaves of a value, given those of this worker's value and the exchanged ones."""
    pairs = zip(nest.flatten(structure), row, strict=True)
    return [
        leaf
        if message is None
        else convert_to_tensor(message)
        if isinstance(leaf, Tensor)
        else message
        for leaf, message in pairs
    ]


def _is_unstacked(leaf: object) -> TypeGuard[PerReplica]:
    return isinstance(leaf, PerReplica) and not isinstance(leaf, Stacked)


def _spans_processes(array: Array) -> bool:
    if isinstance(array, jax.core.Tracer) or not isinstance(array, jax.Array):
        return False
    return not array.is_fully_addressable


def _select_local_rows(stacked: Tensor, indices: Sequence[int]) -> list[Tensor]:
    """Select this worker's rows of a tensor with one row for each replica."""
    array: Any = stacked.array
    if not _spans_processes(array):
        return [stacked[i] for i in indices]
    rows: dict[int, np.ndarray] = {}
    for shard in array.addressable_shards:
        first = shard.index[0].start or 0
        rows.update(enumerate(np.asarray(shard.data), first))
    return [Tensor(jnp.asarray(rows[i])) for i in indices]


def _compute_join(operands: Sequence[jax.Array], static: tuple[int]) -> jax.Array:
    (stacked,) = operands
    rank = stacked.ndim - 1
    axis = static[0] % rank
    moved = jnp.moveaxis(stacked, 0, axis)
    shape = list(stacked.shape[1:])
    shape[axis] *= stacked.shape[0]
    return moved.reshape(shape)


_join = Op("gather_replicas", _compute_join)


def _merge_replica_axis(array: jax.Array, layout: Layout) -> jax.Array:
    """Reshape [replicas, n, ...] to [replicas * n, ...] without moving rows between devices."""
    key = array.shape, array.dtype, layout
    if key not in _merge_functions:
        shape = (array.shape[0] * array.shape[1], *array.shape[2:])
        _merge_functions[key] = jax.jit(
            lambda a: a.reshape(shape), out_shardings=layout.to_sharding()
        )
    return _merge_functions[key](array)


_merge_functions: dict[tuple[object, ...], Callable[[jax.Array], jax.Array]] = {}


def _list_workers(resolver: ClusterResolver) -> tuple[list[str], list[str], int]:
    """Return the names and addresses of the workers and this worker's index; empty for one process."""
    cluster: Any = resolver.cluster_spec()
    spec = cluster.as_dict() if hasattr(cluster, "as_dict") else dict(cluster or {})
    if resolver.task_type in ("evaluator", "ps"):
        return [], [], 0
    jobs = {job: _index_tasks(spec[job]) for job in _TRAINING_JOBS if job in spec}
    tasks = [f"{job}:{i}" for job, by_index in jobs.items() for i in by_index]
    addresses = [str(a) for by_index in jobs.values() for a in by_index.values()]
    if len(tasks) < 2 and not os.environ.get(COORDINATOR_VARIABLE):
        return [], [], 0
    own_task = f"{resolver.task_type}:{resolver.task_id}"
    if own_task not in tasks:
        raise InvalidValueError(
            f"MultiWorkerMirroredStrategy: this process is task {own_task}, which is not one of the cluster's "
            f'workers {tasks}. TF_CONFIG must contain "task": {{"type": "worker", "index": ...}}.'
        )
    return tasks, addresses, tasks.index(own_task)


def _index_tasks(tasks: list[str] | dict[int, str]) -> dict[int, str]:
    """Return the addresses of a job by task id."""
    return dict(sorted(tasks.items())) if isinstance(tasks, dict) else dict(enumerate(tasks))
