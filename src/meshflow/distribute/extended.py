"""`Strategy.extended`: the methods of a strategy for library code."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

from meshflow.core.runtime.errors import InvalidValueError
from meshflow.distribute.replicas.context import (
    ReplicaContext,
    ReplicaStrategy,
    context_stack,
)
from meshflow.environment.types import PyTree
from meshflow.placement.mesh import get_device_name

if TYPE_CHECKING:
    import jax

    from meshflow.core.values.tensor import Tensor
    from meshflow.core.variables.sharded_variable import ShardedVariable
    from meshflow.core.variables.variable import Variable
    from meshflow.distribute.replicas.collectives import ReduceOp


class ExtendedStrategy(ReplicaStrategy, Protocol):
    """Interface of a strategy that `StrategyExtended` uses."""

    @property
    def _devices(self) -> Sequence[jax.Device]: ...

    is_default: bool

    def reduce(self, reduce_op: ReduceOp | str, value: PyTree, axis: int | None) -> PyTree:
        """See `Strategy.reduce`."""

    def run(self, fn: Callable[..., PyTree], args: PyTree = (), kwargs: PyTree = None) -> PyTree:
        """See `Strategy.run`."""


class StrategyExtended:
    """Less used methods of a strategy, available as `Strategy.extended`.

    Example:
      >>> strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
      >>> strategy.extended.parameter_devices[0].endswith("CPU:0")
      True
    """

    experimental_require_static_shapes = False

    def __init__(self, strategy: ExtendedStrategy) -> None:
        self._strategy = strategy

    def _in_multi_worker_mode(self) -> bool:
        """Return whether several workers run the program; libraries call this private method."""
        return False

    @property
    def should_checkpoint(self) -> bool:
        """Check whether this worker writes checkpoints."""
        return True

    @property
    def should_save_summary(self) -> bool:
        """Check whether this worker writes summaries."""
        return self.should_checkpoint

    @property
    def worker_devices(self) -> tuple[str, ...]:
        """Return the names of the devices of the replicas."""
        return tuple(get_device_name(d) for d in self._strategy._devices)

    parameter_devices = worker_devices

    def reduce_to(
        self,
        reduce_op: ReduceOp | str,
        value: PyTree,
        destinations: object = None,
        options: object = None,
    ) -> PyTree:
        """Reduce a value over the replicas, like `Strategy.reduce`.

        Args:
          reduce_op: `ReduceOp` or its name.
          value: Per-replica value.
          destinations: Ignored.
          options: Ignored.
        """
        return self._strategy.reduce(reduce_op, value, axis=None)

    def batch_reduce_to(
        self,
        reduce_op: ReduceOp | str,
        value_destination_pairs: Iterable[tuple[PyTree, object]],
        options: object = None,
    ) -> list[PyTree]:
        """Reduce several values over the replicas."""
        return [self.reduce_to(reduce_op, v, d) for v, d in value_destination_pairs]

    def update(
        self,
        var: Variable,
        fn: Callable[..., PyTree],
        args: PyTree = (),
        kwargs: PyTree = None,
        group: bool = True,
    ) -> PyTree:
        """Call `fn(var, *args, **kwargs)` to update a variable."""
        return fn(var, *args, **(kwargs or {}))

    def read_var(self, v: Variable) -> Tensor:
        """Return the value of a variable, with the values of replicas merged."""
        return v.read_value()

    def variable_created_in_scope(self, v: object) -> bool:
        """Check whether a variable was created in this strategy's scope."""
        return getattr(v, "_distribute_strategy", None) is self._strategy

    def _replica_ctx_all_reduce(
        self, reduce_op: ReduceOp | str, value: PyTree, options: object = None
    ) -> PyTree:
        """Reduce a value of the current replica; libraries call this private method."""
        current = context_stack.entries[-1] if context_stack.entries else None
        replica = current if isinstance(current, ReplicaContext) else ReplicaContext(self._strategy)
        return replica.all_reduce(reduce_op, value, options)

    def call_for_each_replica(
        self, fn: Callable[..., PyTree], args: PyTree = (), kwargs: PyTree = None
    ) -> PyTree:
        """Call `Strategy.run`."""
        return self._strategy.run(fn, args, kwargs)

    def value_container(self, value: PyTree) -> PyTree:
        """Return the value itself."""
        return value

    @contextmanager
    def colocate_vars_with(
        self, colocate_with_variable: Variable | ShardedVariable
    ) -> Iterator[None]:
        """Create variables on the devices of another variable, if devices differ between variables.

        Args:
          colocate_with_variable: Variable of this strategy.

        Raises:
          ValueError: If the argument is no variable of this strategy.
        """
        strategy = self._strategy
        if strategy.is_default:
            yield
            return
        if not self.variable_created_in_scope(colocate_with_variable):
            raise InvalidValueError(
                "`colocate_vars_with` must only be passed a variable created in this tf.distribute.Strategy.scope(), not: "
                f"{colocate_with_variable!r}"
            )
        with colocate_with_variable._colocation_scope():
            yield
