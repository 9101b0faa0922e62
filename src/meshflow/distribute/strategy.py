"""Strategies: on which devices a program's replicas run, and what is common to them.

The strategies here have one replica. Everything a program asks of a strategy is there, with the
meaning it has for one replica; more replicas are refused when a strategy is made.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from meshflow.core.config import list_logical_devices
from meshflow.core.devices import device as placed_on
from meshflow.distribute.values import PerReplica, local_results, reduced, reduction

_SINGLE = (
    "training on several devices is not available yet. Give one device, as in "
    "tf.distribute.MirroredStrategy(['/cpu:0'])."
)


class _Current(threading.local):
    def __init__(self) -> None:
        self.strategies: list[Strategy] = []
        self.replicas: list[ReplicaContext | None] = []


_current = _Current()


class InputContext:
    """What an input function may need to know.

    Args:
      num_input_pipelines: number of pipelines.
      input_pipeline_id: number of this one.
      num_replicas_in_sync: number of replicas.
    """

    def __init__(
        self,
        num_input_pipelines: int = 1,
        input_pipeline_id: int = 0,
        num_replicas_in_sync: int = 1,
    ) -> None:
        self.num_input_pipelines = num_input_pipelines
        self.input_pipeline_id = input_pipeline_id
        self.num_replicas_in_sync = num_replicas_in_sync

    def get_per_replica_batch_size(self, global_batch_size: int) -> int:
        """The batch size of a replica.

        Raises:
          ValueError: when it does not divide.
        """
        if global_batch_size % self.num_replicas_in_sync:
            raise ValueError(
                f"The `global_batch_size` {global_batch_size} is not divisible by `num_replicas_in_sync` "
                f"{self.num_replicas_in_sync}."
            )
        return global_batch_size // self.num_replicas_in_sync


class ValueContext:
    """What a function for values of replicas may need to know."""

    def __init__(self, replica_id_in_sync_group: int = 0, num_replicas_in_sync: int = 1) -> None:
        self.replica_id_in_sync_group = replica_id_in_sync_group
        self.num_replicas_in_sync = num_replicas_in_sync


class InputOptions:
    """Settings of distributed input; accepted."""

    def __init__(
        self,
        experimental_fetch_to_device: bool | None = None,
        experimental_replication_mode: Any = None,
        experimental_place_dataset_on_device: bool = False,
        experimental_per_replica_buffer_size: int = 1,
    ) -> None:
        self.experimental_fetch_to_device = experimental_fetch_to_device
        self.experimental_replication_mode = experimental_replication_mode
        self.experimental_place_dataset_on_device = experimental_place_dataset_on_device
        self.experimental_per_replica_buffer_size = experimental_per_replica_buffer_size


class ReplicaContext:
    """What code of one replica may ask: which it is, and values of all of them.

    Args:
      strategy: the strategy.
      replica_id_in_sync_group: number of the replica.
    """

    def __init__(self, strategy: Strategy, replica_id_in_sync_group: int = 0) -> None:
        self._strategy = strategy
        self._replica = replica_id_in_sync_group

    @property
    def strategy(self) -> Strategy:
        """The strategy."""
        return self._strategy

    @property
    def num_replicas_in_sync(self) -> int:
        """Number of replicas."""
        return self._strategy.num_replicas_in_sync

    @property
    def replica_id_in_sync_group(self) -> int:
        """Number of this replica."""
        return self._replica

    @property
    def devices(self) -> tuple[str, ...]:
        """The replica's devices."""
        return self._strategy._devices[self._replica : self._replica + 1]

    def all_reduce(self, reduce_op: Any, value: Any, options: Any = None) -> Any:
        """The sum or mean of all replicas' values.

        Args:
          reduce_op: a `ReduceOp` or its name.
          value: a tensor or structure of tensors.
          options: accepted.
        """
        from meshflow.core import nest

        op = reduction(reduce_op)
        return nest.map_structure(lambda v: reduced(op, v, None), value)

    def all_gather(self, value: Any, axis: int, options: Any = None) -> Any:
        """All replicas' values, one after the other along an axis.

        Args:
          value: a tensor or structure of tensors.
          axis: the axis.
          options: accepted.
        """
        from meshflow.core import nest
        from meshflow.core.convert import convert_to_tensor

        return nest.map_structure(convert_to_tensor, value)

    def merge_call(self, merge_fn: Callable[..., Any], args: Any = (), kwargs: Any = None) -> Any:
        """Calls a function once for all replicas, in cross-replica context.

        Args:
          merge_fn: given the strategy, then the arguments.
          args: its arguments.
          kwargs: further arguments.
        """
        with _entered(self._strategy, None):
            return merge_fn(self._strategy, *args, **(kwargs or {}))

    def __enter__(self) -> ReplicaContext:
        _current.strategies.append(self._strategy)
        _current.replicas.append(self)
        return self

    def __exit__(self, *_: Any) -> None:
        _current.strategies.pop()
        _current.replicas.pop()


@contextlib.contextmanager
def _entered(strategy: Strategy, replica: ReplicaContext | None) -> Iterator[Any]:
    _current.strategies.append(strategy)
    _current.replicas.append(replica)
    try:
        yield strategy
    finally:
        _current.strategies.pop()
        _current.replicas.pop()


class Extended:
    """What `strategy.extended` offers."""

    def __init__(self, strategy: Strategy) -> None:
        self._strategy = strategy

    @property
    def worker_devices(self) -> tuple[str, ...]:
        """The replicas' devices."""
        return self._strategy._devices

    parameter_devices = worker_devices

    def reduce_to(self, reduce_op: Any, value: Any, destinations: Any, options: Any = None) -> Any:
        """Values of replicas as one."""
        return self._strategy.reduce(reduce_op, value, None)

    def batch_reduce_to(self, reduce_op: Any, pairs: Any, options: Any = None) -> list[Any]:
        """Several values of replicas, each as one."""
        return [self._strategy.reduce(reduce_op, value, None) for value, _ in pairs]

    def update(
        self,
        var: Any,
        fn: Callable[..., Any],
        args: Any = (),
        kwargs: Any = None,
        group: bool = True,
    ) -> Any:
        """Calls a function on a variable, where it is."""
        result = fn(var, *[local_results(a)[0] for a in args], **(kwargs or {}))
        return result if group else (result,)

    def colocate_vars_with(self, colocate_with_variable: Any) -> Any:
        """A context in which variables are made where another is."""
        return contextlib.nullcontext()

    def variable_created_in_scope(self, v: Any) -> bool:
        """Whether a variable belongs to the strategy."""
        return True

    @property
    def experimental_require_static_shapes(self) -> bool:
        """Whether shapes must be known."""
        return True


class Strategy:
    """How a program is spread over devices. This one does not: it is what is in force by default.

    Example:
      >>> import meshflow as tf
      >>> strategy = tf.distribute.MirroredStrategy(["/cpu:0"])
      >>> with strategy.scope():
      ...     v = tf.Variable(1.0)
      >>> total = strategy.run(lambda x: v + x, args=(tf.constant(2.0),))
      >>> float(strategy.reduce("SUM", total, axis=None))
      3.0
    """

    def __init__(
        self, devices: Sequence[str] = ("/job:localhost/replica:0/task:0/device:CPU:0",)
    ) -> None:
        self._devices = tuple(devices)
        if len(self._devices) > 1:
            raise NotImplementedError(
                f"{type(self).__name__} was given {len(self._devices)} devices {list(self._devices)}: {_SINGLE}"
            )
        self.extended = Extended(self)

    @property
    def num_replicas_in_sync(self) -> int:
        """Number of replicas."""
        return len(self._devices)

    @contextlib.contextmanager
    def scope(self) -> Iterator[Strategy]:
        """A context in which models and variables are made for the strategy."""
        if _current.strategies and _current.strategies[-1] is not self:
            raise RuntimeError(
                "Mixing different tf.distribute.Strategy objects: "
                f"{type(_current.strategies[-1]).__name__} is in force already."
            )
        with _entered(self, None), self._placed():
            yield self

    def _placed(self) -> Any:
        return contextlib.nullcontext()

    def run(
        self, fn: Callable[..., Any], args: Any = (), kwargs: Any = None, options: Any = None
    ) -> Any:
        """Calls a function on every replica.

        Args:
          fn: the function; AutoGraph converts it inside a `tf.function`.
          args: its arguments; distributed values are taken apart.
          kwargs: further arguments.
          options: accepted.

        Returns:
          The replica's result.
        """
        from meshflow.core.autograph.status import convert_if_enabled

        def own(value: Any) -> Any:
            return local_results(value)[0]

        given = [own(a) for a in args]
        named = {key: own(value) for key, value in (kwargs or {}).items()}
        with ReplicaContext(self), self._placed():
            return convert_if_enabled(fn)(*given, **named)

    experimental_run_v2 = run

    def reduce(self, reduce_op: Any, value: Any, axis: int | None = None) -> Any:
        """Values of replicas as one.

        Args:
          reduce_op: a `ReduceOp` or its name.
          value: what `run` gave.
          axis: an axis of the values to reduce as well; None for none.

        Raises:
          ValueError: for another reduction.
        """
        from meshflow.core import nest

        op = reduction(reduce_op)
        return nest.map_structure(lambda v: reduced(op, v, axis), value)

    def gather(self, value: Any, axis: int) -> Any:
        """Values of replicas, one after the other along an axis.

        Args:
          value: what `run` gave.
          axis: the axis.
        """
        from meshflow.core.convert import convert_to_tensor
        from meshflow.ops import array

        tensors = [convert_to_tensor(v) for v in local_results(value)]
        return tensors[0] if len(tensors) == 1 else array.concat(tensors, axis)

    def experimental_local_results(self, value: Any) -> tuple[Any, ...]:
        """The values of this process' replicas.

        Args:
          value: what `run` gave.
        """
        return local_results(value)

    def experimental_distribute_dataset(self, dataset: Any, options: Any = None) -> Any:
        """A dataset whose batches are divided between the replicas.

        Args:
          dataset: a dataset of global batches.
          options: accepted.
        """
        return dataset

    def distribute_datasets_from_function(
        self, dataset_fn: Callable[[InputContext], Any], options: Any = None
    ) -> Any:
        """A dataset of per-replica batches.

        Args:
          dataset_fn: from an `InputContext` to a dataset.
          options: accepted.
        """
        return dataset_fn(InputContext(1, 0, self.num_replicas_in_sync))

    experimental_distribute_datasets_from_function = distribute_datasets_from_function

    def experimental_distribute_values_from_function(
        self, value_fn: Callable[[ValueContext], Any]
    ) -> Any:
        """Values of replicas.

        Args:
          value_fn: from a `ValueContext` to a replica's value.
        """
        values = [
            value_fn(ValueContext(i, self.num_replicas_in_sync))
            for i in range(self.num_replicas_in_sync)
        ]
        return values[0] if len(values) == 1 else PerReplica(values)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} with {self.num_replicas_in_sync} replica on {self._devices[0]}>"


class OneDeviceStrategy(Strategy):
    """Everything on one device.

    Args:
      device: its name, such as '/gpu:0'.
    """

    def __init__(self, device: str) -> None:
        super().__init__([device])

    def _placed(self) -> Any:
        return placed_on(self._devices[0])


class MirroredStrategy(Strategy):
    """A replica on each of some devices, with equal variables.

    Args:
      devices: names of devices; default all GPUs, or else the CPU's logical devices.
      cross_device_ops: accepted; XLA combines values itself.

    Raises:
      NotImplementedError: for more than one device.
    """

    def __init__(self, devices: Sequence[str] | None = None, cross_device_ops: Any = None) -> None:
        if devices is None:
            found = list_logical_devices("GPU") or list_logical_devices("CPU")
            devices = [d.name for d in found]
        if not devices:
            raise ValueError("Got an empty `devices` list and unable to recognize any devices.")
        super().__init__([devices] if isinstance(devices, str) else devices)
        self._cross_device_ops = cross_device_ops

    def _placed(self) -> Any:
        return placed_on(self._devices[0])


class CentralStorageStrategy(MirroredStrategy):
    """Variables on one device, computation on some.

    Args:
      compute_devices: devices that compute.
      parameter_device: the device of variables.
    """

    def __init__(
        self, compute_devices: Sequence[str] | None = None, parameter_device: str | None = None
    ) -> None:
        super().__init__(compute_devices)
        self._parameter_device = parameter_device


_default = Strategy()


def get_strategy() -> Strategy:
    """The strategy in force; the default one outside of scopes.

    Example:
      >>> import meshflow as tf
      >>> tf.distribute.get_strategy().num_replicas_in_sync
      1
    """
    return _current.strategies[-1] if _current.strategies else _default


def has_strategy() -> bool:
    """Whether a strategy other than the default one is in force."""
    return get_strategy() is not _default


def in_cross_replica_context() -> bool:
    """Whether code runs for all replicas: in a strategy's scope, outside of `run`."""
    return bool(_current.strategies) and _current.replicas[-1] is None


def get_replica_context() -> ReplicaContext | None:
    """The replica whose code runs; None in cross-replica context."""
    if not _current.strategies:
        return ReplicaContext(_default)
    return _current.replicas[-1]


def experimental_set_strategy(strategy: Strategy | None) -> None:
    """Puts a strategy in force, until another or None is set.

    Args:
      strategy: the strategy.
    """
    _current.strategies[:] = [] if strategy is None else [strategy]
    _current.replicas[:] = [] if strategy is None else [None]
