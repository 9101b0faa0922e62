"""`Strategy.extended`: what library code asks of a strategy."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from meshflow.core.runtime.errors import InvalidValueError
from meshflow.placement.mesh import device_name

__all__ = ["StrategyExtended"]


class Extended(Protocol):
    """What is asked of the strategy."""

    _devices: Any

    @property
    def _is_default(self) -> bool: ...

    def reduce(self, reduce_op: Any, value: Any, axis: Any) -> Any:
        """See `Strategy.reduce`."""

    def run(self, fn: Callable[..., Any], args: Any = (), kwargs: Any = None) -> Any:
        """See `Strategy.run`."""


class StrategyExtended:
    """The less used part of a strategy, `Strategy.extended`.

    Args:
      strategy: the strategy.

    Example:
      >>> import meshflow as tf
      >>> strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
      >>> strategy.extended.parameter_devices[0].endswith("CPU:0")
      True
    """

    experimental_require_static_shapes = False

    def __init__(self, strategy: Extended) -> None:
        self._strategy = strategy

    @property
    def worker_devices(self) -> tuple[str, ...]:
        """Names of the devices that replicas run on."""
        return tuple(device_name(d) for d in self._strategy._devices)

    parameter_devices = worker_devices

    def reduce_to(
        self, reduce_op: Any, value: Any, destinations: Any = None, options: Any = None
    ) -> Any:
        """`Strategy.reduce` over replicas.

        Args:
          reduce_op: `ReduceOp` or its name.
          value: a value of replicas.
          destinations: accepted.
          options: accepted.
        """
        return self._strategy.reduce(reduce_op, value, axis=None)

    def batch_reduce_to(
        self, reduce_op: Any, value_destination_pairs: Any, options: Any = None
    ) -> list[Any]:
        """`reduce_to` of several values.

        Args:
          reduce_op: `ReduceOp` or its name.
          value_destination_pairs: pairs (value, destination).
          options: accepted.
        """
        return [self.reduce_to(reduce_op, v, d) for v, d in value_destination_pairs]

    def update(
        self,
        var: Any,
        fn: Callable[..., Any],
        args: Any = (),
        kwargs: Any = None,
        group: bool = True,
    ) -> Any:
        """Calls `fn(var, *args, **kwargs)` to update a variable.

        Args:
          var: the variable.
          fn: the function.
          args: its arguments.
          kwargs: its keyword arguments.
          group: accepted.
        """
        return fn(var, *args, **(kwargs or {}))

    def variable_created_in_scope(self, v: Any) -> bool:
        """Whether a variable was made in this strategy's scope.

        Args:
          v: the variable.
        """
        return getattr(v, "_distribute_strategy", None) is self._strategy

    def call_for_each_replica(
        self, fn: Callable[..., Any], args: Any = (), kwargs: Any = None
    ) -> Any:
        """`Strategy.run`.

        Args:
          fn: the function.
          args: its arguments.
          kwargs: its keyword arguments.
        """
        return self._strategy.run(fn, args, kwargs)

    def value_container(self, value: Any) -> Any:
        """The value itself.

        Args:
          value: a value.
        """
        return value

    @contextmanager
    def colocate_vars_with(self, colocate_with_variable: Any) -> Iterator[None]:
        """Variables made inside are where another one is, as far as that differs by variable.

        Args:
          colocate_with_variable: a variable of this strategy.

        Raises:
          ValueError: for anything else.
        """
        strategy = self._strategy
        if strategy._is_default:
            yield
            return
        if not self.variable_created_in_scope(colocate_with_variable):
            raise InvalidValueError(
                "`colocate_vars_with` must only be passed a variable created in this tf.distribute.Strategy.scope(), not: "
                f"{colocate_with_variable!r}"
            )
        with colocate_with_variable._beside():
            yield
