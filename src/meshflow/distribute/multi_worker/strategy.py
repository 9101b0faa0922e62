"""`MultiWorkerMirroredStrategy`: a replica on every device of every worker."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from meshflow.core.dispatch.dispatch import apply
from meshflow.core.dispatch.operation import Op
from meshflow.core.runtime.device_to_host import replicated
from meshflow.core.runtime.errors import InvalidValueError
from meshflow.core.tracing.trace import init_scope
from meshflow.core.values import dtypes, nest
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.tensor import Tensor
from meshflow.core.variables.variable import Variable
from meshflow.core.variables.variable_creation import initial_array
from meshflow.distribute.cluster.coordination import COORDINATOR, join_cluster
from meshflow.distribute.cluster.resolvers import TFConfigClusterResolver
from meshflow.distribute.extended import StrategyExtended
from meshflow.distribute.input import InputContext, ValueContext
from meshflow.distribute.multi_worker.input import WorkerDataset, agreed_array
from meshflow.distribute.options import CommunicationOptions
from meshflow.distribute.replicas.collectives import ReduceOp, divisible
from meshflow.distribute.replicas.reductions_and_gathers import replica_axes
from meshflow.distribute.replicas.values import PerReplica, Stacked, map_replicas, stack
from meshflow.distribute.replicas.variables import SyncOnReadVariable
from meshflow.distribute.strategy import Strategy
from meshflow.ops.math import reduce_mean, reduce_sum
from meshflow.placement.layout import Layout, put
from meshflow.placement.mesh import device_name

__all__ = ["MultiWorkerMirroredStrategy"]

# Jobs whose tasks train, in the order of TensorFlow's worker numbers.
_JOBS = ("chief", "worker")


class MultiWorkerExtended(StrategyExtended):
    """The less used part of the strategy.

    Args:
      strategy: the strategy.
    """

    _strategy: MultiWorkerMirroredStrategy

    @property
    def worker_devices(self) -> tuple[str, ...]:
        """Names of this worker's devices."""
        found = self._strategy._devices
        return tuple(device_name(d) for d in found if d.process_index == jax.process_index())

    parameter_devices = worker_devices

    @property
    def experimental_between_graph(self) -> bool:
        """True: every worker runs the program."""
        return True

    @property
    def should_checkpoint(self) -> bool:
        """Whether this worker is the chief."""
        return self._strategy.is_chief

    should_save_summary = should_checkpoint


class MultiWorkerMirroredStrategy(Strategy):
    """A replica on every device of several processes, on one machine or many.

    Every worker runs the same program and makes the strategy before anything else. Which workers there are
    says the environment variable `TF_CONFIG`; `meshflow launch` sets it. Without it the strategy is a
    `MirroredStrategy` over this process's devices.

    Args:
      cluster_resolver: says which workers there are and which this is; default `TF_CONFIG`.
      communication_options: accepted; XLA chooses the collectives (gloo on CPUs, NCCL on GPUs).

    Raises:
      RuntimeError: when ops have run before.
      DeadlineExceededError: when a worker does not join in time, naming it.
      UnavailableError: when worker 0's port is in use.
      ValueError: when the cluster is described wrongly or differently on several workers.

    Example:
      >>> import meshflow as tf
      >>> strategy = tf.distribute.MultiWorkerMirroredStrategy()
      >>> strategy.extended.should_checkpoint
      True
    """

    def __init__(
        self,
        cluster_resolver: Any = None,
        communication_options: CommunicationOptions | None = None,
    ) -> None:
        options = communication_options
        if options is not None and not isinstance(options, CommunicationOptions):
            raise InvalidValueError(
                "MultiWorkerMirroredStrategy: communication_options must be a "
                f"tf.distribute.experimental.CommunicationOptions, got {options!r}."
            )
        self._resolver = cluster_resolver or TFConfigClusterResolver()
        tasks, addresses, index = _workers(self._resolver)
        self.workers = max(len(tasks), 1)
        if tasks:
            join_cluster(tasks, addresses, index)
        if self.workers > 1:
            devices = sorted(jax.devices(), key=lambda d: (d.process_index, d.id))
        else:
            devices = jax.local_devices()
        self._start(devices)
        self.extended = MultiWorkerExtended(self)
        own = jax.process_index()
        self.local_replicas = [i for i, d in enumerate(devices) if d.process_index == own]

    @property
    def cluster_resolver(self) -> Any:
        """The cluster resolver."""
        return self._resolver

    @property
    def is_chief(self) -> bool:
        """Whether this is the worker that writes checkpoints and logs."""
        return jax.process_index() == 0

    def __repr__(self) -> str:
        devices = f"{self.num_replicas_in_sync} devices"
        return f"<MultiWorkerMirroredStrategy of {devices} on {self.workers} workers>"

    # ---- variables -------------------------------------------------------------------------

    def _create_variable(self, next_creator: Callable[..., Variable], **kwargs: Any) -> Variable:
        if self.workers > 1:
            dtype = kwargs.get("dtype")
            wanted = None if dtype is None else dtypes.as_dtype(dtype)
            array, computed = initial_array(kwargs["initial_value"], wanted)
            # What the program computes is the first replica's value already.
            if computed is None:
                with init_scope():
                    same = self.same_everywhere(np.asarray(array))
                    kwargs["initial_value"] = Tensor(same)
        return super()._create_variable(next_creator, **kwargs)

    def same_everywhere(self, array: np.ndarray) -> np.ndarray:
        """Worker 0's value of an array of equal shapes."""
        return agreed_array(array) if self.workers > 1 else array

    # ---- input -----------------------------------------------------------------------------

    def experimental_distribute_dataset(self, dataset: Any, options: Any = None) -> Any:
        """A dataset whose batches are split over the replicas of all workers.

        With the auto-shard policy `DATA` (and `AUTO`, unless the data come from files) every worker reads
        all data and takes its rows of each batch; with `OFF` and `FILE` each makes its share of every
        batch of what it reads.

        Args:
          dataset: a dataset of batches of the global size.
          options: accepted.

        Returns:
          An iterable of `PerReplica` structures.
        """
        if self.workers == 1:
            return super().experimental_distribute_dataset(dataset, options)
        return WorkerDataset(self, dataset, split=True)

    def distribute_datasets_from_function(self, dataset_fn: Any, options: Any = None) -> Any:
        """A dataset of which every batch goes to one replica.

        Args:
          dataset_fn: called with the `InputContext` of this worker; returns batches of the size of a replica.
          options: accepted.

        Returns:
          An iterable of `PerReplica` structures.
        """
        if self.workers == 1:
            return super().distribute_datasets_from_function(dataset_fn, options)
        context = InputContext(self.workers, jax.process_index(), self.num_replicas_in_sync)
        return WorkerDataset(self, dataset_fn(context), split=False)

    experimental_distribute_datasets_from_function = distribute_datasets_from_function

    def experimental_distribute_values_from_function(self, value_fn: Callable[..., Any]) -> Any:
        """A value for each replica of all workers.

        Args:
          value_fn: called with the `ValueContext` of each replica of this worker.

        Returns:
          A `PerReplica` in the place of each leaf.
        """
        if self.workers == 1:
            return super().experimental_distribute_values_from_function(value_fn)
        count = self.num_replicas_in_sync
        values = [value_fn(ValueContext(i, count)) for i in self.local_replicas]
        return nest.map_structure(
            lambda *parts: self.stacked_from_local(
                [np.asarray(convert_to_tensor(v)) for v in parts]
            ),
            *values,
        )

    def stacked_from_local(self, parts: Sequence[np.ndarray]) -> Stacked:
        """Arrays of this worker's replicas, of one shape on all workers, as a value of all replicas."""
        rank = parts[0].ndim + 1
        sharding = self.batched(rank).sharding()
        shards = [
            jax.device_put(part[None], self._devices[i])
            for part, i in zip(parts, self.local_replicas, strict=True)
        ]
        shape = (self.num_replicas_in_sync, *parts[0].shape)
        return Stacked((Tensor(jax.make_array_from_single_device_arrays(shape, sharding, shards)),))

    def _onto_devices(self, batch: Any, axis: int) -> Any:
        if self.workers > 1:
            batch = jax.tree.map(lambda array: self._agreed(array, axis), batch)
        return super()._onto_devices(batch, axis)

    def _agreed(self, array: Any, axis: int) -> Any:
        """An array that is the same on all workers, unless each will read its own rows only."""
        if _is_placed(array) or array.dtype == object:
            return array
        array = np.asarray(array)
        if array.ndim <= axis or array.shape[axis] % self.num_replicas_in_sync:
            array = self.same_everywhere(array)
        return array

    def as_one_batch(self, value: Any) -> Any:
        """The replicas' batches as one global batch on the devices."""
        if isinstance(value, Stacked):
            return _merged(value.stacked._value, self.batched(value.stacked.ndim - 1))
        if isinstance(value, PerReplica):
            array = np.concatenate([np.asarray(v) for v in value.values])
            return put(array, self.replicated(array.ndim))
        return value

    # ---- bringing values together ----------------------------------------------------------

    def reduce(self, reduce_op: Any, value: Any, axis: Any = None) -> Any:
        """Sum or mean of the values of all workers' replicas; see `Strategy.reduce`.

        Args:
          reduce_op: `ReduceOp` or its name.
          value: a value of replicas.
          axis: an axis, or several, to reduce within each replica too.
        """
        if self.workers == 1:
            return super().reduce(reduce_op, value, axis)
        mean = ReduceOp.parse(reduce_op) is ReduceOp.MEAN
        reducer = reduce_mean if mean else reduce_sum

        def reduced(leaf: Any) -> Any:
            whole = stack(leaf.values) if _is_plain(leaf) else leaf
            if not isinstance(whole, Stacked):
                return Strategy.reduce(self, reduce_op, leaf, axis)
            stacked = divisible(whole.stacked) if mean else whole.stacked
            return reducer(stacked, replica_axes(axis))

        return map_replicas(reduced, value)

    def gather(self, value: Any, axis: int) -> Any:
        """The values of all workers' replicas joined along an axis, on every worker.

        Args:
          value: what `run` returned.
          axis: the axis.
        """
        if self.workers == 1:
            return super().gather(value, axis)

        def joined(leaf: Any) -> Any:
            if not isinstance(leaf, Stacked):
                return Strategy.gather(self, leaf, axis)
            whole = leaf.stacked
            if (
                not isinstance(whole._value, jax.core.Tracer)
                and not whole._value.is_fully_addressable
            ):
                whole = Tensor(replicated(whole._value))
            return apply(_join, (whole,), (int(axis),))

        return map_replicas(joined, value)

    def experimental_local_results(self, value: Any) -> tuple[Any, ...]:
        """This worker's replicas' values as a tuple.

        Args:
          value: what `run` returned.
        """
        if isinstance(value, SyncOnReadVariable) and self.workers > 1:
            value = Stacked((value._stacked.value(),))
        if self.workers == 1 or not isinstance(value, PerReplica):
            return super().experimental_local_results(value)
        if isinstance(value, Stacked):
            return tuple(_rows(value.stacked, self.local_replicas))
        return tuple(value.values[i] for i in self.local_replicas)

    unwrap = experimental_local_results


def _is_plain(leaf: Any) -> bool:
    return isinstance(leaf, PerReplica) and not isinstance(leaf, Stacked)


def _is_placed(array: Any) -> bool:
    return isinstance(array, jax.Array) and not array.is_fully_addressable


def _rows(stacked: Tensor, numbers: Sequence[int]) -> list[Tensor]:
    """This worker's rows of a tensor whose first axis goes over the replicas."""
    array: Any = stacked._value
    if isinstance(array, jax.core.Tracer) or array.is_fully_addressable:
        return [stacked[i] for i in numbers]
    found: dict[int, Any] = {}
    for shard in array.addressable_shards:
        first = shard.index[0].start or 0
        found.update(enumerate(np.asarray(shard.data), first))
    return [Tensor(jnp.asarray(found[i])) for i in numbers]


def _joined(operands: Any, static: tuple[Any, ...]) -> Any:
    (stacked,) = operands
    rank = stacked.ndim - 1
    axis = static[0] % rank
    moved = jnp.moveaxis(stacked, 0, axis)
    shape = list(stacked.shape[1:])
    shape[axis] *= stacked.shape[0]
    return moved.reshape(shape)


_join = Op("gather_replicas", _joined)


def _merged(array: Any, layout: Layout) -> Any:
    """[replicas, n, ...] as [replicas * n, ...]: rows stay where they are."""
    key = array.shape, array.dtype, layout
    if key not in _mergers:
        shape = (array.shape[0] * array.shape[1], *array.shape[2:])
        _mergers[key] = jax.jit(lambda a: a.reshape(shape), out_shardings=layout.sharding())
    return _mergers[key](array)


_mergers: dict[Any, Any] = {}


def _workers(resolver: Any) -> tuple[list[str], list[str], int]:
    """Names and addresses of the workers, and this one's number; nothing for a single process."""
    spec = resolver.cluster_spec()
    spec = spec.as_dict() if hasattr(spec, "as_dict") else dict(spec or {})
    if resolver.task_type in ("evaluator", "ps"):
        return [], [], 0
    known = {job: _numbered(spec[job]) for job in _JOBS if job in spec}
    tasks = [f"{job}:{i}" for job, found in known.items() for i in found]
    addresses = [str(a) for found in known.values() for a in found.values()]
    if len(tasks) < 2 and not os.environ.get(COORDINATOR):
        return [], [], 0
    me = f"{resolver.task_type}:{resolver.task_id}"
    if me not in tasks:
        raise InvalidValueError(
            f"MultiWorkerMirroredStrategy: this process is task {me}, which is not one of the cluster's "
            f'workers {tasks}. TF_CONFIG must say "task": {{"type": "worker", "index": ...}}.'
        )
    return tasks, addresses, tasks.index(me)


def _numbered(tasks: Any) -> dict[int, Any]:
    """The addresses of a job by the numbers of its tasks."""
    return dict(sorted(tasks.items())) if isinstance(tasks, dict) else dict(enumerate(tasks))
